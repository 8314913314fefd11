"""Mish as an activation."""

import jax
import jax.numpy as jnp

from transformer_jax.nn.feed_forward import Activation


def mish(x):
    """x tanh(log(1 + exp(x))) (Misra 2020)."""
    return x * jnp.tanh(jax.nn.softplus(x))


MISH = Activation(mish)
