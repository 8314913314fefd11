"""One layer of an encoder or a decoder."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import flax.linen as nn
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn import attention, feed_forward, norms
from transformer_jax.nn.activation_sharding import ACTIVATIONS, constrain
from transformer_jax.nn.attention import MultiHeadAttention
from transformer_jax.nn.dropout import Dropout, fold_dropout
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.kv_cache import KeyValue, LayerCache, append
from transformer_jax.nn.layer_values import EQUAL, LayerValues
from transformer_jax.nn.masks import AttentionMask, window_mask
from transformer_jax.nn.residual import Residual
from transformer_jax.typing import Activations, Array


class LayerInputs(NamedTuple):
    """Inputs that are the same for every layer of a stack.

    positions: [B, T] or [1, T]; mask, bias: for attention among the stack's own tokens, bias broadcastable to
    [B, N, T, S]; memory: [B, S, D] with memory_mask. is_token: [B, T], True for tokens that BatchNorm
    counts; None: all. key_positions: [B, C], of the slots of the caches in incremental decoding; None: `positions`.
    """

    positions: Array
    mask: AttentionMask | None
    bias: Array | None
    memory: Array | None = None
    memory_mask: AttentionMask | None = None
    is_token: Array | None = None
    key_positions: Array | None = None


class LayerState(NamedTuple):
    """The state of a layer in incremental decoding.

    cache: of its own tokens; index: the slot of the first new token; memory: keys and values of the encoder's tokens.
    """

    cache: LayerCache
    index: Array
    memory: LayerCache | None


class Site(enum.IntEnum):
    """The places in a layer where dropout acts. The numbers enter the dropout masks: do not change them."""

    SELF_ATTENTION_WEIGHTS = 0
    SELF_ATTENTION_OUTPUT = 1
    FEED_FORWARD_HIDDEN = 2
    FEED_FORWARD_OUTPUT = 3
    CROSS_ATTENTION_WEIGHTS = 4
    CROSS_ATTENTION_OUTPUT = 5


class LayerOutput(NamedTuple):
    """x: [B, T, D]. weights: attention weights by name. cache: with the new tokens; None without a state."""

    x: Activations
    weights: dict[str, Any]
    cache: LayerCache | None


class Layer(nn.Module):
    """Self-attention, attention over a memory if there is one, feed-forward (Vaswani et al. 2017, figure 1).

    Each of them has a `Residual` around it. With `cross_attends` this is the decoder layer of an encoder-decoder.
    Without, it is an encoder layer or, with a causal mask, a layer of a decoder-only model.

    num_layers: layers of the stack; initial parameters may depend on it.
    """

    config: ModelConfig
    num_layers: int
    cross_attends: bool = False
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        num_sums = (3 if self.cross_attends else 2) * self.num_layers
        self.self_attention = MultiHeadAttention(config, num_sums, self.return_weights)
        self.self_attention_residual = Residual(config)
        if self.cross_attends:
            self.cross_attention = MultiHeadAttention(config, num_sums, self.return_weights)
            self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config, num_sums)
        self.feed_forward_residual = Residual(config)

    def __call__(
        self,
        x: Activations,
        inputs: LayerInputs,
        dropout: Dropout | None = None,
        state: LayerState | None = None,
        values: LayerValues = EQUAL,
    ) -> LayerOutput:
        """Map x [B, T, D] to [B, T, D].

        Args:
          dropout: of this layer. state: the cache; only in incremental decoding. Then x has the newest T tokens,
            inputs.mask covers the C slots of the cache, and inputs.memory is not read. values: of this layer, in place
            of those of its config, where the layers of the stack differ.
        Returns: the output; with `return_weights` the weights `self_attention` [B, N, T, T] and `cross_attention`
          [B, N, T, S]; and the cache with the new tokens, None without a state.
        """
        weights: dict[str, Any] = {}

        y = self.self_attention_residual.before(x, inputs.is_token)
        query, tokens = self.self_attention.project(y, inputs.positions, values)
        cache = None if state is None else append(state.cache, tokens, state.index)
        y, weights["self_attention"] = self.self_attention.attend(
            query,
            tokens if cache is None else cache,
            self._mask(inputs, values),
            inputs.bias,
            fold_dropout(dropout, Site.SELF_ATTENTION_WEIGHTS),
        )
        x = self.self_attention_residual.after(x, y, fold_dropout(dropout, Site.SELF_ATTENTION_OUTPUT), inputs.is_token)

        if self.cross_attends:
            y = self.cross_attention_residual.before(x, inputs.is_token)
            y, weights["cross_attention"] = self.cross_attention.attend(
                self.cross_attention.query(y),
                self._memory(inputs, state),
                inputs.memory_mask,
                None,
                fold_dropout(dropout, Site.CROSS_ATTENTION_WEIGHTS),
            )
            x = self.cross_attention_residual.after(
                x, y, fold_dropout(dropout, Site.CROSS_ATTENTION_OUTPUT), inputs.is_token
            )

        y = self.feed_forward_residual.before(x, inputs.is_token)
        y = self.feed_forward(y, fold_dropout(dropout, Site.FEED_FORWARD_HIDDEN))
        x = self.feed_forward_residual.after(x, y, fold_dropout(dropout, Site.FEED_FORWARD_OUTPUT), inputs.is_token)
        return LayerOutput(constrain(x, ACTIVATIONS), weights if self.return_weights else {}, cache)

    def _mask(self, inputs: LayerInputs, values: LayerValues) -> AttentionMask | None:
        """Return the mask of self-attention: that of the stack, within the window of this layer."""
        window = self.config.attention_window if values.window is None else values.window
        if window is None:
            return inputs.mask
        keys = inputs.positions if inputs.key_positions is None else inputs.key_positions
        near = window_mask(inputs.positions, keys, window)
        return near if inputs.mask is None else inputs.mask & near

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeyValue:
        """Return the keys and values that this layer reads from the encoder's output, memory [B, S, D]."""
        return self.cross_attention.project_memory(memory)

    def _memory(self, inputs: LayerInputs, state: LayerState | None) -> KeyValue | LayerCache:
        if state is not None:
            assert state.memory is not None, "decoding a layer that attends to a memory needs its keys and values"
            return state.memory
        assert inputs.memory is not None, "a layer with cross-attention needs a memory"
        return self.project_memory(inputs.memory)


PARAMETER_AXES = {
    **{f"(self|cross)_attention/{path}": axes for path, axes in attention.PARAMETER_AXES.items()},
    **{rf"\w+_residual/norm/{path}": axes for path, axes in norms.PARAMETER_AXES.items()},
    **{f"feed_forward/{path}": axes for path, axes in feed_forward.PARAMETER_AXES.items()},
}
"""Logical axes of the parameters of `Layer`, by the end of their paths."""
