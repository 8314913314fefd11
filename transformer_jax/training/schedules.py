"""Learning-rate schedules: functions of jnp alone, so that warm-up, decay and peak may be traced."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from transformer_jax.training.hyper import Hyper
from transformer_jax.typing import Array, ArrayLike


def learning_rate(name: str, update: ArrayLike, hyper: Hyper) -> Array:
    """The learning rate of update number `update`, counted from 1, float32.

    With peak p, warm-up w, decay end d and end fraction f, every schedule but `none` rises as p * s / w for s <= w,
    then:

    - `inverse_sqrt`: p * sqrt(w / s). With p = (emb_dim * w)^-0.5 this is emb_dim^-0.5 min(s^-0.5, s w^-1.5)
      (Vaswani et al. 2017, equation 3). With w = 0: p * s^-0.5.
    - `cosine`: p * (f + (1 - f) (1 + cos(pi x)) / 2), x = (s - w) / (d - w), at most 1 (Loshchilov and Hutter 2017).
    - `linear`: p * (1 - (1 - f) x).
    - `constant`: p.
    - `none`: p from the first update on.
    """
    step = jnp.asarray(update, jnp.float32)
    peak, warmup = jnp.asarray(hyper.learning_rate, jnp.float32), jnp.asarray(hyper.warmup_steps, jnp.float32)
    if name == "none":
        return peak
    rising = jnp.minimum(step / jnp.maximum(warmup, 1.0), 1.0)
    if name == "inverse_sqrt":
        return peak * jnp.minimum(rising, jnp.sqrt(jnp.maximum(warmup, 1.0) / jnp.maximum(step, 1.0)))
    if name == "constant":
        return peak * rising
    done = jnp.clip((step - warmup) / jnp.maximum(hyper.decay_steps - warmup, 1.0), 0.0, 1.0)
    remaining = 0.5 * (1.0 + jnp.cos(jnp.pi * done)) if name == "cosine" else 1.0 - done
    return peak * rising * (hyper.end_fraction + (1.0 - hyper.end_fraction) * remaining)


def as_optax(name: str, hyper: Hyper) -> optax.Schedule:
    """The schedule as Optax counts: from 0."""
    return lambda count: learning_rate(name, count + 1, hyper)
