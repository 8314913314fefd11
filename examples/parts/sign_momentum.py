"""Updates by the sign of the momentum."""

import jax
import jax.numpy as jnp
import optax


def sign_momentum(static, hyper, axes):
    """sign(m), m = beta1 m + (1 - beta1) g (Bernstein et al. 2018, Signum)."""
    signs = optax.stateless(lambda updates, params: jax.tree.map(jnp.sign, updates))
    return [optax.ema(hyper.beta1, debias=False), signs]
