"""The decoder-only Transformer (Radford et al. 2018, section 3.1): one stack with a causal mask, and no encoder.

The same blocks as the encoder-decoder's: an encoder layer whose self-attention is causal is all that is left of a
decoder layer without an encoder.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.models.encoder_decoder import shift_right, token_positions
from transformer_jax.nn.activation_sharding import LOGITS, constrain
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.embeddings import OutputProjection, TokenEmbedding
from transformer_jax.nn.masks import AttentionMask, of_causality, segment_mask
from transformer_jax.nn.stacks import EncoderLayer, Stack
from transformer_jax.typing import Array, Batch, Params


class DecoderOnly(nn.Module):
    """Maps ids, shifted by one, to logits over the next id; `num_decoder_layers` layers."""

    config: ModelConfig
    return_weights: bool = False

    def setup(self) -> None:
        config = self.config
        self.embedding = TokenEmbedding(config)
        self.decoder = Stack(config, EncoderLayer, config.num_decoder_layers, True, self.return_weights)
        if not config.tie_output:
            self.output = OutputProjection(config)

    def __call__(self, batch: Batch, dropout: Dropout | None = None) -> tuple[Array, dict[str, Any]]:
        """Logits [B, T, V] float32 of every target given those before it, and the attention weights."""
        x, weights = self.decoder_output(batch, dropout)
        return self.logits(x), weights

    def decoder_output(self, batch: Batch, dropout: Dropout | None = None) -> tuple[Array, dict[str, Any]]:
        """What the stack makes of the targets before each target; `logits` maps it to logits.

        Args:
          batch: `targets` [B, T] int32, 0 = padding; packed rows carry `targets_segment_ids` and `targets_positions`.
          dropout: None for a deterministic pass.
        Returns: [B, T, D] and, with `return_weights`, `decoder_self_attention` [L, B, N, T, T].
        """
        segments = batch.get("targets_segment_ids")
        x = self.embedding(shift_right(batch["targets"], self.config.decoder_start_id, segments))
        mask = of_causality(x.shape[1])
        if segments is not None:
            mask = AttentionMask(mask.allowed & segment_mask(segments, segments))
        x, weights = self.decoder(x, token_positions(self.config, batch, "targets"), mask, dropout)
        return x, {f"decoder_{name}": w for name, w in weights.items()}

    def logits(self, x: Array) -> Array:
        """Output of the stack [B, T, D] -> [B, T, V] float32."""
        logits = self.embedding.logits(x) if self.config.tie_output else self.output(x)
        return constrain(logits, LOGITS)


def init_params(config: ModelConfig, seed: int | Array) -> Params:
    """Parameters of a DecoderOnly, float32, as a nested dict of arrays."""
    key = jax.random.key(seed, impl="threefry2x32")
    config = dataclasses.replace(config, attention_implementation="reference")  # which takes any shape
    return DecoderOnly(config).init(key, {"targets": jnp.ones((1, 2), jnp.int32)})["params"]
