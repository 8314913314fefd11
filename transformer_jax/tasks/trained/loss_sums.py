"""Sums of a task's loss over a batch or over each of its rows, without dropout and label smoothing; compiled."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.batching import EvaluationBatches
from transformer_jax.models.architecture import ARCHITECTURES, Model
from transformer_jax.nn.model_numbers import numbers_given
from transformer_jax.tasks.task import TASKS, Sums
from transformer_jax.typing import Batch, Params


class LossStatic(NamedTuple):
    """The part of a config that determines the compiled program of a loss."""

    model: ModelConfig
    task: TaskConfig
    chunks: int


class LossHyper(NamedTuple):
    """Scalars of a loss in evaluation, without label smoothing; `model` and `task` as in `training.hyper.Hyper`."""

    model: Mapping[str, Any]
    task: Mapping[str, Any]
    label_smoothing: None = None


class SplitLoss(NamedTuple):
    """A config, split into the part that determines the program of a loss and the scalars that the program takes."""

    static: LossStatic
    hyper: LossHyper


def split_for_evaluation(config: ExperimentConfig) -> SplitLoss:
    """Split a config into the part that determines the program of the loss, and the scalars that are its arguments."""
    model, task = config.without_own_hyper_fields("model"), config.without_own_hyper_fields("task")
    # cuDNN's LSTM cannot be divided over a mesh, nor batched over rows.
    model = dataclasses.replace(model, recurrent_implementation="scan")
    hyper = LossHyper(config.own_hyper_fields("model"), config.own_hyper_fields("task"))
    return SplitLoss(LossStatic(model, task, config.training.loss_chunks), hyper)


@functools.partial(jax.jit, static_argnames="static")
def loss_sums(static: LossStatic, params: Params, batch: Batch, hyper: LossHyper) -> Sums:
    """Return the task's sums over a batch, in a deterministic pass; compiled once per shape in a process.

    Args:
      static, hyper: as `split_for_evaluation` returns them.
    """
    task = TASKS[static.task.name]
    module = ARCHITECTURES[static.model.architecture].module(static.model, task.head(static.task, static.model))
    with numbers_given(hyper.model):
        return task.loss(static.task, Model(module, params), batch, None, hyper, static.chunks)


@functools.partial(jax.jit, static_argnames="static")
def loss_sums_of_rows(static: LossStatic, params: Params, batch: Batch, hyper: LossHyper) -> Sums:
    """Return the sums of each row of a batch, [B]: `loss_sums` of every single row."""

    def of_row(row: Batch) -> Sums:
        return loss_sums(static, params, {name: x[None] for name, x in row.items()}, hyper)

    return jax.vmap(of_row)(dict(batch))


@functools.partial(jax.jit, static_argnames="static")
def target_log_probs(
    static: LossStatic, params: Params, batch: Batch, hyper: LossHyper
) -> Float[jax.Array, "rows length"]:
    """Return the natural log probability of every target of a batch; those with the weight 0 mean nothing."""

    def total(weights: jax.Array) -> jax.Array:
        return loss_sums(static, params, {**batch, "weights": weights}, hyper)["nll"]

    # The sum is linear in the weights, so that its derivative by the weight of a target is the cross-entropy of that
    # target. No other derivative is computed, and `training.loss_chunks` bounds the memory as in any loss.
    return -jax.grad(total)(batch["weights"])


class TargetLogProbs(NamedTuple):
    """The ids of the targets of an example, and their natural log probabilities."""

    ids: Int[np.ndarray, " targets"]
    log_probs: Float[np.ndarray, " targets"]


def log_probs_by_example(config: ExperimentConfig, params: Params, batches: EvaluationBatches) -> list[TargetLogProbs]:
    """Return the log probabilities of all targets that count, in the order of the examples."""
    static, hyper = split_for_evaluation(config)
    found = {}
    for batch, examples in batches:
        log_probs = np.asarray(target_log_probs(static, params, batch, hyper), np.float64)
        for row in np.flatnonzero(examples >= 0):
            counts = np.asarray(batch["weights"][row]) > 0
            found[int(examples[row])] = TargetLogProbs(batch["targets"][row][counts], log_probs[row][counts])
    return [found[example] for example in sorted(found)]


def by_example(
    sums_of_rows: Sequence[Sums], examples: Sequence[Int[np.ndarray, " _"]]
) -> dict[str, Float[np.ndarray, " examples"]]:
    """Return sums of rows in the order of the examples.

    Args:
      sums_of_rows: of each batch, as `loss_sums_of_rows` returns them. examples: number of the example of each of its
        rows; -1 for an empty row.
    """
    of_rows = np.concatenate(examples)
    order = np.argsort(of_rows[of_rows >= 0])
    parts = jax.device_get(list(sums_of_rows))
    return {
        name: np.concatenate([part[name] for part in parts]).astype(np.float64)[of_rows >= 0][order]
        for name in parts[0]
    }
