"""The state that a run carries from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.models.architecture import init_params
from transformer_jax.tasks.base import TASKS
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.typing import Array, Params


class TrainState(NamedTuple):
    """step: int32 scalar, updates made so far; params: float32; opt_state: Optax's.

    extra: named trees that a method keeps beside the parameters, such as their average. Checkpoints, checksums,
    shardings and the axis of trials treat them as parameters; the step returns them unchanged unless a method says
    otherwise.
    """

    step: Array
    params: Params
    opt_state: Any
    extra: Mapping[str, Any] = {}


def init_state(static: StaticConfig, hyper: Hyper) -> TrainState:
    """Return the state before the first update; a function of `hyper.seed`."""
    head = TASKS[static.task.name].head(static.task, static.model)
    params = init_params(static.model, hyper.seed, head)
    return TrainState(jnp.zeros((), jnp.int32), params, make_optimizer(static.schedule, hyper).init(params))


def state_shapes(static: StaticConfig, hyper: Hyper) -> TrainState:
    """Shapes and types of the state, as jax.ShapeDtypeStructs."""
    return jax.eval_shape(lambda h: init_state(static, h), hyper)


def placed_state(static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
    """The state before the first update, made where it belongs.

    Args:
      shardings: of every array, as a tree like the state, or one for all.
    """
    return jax.jit(init_state, static_argnums=0, out_shardings=shardings)(static, hyper)


def state_template(static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
    """Shapes, types and sharding of the state: what a checkpoint is restored into; `shardings` as of `placed_state`."""
    shapes = state_shapes(static, hyper)
    places = jax.tree.broadcast(shardings, shapes)
    return jax.tree.map(lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), shapes, places)
