"""A learning rate that falls and restarts."""

import jax.numpy as jnp


def restarts(step, hyper):
    """After the warm-up, a cosine to end_fraction that begins anew every decay_steps (Loshchilov and Hutter 2017)."""
    rising = jnp.minimum(step / jnp.maximum(hyper.warmup_steps, 1), 1.0)
    done = jnp.maximum(step - hyper.warmup_steps, 0) % hyper.decay_steps / hyper.decay_steps
    cosine = (1 + jnp.cos(jnp.pi * done)) / 2
    return hyper.learning_rate * rising * (hyper.end_fraction + (1 - hyper.end_fraction) * cosine)
