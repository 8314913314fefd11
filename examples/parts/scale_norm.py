"""Vectors of one length in place of a norm."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.norms import NormKind


class ScaleNorm(nn.Module):
    """scale x / |x|, with one number, initially sqrt(emb_dim) (Nguyen and Salazar 2019)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x, is_token=None):
        scale = self.param("scale", nn.initializers.constant(self.config.emb_dim**0.5), ())
        x32 = x.astype(jnp.float32)
        length = jnp.sqrt(jnp.square(x32).sum(-1, keepdims=True) + self.config.norm_epsilon)
        return (scale * x32 / length).astype(x.dtype)


SCALE_NORM = NormKind(module=ScaleNorm, axes={"scale": Axes((), ())})
