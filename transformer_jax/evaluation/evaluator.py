"""Scores of parameters on the splits of a corpus: what is true of every task."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.datasets import Data
from transformer_jax.errors import DataError
from transformer_jax.models.architecture import ARCHITECTURES, Model
from transformer_jax.parallel.placement import Rows, mesh_of, on_one_device
from transformer_jax.tasks.base import TASKS, Scores, Sums, Task, best_metric, validation_metrics
from transformer_jax.tasks.batches import evaluation_batches
from transformer_jax.tasks.lengths import check_lengths, position_table_rows
from transformer_jax.tasks.outside import errors_from_outside
from transformer_jax.typing import Batch, Params

_T = TypeVar("_T")


class LossStatic(NamedTuple):
    """The part of a config that shapes the program of a loss."""

    model: ModelConfig
    task: TaskConfig
    chunks: int


class LossHyper(NamedTuple):
    """Scalars of a loss in evaluation, without label smoothing; `model` and `task` as of `training.hyper.Hyper`."""

    model: Mapping[str, Any]
    task: Mapping[str, Any]
    label_smoothing: None = None


def split_for_evaluation(config: ExperimentConfig) -> tuple[LossStatic, LossHyper]:
    """Split a config into what shapes the program of the loss, and the scalars that it takes as arguments."""
    model, task = config.without_own_hyper_fields("model"), config.without_own_hyper_fields("task")
    hyper = LossHyper(config.own_hyper_fields("model"), config.own_hyper_fields("task"))
    return LossStatic(model, task, config.training.loss_chunks), hyper


@functools.partial(jax.jit, static_argnames="static")
def loss_sums(static: LossStatic, params: Params, batch: Batch, hyper: LossHyper) -> Sums:
    """Return the task's sums over a batch, in a deterministic pass; compiled once per shape in a process.

    Args:
      static, hyper: as `split_for_evaluation` returns them.
    """
    task = TASKS[static.task.name]
    module = ARCHITECTURES[static.model.architecture].module(static.model, task.head(static.task, static.model))
    return task.loss(static.task, Model(module, params), batch, None, hyper, static.chunks)


@functools.partial(jax.jit, static_argnames="static")
def loss_sums_of_rows(static: LossStatic, params: Params, batch: Batch, hyper: LossHyper) -> Sums:
    """Return the sums of each row of a batch, [B]: `loss_sums` of rows by themselves."""

    def of_row(row: Batch) -> Sums:
        return loss_sums(static, params, {name: x[None] for name, x in row.items()}, hyper)

    return jax.vmap(of_row)(dict(batch))


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Scores parameters of one model on the splits of one corpus; `config` is resolved."""

    config: ExperimentConfig
    data: Data
    _made: list[tuple[Params, Any]] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def task(self) -> Task:
        """The task that the config names."""
        return TASKS[self.config.task.name]

    def check(self, split: str) -> None:
        """Raises DataError if there is no such split, or the model cannot take one of its examples."""
        lengths = self.task.lengths(self.config, self.data.splits[split])
        longest = np.maximum.reduce([*lengths.values()])
        check_lengths(self.config, longest, lambda index: f"split '{split}', pair {index + 1}")

    def batches(self, params: Params, split: str) -> Iterator[tuple[Any, Int[np.ndarray, " B"]]]:
        """Yield the batches of a split, on the devices of the parameters, and the example of each of their rows.

        An empty row has example -1. Every example is in one batch, none cut.
        """
        batches = evaluation_batches(self.config, self.data.splits[split], position_table_rows(self.config.model))
        mesh = mesh_of(params)
        if mesh is None:
            yield from batches
            return
        rows = Rows(mesh)
        for number in range(len(batches)):
            batch, examples = batches.batch(number, rows.local(batches.num_rows(number)))
            yield rows.placed(batch), examples

    def sums(self, params: Params, split: str) -> dict[str, float]:
        """Return the sums of the loss over every example of a split, without label smoothing and dropout.

        Raises: DataError as `check`.
        """
        self.check(split)
        static, hyper = split_for_evaluation(self.config)
        # Fetched at the end, so that the device does not wait for the host between batches.
        parts = []
        for batch, _ in self.batches(params, split):
            parts.append(loss_sums(static, params, batch, hyper))
            if mesh_of(params) is not None and jax.default_backend() == "cpu":
                # CPU devices that exchange numbers in several programs at once may wait for each other for ever.
                jax.block_until_ready(parts[-1])
        parts = jax.device_get(parts)
        return {name: math.fsum(float(part[name]) for part in parts) for name in parts[0]}

    def sums_by_example(self, params: Params, split: str) -> dict[str, Float[np.ndarray, " examples"]]:
        """Return the sums of the loss of each example of a split, as `sums` has them of all.

        Raises: DataError as `check`.
        """
        self.check(split)
        params, parts, examples = on_one_device(params), [], []
        static, hyper = split_for_evaluation(self.config)
        for batch, of_rows in self.batches(params, split):
            parts.append(loss_sums_of_rows(static, params, batch, hyper))
            examples.append(of_rows)
        of_rows = np.concatenate(examples)
        order = np.argsort(of_rows[of_rows >= 0])
        parts = jax.device_get(parts)
        return {
            name: np.concatenate([part[name] for part in parts]).astype(np.float64)[of_rows >= 0][order]
            for name in parts[0]
        }

    def made_once(self, params: Params, make: Callable[[Params], _T]) -> _T:
        """Return what `make` returns for the parameters, all of them on one device; it is called once for each.

        One result is kept, of the newest parameters, until `forget`.
        """
        if not self._made or self._made[0][0] is not params:
            self._made[:] = [(params, make(on_one_device(params)))]
        return self._made[0][1]

    def forget(self) -> None:
        """Free the parameters that `made_once` has kept."""
        self._made.clear()

    def score(self, params: Params, split: str, generate: bool = True) -> Scores:
        """Return the task's scores of a split, as JSON has them; arguments as of `Task.score`.

        Raises: DataError as `check`, for whatever a task or an architecture from outside of this package raises, and
          for a score that JSON cannot hold.
        """
        with errors_from_outside(self.config, f"score of split '{split}'", DataError):
            scores = self.task.score(self, params, split, generate)
            metrics = {name: _json_value(value, name) for name, value in scores.metrics.items()}
            return scores._replace(metrics=metrics)

    def validation(self, params: Params) -> dict[str, Any]:
        """Return what training logs of the split `valid`.

        Generated output is scored if such a score ranks the checkpoints.

        Raises: DataError if the metric that ranks them is not among the scores.
        """
        best = best_metric(self.config)
        try:
            scores = self.score(params, "valid", best.needs_generation).metrics
        finally:
            self.forget()  # training needs the memory
        if best.name not in scores:
            raise DataError(
                f"training.best_metric='{best.name}': task '{self.config.task.name}' has measured {', '.join(scores)}"
            )
        logged = {spec.name for spec in validation_metrics(self.config, best.needs_generation)}
        return {name: value for name, value in scores.items() if name in logged}


def _json_value(value: Any, metric: str) -> Any:
    """Return a score with scalars of NumPy and JAX as Python's; raises DataError for what JSON cannot hold."""
    if isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json_value(part, f"{metric}/{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part, metric) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DataError(f"metric '{metric}': a score is a number, or text, lists and dictionaries of them; got {value!r}")


def make_validate(config: ExperimentConfig, data: Data) -> Callable[[Params], dict[str, Any]]:
    """Return the function that scores parameters on the validation split, which `training.run.train` is handed.

    Raises: now, not at the first validation, DataError if there is no such split or it has an example that is too
      long, and ConfigError if a validation does not measure `training.best_metric`.
    """
    best_metric(config)
    evaluator = Evaluator(config, data)
    evaluator.check("valid")
    return evaluator.validation
