"""The optimizer: an Optax chain; all its numbers may be traced."""

from __future__ import annotations

from typing import Any

import jax
import optax

from transformer_jax.training.hyper import Hyper
from transformer_jax.training.schedules import as_optax
from transformer_jax.typing import Array, Params


def make_optimizer(schedule: str, hyper: Hyper) -> optax.GradientTransformation:
    """Return the optimizer.

    It clips by global norm, then applies Adam (Kingma and Ba 2015) and decoupled weight decay (Loshchilov and Hutter
    2019).
    """
    parts = [] if hyper.clip_norm is None else [optax.clip_by_global_norm(hyper.clip_norm)]
    parts.append(optax.scale_by_adam(hyper.beta1, hyper.beta2, hyper.epsilon))
    if hyper.weight_decay is not None:
        parts.append(optax.add_decayed_weights(hyper.weight_decay, mask=decayed))
    parts.append(optax.scale_by_learning_rate(as_optax(schedule, hyper)))
    return optax.chain(*parts)


def updates_made(opt_state: Any) -> Array:
    """Return the number of updates in the optimizer's state, int32 []; the schedule depends on it."""
    [count] = [part.count for part in opt_state if isinstance(part, optax.ScaleByScheduleState)]
    return count


def decayed(params: Params) -> Any:
    """Return a tree of bools: True for parameters with weight decay, which are kernels (no biases, norms, embeddings).

    Parameters are selected by name, not by rank: the scale of a norm has two axes where layers are stacked.
    """
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)
