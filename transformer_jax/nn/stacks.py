"""Encoder and decoder: one layer, and L of them with their parameters stacked on a leading axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn.activation_sharding import ACTIVATIONS, constrain
from transformer_jax.nn.attention import KeysValues, LayerCache, MultiHeadAttention
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.embeddings import PositionEmbedding
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.kv_cache import append
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.norms import Norm
from transformer_jax.nn.positions import RelativeBias
from transformer_jax.nn.residual import Residual
from transformer_jax.typing import Activations, Array, Bias, Positions


def folded(dropout: Dropout | None, number: Array | int) -> Dropout | None:
    return None if dropout is None else dropout.fold(number)


# What the forward pass keeps for the backward pass, by the name in `remat`.
_SAVED = {
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


class DecodingState(NamedTuple):
    """What one layer needs to decode incrementally: its cache, and the slot that new keys and values go to."""

    cache: LayerCache
    index: Array


class LayerInputs(NamedTuple):
    """What is the same for every layer of a stack.

    positions: [B, T] or [1, T]; bias: broadcastable to [B, N, T, S]; memory: [B, S, D]; the masks: of the stack's own
    tokens and of the memory.
    """

    positions: Array
    mask: AttentionMask | None
    bias: Array | None
    memory: Array | None = None
    memory_mask: AttentionMask | None = None


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each in its Residual (Vaswani et al. 2017, figure 1, left)."""

    config: ModelConfig
    return_weights: bool = False

    @nn.compact
    def __call__(
        self, x: Activations, index: Int[Array, ""], inputs: LayerInputs, dropout: Dropout | None
    ) -> tuple[Activations, dict[str, Array]]:
        """x [B, T, D] -> [B, T, D], and the attention weights [B, N, T, T] if asked for."""
        config, dropout = self.config, folded(dropout, index)
        attention = MultiHeadAttention(config, self.return_weights, name="self_attention")
        feed_forward = FeedForward(config, name="feed_forward")
        x, weights = Residual(config, name="self_attention_residual")(
            x,
            lambda y: attention.self_attention(y, inputs.positions, inputs.mask, inputs.bias, folded(dropout, 0)),
            folded(dropout, 1),
        )
        x, _ = Residual(config, name="feed_forward_residual")(
            x, lambda y: (feed_forward(y, folded(dropout, 2)), None), folded(dropout, 3)
        )
        return constrain(x, ACTIVATIONS), {"self_attention": weights} if self.return_weights else {}


class DecoderLayer(nn.Module):
    """Masked self-attention, attention over the encoder, feed-forward (Vaswani et al. 2017, figure 1, right)."""

    config: ModelConfig
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        self.self_attention = MultiHeadAttention(config, self.return_weights)
        self.self_attention_residual = Residual(config)
        self.cross_attention = MultiHeadAttention(config, self.return_weights)
        self.cross_attention_residual = Residual(config)
        self.feed_forward = FeedForward(config)
        self.feed_forward_residual = Residual(config)

    def __call__(
        self, x: Activations, index: Int[Array, ""], inputs: LayerInputs, dropout: Dropout | None
    ) -> tuple[Activations, dict[str, Array]]:
        """x [B, T, D] -> [B, T, D], and the weights [B, N, T, T] and [B, N, T, S] if asked for."""
        dropout = folded(dropout, index)
        assert inputs.memory is not None, "a decoder layer attends to an encoder"
        memory = self.project_memory(inputs.memory)
        x, weights = self.self_attention_residual(
            x,
            lambda y: self.self_attention.self_attention(
                y, inputs.positions, inputs.mask, inputs.bias, folded(dropout, 0)
            ),
            folded(dropout, 1),
        )
        x, cross_weights = self._after_self_attention(
            x,
            lambda y: self.cross_attention.cross_attention(y, memory, inputs.memory_mask, folded(dropout, 4)),
            dropout,
        )
        x = constrain(x, ACTIVATIONS)
        return x, {"self_attention": weights, "cross_attention": cross_weights} if self.return_weights else {}

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Keys and values that this layer reads from the encoder's output, memory [B, S, D]."""
        return self.cross_attention.memory_projections(memory)

    def decode(
        self, x: Activations, state: DecodingState, memory: LayerCache, inputs: LayerInputs
    ) -> tuple[Activations, LayerCache]:
        """The same for T new tokens x [B, T, D] that attend to the cache as well; inputs.mask is over its slots."""

        def attend(y: Array) -> tuple[Array, LayerCache]:
            query, new = self.self_attention.self_projections(y, inputs.positions)
            cache = append(state.cache, new, state.index)
            return self.self_attention.attend_cache(query, cache, inputs.mask, inputs.bias), cache

        def attend_memory(y: Array) -> tuple[Array, None]:
            query = self.cross_attention.query(y)
            return self.cross_attention.attend_cache(query, memory, inputs.memory_mask, None), None

        x, cache = self.self_attention_residual(x, attend, None)
        return self._after_self_attention(x, attend_memory, None)[0], cache

    def _after_self_attention(
        self, x: Activations, attend_memory: Callable[[Activations], tuple[Activations, Any]], dropout: Dropout | None
    ) -> tuple[Activations, Any]:
        x, weights = self.cross_attention_residual(x, attend_memory, folded(dropout, 5))
        x, _ = self.feed_forward_residual(
            x, lambda y: (self.feed_forward(y, folded(dropout, 2)), None), folded(dropout, 3)
        )
        return x, weights


class Stack(nn.Module):
    """L layers of one kind over embedded tokens: positions, dropout, layers, and the final norm of "pre" layers."""

    config: ModelConfig
    layer: type[nn.Module]
    num_layers: int
    causal: bool
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        self.position_embedding = PositionEmbedding(config)
        if config.position_encoding == "relative":
            self.relative_bias = RelativeBias(config, bidirectional=not self.causal)
        # Parameters are stacked [L, ...] whether the loop over layers is unrolled or not.
        # Unrolled layers are one program, in which XLA would find what is computed twice and compute it once.
        layer = (
            self.layer
            if config.remat == "none"
            else nn.remat(self.layer, prevent_cse=not config.scan_layers, policy=_SAVED[config.remat])
        )
        scanned = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=self.num_layers,
            unroll=1 if config.scan_layers else self.num_layers,
        )
        self.layers = scanned(config, self.return_weights)
        if config.norm_position == "pre":
            self.final_norm = Norm(config)

    def __call__(
        self,
        x: Activations,
        positions: Positions,
        mask: AttentionMask | None,
        dropout: Dropout | None,
        memory: Float[Array, "B S D"] | None = None,
        memory_mask: AttentionMask | None = None,
    ) -> tuple[Activations, dict[str, Any]]:
        """Embedded tokens x [B, T, D] -> [B, T, D] and a dict of attention weights [L, B, N, T, S].

        Args:
          positions: [B, T] or [1, T] int32; memory: [B, S, D].
        """
        x = drop(self.embed_positions(x, positions), folded(dropout, self.num_layers), "embedding")
        x = constrain(x, ACTIVATIONS)
        inputs = LayerInputs(positions, mask, self.bias(positions, positions), memory, memory_mask)
        x, weights = self.layers(x, jnp.arange(self.num_layers), inputs, dropout)
        return self.finish(x), weights

    def embed_positions(self, x: Activations, positions: Positions) -> Activations:
        return self.position_embedding(x, positions)

    def bias(self, query_positions: Positions, key_positions: Int[Array, "#B S"]) -> Bias | None:
        """What is added to attention logits, [B or 1, N, T, S], or None."""
        if self.config.position_encoding != "relative":
            return None
        return self.relative_bias(query_positions, key_positions)

    def finish(self, x: Activations) -> Activations:
        """The final norm of a "pre" stack; a "post" stack has none."""
        return self.final_norm(x) if self.config.norm_position == "pre" else x
