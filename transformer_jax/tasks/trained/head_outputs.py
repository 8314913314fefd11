"""Outputs of a task's head for every example of a corpus, in a deterministic pass; compiled."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.models.architecture import ARCHITECTURES, Model
from transformer_jax.nn.model_numbers import numbers_given
from transformer_jax.tasks.task import TASKS, Evaluation
from transformer_jax.tasks.trained.loss_sums import LossHyper, LossStatic, split_for_evaluation
from transformer_jax.typing import Array, Batch, Params


@functools.partial(jax.jit, static_argnames="static")
def head_outputs(static: LossStatic, params: Params, batch: Batch, hyper: LossHyper) -> Array:
    """Return the outputs of the head for a batch, [B, ...] float32; compiled once per shape in a process.

    Args:
      static, hyper: as `split_for_evaluation` returns them.
    """
    head = TASKS[static.task.name].head(static.task, static.model)
    model = Model(ARCHITECTURES[static.model.architecture].module(static.model, head), params)
    with numbers_given(hyper.model):
        x = model.features(batch, None, hyper.model)
        return model.outputs(x, batch)


def outputs_of_batches(
    config: ExperimentConfig, params: Params, batches: Iterable[tuple[Any, np.ndarray]]
) -> list[np.ndarray]:
    """Return the outputs of every example in the order of their numbers, float32; those of a text have its width.

    Args:
      batches: with the number of the example of every row, -1 for an empty row.
    """
    static, hyper = split_for_evaluation(config)
    found: dict[int, np.ndarray] = {}
    waiting: list[tuple[Array, np.ndarray]] = []
    for batch, examples in batches:
        waiting.append((head_outputs(static, params, batch, hyper), examples))
        if len(waiting) > 1:  # so that the device does not wait for the host
            _take(*waiting.pop(0), found)
    for outputs, examples in waiting:
        _take(outputs, examples, found)
    return [found[number] for number in range(len(found))]


def outputs_of_split(evaluator: Evaluation, params: Params, split: str) -> list[np.ndarray]:
    """Return the outputs of every example of a split; computed on one device.

    Raises: DataError as `Evaluation.check`.
    """
    evaluator.check(split)
    here = evaluator.made_once(params, lambda params: params)
    return outputs_of_batches(evaluator.config, here, evaluator.batches(here, split))


def best_classes(log_probs: np.ndarray) -> np.ndarray:
    """Return the most probable class, int [...], of natural logarithms [..., C]; -1 where one of them is not finite."""
    return np.where(np.isfinite(log_probs).all(-1), log_probs.argmax(-1), -1)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return natural logarithms of probabilities, float64 [..., C], of logits [..., C].

    Some of them are not finite if, and only if, some of the logits are not.
    """
    logits = np.asarray(logits, np.float64)
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _take(outputs: Array, examples: np.ndarray, found: dict[int, np.ndarray]) -> None:
    rows = np.asarray(jax.device_get(outputs))
    found.update({int(example): rows[row] for row, example in enumerate(examples) if example >= 0})
