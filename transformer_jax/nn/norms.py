"""Normalisation over the width of the model, always in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.typing import Array


def layer_norm(
    x: Float[Array, "*batch D"], scale: Float[Array, " D"], bias: Float[Array, " D"] | None, epsilon: float
) -> Float[Array, "*batch D"]:
    """Return (x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias over the last axis (Ba et al. 2016, equation 4).

    Args:
      x: [..., D]; scale, bias: [D].
    Returns: [..., D] in the type of x.
    """
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + epsilon) * _as_row(scale, x)
    return (y if bias is None else y + _as_row(bias, x)).astype(x.dtype)


def rms_norm(x: Float[Array, "*batch D"], scale: Float[Array, " D"], epsilon: float) -> Float[Array, "*batch D"]:
    """Return x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and Sennrich 2019, equation 4).

    Args:
      x: [..., D]; scale: [D].
    Returns: [..., D] in the type of x.
    """
    x32 = x.astype(jnp.float32)
    y = x32 * jax.lax.rsqrt(jnp.square(x32).mean(-1, keepdims=True) + epsilon)
    return (y * _as_row(scale, x)).astype(x.dtype)


def _as_row(vector: Array, x: Array) -> Array:
    return vector.reshape((1,) * (x.ndim - 1) + (-1,))


class NormKind(NamedTuple):
    """A function of (x, scale, epsilon), or of (x, scale, bias, epsilon) if has_bias."""

    function: Callable[..., Array]
    has_bias: bool


NORMS = {"layernorm": NormKind(layer_norm, has_bias=True), "rmsnorm": NormKind(rms_norm, has_bias=False)}
"""By the values of `model.norm`."""


class Norm(nn.Module):
    """Owns `scale` [D] and, for LayerNorm with biases, `bias` [D]."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """Normalise x [..., D]."""
        config, kind = self.config, NORMS[self.config.norm]
        scale = self.param("scale", nn.initializers.ones, (config.emb_dim,))
        if not kind.has_bias:
            return kind.function(x, scale, config.norm_epsilon)
        bias = self.param("bias", nn.initializers.zeros, (config.emb_dim,)) if config.use_bias else None
        return kind.function(x, scale, bias, config.norm_epsilon)


PARAMETER_AXES = {"(scale|bias)": (None,)}
"""Logical axes of the parameters of `Norm`: vectors of the model's width are not divided among devices."""
