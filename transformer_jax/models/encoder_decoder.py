"""The encoder-decoder Transformer (Vaswani et al. 2017, figure 1)."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
from transformer_jax.nn.kv_cache import LayerCache
from transformer_jax.nn.masks import AttentionMask, causal_mask, padding_mask, segment_mask
from transformer_jax.nn.positions import sequence_positions
from transformer_jax.nn.stack import Decoded, Stack, StackState
from transformer_jax.typing import Array, Batch, Params


class Side(enum.IntEnum):
    """The numbers of the stacks for dropout; the head follows. They enter the dropout masks: do not change them."""

    ENCODER = 0
    DECODER = 1


class Encoded(NamedTuple):
    """The encoder's output [B, S, D], and the mask of its tokens."""

    x: Array
    mask: AttentionMask | None


class Memory(NamedTuple):
    """The encoder's keys and values for every decoder layer, and the mask of its tokens, [B, 1, 1, S]."""

    layers: tuple[LayerCache, ...]
    mask: Array | None


class EncoderDecoder(ModelModule):
    """Maps source ids and shifted target ids to logits over the next target id; see `Architecture`."""

    def setup(self) -> None:
        config = self.config
        self.embedding = TokenEmbedding(config)
        of_source = dataclasses.replace(config, vocab_size=config.source_vocab_size)
        self.source_embedding = self.embedding if config.share_embeddings else TokenEmbedding(of_source)
        self.encoder = Stack(config, config.num_encoder_layers, causal=False)
        self.decoder = Stack(config, config.num_decoder_layers, causal=True, cross_attends=True)
        self.encoder_embedder, self.decoder_embedder = Embedder(config, typed=True), Embedder(config)
        # Parameters of the embedders are at encoder/position_embedding and decoder/position_embedding.
        nn.share_scope(self.encoder_embedder, self.encoder)
        nn.share_scope(self.decoder_embedder, self.decoder)
        self.output = OutputProjection(config) if has_output_parameters(config) else None

    def features(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        """Return the decoder's output for every token of `decoder_inputs`.

        Args:
          batch: `inputs` [B, S], `inputs_mask` and `decoder_inputs` [B, T]; optionally `types` [B, S]; for packed rows
            also segment ids and positions of source and target. With a learned table, positions must be below
            `max_length`; this is not checked.
          dropout: None for a deterministic pass. hyper: not read.
        Returns: [B, T, D].
        """
        memory, memory_mask = self.encode(batch, fold_dropout(dropout, Side.ENCODER))
        length, dropout = batch["decoder_inputs"].shape[1], fold_dropout(dropout, Side.DECODER)
        # Padding stands after all tokens of a row, so the causal mask hides it.
        mask, segments = causal_mask(length), batch.get("targets_segment_ids")
        if segments is not None:
            mask = mask & segment_mask(segments, segments)
            memory_mask = segment_mask(segments, batch["inputs_segment_ids"])
        positions = sequence_positions(self.config, batch, "targets", length)
        x = self.embedding(batch["decoder_inputs"])  # [B, T] -> [B, T, D]
        x = self.decoder_embedder(x, positions, fold_dropout(dropout, self.config.num_decoder_layers))
        return self.decoder(x, positions, mask, dropout, memory, memory_mask, counted_targets(batch))

    def encode(self, batch: Batch, dropout: Dropout | None = None) -> Encoded:
        """Return the encoder's output [B, S, D], and the mask of its tokens."""
        ids, is_token, segments = batch["inputs"], batch.get("inputs_mask"), batch.get("inputs_segment_ids")
        mask = None if is_token is None else padding_mask(is_token)
        own = mask if segments is None else segment_mask(segments, segments)
        positions = sequence_positions(self.config, batch, "inputs", ids.shape[1])
        x = self.source_embedding(ids)  # [B, S] -> [B, S, D]
        x = self.encoder_embedder(
            x, positions, fold_dropout(dropout, self.config.num_encoder_layers), batch.get("types")
        )
        return Encoded(self.encoder(x, positions, own, dropout, is_token=is_token), mask)

    def outputs(self, x: Array, batch: Batch, dropout: Dropout | None = None) -> Array:
        """Map the decoder's output [B, T, D] to logits [B, T, V] float32, or to the output of the head."""
        if self.head is not None:
            return self.head(x, batch, self.embedding.embedding, fold_dropout(dropout, len(Side)))
        return token_logits(self.config, x, self.embedding.embedding, self.output)

    def memory(self, batch: Batch, layers: Sequence[Params]) -> Memory:
        """Return the encoder's keys and values for every decoder layer, and the mask of its tokens, [B, 1, 1, S]."""
        memory, mask = self.encode(batch)
        return Memory(self.decoder.project_memory(memory, layers), None if mask is None else mask.allowed)

    def decode(self, ids: Array, states: StackState, layers: Sequence[Params]) -> Decoded:
        """Return logits [B, T, V] after each of the newest ids [B, T], and the layers' states; see `CachedDecoder`."""
        x = self.decoder_embedder(self.embedding(ids), states.token_positions)
        x, new = self.decoder.decode(x, layers, states)
        return Decoded(token_logits(self.config, x, self.embedding.embedding, self.output), new)


class EncoderDecoderArchitecture(Architecture):
    """An encoder, and a decoder that attends to it."""

    def module(self, config: ModelConfig, head: nn.Module | None = None) -> EncoderDecoder:
        return EncoderDecoder(config, head)

    def example_batch(self, config: ModelConfig) -> Batch:
        return example_ids("inputs", "decoder_inputs")

    def decoder(self, config: ModelConfig) -> CachedDecoder:
        return CachedDecoder(config, EncoderDecoder, has_encoder=True)

    def train_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int], head: int | None = None) -> int:
        return flops.train_flops(config, flops.encoder_decoder_stacks(config, rows, widths), head)

    def hidden_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int]) -> int:
        return flops.hidden_flops(flops.encoder_decoder_stacks(config, rows, widths))

    def activation_bytes(self, config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1) -> int:
        return flops.activation_bytes(config, flops.encoder_decoder_stacks(config, rows, widths), loss_chunks)

    def parameter_axes(self, config: ModelConfig) -> ParameterAxes:
        return embeddings.PARAMETER_AXES | embedder.parameter_axes(config, typed=True) | stack.parameter_axes(config)

    def attention_kinds(self, config: ModelConfig) -> Mapping[str, str]:
        return {
            **self_attention_kinds(config, "encoder", "lengths"),
            **self_attention_kinds(config, "decoder", "causal"),
            "cross-attention": "lengths",
        }
