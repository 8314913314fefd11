"""Learning-rate schedules, written with jnp only, so that warm-up, decay and peak may be traced."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import optax

from transformer_jax.registry import Functions, Registry
from transformer_jax.training.hyper import Hyper
from transformer_jax.typing import Array, ArrayLike

Schedule = Callable[[Array, Hyper], Array]


def _warmed_up(step: Array, hyper: Hyper) -> tuple[Array, Array, Array]:
    """Return the peak p, the warm-up w and min(s / w, 1); float32 scalars."""
    peak, warmup = jnp.asarray(hyper.learning_rate, jnp.float32), jnp.asarray(hyper.warmup_steps, jnp.float32)
    return peak, warmup, jnp.minimum(step / jnp.maximum(warmup, 1.0), 1.0)


def _inverse_sqrt(step: Array, hyper: Hyper) -> Array:
    """p * sqrt(w / s). With p = (emb_dim * w)^-0.5 this is emb_dim^-0.5 min(s^-0.5, s w^-1.5) (Vaswani et al. 2017,
    equation 3). With w = 0: p * s^-0.5."""
    peak, warmup, rising = _warmed_up(step, hyper)
    return peak * jnp.minimum(rising, jnp.sqrt(jnp.maximum(warmup, 1.0) / jnp.maximum(step, 1.0)))


def _cosine(step: Array, hyper: Hyper) -> Array:
    """p * (f + (1 - f) (1 + cos(pi x)) / 2), x = min((s - w) / (d - w), 1) (Loshchilov and Hutter 2017)."""
    return _decaying(step, hyper, lambda done: 0.5 * (1.0 + jnp.cos(jnp.pi * done)))


def _linear(step: Array, hyper: Hyper) -> Array:
    """p * (1 - (1 - f) x), with x as in `cosine`."""
    return _decaying(step, hyper, lambda done: 1.0 - done)


def _wsd(step: Array, hyper: Hyper) -> Array:
    """p until s = d - n, then p * (f + (1 - f) (1 - x^q)) with x = min((s - (d - n)) / n, 1): warm-up, stable, decay.

    n = max(round(decay_fraction * d), 1) and q = decay_power. The phases are those of Hu et al. 2024, section 4; q = 1,
    a linear decay, and q = 0.5, 1 - sqrt(x), are compared by Hägele et al. 2024.
    """
    peak, _, rising = _warmed_up(step, hyper)
    # Whole updates: an x that is not exactly 0 at the start of the decay would have a large square root.
    end = jnp.asarray(hyper.decay_steps, jnp.float32)
    length = jnp.maximum(jnp.round(hyper.decay_fraction * end), 1.0)
    done = jnp.clip((step - (end - length)) / length, 0.0, 1.0)
    left = 1.0 - jnp.power(done, hyper.decay_power)
    return peak * rising * (hyper.end_fraction + (1.0 - hyper.end_fraction) * left)


def _decaying(step: Array, hyper: Hyper, decay: Callable[[Array], Array]) -> Array:
    peak, warmup, rising = _warmed_up(step, hyper)
    done = jnp.clip((step - warmup) / jnp.maximum(hyper.decay_steps - warmup, 1.0), 0.0, 1.0)
    return peak * rising * (hyper.end_fraction + (1.0 - hyper.end_fraction) * decay(done))


def _constant(step: Array, hyper: Hyper) -> Array:
    """p."""
    peak, _, rising = _warmed_up(step, hyper)
    return peak * rising


def _none(step: Array, hyper: Hyper) -> Array:
    """p from the first update on."""
    return jnp.asarray(hyper.learning_rate, jnp.float32)


SCHEDULES: Registry[Schedule] = Functions(
    "optimizer.schedule",
    ("step", "hyper"),
    {
        "inverse_sqrt": _inverse_sqrt,
        "cosine": _cosine,
        "linear": _linear,
        "wsd": _wsd,
        "constant": _constant,
        "none": _none,
    },
)
"""Schedules by the values of `optimizer.schedule`.

A schedule maps the number s of an update (float32, counted from 1) to its learning rate. With peak p, warm-up w, decay
end d and end fraction f, every schedule except `none` rises as p * s / w for s <= w. The functions' docstrings give the
learning rate after the warm-up.
"""


def learning_rate(name: str, update: ArrayLike, hyper: Hyper) -> Array:
    """Return the learning rate of update number `update`, counted from 1, float32; see `SCHEDULES`."""
    return SCHEDULES[name](jnp.asarray(update, jnp.float32), hyper)


def as_optax(name: str, hyper: Hyper) -> optax.Schedule:
    """Return the schedule for Optax, which counts updates from 0."""
    return lambda count: learning_rate(name, count + 1, hyper)
