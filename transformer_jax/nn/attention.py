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
from transformer_jax.nn.model_numbers import number_of
from transformer_jax.nn.monitored import Largest, is_monitored, mean_over_tokens, monitor
from transformer_jax.nn.norms import HeadNorm, UnitNorm, WideNorm, layer_norm
from transformer_jax.nn.places import at, wants
from transformer_jax.nn.positions import ENCODINGS, rotated
from transformer_jax.nn.softmax import attention_weights
from transformer_jax.typing import Activations, Array, Bias, Heads, Mask, Positions, Weights


class Attended(NamedTuple):
    """The outputs of heads [B, T, N, Hv], and attention weights [B, N, T, S] before dropout."""

    output: Heads
    weights: Weights


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
    cap: float | Float[Array, ""] | None = None,
    sinks: Float[Array, " N"] | None = None,
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
      cap, sinks: see `softmax.attention_weights`.
    Returns: output [B, T, N, Hv] and the weights before dropout [B, N, T, S], both in the type of query.
    """
    B, T, N, H = query.shape
    S, K = key.shape[1:3]
    # One matrix product for every row and key head, whose operands lie together in memory: XLA's CPU compiler computes
    # it faster than a product of arrays with the heads between tokens and features.
    queries = (query * jnp.asarray(scale, query.dtype)).reshape(B, T, K, N // K, H)
    queries = jnp.moveaxis(queries, 1, 3).reshape(B, K, N // K * T, H)  # [B, T, K, G, H] -> [B, K, G T, H]
    logits = product_float32("bkqh,bksh->bkqs", queries, jnp.swapaxes(key, 1, 2)).reshape(B, N, T, S)
    weights = at("weights", attention_weights(logits, mask, bias, cap, sinks).astype(query.dtype))  # [B, N, T, S]
    kept = drop(weights, dropout, "attention").reshape(B, K, N // K * T, S)
    output = kept @ jnp.swapaxes(value, 1, 2)  # [B, K, G T, Hv]
    output = jnp.moveaxis(output.reshape(B, K, N // K, T, value.shape[-1]), 3, 1)  # [B, T, K, G, Hv]
    return Attended(output.reshape(B, T, N, value.shape[-1]), weights)


class QKNorm(NamedTuple):
    """A norm of queries and keys. A new one is a new entry of `QK_NORMS`.

    module: (config, of_queries) -> a module that maps queries, or keys, [..., N or K, H] to the same shape.
    learns_scale: whether its parameters take the place of the factor 1 / sqrt(H) of the logits.
    """

    module: Callable[[ModelConfig, bool], nn.Module]
    learns_scale: bool = False


def _layer_norm(x: Array, scale: Array, epsilon: float) -> Array:
    return layer_norm(x, scale, None, epsilon)


QK_NORMS: dict[str, QKNorm | None] = {
    "none": None,
    "rms": QKNorm(lambda config, _: HeadNorm(config.head_dim, config.norm_epsilon, kind=config.norm_scale)),
    "rms_full": QKNorm(lambda config, _: WideNorm(config.norm_epsilon, config.norm_scale)),
    "layernorm": QKNorm(
        lambda config, _: HeadNorm(config.head_dim, config.norm_epsilon, _layer_norm, config.norm_scale)
    ),
    "l2": QKNorm(lambda config, of_queries: UnitNorm(config.norm_epsilon, of_queries), learns_scale=True),
}
"""By the values of `model.qk_norm`; None for no norm.

`rms` is that of Qwen3 and Gemma 3, `rms_full` that of OLMo 2, `layernorm` that of Dehghani et al. 2023, section 2.2.
With `l2` the logit is s q k / (|q| |k|), s learned by each head (Henry et al. 2020, section 3, with one s for all).
"""


class MultiHeadAttention(nn.Module):
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_N) W^O, head_n = Attention(x W_n^Q, y W_n^K, y W_n^V).

    Vaswani et al. 2017, section 3.2.2. Self-attention is the case y = x. The order is: projections, `qk_norm`,
    rotation, the scale of the logits, their bias, `attention_logit_cap`, mask, softmax with `attention_sink`. With
    `qk_norm_after_rotation` the first two change places. Cross-attention has all of them but rotation and bias.

    The key bias adds the same number to all logits of a query. In the plain softmax without rotation it has no effect
    on the output, and its gradient is exactly zero. With a norm, a cap or a sink it has one (`key_bias_matters`).

    num_sums: number of residual sums of the stack; initial values of the output projection may depend on it.
    """

    config: ModelConfig
    num_sums: int

    def setup(self) -> None:
        config = self.config
        width, bias, init = (config.emb_dim,), config.qkv_bias, kernel_init(config)
        self.query = Linear(width, (config.num_heads, config.head_dim), bias, query_init(config))
        self.key = Linear(width, (config.num_kv_heads, config.head_dim), bias, init)
        self.value = Linear(width, (config.num_kv_heads, config.value_head_dim), bias, init)
        if (norm := QK_NORMS[config.qk_norm]) is not None:
            self.query_norm, self.key_norm = norm.module(config, True), norm.module(config, False)
        if config.attention_sink == "learned":
            self.sinks = self.param("sinks", nn.initializers.zeros, (config.num_heads,))
        residual_init = residual_kernel_init(config, self.num_sums)
        self.out = Linear((config.num_heads, config.value_head_dim), width, config.use_bias, residual_init)

    def project(self, x: Activations, positions: Positions, values: LayerValues = EQUAL) -> Projected:
        """Return queries [B, T, N, H], keys and values of x [B, T, D]; rotated with rotary positions.

        Args:
          values: of this layer, where the layers differ.
        """
        config = self.config
        query, key, value = fused(x, [self.query, self.key, self.value])
        if not config.qk_norm_after_rotation:
            query, key = self._normed(query, "query"), self._normed(key, "key")
        rotate = ENCODINGS[config.position_encoding].rotate
        rotates = value_in(config, values, "attention_rotates")
        if rotate is not None and rotates is not False:
            base = value_in(config, values, "rotary_base")
            places = positions if rotates is True else positions * rotates  # at position 0 nothing is rotated
            query, key = (rotated(rotate, y, places, base, config.rotary_dim) for y in (query, key))
        if config.qk_norm_after_rotation:
            query, key = self._normed(query, "query"), self._normed(key, "key")
        return Projected(query, KeyValue(key, value))

    def project_query(self, x: Activations) -> Heads:
        """Return queries [B, T, N, H] of x [B, T, D] to another stack's output."""
        return self._normed(self.query(x), "query")

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Return keys and values of another stack's output, memory [B, S, D]."""
        key, value = fused(memory, [self.key, self.value])
        return KeyValue(self._normed(key, "key"), value)

    def _normed(self, heads: Heads, name: str) -> Heads:
        """Return queries or keys with the norm of `name`, `query` or `key`, if there is one."""
        return heads if QK_NORMS[self.config.qk_norm] is None else getattr(self, f"{name}_norm")(heads)

    @property
    def _sinks(self) -> Float[Array, " N"] | None:
        """The logits of the sinks of all heads; None without sinks."""
        kinds = {"none": lambda: None, "zero": lambda: jnp.zeros(self.config.num_heads), "learned": lambda: self.sinks}
        return kinds[self.config.attention_sink]()

    def attend(
        self,
        query: Heads,
        tokens: KeyValue | LayerCache,
        mask: AttentionMask | None,
        bias: Bias | None,
        dropout: Dropout | None,
        is_token: Bool[Array, "B T"] | None = None,
        first: Bool[Array, "#B S"] | None = None,
    ) -> Activations:
        """Let queries attend to tokens: those of their own sequence, of a memory, or of a cache.

        Args:
          query: [B, T, N, H]; tokens: S keys and values, or C slots of a cache; bias: broadcastable to [B, N, T, S].
          is_token, first: of a monitored step; the queries that count, and the first keys of texts (`_monitor`).
        Returns: [B, T, D].
        """
        config, allowed = self.config, None if mask is None else mask.allowed
        cap, multiplier = (number_of(config, f"attention_{name}") for name in ("logit_cap", "multiplier"))
        scale = config.head_dim**-0.5 if divides_by_root(config) else 1.0
        if multiplier is not None:
            # On the queries: the kernels take only a number that is known when they are compiled.
            query, scale = (query.astype(jnp.float32) * multiplier).astype(query.dtype), 1.0
        if isinstance(tokens, LayerCache):
            heads = cached_attention(query, tokens, allowed, bias, scale, cap, self._sinks)
            return self.out(heads)
        kernel = choose(
            config,
            "none" if mask is None else mask.kind,
            needs_weights=wants("weights"),
            drops_weights=dropout is not None and dropout.rates.attention is not None,
            caps_logits=cap is not None,
        ).name
        weights = None
        if kernel != "reference":
            heads = library_attention(query, *tokens, mask, bias, scale, kernel)
        else:
            heads, weights = dot_product_attention(query, *tokens, allowed, bias, scale, dropout, cap, self._sinks)
        if is_monitored(self):
            if weights is None:
                weights = dot_product_attention(query, *tokens, allowed, bias, scale, None, cap, self._sinks).weights
            keys = jnp.repeat(tokens.key, query.shape[2] // tokens.key.shape[2], axis=2)  # [B, S, N, H]
            logits = scale * product_float32("btnh,bsnh->bnts", query, keys) + (0.0 if bias is None else bias)
            self._monitor(*jax.lax.stop_gradient((logits, weights)), allowed, is_token, first)
        return self.out(at("heads", heads))

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
        output = self.attend(
            query,
            tokens,
            self._mask(inputs, values),
            inputs.bias,
            fold_dropout(dropout, Site.SELF_ATTENTION_WEIGHTS),
            inputs.is_token,
            inputs.positions == 0 if is_monitored(self) else None,
        )
        return Mixed(output)

    def read(self, x: Activations, inputs: LayerInputs, state: LayerState) -> Mixed:
        """Map the newest T tokens x [B, T, D] to [B, T, D], with attention over the cache and themselves."""
        query, tokens = self.project(x, inputs.positions)
        cache = append(state.own, tokens, state.index)
        return Mixed(self.attend(query, cache, self._mask(inputs, EQUAL), inputs.bias, None), cache)

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
    "(query|key)/kernel": Axes(("emb",), ("heads", None)),
    "value/kernel": Axes(("emb",), ("heads", None), scaled=True),
    "(query|key|value)/bias": Axes((), ("heads", None)),
    "out/kernel": Axes(("heads", None), ("emb",), scaled=True),
    "out/bias": Axes((), (None,)),
    "(query|key)_norm/scale": Axes((), (None,)),
    "sinks": Axes((), ("heads",)),
}
"""Axes of the parameters of `MultiHeadAttention`, by the end of their paths."""


def divides_by_root(config: ModelConfig) -> bool:
    """Return whether logits are divided by sqrt(H), and not multiplied by another number."""
    norm = QK_NORMS[config.qk_norm]
    is_learned = norm is not None and norm.learns_scale
    return config.attention_scale and config.attention_multiplier is None and not is_learned


def key_bias_matters(config: ModelConfig) -> bool:
    """Return whether the output of self-attention depends on the bias of the keys."""
    return (
        config.qk_norm != "none"
        or config.attention_sink != "none"
        or config.attention_logit_cap is not None
        or (ENCODINGS[config.position_encoding].rotate is not None and config.rotary_dim > 0)
    )


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


def activation_bytes(config: ModelConfig, tokens: int, memory_tokens: int, pairs: int) -> int:
    """Return roughly the bytes that the backward pass of one attention needs beside its input and output.

    In elements of `config.dtype` they are

        pairs 3 N                                  weights; with `attention_logit_cap` 4 N
        (tokens N + memory_tokens K) 3.5 H         with `qk_norm`

    Sinks add next to nothing. Arguments as in `forward_flops`.
    """
    elements = (3 if config.attention_logit_cap is None else 4) * pairs * config.num_heads
    if config.qk_norm != "none":
        elements += 7 * (tokens * config.num_heads + memory_tokens * config.num_kv_heads) * config.head_dim // 2
    return elements * jnp.dtype(config.dtype).itemsize
