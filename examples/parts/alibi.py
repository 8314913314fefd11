"""Attention with linear biases."""

import math

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.positions import Encoding


def slopes(heads):
    """Return the slope of every head: 2^-(8 h / N), and for other N than powers of 2 as in the authors' code."""
    power = 2 ** math.floor(math.log2(heads))
    more = range(1, 2 * (heads - power), 2)
    return [2 ** (-8 * h / power) for h in range(1, power + 1)] + [2 ** (-4 * h / power) for h in more]


class LinearBias(nn.Module):
    """-slope |i - j|, added to the logits of the query i and the key j (Press et al. 2022, section 3)."""

    config: ModelConfig
    bidirectional: bool

    def __call__(self, query_positions, key_positions):
        """Map positions [B, T] and [B, S] to biases [B, N, T, S]."""
        distances = jnp.abs(query_positions[:, None, :, None] - key_positions[:, None, None, :])
        return -jnp.array(slopes(self.config.num_heads)).reshape(1, -1, 1, 1) * distances


ALIBI = Encoding(bias=LinearBias)
