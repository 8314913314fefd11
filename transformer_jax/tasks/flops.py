"""Floating-point operations of a training: of a step, of all steps, and the steps that a number of operations allows.

They are those of the matrix products, padding included; see `models.flops.train_flops`.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

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


def shapes_of(config: ExperimentConfig, plan: TrainingBatches) -> collections.Counter[BatchShape]:
    """Return how many of the training's steps have a batch of each shape."""
    return collections.Counter(plan.shape(step) for step in range(config.training.num_train_steps))


def training_flops(config: ExperimentConfig, plan: TrainingBatches | None = None) -> int:
    """Return the operations of all steps of a training.

    Args:
      plan: its batches; may be left out if their shape follows from the config, see `fixed_shape`.
    Raises: ConfigError if the operations are not known.
    """
    if plan is None:
        return config.training.num_train_steps * _counted(config, fixed_shape(config))
    return sum(count * _counted(config, shape) for shape, count in shapes_of(config, plan).items())


def steps_for_flops(config: ExperimentConfig, flops: int | float, plan: TrainingBatches | None = None) -> int:
    """Return the number of steps whose operations are closest to `flops`, at least 1.

    Args:
      plan: as in `training_flops`; of batches of several shapes, the average over an epoch counts.
    Raises: ConfigError if the operations are not known.
    """
    if plan is None:
        return max(round(flops / _counted(config, fixed_shape(config))), 1)
    steps = range(plan.batches_per_epoch)
    return max(round(flops * len(steps) / sum(_counted(config, plan.shape(step)) for step in steps)), 1)


def fixed_shape(config: ExperimentConfig) -> BatchShape:
    """Return the shape of every training batch, which `data.batching=windows` or `rows` fixes without the corpus.

    Raises: ConfigError for any other batching, whose shapes depend on the lengths of the examples.
    """
    data, task = config.data, TASKS[config.task.name]
    widths = task.widths(config, data.max_length) if data.batching in ("windows", "rows") else None
    if widths is None:
        raise ConfigError(
            f"config: data.batching='{data.batching}' of task.name='{config.task.name}': the operations of a step are "
            "known only with the corpus; use data.batching=windows or rows, or give the number of steps (`sweep "
            "--dry_run` shows the operations)"
        )
    if data.batching == "rows":
        return BatchShape(data.rows_per_batch, tuple(widths.items()))
    longest = max(widths.values())
    return BatchShape(data.tokens_per_batch // longest // data.row_multiple * data.row_multiple, tuple(widths.items()))


def _counted(config: ExperimentConfig, shape: BatchShape) -> int:
    flops = step_flops(config, shape.rows, dict(shape.widths))
    if not flops:
        raise ConfigError(
            f"config: the operations of model.architecture='{config.model.architecture}' with task.name="
            f"'{config.task.name}' are not counted; give the number of steps"
        )
    return flops
