"""Attention: the function, and the shell that owns the projections of its heads."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.linear import Linear, fused, product_float32
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


class LayerCache(NamedTuple):
    """Keys and values of one attention, as attention reads them: key [B, C, K, H], value [B, C, K, Hv]."""

    key: Array
    value: Array


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W^O, head_n = Attention(x W_n^Q, y W_n^K, y W_n^V).

    Vaswani et al. 2017, section 3.2.2. Self-attention is the case y = x. The key bias has no effect on the output
    (it adds the same number to all logits of a query) and so an exactly zero gradient.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        width, bias = (config.emb_dim,), config.use_bias
        self.query = Linear(width, (config.num_heads, config.head_dim), bias)
        self.key = Linear(width, (config.num_kv_heads, config.head_dim), bias)
        self.value = Linear(width, (config.num_kv_heads, config.value_head_dim), bias)
        self.out = Linear((config.num_heads, config.value_head_dim), width, bias)

    def self_projections(self, x: Activations, positions: Positions) -> tuple[Heads, LayerCache]:
        """Queries [B, T, N, H], keys and values of x [B, T, D] itself, rotated if the config says so."""
        query, key, value = fused(x, [self.query, self.key, self.value])
        if self.config.position_encoding == "rotary":
            query = rotary(query, positions, self.config.rotary_base)
            key = rotary(key, positions, self.config.rotary_base)
        return query, LayerCache(key, value)

    def memory_projections(self, memory: Float[Array, "B S D"]) -> LayerCache:
        """Keys and values of what another stack has computed, memory [B, S, D]."""
        return LayerCache(*fused(memory, [self.key, self.value]))

    def attend(
        self, query: Heads, cache: LayerCache, mask: Mask | None, bias: Bias | None, dropout: Dropout | None
    ) -> tuple[Activations, Weights]:
        """Attention and output projection: [B, T, D] and weights [B, N, T, S]."""
        scale = self.config.head_dim**-0.5 if self.config.attention_scale else 1.0
        heads, weights = dot_product_attention(query, cache.key, cache.value, mask, bias, scale, dropout)
        return self.out(heads), weights

    def self_attention(
        self, x: Activations, positions: Positions, mask: Mask | None, bias: Bias | None, dropout: Dropout | None
    ) -> tuple[Activations, Weights]:
        """x [B, T, D] attends to itself: [B, T, D] and weights [B, N, T, T]."""
        query, cache = self.self_projections(x, positions)
        return self.attend(query, cache, mask, bias, dropout)

    def cross_attention(
        self, x: Activations, cache: LayerCache, mask: Mask | None, dropout: Dropout | None
    ) -> tuple[Activations, Weights]:
        """x [B, T, D] attends to projected memory: [B, T, D] and weights [B, N, T, S]."""
        return self.attend(self.query(x), cache, mask, None, dropout)
