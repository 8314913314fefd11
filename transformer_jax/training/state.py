"""What a run carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from transformer_jax.models.encoder_decoder import init_params
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.typing import Array, Params


class TrainState(NamedTuple):
    """step: int32 scalar, updates made so far; params: float32; opt_state: Optax's."""

    step: Array
    params: Params
    opt_state: Any


def init_state(static: StaticConfig, hyper: Hyper) -> TrainState:
    """The state before the first update; a function of `hyper.seed`."""
    params = init_params(static.model, hyper.seed)
    return TrainState(jnp.zeros((), jnp.int32), params, make_optimizer(static.schedule, hyper).init(params))
