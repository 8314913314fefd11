"""The optimizer: an Optax chain whose numbers may all be traced."""

from __future__ import annotations

from typing import Any

import jax
import optax

from transformer_jax.training.hyper import Hyper
from transformer_jax.training.schedules import as_optax
from transformer_jax.typing import Array, Params


def make_optimizer(schedule: str, hyper: Hyper) -> optax.GradientTransformation:
    """Clipping by global norm, Adam (Kingma and Ba 2015), decoupled weight decay (Loshchilov and Hutter 2019)."""
    parts = [] if hyper.clip_norm is None else [optax.clip_by_global_norm(hyper.clip_norm)]
    parts.append(optax.scale_by_adam(hyper.beta1, hyper.beta2, hyper.epsilon))
    if hyper.weight_decay is not None:
        parts.append(optax.add_decayed_weights(hyper.weight_decay, mask=decayed))
    parts.append(optax.scale_by_learning_rate(as_optax(schedule, hyper)))
    return optax.chain(*parts)


def updates_made(opt_state: Any) -> Array:
    """How many updates the optimizer's state has seen, int32 []: what its schedule goes by."""
    [count] = [part.count for part in opt_state if isinstance(part, optax.ScaleByScheduleState)]
    return count


def decayed(params: Params) -> Any:
    """Which parameters weight decay applies to: kernels, and no biases, norms or embeddings. A tree of bools.

    By name, since rank does not tell: the scale of a norm has two axes where layers are stacked.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
