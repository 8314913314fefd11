"""Token embeddings, and the output projection that may share their table."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.activation_sharding import LOGITS, constrain
from transformer_jax.config import ModelConfig
from transformer_jax.nn import linear
from transformer_jax.nn.initialisation import kernel_init, table_init
from transformer_jax.typing import Activations, Array, Ids


class TokenEmbedding(nn.Module):
    """Owns `embedding` [V, D]; see `initialisation.INITS` for its initial values."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.embedding = self.param("embedding", table_init(config), (config.vocab_size, config.emb_dim))

    def __call__(self, ids: Ids) -> Activations:
        """Return rows of the table, times sqrt(D) with `scale_embeddings` (Vaswani et al. 2017, section 3.4).

        Args:
          ids: [B, T] int32.
        Returns: [B, T, D] in `config.dtype`.
        """
        config = self.config
        x = constrain(self.embedding, ("vocab", "emb"))[ids].astype(config.dtype)
        return x * jnp.asarray(config.emb_dim**0.5, x.dtype) if config.scale_embeddings else x

    def logits(self, x: Activations) -> Float[Array, "B T V"]:
        """Return x E^T for x [B, T, D]: [B, T, V] float32 (Press and Wolf 2017)."""
        return linear.logits(x, self.embedding.T)


def token_logits(x: Activations, embedding: TokenEmbedding, output: OutputProjection | None) -> Float[Array, "B T V"]:
    """Return logits over the vocabulary [B, T, V] float32 of x [B, T, D].

    Args:
      output: None if the output projection is the embedding table.
    """
    return constrain(embedding.logits(x) if output is None else output(x), LOGITS)


class OutputProjection(nn.Module):
    """Owns `kernel` [D, V], for a model whose output is not tied to its embedding."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Activations) -> Float[Array, "B T V"]:
        """Return x W for x [B, T, D]: [B, T, V] float32."""
        shape = (self.config.emb_dim, self.config.vocab_size)
        return linear.logits(x, self.param("kernel", lambda key: kernel_init(self.config)(key, shape, *shape)))


PARAMETER_AXES = {
    "(source_)?embedding/embedding": ("vocab", "emb"),
    "output/kernel": ("emb", "vocab"),
}
"""Logical axes of the parameters of `TokenEmbedding` and `OutputProjection`, by the names that models give them."""
