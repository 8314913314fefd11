"""The state of incremental decoding: goes into every step and comes out of it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn.attention import LayerCache
from transformer_jax.typing import Array


class KVCache(NamedTuple):
    """Keys and values of all tokens so far, one buffer pair per layer, and where they stand.

    self_attention: L layers of key [B, C, K, H] and value [B, C, K, Hv].
    cross_attention: L layers of the same over the source, computed once per sentence; empty without an encoder.
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
    shape = (batch, capacity, config.num_kv_heads)
    return LayerCache(
        jnp.zeros((*shape, config.head_dim), config.dtype), jnp.zeros((*shape, config.value_head_dim), config.dtype)
    )


def append(cache: LayerCache, new: LayerCache, index: Int[Array, ""]) -> LayerCache:
    """Writes new tokens [B, T, K, .] into the slots from index on."""
    return LayerCache(
        *(jax.lax.dynamic_update_slice_in_dim(old, n, index, axis=1) for old, n in zip(cache, new, strict=True))
    )
