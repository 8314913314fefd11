"""The state of incremental decoding: goes into every step and comes out of it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn.attention import KeysValues, LayerCache, cache_layout
from transformer_jax.typing import Array


class KVCache(NamedTuple):
    """Keys and values of all tokens so far, one buffer pair per layer, and where they stand.

    self_attention: L layers of key [B * K, H, C] and value [B * K, C, Hv].
    cross_attention: L layers of the same over the S tokens of the source, computed once per sentence; empty without an
      encoder.
    cross_mask: [B, 1, 1, S] bool, which source positions hold a token; None without an encoder.
    positions: [B, C] int32, the position of the token in every slot, -1 in an empty slot.
    index: int32 scalar, the first free slot.
    """

    self_attention: tuple[LayerCache, ...]
    cross_attention: tuple[LayerCache, ...]
    cross_mask: Array | None
    positions: Array
    index: Array

    @property
    def capacity(self) -> int:
        return self.positions.shape[1]


def empty_layer(config: ModelConfig, batch: int, capacity: int) -> LayerCache:
    """A buffer pair of zeros for one layer."""
    matrices = batch * config.num_kv_heads
    return LayerCache(
        jnp.zeros((matrices, config.head_dim, capacity), config.dtype),
        jnp.zeros((matrices, capacity, config.value_head_dim), config.dtype),
    )


def append(cache: LayerCache, tokens: KeysValues, index: Int[Array, ""]) -> LayerCache:
    """Writes new tokens [B, T, K, .] into the slots from index on."""
    new = cache_layout(tokens)
    return LayerCache(
        jax.lax.dynamic_update_slice_in_dim(cache.key, new.key, index, axis=2),
        jax.lax.dynamic_update_slice_in_dim(cache.value, new.value, index, axis=1),
    )


def grown(cache: KVCache, capacity: int) -> KVCache:
    """The same tokens in a cache with more slots."""
    more = capacity - cache.capacity
    return cache._replace(
        self_attention=tuple(
            LayerCache(
                jnp.pad(layer.key, ((0, 0), (0, 0), (0, more))),
                jnp.pad(layer.value, ((0, 0), (0, more), (0, 0))),
            )
            for layer in cache.self_attention
        ),
        positions=jnp.pad(cache.positions, ((0, 0), (0, more)), constant_values=-1),
    )
