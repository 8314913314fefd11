"""Squared ReLU as an activation."""

import jax.numpy as jnp

from transformer_jax.nn.feed_forward import Activation


def relu2(x):
    """max(0, x)^2 (So et al. 2021)."""
    return jnp.square(jnp.maximum(x, 0))


RELU2 = Activation(relu2)
