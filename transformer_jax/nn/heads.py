"""Heads of tasks: modules that map hidden states to outputs. Their parameters are at `head/...`.

A head is called as `head(x, batch, embedding, dropout)`, with hidden states x [B, T, D], the batch, the token embedding
[V, D], which is None if the model reads images, and None for a deterministic pass. Logits are float32. Hidden states of
a recurrent model may be wider than its embeddings.
"""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn import linear
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.embeddings import OutputProjection, has_output_parameters, token_logits
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.initialisation import kernel_init, output_bias_init, output_init
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.norms import NORMS, make_norm
from transformer_jax.typing import Activations, Array, Batch


class MaskedLMHead(nn.Module):
    """Norm(f(x W + b)) E^T + b_V: logits over the vocabulary (Devlin et al. 2019, code: `get_masked_lm_output`).

    f is the model's activation, without its gate. The projection to the vocabulary follows `tie_output`, `output_bias`
    and `scale_logits`, as in models without a head.
    """

    config: ModelConfig

    def setup(self) -> None:
        config, width = self.config, (self.config.emb_dim,)
        self.transform = Linear(width, width, config.use_bias, kernel_init(config))
        self.norm = make_norm(config)
        self.output = OutputProjection(config) if has_output_parameters(config) else None

    def __call__(
        self, x: Activations, batch: Batch, embedding: Float[Array, "V D"], dropout: Dropout | None = None
    ) -> Float[Array, "B T V"]:
        """Map x [B, T, D] to logits [B, T, V]; there is no dropout, as in BERT's code.

        Args:
          batch: its `weights` [B, T] mark the predicted tokens, the only ones that BatchNorm counts; absent: all.
        """
        weights = batch.get("weights") if NORMS[self.config.norm].over_batch else None
        is_predicted = None if weights is None else weights > 0
        x = self.norm(ACTIVATIONS[self.config.activation].function(self.transform(x)), is_predicted)
        return token_logits(self.config, x, embedding, self.output)


class LabelProjection(nn.Module):
    """Owns `kernel` [D, labels] and `bias` [labels]."""

    config: ModelConfig
    num_labels: int

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch C"]:
        """Return x W + b for x [..., D]: [..., labels] float32."""
        config, shape = self.config, (x.shape[-1], self.num_labels)
        kernel = self.param("kernel", lambda key: output_init(config, of_labels=True)(key, shape, *shape))
        bias = self.param("bias", output_bias_init(config), shape[1:])
        y = linear.logits(x, kernel)
        return y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


class TokenHead(nn.Module):
    """One vector of logits per token, as for tags (Devlin et al. 2019, section 5.3) or the ends of an answer.

    The token vectors have dropout, `model.head_dropout_rate`, if the task gives it, as it does for tags.
    """

    config: ModelConfig
    num_labels: int

    def setup(self) -> None:
        self.output = LabelProjection(self.config, self.num_labels)

    def __call__(
        self, x: Activations, batch: Batch, embedding: Float[Array, "V _"] | None, dropout: Dropout | None = None
    ) -> Float[Array, "B T C"]:
        """Map x [B, T, D] to logits [B, T, labels]; it needs neither batch nor embedding."""
        return self.output(drop(x, dropout, "head"))


class SequenceHead(nn.Module):
    """One vector of logits per sequence (Devlin et al. 2019, section 3.2), or per image (Dosovitskiy et al. 2021).

    The vector that the output layer reads has dropout, `model.head_dropout_rate` (their code: `create_model` of
    run_classifier.py; Radford et al. 2018, code: `clf_pdrop`).

    pooling: a name of `POOLINGS`. has_pooler: whether tanh(y W + b) follows, as in BERT.
    """

    config: ModelConfig
    num_labels: int
    pooling: str = "first"
    has_pooler: bool = False

    @nn.compact
    def __call__(
        self, x: Activations, batch: Batch, embedding: Float[Array, "V _"] | None, dropout: Dropout | None = None
    ) -> Float[Array, "B C"]:
        """Map x [B, T, D] to logits [B, labels].

        Args:
          batch: its `inputs_mask` [B, T] marks the tokens; absent: all are tokens. embedding: is not read.
        """
        mask = batch.get("inputs_mask")
        y = POOLINGS[self.pooling](x, jnp.ones(x.shape[:2], bool) if mask is None else mask)
        if self.has_pooler:
            width = (y.shape[-1],)
            y = jnp.tanh(Linear(width, width, True, kernel_init(self.config), name="pooler")(y))
        return LabelProjection(self.config, self.num_labels, name="output")(drop(y, dropout, "head"))


def first_token(x: Activations, mask: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """Return the vector of the first token, x [B, T, D] -> [B, D]."""
    return x[:, 0]


def last_token(x: Activations, mask: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """Return the vector of the last token by the mask, x [B, T, D] -> [B, D]; of an empty row the first one."""
    last = jnp.maximum(mask.sum(1) - 1, 0)
    return jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]


def mean_of_tokens(x: Activations, mask: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """Return the mean over the tokens of the mask, in float32, x [B, T, D] -> [B, D]; of an empty row zeros."""
    weights = mask[..., None].astype(jnp.float32)
    total = (x.astype(jnp.float32) * weights).sum(1)
    return (total / jnp.maximum(weights.sum(1), 1.0)).astype(x.dtype)


def max_of_tokens(x: Activations, mask: Bool[Array, "B T"]) -> Float[Array, "B D"]:
    """Return the maximum of every feature over the tokens of the mask, x [B, T, D] -> [B, D]; of an empty row zeros.

    Collobert et al. 2011, section 3.2.2: "max over time".
    """
    largest = jnp.where(mask[..., None], x, -jnp.inf).max(1)
    return jnp.where(mask.any(1)[:, None], largest, 0).astype(x.dtype)


POOLINGS = {"first": first_token, "last": last_token, "mean": mean_of_tokens, "max": max_of_tokens}
"""Functions that make one vector of the vectors of a sequence, by the values of `task.pooling`."""
