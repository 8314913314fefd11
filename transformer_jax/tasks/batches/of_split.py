"""The batches of a split, made by the task that the config names."""

from __future__ import annotations

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import EvaluationBatches, TrainingBatches
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.tasks.task import TASKS


def training_batches(config: ExperimentConfig, split: EncodedSplit) -> TrainingBatches:
    """Return the training batches of a split; errors are those of `Task.training_batches`."""
    return TASKS[config.task.name].training_batches(config, split)


def evaluation_batches(
    config: ExperimentConfig, split: EncodedSplit, max_width: int | None = None, tokens_per_batch: int | None = None
) -> EvaluationBatches:
    """Return the batches of an evaluation.

    Args:
      max_width: number of the model's positions, if it is bounded; see `batching.length_batches`.
      tokens_per_batch: default `evaluation.tokens_per_batch`.
    """
    tokens = tokens_per_batch or config.evaluation.tokens_per_batch
    return TASKS[config.task.name].evaluation_batches(config, split, tokens, max_width)
