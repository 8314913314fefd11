"""The cache of keys and values of tokens read before, and attention over it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn.linear import product_float32
from transformer_jax.nn.softmax import attention_weights
from transformer_jax.typing import Array, Bias, Heads, Mask


class KeyValue(NamedTuple):
    """Keys and values of one attention: key [B, S, K, H], value [B, S, K, Hv]."""

    key: Array
    value: Array


class LayerCache(NamedTuple):
    """Keys and values of one layer in the layout of decoding: key [B K, H, C], value [B K, C, Hv]."""

    # This layout keeps both products of a decoding step contiguous. With slots before heads, XLA for CPU transposes the
    # whole cache at every step. With separate axes for rows and heads, it copies the cache if there is one row.
    key: Array
    value: Array

    @property
    def capacity(self) -> int:
        """Slots, C."""
        return self.value.shape[1]


class KVCache(NamedTuple):
    """The states of all layers after the tokens so far, and the positions of the tokens.

    layers: of attention, keys and values of the decoder's own tokens, C slots; of another mixer its state, a tree of
    arrays [B, W, ...], with W = 1 before the first step. memory: L caches of the S tokens of the encoder,
    computed once; empty without an encoder. memory_mask: [B, 1, 1, S] bool, True for tokens, False for padding; None
    without an encoder. positions: [B, C] int32, the position of the token in every slot, -1 for an empty slot. index:
    int32 scalar, the first free slot.
    """

    layers: tuple[Any, ...]
    memory: tuple[LayerCache, ...]
    memory_mask: Array | None
    positions: Array
    index: Array

    @property
    def capacity(self) -> int:
        """Slots, C."""
        return self.positions.shape[1]


def cache_layout(tokens: KeyValue) -> LayerCache:
    """Return keys and values [B, C, K, .] in the layout of a cache."""
    key = tokens.key.transpose(0, 2, 3, 1)  # [B, C, K, H] -> [B, K, H, C]
    value = tokens.value.transpose(0, 2, 1, 3)  # [B, C, K, Hv] -> [B, K, C, Hv]
    return LayerCache(key.reshape(-1, *key.shape[2:]), value.reshape(-1, *value.shape[2:]))


def empty_layer(config: ModelConfig, batch: int, capacity: int) -> LayerCache:
    """Return the cache of one layer, filled with zeros."""
    matrices = batch * config.num_kv_heads
    return LayerCache(
        jnp.zeros((matrices, config.head_dim, capacity), config.dtype),
        jnp.zeros((matrices, capacity, config.value_head_dim), config.dtype),
    )


def append(cache: LayerCache, tokens: KeyValue, index: Int[Array, ""]) -> LayerCache:
    """Return the cache with new tokens [B, T, K, .] in T slots, the first at index."""
    new = cache_layout(tokens)
    return LayerCache(
        jax.lax.dynamic_update_slice_in_dim(cache.key, new.key, index, axis=2),
        jax.lax.dynamic_update_slice_in_dim(cache.value, new.value, index, axis=1),
    )


def grown(cache: KVCache, capacity: int) -> KVCache:
    """Return the same tokens in a cache with more slots; states without slots stay as they are."""
    more = capacity - cache.capacity
    return cache._replace(
        layers=tuple(
            LayerCache(
                jnp.pad(layer.key, ((0, 0), (0, 0), (0, more))),
                jnp.pad(layer.value, ((0, 0), (0, more), (0, 0))),
            )
            if isinstance(layer, LayerCache)
            else layer
            for layer in cache.layers
        ),
        positions=jnp.pad(cache.positions, ((0, 0), (0, more)), constant_values=-1),
    )


def cached_attention(
    query: Heads,
    cache: LayerCache,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float = 1.0,
    cap: float | Float[Array, ""] | None = None,
    sinks: Float[Array, " N"] | None = None,
) -> Float[Array, "B T N Hv"]:
    """Return the output of attention over a cache; equals `attention.dot_product_attention` over its tokens.

    Args:
      query: [B, T, N, H].
      cache: C slots; mask: bool, bias: float; both broadcastable to [B, N, T, C]. cap, sinks: see `attention_weights`.
    Returns: [B, T, N, Hv] in the type of query.
    """
    batch, length, heads, dim = query.shape
    matrices, capacity = cache.key.shape[0], cache.capacity  # M = B K
    rows = (query * jnp.asarray(scale, query.dtype)).transpose(0, 2, 1, 3)  # [B, T, N, H] -> [B, N, T, H]
    rows = rows.reshape(matrices, -1, dim)  # [B, K G, T, H] -> [M, G T, H]: queries that share a key
    logits = product_float32("mrh,mhc->mrc", rows, cache.key)  # r: G T
    logits = logits.reshape(batch, heads, length, capacity)  # [B, N, T, C]
    weights = attention_weights(logits, mask, bias, cap, sinks).astype(query.dtype)
    output = jnp.einsum("mrc,mcv->mrv", weights.reshape(matrices, -1, capacity), cache.value)
    return output.reshape(batch, heads, length, -1).transpose(0, 2, 1, 3)  # [B, N, T, Hv] -> [B, T, N, Hv]
