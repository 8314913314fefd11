"""The input of the first layer of a stack: token embeddings with positions, types, a norm and dropout."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool, Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn import norms
from transformer_jax.nn.activation_sharding import ACTIVATIONS, constrain
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.initialisation import table_init
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.positions import ENCODINGS, PositionEmbedding
from transformer_jax.nn.residual import has_embedding_norm
from transformer_jax.typing import Activations, Array, Positions


class TypeEmbedding(nn.Module):
    """Owns `embedding` [token_types, D], one row per type of a token (Devlin et al. 2019, section 3)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, types: Int[Array, "#B T"]) -> Activations:
        """Return the rows of types [B, T], which must be below `token_types`: [B, T, D] float32."""
        config = self.config
        table = self.param("embedding", table_init(config), (config.token_types, config.emb_dim))
        return constrain(table, (None, "emb"))[types]


class Embedder(nn.Module):
    """Adds positions to token embeddings, then applies dropout (Vaswani et al. 2017, sections 3.5 and 5.4).

    With `model.embedding_norm` or `norm_position=peri`, the sum is normalised before dropout (Devlin et al. 2019, code;
    Lewis et al. 2020).

    typed: whether an embedding of the token's type is added too, if the model has `token_types`.
    """

    config: ModelConfig
    typed: bool = False

    def setup(self) -> None:
        config = self.config
        self.position_embedding = PositionEmbedding(config)
        self.type_embedding = TypeEmbedding(config) if self.typed and config.token_types else None
        self.embedding_norm = make_norm(config) if has_embedding_norm(config) else None

    def __call__(
        self,
        x: Activations,
        positions: Positions,
        dropout: Dropout | None = None,
        types: Int[Array, "B T"] | None = None,
        is_token: Bool[Array, "B T"] | None = None,
    ) -> Activations:
        """Map token embeddings x [B, T, D] at positions [B, T] or [1, T] to [B, T, D].

        Args:
          types: the type of every token, int32; None: all are of type 0. is_token: [B, T], as in `Norm`.
        """
        x = self.position_embedding(x, positions)
        if self.type_embedding is not None:
            types = jnp.zeros((1, x.shape[1]), jnp.int32) if types is None else types
            x = x + self.type_embedding(types).astype(x.dtype)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x, is_token)
        return constrain(drop(x, dropout, "embedding"), ACTIVATIONS)


def parameter_axes(config: ModelConfig, typed: bool = False) -> dict[str, Axes]:
    """Return the axes of the parameters of an `Embedder`, by the end of their paths."""
    return {
        **{f"position_embedding/{path}": axes for path, axes in ENCODINGS[config.position_encoding].axes.items()},
        **{f"embedding_norm/{path}": axes for path, axes in norms.parameter_axes(config).items()},
        **({"type_embedding/embedding": Axes((None,), ("emb",))} if typed else {}),
    }
