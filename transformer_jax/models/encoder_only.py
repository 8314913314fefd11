"""The encoder-only Transformer: one stack without a causal mask, and no decoder.

It reads tokens (Devlin et al. 2019, section 3), or images as patches (Dosovitskiy et al. 2021, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool

from transformer_jax.config import ModelConfig
from transformer_jax.models import flops
from transformer_jax.models.architecture import (
    Architecture,
    ModelModule,
    example_ids,
    example_images,
    self_attention_kinds,
)
from transformer_jax.nn import embedder, embeddings, patches, stack
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.nn.dropout import Dropout, fold_dropout
from transformer_jax.nn.embedder import Embedder
from transformer_jax.nn.embeddings import OutputProjection, has_output_parameters, token_logits
from transformer_jax.nn.masks import padding_mask, segment_mask
from transformer_jax.nn.patches import INPUTS
from transformer_jax.nn.positions import sequence_positions
from transformer_jax.nn.stack import Stack
from transformer_jax.typing import Array, Batch


class EncoderOnly(ModelModule):
    """Maps ids, or images, to one vector per token or patch, with `num_encoder_layers` layers. See `Architecture`.

    Without a head, its outputs are logits over the vocabulary, for the token at the same place; of images, which have
    no vocabulary, the vectors themselves.
    """

    def setup(self) -> None:
        config = self.config
        self.embedding = INPUTS[config.inputs](config)
        self.encoder = Stack(config, config.num_encoder_layers, causal=False)
        self.encoder_embedder = Embedder(config, typed=True)
        nn.share_scope(self.encoder_embedder, self.encoder)  # its parameters are at encoder/position_embedding
        has_output = config.inputs == "tokens" and has_output_parameters(config)
        self.output = OutputProjection(config) if has_output else None

    def features(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        """Return the stack's output for every token of `inputs`, or for every patch, after the class token.

        Args:
          batch: `inputs` [B, S], or images [B, height, width, channels] uint8; optionally `inputs_mask` [B, S] and
            `types` [B, S]; for packed rows also `inputs_segment_ids` and `inputs_positions`.
          dropout: None for a deterministic pass. hyper: not read.
        Returns: [B, S, D].
        """
        is_token, segments = batch.get("inputs_mask"), batch.get("inputs_segment_ids")
        mask = None if is_token is None else padding_mask(is_token)
        if segments is not None:
            mask = segment_mask(segments, segments)
        x = self.embedding(batch["inputs"])  # [B, S], or images -> [B, S, D]
        positions = sequence_positions(self.config, batch, "inputs", x.shape[1])
        counted = counted_tokens(batch, x.shape[1])
        x = self.encoder_embedder(
            x, positions, fold_dropout(dropout, self.config.num_encoder_layers), batch.get("types"), counted
        )
        return self.encoder(x, positions, mask, dropout, is_token=counted)

    def outputs(self, x: Array, batch: Batch, dropout: Dropout | None = None) -> Array:
        """Map the stack's output [B, S, D] to logits [B, S, V] float32, or to the output of the head."""
        of_tokens = self.config.inputs == "tokens"
        if self.head is not None:
            table = self.embedding.embedding if of_tokens else None
            return self.head(x, batch, table, fold_dropout(dropout, self.config.num_encoder_layers + 2))
        if not of_tokens:
            return x.astype(jnp.float32)
        return token_logits(self.config, x, self.embedding.embedding, self.output)


def counted_tokens(batch: Batch, length: int) -> Bool[Array, "B S"] | None:
    """Return True for the tokens or patches of `inputs` that sums over tokens count, [B, length]; None: all.

    With images, these are the rows with a weight: a row without an image has none.
    """
    if "inputs_mask" in batch:
        return jnp.asarray(batch["inputs_mask"])
    if "weights" not in batch:
        return None
    rows = jnp.asarray(batch["weights"]).reshape(len(batch["inputs"]), -1).any(1)
    return jnp.broadcast_to(rows[:, None], (len(rows), length))


class EncoderOnlyArchitecture(Architecture):
    """One stack whose tokens attend to each other in both directions. It generates no text."""

    def module(self, config: ModelConfig, head: nn.Module | None = None) -> EncoderOnly:
        return EncoderOnly(config, head)

    def example_batch(self, config: ModelConfig) -> Batch:
        return example_ids("inputs") if config.inputs == "tokens" else example_images(config)

    def train_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int], head: int | None = None) -> int:
        return flops.train_flops(config, flops.encoder_only_stacks(config, rows, widths), head)

    def hidden_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int]) -> int:
        return flops.hidden_flops(flops.encoder_only_stacks(config, rows, widths))

    def activation_bytes(self, config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1) -> int:
        return flops.activation_bytes(config, flops.encoder_only_stacks(config, rows, widths), loss_chunks)

    def parameter_axes(self, config: ModelConfig) -> ParameterAxes:
        of_inputs = embeddings.PARAMETER_AXES if config.inputs == "tokens" else patches.PARAMETER_AXES
        return of_inputs | embedder.parameter_axes(config, typed=True) | stack.parameter_axes(config)

    def attention_kinds(self, config: ModelConfig) -> Mapping[str, str]:
        return self_attention_kinds(config, "encoder", "lengths" if config.inputs == "tokens" else "none")
