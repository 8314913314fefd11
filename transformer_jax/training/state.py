"""What a run carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
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


def placed_state(static: StaticConfig, hyper: Hyper, sharding: jax.sharding.Sharding) -> TrainState:
    """The state before the first update, made where `sharding` wants it."""
    return jax.jit(init_state, static_argnums=0, out_shardings=sharding)(static, hyper)


def state_template(static: StaticConfig, hyper: Hyper, sharding: jax.sharding.Sharding) -> TrainState:
    """Shapes, types and sharding of the state: what a checkpoint is restored into."""
    shapes = jax.eval_shape(lambda h: init_state(static, h), hyper)
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)
