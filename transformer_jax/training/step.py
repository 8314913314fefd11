"""One update of the parameters; all launchers run the same function."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from transformer_jax.config import layer_numbers
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES, Model, parameter_axes, training_pass
from transformer_jax.nn.batch_norm import statistics_of
from transformer_jax.nn.collected import over_devices
from transformer_jax.nn.dropout import Dropout, fold
from transformer_jax.nn.model_numbers import numbers_given
from transformer_jax.nn.monitored import added, nothing
from transformer_jax.nn.monitored import over_devices as over_all_devices
from transformer_jax.tasks.metrics.cross_entropy import Z_LOSS, z_loss_summed
from transformer_jax.tasks.task import TASKS, Sums, Task
from transformer_jax.training.block_losses import BLOCK_LOSSES, batch_sums, block_losses
from transformer_jax.training.extras import Update, updated_extra
from transformer_jax.training.freezing import trained_part, with_trained
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.monitor import monitored_metrics
from transformer_jax.training.optimizers import make_optimizer, updates_made
from transformer_jax.training.schedules import learning_rate
from transformer_jax.training.state import TrainState
from transformer_jax.typing import Array, Batch, Params

Metrics = dict[str, Array]
TrainStep = Callable[..., "Updated"]


class Updated(NamedTuple):
    """The state after a step, and the metrics of the step."""

    state: TrainState
    metrics: Metrics


def make_train_step(static: StaticConfig) -> TrainStep:
    """Return train_step(state, batch, hyper) -> (state, metrics); see `train_step`."""
    return functools.partial(train_step, static)


def monitored(static: StaticConfig) -> StaticConfig:
    """Return the static part of the program of a monitored step."""
    return dataclasses.replace(static, monitors=True)


def train_step(static: StaticConfig, state: TrainState, batch: Batch, hyper: Hyper) -> Updated:
    """Update the parameters once.

    Args:
      batch: the arrays that the task's loss reads, and `row_ids` [B]. Where a launcher divides the rows, it is one
        device's part of a batch: gradients and sums are added by `over_devices` before the division by the weight of
        the whole batch.
    Returns: the new state, and metrics as float32 scalars: those of `Task.means`, such as `loss` in nats per target
      token; `z_loss`, if it is on, and the losses of blocks by their names, all before their weights
      (training/block_losses.py); `gradient_norm` of the trained parameters, before clipping; `learning_rate`, that of
      the head; `weight`, the sum of the targets' weights; `tokens`, see `Task.counted_tokens`; `slots` of inputs and
      targets, and `filled`, those without padding.
      With `static.monitors` also the values of layers, `monitor/NAME` (training/monitor.py).
      With `skip_nonfinite`, a step whose loss or gradient norm is not finite changes only the number of the step.
    """
    grads, sums, statistics, of_blocks = batch_gradient(static, state.params, batch, state.step, hyper)
    counts = _counts(TASKS[static.task.name], batch)
    grads, sums, counts = over_devices((grads, sums, counts))
    # A batch may have no target, such as one without a masked token. Then all sums are 0, and so are the gradients.
    weight = jnp.where(sums["weight"] > 0, sums["weight"], 1.0)
    grads = jax.tree.map(lambda g: g / weight, grads)
    numbers = layer_numbers(static.model)
    optimizer = make_optimizer(static.optimizer, hyper, numbers, parameter_axes(static.model))
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    metrics = TASKS[static.task.name].means(sums | {"weight": weight}) | {
        **({Z_LOSS: sums[Z_LOSS] / weight} if Z_LOSS in sums else {}),
        **{name: sums[name] for name in BLOCK_LOSSES if name in sums},
        "gradient_norm": optax.tree.norm(grads),
        "learning_rate": learning_rate(static.optimizer.schedule, updates_made(state.opt_state) + 1, hyper),
        "weight": sums["weight"],
        **counts,
    }
    freeze = static.optimizer.freeze
    trained = jax.tree.map(jnp.add, trained_part(freeze, state.params, numbers), updates)
    params = with_trained(freeze, state.params, trained, numbers)
    if static.monitors:
        metrics |= monitored_metrics(over_all_devices(of_blocks), state.params, params, numbers)
    extra = updated_extra(state.extra, params, Update(updates_made(opt_state), statistics, hyper))
    if static.skip_nonfinite:
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
        before = state.params, state.opt_state, {name: state.extra[name] for name in extra}
        params, opt_state, extra = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (params, opt_state, extra), before
        )
    return Updated(TrainState(state.step + 1, params, opt_state, {**state.extra, **extra}), metrics)


class Gradient(NamedTuple):
    """Results of a batch that are added over its parts.

    grads: of the summed loss, with respect to the trained parameters. sums: of the task, and the losses of blocks.
    statistics: sums of the norms over the batch, see nn/batch_norm.py; empty without any. They are already added over
    the devices. monitored: of a monitored step, see nn/monitored.py; else empty.
    """

    grads: Params
    sums: Sums
    statistics: Params
    monitored: Params


def batch_gradient(static: StaticConfig, params: Params, batch: Batch, step: Array, hyper: Hyper) -> Gradient:
    """Return the gradients and sums of a batch, or of a device's part of it.

    With accumulation_steps > 1, the batch is computed in that many parts, and the results of the parts are added. If
    blocks have losses that need sums of the whole batch, a first pass over the parts, without gradients, adds these.
    """

    freeze, numbers = static.optimizer.freeze, layer_numbers(static.model)

    def gradient(part: Batch, whole: _Whole | None = None) -> Gradient:
        def loss(trained: Params) -> tuple[Array, tuple[Sums, Params, Params]]:
            result = batch_loss(static, with_trained(freeze, params, trained, numbers), part, step, hyper)
            needed, total = over_devices(_needed(result)) if whole is None else whole, result.loss
            of_blocks = block_losses(result.collected, needed.sums)
            for name, value in of_blocks.items():
                if (factor := BLOCK_LOSSES[name].weight(hyper)) is not None:
                    total = total + factor * needed.weight * value
            return total, ({**result.sums, **of_blocks}, statistics_of(result.collected), result.monitored)

        (_, stored), grads = jax.value_and_grad(loss, has_aux=True)(trained_part(freeze, params, numbers))
        return Gradient(grads, *stored)

    parts = static.accumulation_steps
    if parts == 1:
        return gradient(batch)

    def needed_of(part: Batch) -> _Whole:
        return _needed(batch_loss(dataclasses.replace(static, monitors=False), params, part, step, hyper))

    # Every parts-th row goes into one part, so that rows stay on the device that holds them.
    split = jax.tree.map(lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), dict(batch))
    whole = over_devices(_added_over_parts(needed_of, split))
    return _added_over_parts(functools.partial(gradient, whole=whole), split)


class _Whole(NamedTuple):
    """What losses of blocks need of the whole batch, by which the step divides; None if there are no such losses.

    sums: `batch_sums`. weight: [], that of the task.
    """

    sums: Params
    weight: Any


def _needed(result: BatchLoss) -> _Whole:
    """Return what losses of blocks need of the whole batch, of a part of it; without gradient."""
    sums = batch_sums(result.collected)
    return _Whole(sums, result.sums["weight"] if jax.tree.leaves(sums) else None)


def _added_over_parts(function: Callable[[Batch], Any], split: Batch) -> Any:
    """Return the sum of function(part), a tree of arrays, over the parts of a batch, the first axis of `split`.

    Of `monitored.Largest` it is the maximum.
    """
    shapes = jax.eval_shape(function, jax.tree.map(lambda x: x[0], split))
    zeros = nothing(shapes)

    def add(total: Any, part: Batch) -> tuple[Any, None]:
        return added(total, function(part)), None

    return jax.lax.scan(add, zeros, split)[0] if jax.tree.leaves(zeros) else zeros


class BatchLoss(NamedTuple):
    """The loss of the task summed over a batch, all of its sums, and what blocks stored (`TrainingPass`).

    loss: with the z-loss, times its weight.
    """

    loss: Array
    sums: Sums
    collected: Params
    monitored: Params


def batch_loss(static: StaticConfig, params: Params, batch: Batch, step: Array, hyper: Hyper) -> BatchLoss:
    """Return the loss of the task of a training pass over a batch.

    Args:
      step: number of updates before this one. Dropout depends on it, on the seed and on the row.
    Raises: ConfigError if `hyper` has a z-loss and the task has none.
    """
    task = TASKS[static.task.name]
    module = ARCHITECTURES[static.model.architecture].module(static.model, task.head(static.task, static.model))
    dropout = None
    if hyper.is_random:
        seed = fold(fold(jnp.uint32(0), hyper.seed), step)
        dropout = Dropout(seed, batch["row_ids"], hyper.dropout)

    def loss(model: Model) -> Sums:
        return task.loss(static.task, model, batch, dropout, hyper, static.loss_chunks)

    with numbers_given(hyper.model), z_loss_summed(hyper.z_loss is not None):
        sums, *stored = training_pass(module, params, loss, static.monitors)
    if hyper.z_loss is None:
        return BatchLoss(sums["loss"], sums, *stored)
    if Z_LOSS not in sums:
        raise ConfigError(f"training.z_loss: the loss of task.name='{static.task.name}' has no sum '{Z_LOSS}'")
    return BatchLoss(sums["loss"] + hyper.z_loss * sums[Z_LOSS], sums, *stored)


def _counts(task: Task, batch: Batch) -> dict[str, Array]:
    """Return `tokens`, the tokens that the speed of training counts; `slots` of the batch, and those `filled`."""
    tokens, masks = task.counted_tokens(batch), task.slot_masks(batch)
    return {
        "tokens": jnp.float32(0 if tokens is None else jnp.count_nonzero(tokens)),
        "filled": jnp.float32(sum(jnp.count_nonzero(mask) for mask in masks)),
        "slots": jnp.float32(sum(mask.size for mask in masks)),
    }
