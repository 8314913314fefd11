"""Dynamic tanh in place of a norm."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.norms import NormKind


class DynamicTanh(nn.Module):
    """tanh(alpha x) * scale + bias, with one number alpha (Zhu et al. 2025, equation 1)."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x, is_token=None):
        alpha = self.param("alpha", nn.initializers.constant(0.5), ())
        row = (1,) * (x.ndim - 1) + (self.config.emb_dim,)
        scale = self.param("scale", nn.initializers.ones, row[-1:]).reshape(row)
        bias = self.param("bias", nn.initializers.zeros, row[-1:]).reshape(row)
        return (jnp.tanh(alpha * x.astype(jnp.float32)) * scale + bias).astype(x.dtype)


DYT = NormKind(module=DynamicTanh, axes={"alpha": Axes((), ()), "(scale|bias)": Axes((), (None,))})
