"""Token embeddings, and the output projection that may share their table."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn import linear
from transformer_jax.nn.activation_sharding import LOGITS, constrain
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.initialisation import output_bias_init, output_init, table_init
from transformer_jax.nn.model_numbers import number_of
from transformer_jax.typing import Activations, Array, Ids


class TokenEmbedding(nn.Module):
    """Owns `embedding` [V, D]; see `initialisation.INITS` for its initial values."""

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.embedding = self.param("embedding", table_init(config), (config.vocab_size, config.emb_dim))

    def __call__(self, ids: Ids) -> Activations:
        """Return rows of the table, times sqrt(D) with `scale_embeddings` (Vaswani et al. 2017, section 3.4).

        They are also multiplied by `embedding_multiplier`; a config has one of the two.

        Args:
          ids: [B, T] int32.
        Returns: [B, T, D] in `config.dtype`.
        """
        config = self.config
        x = constrain(self.embedding, ("vocab", "emb"))[ids].astype(config.dtype)
        x = x * jnp.asarray(config.emb_dim**0.5, x.dtype) if config.scale_embeddings else x
        factor = number_of(config, "embedding_multiplier")
        return x if factor is None else x * jnp.asarray(factor, x.dtype)


def token_logits(
    config: ModelConfig, x: Float[Array, "B T R"], table: Float[Array, "V D"], output: OutputProjection | None
) -> Float[Array, "B T V"]:
    """Return logits over the vocabulary [B, T, V] float32 of x [B, T, R]; R is D, unless a recurrent model differs.

    With `scale_logits`, x is divided by sqrt(D) first, as in T5 with a tied output (Raffel et al. 2020, code). The
    logits z are multiplied by `logits_multiplier`, and then bounded by `output_logit_cap` c, to c tanh(z / c) (Gemma
    Team 2024, arXiv 2408.00118, section 2).

    Args:
      table: the token embedding E. output: None for x E^T, without a bias (Press and Wolf 2017).
    """
    if config.scale_logits:
        x = x * jnp.asarray(config.emb_dim**-0.5, x.dtype)
    logits = constrain(linear.logits(x, table.T) if output is None else output(x, table), LOGITS)
    if (factor := number_of(config, "logits_multiplier")) is not None:
        logits = logits * factor
    cap = number_of(config, "output_logit_cap")
    return logits if cap is None else cap * jnp.tanh(logits / cap)


def has_output_parameters(config: ModelConfig) -> bool:
    """Return whether a model has an `OutputProjection`: a kernel that is not the embedding table, or a bias."""
    return config.output_bias or not config.tie_output


class OutputProjection(nn.Module):
    """Owns `kernel` [D, V], unless the output is tied to the embedding, and with `output_bias` a `bias` [V]."""

    config: ModelConfig

    def setup(self) -> None:
        config, shape = self.config, (self.config.emb_dim, self.config.vocab_size)
        self.kernel = (
            None if config.tie_output else self.param("kernel", lambda k: output_init(config)(k, shape, *shape))
        )
        self.bias = self.param("bias", output_bias_init(config), shape[1:]) if config.output_bias else None

    def __call__(self, x: Float[Array, "B T R"], table: Float[Array, "V D"]) -> Float[Array, "B T V"]:
        """Return x W + b for x [B, T, R]: [B, T, V] float32; W is the transposed `table` if there is no kernel."""
        y = linear.logits(x, table.T if self.kernel is None else self.kernel)
        return y if self.bias is None else y + self.bias.reshape((1,) * (y.ndim - 1) + (-1,))


PARAMETER_AXES = {
    "(source_)?embedding/embedding": Axes(("vocab",), ("emb",)),
    "output/kernel": Axes(("emb",), ("vocab",)),
    "output/bias": Axes((), ("vocab",)),
}
"""Axes of the parameters of `TokenEmbedding` and `OutputProjection`, by the names that models give them."""
