"""Attention: the function, and the module that owns the projections of its heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.attention_kernels import choose, library_attention
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, drop, fold_dropout
from transformer_jax.nn.initialisation import kernel_init, query_init, residual_kernel_init
from transformer_jax.nn.kv_cache import KeyValue, LayerCache, append, cached_attention
from transformer_jax.nn.layer_inputs import LayerInputs, LayerState, Mixed, Site
from transformer_jax.nn.layer_values import EQUAL, LayerValues, value_in
from transformer_jax.nn.linear import Linear, fused, product_float32
from transformer_jax.nn.masks import AttentionMask, window_mask
from transformer_jax.nn.monitored import Largest, is_monitored, mean_over_tokens, monitor
from transformer_jax.nn.norms import HeadNorm, rms_norm
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


QK_NORMS: dict[str, Callable[[Array, Array, float], Array] | None] = {"none": None, "rms": rms_norm}
"""By the values of `model.qk_norm`: functions of (queries or keys, gains, epsilon)."""


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W^O, head_n = Attention(x W_n^Q, y W_n^K, y W_n^V).

    Vaswani et al. 2017, section 3.2.2. Self-attention is the case y = x. The key bias adds the same number to
    all logits of a query. So it has no effect on the output, and its gradient is exactly zero; but not with `qk_norm`,
    which normalises queries and keys (Dehghani et al. 2023, section 2.2; with RMSNorm per head, Qwen3 and Gemma 3).

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
        if (norm := QK_NORMS[config.qk_norm]) is not None:
            self.query_norm = HeadNorm(config.head_dim, config.norm_epsilon, norm, config.norm_scale)
            self.key_norm = HeadNorm(config.head_dim, config.norm_epsilon, norm, config.norm_scale)
        residual_init = residual_kernel_init(config, self.num_sums)
        self.out = Linear((config.num_heads, config.value_head_dim), width, bias, residual_init)

    def project(self, x: Activations, positions: Positions, values: LayerValues = EQUAL) -> Projected:
        """Return queries [B, T, N, H], keys and values of x [B, T, D]; rotated with rotary positions.

        Args:
          values: of this layer, where the layers differ.
        """
        config = self.config
        query, key, value = fused(x, [self.query, self.key, self.value])
        query, key = self._query(query), self._key(key)
        rotate = ENCODINGS[config.position_encoding].rotate
        rotates = value_in(config, values, "attention_rotates")
        if rotate is not None and rotates is not False:
            base = value_in(config, values, "rotary_base")
            places = positions if rotates is True else positions * rotates  # at position 0 nothing is rotated
            query, key = rotate(query, places, base), rotate(key, places, base)
        return Projected(query, KeyValue(key, value))

    def project_query(self, x: Activations) -> Heads:
        """Return queries [B, T, N, H] of x [B, T, D] to another stack's output."""
        return self._query(self.query(x))

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Return keys and values of another stack's output, memory [B, S, D]."""
        key, value = fused(memory, [self.key, self.value])
        return KeyValue(self._key(key), value)

    def _query(self, query: Heads) -> Heads:
        """Return queries as the logits read them, but for the rotation."""
        return query if QK_NORMS[self.config.qk_norm] is None else self.query_norm(query)

    def _key(self, key: Float[Array, "B S K H"]) -> Float[Array, "B S K H"]:
        """Return keys as `_query` returns queries."""
        return key if QK_NORMS[self.config.qk_norm] is None else self.key_norm(key)

    def attend(
        self,
        query: Heads,
        tokens: KeyValue | LayerCache,
        mask: AttentionMask | None,
        bias: Bias | None,
        dropout: Dropout | None,
        is_token: Bool[Array, "B T"] | None = None,
        first: Bool[Array, "#B S"] | None = None,
    ) -> Attended:
        """Let queries attend to tokens: those of their own sequence, of a memory, or of a cache.

        Args:
          query: [B, T, N, H]; tokens: S keys and values, or C slots of a cache; bias: broadcastable to [B, N, T, S].
          is_token, first: of a monitored step; the queries that count, and the first keys of texts (`_monitor`).
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
        weights = None
        if kernel != "reference":
            heads = library_attention(query, *tokens, mask, bias, scale, kernel)
        else:
            heads, weights = dot_product_attention(query, *tokens, allowed, bias, scale, dropout)
        if is_monitored(self):
            if weights is None:
                weights = dot_product_attention(query, *tokens, allowed, bias, scale).weights
            assert weights is not None, "the reference returns its weights"
            keys = jnp.repeat(tokens.key, query.shape[2] // tokens.key.shape[2], axis=2)  # [B, S, N, H]
            logits = scale * product_float32("btnh,bsnh->bnts", query, keys) + (0.0 if bias is None else bias)
            self._monitor(*jax.lax.stop_gradient((logits, weights)), allowed, is_token, first)
        return Attended(self.out(heads), weights if self.return_weights else None)

    def _monitor(
        self,
        logits: Float[Array, "B N T S"],
        weights: Weights,
        allowed: Mask | None,
        is_token: Bool[Array, "B T"] | None,
        first: Bool[Array, "#B S"] | None,
    ) -> None:
        """Store the largest logit, and the means over heads of entropy and weight on the first key of a text.

        Queries that are no tokens, or that may attend to nothing, do not count.

        Args:
          allowed: as in `AttentionMask`; None: all pairs. first: the first keys of texts; None: the first key that a
            query may attend to.
        """
        B, _, T, S = logits.shape
        pairs = jnp.broadcast_to(True if allowed is None else allowed, (B, 1, T, S))
        if is_token is not None:
            pairs = pairs & is_token[:, None, :, None]
        monitor(self, "largest_logit", Largest(jnp.where(pairs, logits, -jnp.inf).max()))
        weights = weights.astype(jnp.float32)
        counted = pairs.any(-1)[:, 0]  # [B, T]
        monitor(self, "entropy", mean_over_tokens(entr(weights).sum(-1).mean(1), counted))
        is_first = pairs & (jnp.cumsum(pairs, -1) == 1) if first is None else first[:, None, None]
        on_first = jnp.where(is_first, weights, 0.0).sum(-1).mean(1)
        monitor(self, "first_weight", mean_over_tokens(on_first, counted))


class SelfAttention(MultiHeadAttention):
    """Attention of tokens to their own sequence, as a mixer of a layer; see `mixers.Mixer`."""

    def __call__(self, x: Activations, inputs: LayerInputs, dropout: Dropout | None, values: LayerValues) -> Mixed:
        """Map x [B, T, D] to [B, T, D].

        Args:
          dropout: of the layer. values: of the layer, where the layers of the stack differ.
        """
        query, tokens = self.project(x, inputs.positions, values)
        output, weights = self.attend(
            query,
            tokens,
            self._mask(inputs, values),
            inputs.bias,
            fold_dropout(dropout, Site.SELF_ATTENTION_WEIGHTS),
            inputs.is_token,
            inputs.positions == 0 if is_monitored(self) else None,
        )
        return Mixed(output, weights=weights)

    def read(self, x: Activations, inputs: LayerInputs, state: LayerState) -> Mixed:
        """Map the newest T tokens x [B, T, D] to [B, T, D], with attention over the cache and themselves."""
        query, tokens = self.project(x, inputs.positions)
        cache = append(state.own, tokens, state.index)
        return Mixed(self.attend(query, cache, self._mask(inputs, EQUAL), inputs.bias, None).output, cache)

    step = read
    """Hypotheses share the slots of their row, and the mask says which slots are theirs."""

    def _mask(self, inputs: LayerInputs, values: LayerValues) -> AttentionMask | None:
        """Return the mask of the stack, within the window of this layer."""
        window = value_in(self.config, values, "attention_window")
        if window is None:
            return inputs.mask
        keys = inputs.positions if inputs.key_positions is None else inputs.key_positions
        near = window_mask(inputs.positions, keys, window)
        return near if inputs.mask is None else inputs.mask & near


PARAMETER_AXES = {
    "(query|key|value)/kernel": Axes(("emb",), ("heads", None)),
    "(query|key|value)/bias": Axes((), ("heads", None)),
    "out/kernel": Axes(("heads", None), ("emb",)),
    "out/bias": Axes((), (None,)),
    "(query|key)_norm/scale": Axes((), (None,)),
}
"""Axes of the parameters of `MultiHeadAttention`, by the end of their paths."""


def mask_kind(config: ModelConfig, kind: str) -> str:
    """Return the kind of mask of a layer's self-attention (`AttentionMask.kind`); kind: that of the stack."""
    return kind if config.attention_window is None else "any"


def visible_pairs(config: ModelConfig, length: int, causal: bool) -> int:
    """Return the number of pairs of a query and a key, among T tokens, that the mask of a layer shows in any text."""
    reach = min(length, config.attention_window or length)  # 1 + the largest distance
    # Of T tokens, T - d pairs have a distance of d.
    earlier = (reach - 1) * length - reach * (reach - 1) // 2
    return length + (earlier if causal else 2 * earlier)


def forward_flops(config: ModelConfig, tokens: int, memory_tokens: int, pairs: int) -> int:
    """Return the operations of the forward pass of one attention: its matrix products, a multiply-add being 2.

        tokens 2 D N (H + Hv)          queries and output
        memory_tokens 2 D K (H + Hv)   keys and values
        pairs 2 N (H + Hv)             logits and the weighted sum of values

    Args:
      config: resolved, of the layer. tokens: queries; memory_tokens: tokens with keys, those of the own sequence in
        self-attention; pairs: of a query and a key, over all rows.
    """
    width, head = config.emb_dim, config.head_dim + config.value_head_dim
    of_maps = 2 * width * head * (tokens * config.num_heads + memory_tokens * config.num_kv_heads)
    return of_maps + 2 * pairs * config.num_heads * head


def activation_bytes(config: ModelConfig, pairs: int) -> int:
    """Return roughly the bytes that the backward pass of one attention needs beside its input and output: its weights.

    They are 3 N elements of `config.dtype` for each pair of a query and a key.
    """
    return 3 * pairs * config.num_heads * jnp.dtype(config.dtype).itemsize
