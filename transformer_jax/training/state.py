"""The state of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.config import layer_numbers
from transformer_jax.models.architecture import initial, parameter_axes
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.extras import evaluated, initial_extra
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.typing import Array, Params


class TrainState(NamedTuple):
    """State of a run.

    step: int32 scalar, number of updates so far. params: float32. opt_state: the state of the Optax optimizer. extra:
    named trees beside the parameters, see EXTRAS of training/extras.py. Checkpoints, checksums, shardings and the axis
    of trials treat them as parameters. The step returns a tree of another name unchanged.
    """

    step: Array
    params: Params
    opt_state: Any
    extra: Mapping[str, Any] = {}

    @property
    def evaluated(self) -> Params:
        """The parameters as passes outside of training read them, see `training.extras.evaluated`."""
        return evaluated(self.params, self.extra)


def init_state(static: StaticConfig, hyper: Hyper) -> TrainState:
    """Return the state before the first update; it depends only on the config and `hyper.seed_init`."""
    head = TASKS[static.task.name].head(static.task, static.model)
    start = initial(static.model, hyper.seed_init, head)
    optimizer = make_optimizer(static.optimizer, hyper, layer_numbers(static.model), parameter_axes(static.model))
    opt_state = optimizer.init(start.params)
    return TrainState(jnp.zeros((), jnp.int32), start.params, opt_state, initial_extra(start, hyper))


def state_shapes(static: StaticConfig, hyper: Hyper) -> TrainState:
    """Return shapes and types of the state, as jax.ShapeDtypeStructs."""
    return jax.eval_shape(lambda h: init_state(static, h), hyper)


def placed_state(static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
    """Return the state before the first update, created on its devices.

    Args:
      shardings: a tree like the state, or one sharding for all arrays.
    """
    return jax.jit(init_state, static_argnums=0, out_shardings=shardings)(static, hyper)


def state_template(static: StaticConfig, hyper: Hyper, shardings: Any) -> TrainState:
    """Return shapes, types and shardings of the state, to restore a checkpoint; `shardings` as in `placed_state`."""
    shapes = state_shapes(static, hyper)
    places = jax.tree.broadcast(shardings, shapes)
    return jax.tree.map(lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), shapes, places)
