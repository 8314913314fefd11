"""Attention: the function, and the shell that owns the projections of its heads."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.attention_kernels import choose, library_attention
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.linear import Linear, fused, product_float32
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.positions import rotary
from transformer_jax.typing import Activations, Array, Bias, Heads, Mask, Positions, Weights


def dot_product_attention(
    query: Heads,
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float = 1.0,
    dropout: Dropout | None = None,
) -> tuple[Float[Array, "B T N Hv"], Weights]:
    """softmax(scale * Q K^T + bias) V for every head (Vaswani et al. 2017, equation 1).

    Query head n reads key/value head n // (N / K) (Ainslie et al. 2023). Logits and softmax are float32. A query
    that may attend to nothing gets zeros, and passes no gradient on.

    Args:
      query: [B, T, N, H].
      key: [B, S, K, H], with K dividing N.
      value: [B, S, K, Hv].
      mask: bool, broadcastable to [B, N, T, S], True = attend.
      bias: float, broadcastable to [B, N, T, S].
      scale: factor of the logits; 1 / sqrt(H) in the paper.
      dropout: drops attention weights.
    Returns: output [B, T, N, Hv] and the weights before dropout [B, N, T, S], both in the type of query.
    """
    batch, length, heads, dim = query.shape
    kv_heads, source = key.shape[2], key.shape[1]
    # Heads that share a key are rows of one matrix product.
    grouped = query.reshape(batch, length, kv_heads, heads // kv_heads, dim)
    logits = product_float32("btkgh,bskh->bkgts", grouped * jnp.asarray(scale, query.dtype), key)
    logits = logits.reshape(batch, heads, length, source)
    if bias is not None:
        logits = logits + bias
    weights = masked_softmax(logits, mask).astype(query.dtype)
    kept = drop(weights, dropout, "attention").reshape(batch, kv_heads, heads // kv_heads, length, source)
    output = jnp.einsum("bkgts,bskh->btkgh", kept, value)
    return output.reshape(batch, length, heads, value.shape[-1]), weights


def masked_softmax(logits: Float[Array, "*batch S"], mask: Bool[Array, "*#batch S"] | None) -> Float[Array, "*batch S"]:
    """Softmax over the last axis among the entries that mask allows; zeros in a row that it allows none.

    Args:
      logits: [..., S] float32; mask: bool, broadcastable to logits.
    """
    if mask is None:
        return jax.nn.softmax(logits, axis=-1)
    # A large finite number instead of -inf: in a row without any allowed entry -inf - -inf would be NaN.
    weights = jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(logits.dtype).min), axis=-1)
    return jnp.where(mask, weights, 0.0)


def _allowed(mask: AttentionMask | None) -> Mask | None:
    return None if mask is None else mask.allowed


class KeysValues(NamedTuple):
    """What one attention attends to: key [B, S, K, H], value [B, S, K, Hv]."""

    key: Array
    value: Array


class LayerCache(NamedTuple):
    """The same as decoding keeps it: key [B * K, H, C], value [B * K, C, Hv].

    In this order both products of a decoding step read memory from front to back, head by head. With slots before
    heads, XLA for CPU turns the whole cache around at every step; with rows and heads on axes of their own it copies
    the cache at every step where there is one row.
    """

    key: Array
    value: Array

    @property
    def capacity(self) -> int:
        return self.value.shape[1]


def cache_layout(tokens: KeysValues) -> LayerCache:
    """Keys and values [B, C, K, .] in the layout of a cache."""
    key, value = tokens.key.transpose(0, 2, 3, 1), tokens.value.transpose(0, 2, 1, 3)
    return LayerCache(key.reshape(-1, *key.shape[2:]), value.reshape(-1, *value.shape[2:]))


def cached_attention(
    query: Heads,
    cache: LayerCache,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float = 1.0,
) -> Float[Array, "B T N Hv"]:
    """`dot_product_attention` over a cache, for the few queries of a decoding step.

    Args:
      query: [B, T, N, H].
      cache: C slots; mask: bool, broadcastable to [B, N, T, C]; bias: float, the same.
    Returns: [B, T, N, Hv] in the type of query.
    """
    batch, length, heads, dim = query.shape
    matrices, capacity = cache.key.shape[0], cache.capacity
    # Heads that share a key are rows of one matrix product.
    rows = (query * jnp.asarray(scale, query.dtype)).transpose(0, 2, 1, 3).reshape(matrices, -1, dim)
    logits = product_float32("mrh,mhc->mrc", rows, cache.key).reshape(batch, heads, length, capacity)
    if bias is not None:
        logits = logits + bias
    weights = masked_softmax(logits, mask).astype(query.dtype)
    output = jnp.einsum("mrc,mch->mrh", weights.reshape(matrices, -1, capacity), cache.value)
    return output.reshape(batch, heads, length, -1).transpose(0, 2, 1, 3)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W^O, head_n = Attention(x W_n^Q, y W_n^K, y W_n^V).

    Vaswani et al. 2017, section 3.2.2. Self-attention is the case y = x. The key bias has no effect on the output
    (it adds the same number to all logits of a query) and so an exactly zero gradient.
    """

    config: ModelConfig
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        width, bias = (config.emb_dim,), config.use_bias
        self.query = Linear(width, (config.num_heads, config.head_dim), bias)
        self.key = Linear(width, (config.num_kv_heads, config.head_dim), bias)
        self.value = Linear(width, (config.num_kv_heads, config.value_head_dim), bias)
        self.out = Linear((config.num_heads, config.value_head_dim), width, bias)

    def self_projections(self, x: Activations, positions: Positions) -> tuple[Heads, KeysValues]:
        """Queries [B, T, N, H], keys and values of x [B, T, D] itself, rotated if the config says so."""
        query, key, value = fused(x, [self.query, self.key, self.value])
        if self.config.position_encoding == "rotary":
            query = rotary(query, positions, self.config.rotary_base)
            key = rotary(key, positions, self.config.rotary_base)
        return query, KeysValues(key, value)

    def memory_projections(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Keys and values of what another stack has computed, memory [B, S, D]."""
        return KeysValues(*fused(memory, [self.key, self.value]))

    def self_attention(
        self,
        x: Activations,
        positions: Positions,
        mask: AttentionMask | None,
        bias: Bias | None,
        dropout: Dropout | None,
    ) -> tuple[Activations, Weights | None]:
        """x [B, T, D] attends to itself: [B, T, D] and, with `return_weights`, weights [B, N, T, T]."""
        query, tokens = self.self_projections(x, positions)
        return self._attend(query, tokens, mask, bias, dropout)

    def cross_attention(
        self, x: Activations, memory: KeysValues, mask: AttentionMask | None, dropout: Dropout | None
    ) -> tuple[Activations, Weights | None]:
        """x [B, T, D] attends to projected memory: [B, T, D] and, with `return_weights`, weights [B, N, T, S]."""
        return self._attend(self.query(x), memory, mask, None, dropout)

    def attend_cache(
        self, query: Heads, cache: LayerCache, mask: AttentionMask | None, bias: Bias | None
    ) -> Activations:
        """Queries [B, T, N, H] attend to what a cache holds: [B, T, D]."""
        return self.out(cached_attention(query, cache, _allowed(mask), bias, self._scale))

    def _attend(
        self,
        query: Heads,
        tokens: KeysValues,
        mask: AttentionMask | None,
        bias: Bias | None,
        dropout: Dropout | None,
    ) -> tuple[Activations, Weights | None]:
        drops = dropout is not None and dropout.rates.attention is not None
        kind = "any" if mask is None else mask.kind
        name = choose(self.config, kind, returns_weights=self.return_weights, drops_weights=drops).name
        if name != "reference":
            return self.out(library_attention(query, *tokens, mask, bias, self._scale, name)), None
        heads, weights = dot_product_attention(query, *tokens, _allowed(mask), bias, self._scale, dropout)
        return self.out(heads), weights if self.return_weights else None

    @property
    def _scale(self) -> float:
        return self.config.head_dim**-0.5 if self.config.attention_scale else 1.0
