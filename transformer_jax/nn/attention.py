"""Attention: the function, and the module that owns the projections of its heads."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.attention_kernels import choose, library_attention
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.initialisation import kernel_init, query_init, residual_kernel_init
from transformer_jax.nn.kv_cache import KeyValue, LayerCache, cached_attention
from transformer_jax.nn.layer_values import EQUAL, LayerValues
from transformer_jax.nn.linear import Linear, fused, product_float32
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.positions import ENCODINGS
from transformer_jax.nn.softmax import masked_softmax
from transformer_jax.typing import Activations, Array, Bias, Heads, Mask, Positions, Weights


class Attended(NamedTuple):
    """The output of an attention, and its weights [B, N, T, S] before dropout; None if they were not asked for."""

    output: Array
    weights: Weights | None


class Projected(NamedTuple):
    """Queries [B, T, N, H] of some tokens, and their keys and values."""

    query: Heads
    key_value: KeyValue


def dot_product_attention(
    query: Heads,
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K Hv"],
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float = 1.0,
    dropout: Dropout | None = None,
) -> Attended:
    """Return softmax(scale * Q K^T + bias) V for every head (Vaswani et al. 2017, equation 1).

    Query head n reads key/value head n // G, G = N / K (Ainslie et al. 2023). Logits and softmax are float32. A query
    that may attend to nothing gets zeros, and its gradient is zero.

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
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    # One matrix product for every row and key head, whose operands lie together in memory: XLA's CPU compiler computes
    # it faster than a product of arrays with the heads between tokens and features.
    queries = (query * jnp.asarray(scale, query.dtype)).reshape(B, T, K, N // K, H)
    queries = jnp.moveaxis(queries, 1, 3).reshape(B, K, N // K * T, H)  # [B, T, K, G, H] -> [B, K, G T, H]
    logits = product_float32("bkqh,bksh->bkqs", queries, jnp.swapaxes(key, 1, 2)).reshape(B, N, T, S)
    if bias is not None:
        logits = logits + bias
    weights = masked_softmax(logits, mask).astype(query.dtype)  # [B, N, T, S]
    kept = drop(weights, dropout, "attention").reshape(B, K, N // K * T, S)
    output = kept @ jnp.swapaxes(value, 1, 2)  # [B, K, G T, Hv]
    output = jnp.moveaxis(output.reshape(B, K, N // K, T, value.shape[-1]), 3, 1)  # [B, T, K, G, Hv]
    return Attended(output.reshape(B, T, N, value.shape[-1]), weights)


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W^O, head_n = Attention(x W_n^Q, y W_n^K, y W_n^V).

    Vaswani et al. 2017, section 3.2.2. Self-attention is the case y = x. The key bias adds the same number to
    all logits of a query. So it has no effect on the output, and its gradient is exactly zero.

    num_sums: number of residual sums of the stack; initial values of the output projection may depend on it.
    """

    config: ModelConfig
    num_sums: int
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        width, bias, init = (config.emb_dim,), config.use_bias, kernel_init(config)
        self.query = Linear(width, (config.num_heads, config.head_dim), bias, query_init(config))
        self.key = Linear(width, (config.num_kv_heads, config.head_dim), bias, init)
        self.value = Linear(width, (config.num_kv_heads, config.value_head_dim), bias, init)
        residual_init = residual_kernel_init(config, self.num_sums)
        self.out = Linear((config.num_heads, config.value_head_dim), width, bias, residual_init)

    def project(self, x: Activations, positions: Positions, values: LayerValues = EQUAL) -> Projected:
        """Return queries [B, T, N, H], keys and values of x [B, T, D]; rotated with rotary positions.

        Args:
          values: of this layer, where the layers differ.
        """
        config = self.config
        query, key, value = fused(x, [self.query, self.key, self.value])
        rotate = ENCODINGS[config.position_encoding].rotate
        if rotate is not None and (config.attention_rotates or values.rotates is not None):
            base = config.rotary_base if values.rotary_base is None else values.rotary_base
            # At position 0 nothing is rotated.
            places = positions if values.rotates is None else positions * values.rotates
            query, key = rotate(query, places, base), rotate(key, places, base)
        return Projected(query, KeyValue(key, value))

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Return keys and values of another stack's output, memory [B, S, D]."""
        return KeyValue(*fused(memory, [self.key, self.value]))

    def attend(
        self,
        query: Heads,
        tokens: KeyValue | LayerCache,
        mask: AttentionMask | None,
        bias: Bias | None,
        dropout: Dropout | None,
    ) -> Attended:
        """Let queries attend to tokens: those of their own sequence, of a memory, or of a cache.

        Args:
          query: [B, T, N, H]; tokens: S keys and values, or C slots of a cache; bias: broadcastable to [B, N, T, S].
        Returns: [B, T, D] and, with `return_weights`, weights [B, N, T, S]; None for a cache.
        """
        allowed = None if mask is None else mask.allowed
        scale = self.config.head_dim**-0.5 if self.config.attention_scale else 1.0
        if isinstance(tokens, LayerCache):
            return Attended(self.out(cached_attention(query, tokens, allowed, bias, scale)), None)
        kernel = choose(
            self.config,
            "none" if mask is None else mask.kind,
            returns_weights=self.return_weights,
            drops_weights=dropout is not None and dropout.rates.attention is not None,
        ).name
        if kernel != "reference":
            return Attended(self.out(library_attention(query, *tokens, mask, bias, scale, kernel)), None)
        heads, weights = dot_product_attention(query, *tokens, allowed, bias, scale, dropout)
        return Attended(self.out(heads), weights if self.return_weights else None)


PARAMETER_AXES = {
    "(query|key|value)/kernel": ("emb", "heads", None),
    "(query|key|value)/bias": ("heads", None),
    "out/kernel": ("heads", None, "emb"),
    "out/bias": (None,),
}
"""Logical axes of the parameters of `MultiHeadAttention`, by the end of their paths; see parallel/rules.py."""
