"""Biases that fall with the logarithm of the distance."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.positions import Encoding


class LogarithmicBias(nn.Module):
    """-a log(1 + b |i - j|) with positive a and b of every head, the logarithmic kernel of Chi et al. 2022 (KERPLE).

    Owns the logarithms of a and b, `strength` and `rate` [N], 0 at first.
    """

    config: ModelConfig
    bidirectional: bool

    @nn.compact
    def __call__(self, query_positions, key_positions):
        """Map positions [B, T] and [B, S] to biases [B, N, T, S]."""
        shape = (self.config.num_heads,)
        strength, rate = (self.param(name, nn.initializers.zeros, shape) for name in ("strength", "rate"))
        a, b = (jnp.exp(x).reshape(1, -1, 1, 1) for x in (strength, rate))
        distances = jnp.abs(query_positions[:, None, :, None] - key_positions[:, None, None, :])
        return -a * jnp.log1p(b * distances)


KERPLE = Encoding(bias=LogarithmicBias, bias_axes={"(strength|rate)": Axes((), ("heads",))})
