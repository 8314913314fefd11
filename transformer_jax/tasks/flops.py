"""Floating-point operations of a training: of a step, of all steps, and the steps that a number of operations allows.

`step_flops` counts the matrix products in full, as `models.flops.train_flops`; training logs it. `step_operations`
leaves out the pairs of a query and a key that a causal mask or a window hides. It is the measure of equal operations.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchShape, TrainingBatches
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.task import TASKS


def step_flops(config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int | None:
    """Return the operations of a training step; None if the architecture does not count them for this task.

    Args:
      rows, widths: as in `Architecture.train_flops`.
    """
    architecture = ARCHITECTURES[config.model.architecture]
    try:
        head = TASKS[config.task.name].head_flops(config, rows, widths)
        if head is None:
            return architecture.train_flops(config.model, rows, widths)
        return architecture.train_flops(config.model, rows, widths, head)
    except KeyError:  # the architecture needs the width of a sequence that the task lacks
        return None


def step_operations(config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int | None:
    """Return `step_flops` with only the keys that the mask of a query shows; padding counts as shown."""
    flops = step_flops(config, rows, widths)
    if flops is None:
        return None
    return flops - ARCHITECTURES[config.model.architecture].hidden_flops(config.model, rows, widths)


def shapes_of(config: ExperimentConfig, plan: TrainingBatches) -> collections.Counter[BatchShape]:
    """Return how many of the training's steps have a batch of each shape."""
    return collections.Counter(plan.shape(step) for step in range(config.training.num_train_steps))


def training_flops(config: ExperimentConfig, plan: TrainingBatches | None = None) -> int:
    """Return the operations of all steps of a training, as `step_flops`.

    Args:
      plan: its batches; may be left out if their shape follows from the config, see `fixed_shape`.
    Raises: ConfigError if the operations are not known.
    """
    return _total(config, plan, step_flops)


def training_operations(config: ExperimentConfig, plan: TrainingBatches | None = None) -> int:
    """Return the operations of all steps of a training, as `step_operations`; arguments as in `training_flops`."""
    return _total(config, plan, step_operations)


_Count = Callable[[ExperimentConfig, int, Mapping[str, int]], int | None]


def _total(config: ExperimentConfig, plan: TrainingBatches | None, count: _Count) -> int:
    if plan is None:
        return config.training.num_train_steps * _counted(config, fixed_shape(config), count)
    return sum(number * _counted(config, shape, count) for shape, number in shapes_of(config, plan).items())


def steps_for_operations(config: ExperimentConfig, operations: int | float, plan: TrainingBatches | None = None) -> int:
    """Return the number of steps whose `training_operations` are closest to `operations`, at least 1.

    Args:
      plan: as in `training_flops`. The shapes of its batches are added in their order.
    Raises: ConfigError if the operations are not known.
    """
    if plan is None:
        return max(round(operations / _counted(config, fixed_shape(config), step_operations)), 1)
    of_shape = functools.cache(lambda shape: _counted(config, shape, step_operations))
    per_epoch = plan.batches_per_epoch
    of_epoch = sum(of_shape(plan.shape(step)) for step in range(per_epoch))  # every epoch has the same shapes
    epochs = int(operations // of_epoch)
    total = epochs * of_epoch
    steps = epochs * per_epoch
    while total + (following := of_shape(plan.shape(steps))) - operations <= operations - total:
        total, steps = total + following, steps + 1
    return max(steps, 1)


def fixed_shape(config: ExperimentConfig) -> BatchShape:
    """Return the shape of every training batch, which `data.batching=windows` or `rows` fixes without the corpus.

    Raises: ConfigError for any other batching, whose shapes depend on the lengths of the examples.
    """
    if not has_fixed_shape(config):
        raise ConfigError(
            f"config: data.batching='{config.data.batching}' of task.name='{config.task.name}': the operations of a "
            "step are known only with the corpus; use data.batching=windows or rows, or give the number of steps "
            "(`sweep --dry_run` shows the operations)"
        )
    data = config.data
    widths = _widths(config) or {}
    if data.batching == "rows":
        return BatchShape(data.rows_per_batch, tuple(widths.items()))
    longest = max(widths.values())
    return BatchShape(data.tokens_per_batch // longest // data.row_multiple * data.row_multiple, tuple(widths.items()))


def has_fixed_shape(config: ExperimentConfig) -> bool:
    """Return whether the shape of the training batches follows from the config; see `fixed_shape`."""
    return config.data.batching in ("windows", "rows") and _widths(config) is not None


def _widths(config: ExperimentConfig) -> Mapping[str, int] | None:
    return TASKS[config.task.name].widths(config, config.data.max_length)


def _counted(config: ExperimentConfig, shape: BatchShape, count: _Count) -> int:
    operations = count(config, shape.rows, dict(shape.widths))
    if not operations:
        raise ConfigError(
            f"config: the operations of model.architecture='{config.model.architecture}' with task.name="
            f"'{config.task.name}' are not counted; give the number of steps"
        )
    return operations
