"""The decoder-only Transformer (Radford et al. 2018, section 3.1): one stack with a causal mask, and no encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn

from transformer_jax.config import ModelConfig
from transformer_jax.models import flops
from transformer_jax.models.architecture import (
    Architecture,
    ModelModule,
    counted_targets,
    example_ids,
    self_attention_kinds,
)
from transformer_jax.models.cached_decoder import CachedDecoder
from transformer_jax.nn import embedder, embeddings, stack
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.nn.dropout import Dropout, fold_dropout
from transformer_jax.nn.embedder import Embedder
from transformer_jax.nn.embeddings import OutputProjection, TokenEmbedding, has_output_parameters, token_logits
from transformer_jax.nn.masks import causal_mask, prefix_mask, segment_mask
from transformer_jax.nn.positions import sequence_positions
from transformer_jax.nn.stack import Decoded, Stack, StackState
from transformer_jax.typing import Array, Batch, Params


class DecoderOnly(ModelModule):
    """Maps ids, shifted by one, to logits over the next id, with `num_decoder_layers` layers. See `Architecture`."""

    def setup(self) -> None:
        config = self.config
        self.embedding = TokenEmbedding(config)
        self.decoder = Stack(config, config.num_decoder_layers, causal=True)
        self.decoder_embedder = Embedder(config)
        nn.share_scope(self.decoder_embedder, self.decoder)  # its parameters are at decoder/position_embedding
        self.output = OutputProjection(config) if has_output_parameters(config) else None

    def features(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        """Return the stack's output for every token of `decoder_inputs`.

        Args:
          batch: `decoder_inputs` [B, T]; optionally `prefix_mask` [B, T], whose tokens attend to each other in both
            directions; for packed rows also `targets_segment_ids` and `targets_positions`.
          dropout: None for a deterministic pass. hyper: not read.
        Returns: [B, T, D].
        """
        length = batch["decoder_inputs"].shape[1]
        prefix, segments = batch.get("prefix_mask"), batch.get("targets_segment_ids")
        mask = causal_mask(length) if prefix is None else prefix_mask(prefix)
        if segments is not None:
            mask = mask & segment_mask(segments, segments)
        positions = sequence_positions(self.config, batch, "targets", length)
        x = self.embedding(batch["decoder_inputs"])  # [B, T] -> [B, T, D]
        x = self.decoder_embedder(x, positions, fold_dropout(dropout, self.config.num_decoder_layers))
        return self.decoder(x, positions, mask, dropout, is_token=counted_targets(batch))

    def outputs(self, x: Array, batch: Batch, dropout: Dropout | None = None) -> Array:
        """Map the stack's output [B, T, D] to logits [B, T, V] float32, or to the output of the head."""
        if self.head is not None:
            return self.head(
                x, batch, self.embedding.embedding, fold_dropout(dropout, self.config.num_decoder_layers + 2)
            )
        return token_logits(self.config, x, self.embedding.embedding, self.output)

    def decode(self, ids: Array, states: StackState, layers: Sequence[Params]) -> Decoded:
        """Return logits [B, T, V] after each of the newest ids [B, T], and the layers' states; see `CachedDecoder`."""
        x = self.decoder_embedder(self.embedding(ids), states.token_positions)
        x, new = self.decoder.decode(x, layers, states)
        return Decoded(token_logits(self.config, x, self.embedding.embedding, self.output), new)


class DecoderOnlyArchitecture(Architecture):
    """One stack with a causal mask, or with attention in both directions within a prefix (`prefix_mask`)."""

    def module(self, config: ModelConfig, head: nn.Module | None = None) -> DecoderOnly:
        return DecoderOnly(config, head)

    def example_batch(self, config: ModelConfig) -> Batch:
        return example_ids("decoder_inputs")

    def decoder(self, config: ModelConfig) -> CachedDecoder:
        return CachedDecoder(config, DecoderOnly, has_encoder=False)

    def train_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int], head: int | None = None) -> int:
        return flops.train_flops(config, flops.decoder_only_stacks(config, rows, widths), head)

    def hidden_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int]) -> int:
        return flops.hidden_flops(flops.decoder_only_stacks(config, rows, widths))

    def activation_bytes(self, config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1) -> int:
        return flops.activation_bytes(config, flops.decoder_only_stacks(config, rows, widths), loss_chunks)

    def parameter_axes(self, config: ModelConfig) -> ParameterAxes:
        return embeddings.PARAMETER_AXES | embedder.parameter_axes(config) | stack.parameter_axes(config)

    def attention_kinds(self, config: ModelConfig) -> Mapping[str, str]:
        return self_attention_kinds(config, "decoder", "causal")
