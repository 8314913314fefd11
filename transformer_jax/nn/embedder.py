"""The input of the first layer of a stack: token embeddings with positions and dropout."""

from __future__ import annotations

import flax.linen as nn

from transformer_jax.activation_sharding import ACTIVATIONS, constrain
from transformer_jax.config import ModelConfig
from transformer_jax.nn import positions
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.positions import PositionEmbedding
from transformer_jax.typing import Activations, Positions


class Embedder(nn.Module):
    """Adds positions to token embeddings, then applies dropout (Vaswani et al. 2017, sections 3.5 and 5.4)."""

    config: ModelConfig

    def setup(self) -> None:
        self.position_embedding = PositionEmbedding(self.config)

    def __call__(self, x: Activations, positions: Positions, dropout: Dropout | None = None) -> Activations:
        """Map token embeddings x [B, T, D] at positions [B, T] or [1, T] to [B, T, D]."""
        x = self.position_embedding(x, positions)
        return constrain(drop(x, dropout, "embedding"), ACTIVATIONS)


PARAMETER_AXES = {f"position_embedding/{path}": axes for path, axes in positions.PARAMETER_AXES.items()}
"""Logical axes of the parameters of `Embedder`, by the end of their paths."""
