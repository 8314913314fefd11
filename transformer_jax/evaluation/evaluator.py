"""Scores of parameters on the splits of a corpus, for every task."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.datasets import Data
from transformer_jax.errors import DataError
from transformer_jax.parallel.placement import RowPlacement, mesh_of, on_one_device
from transformer_jax.tasks.batches.of_split import evaluation_batches
from transformer_jax.tasks.outside_errors import errors_from_outside
from transformer_jax.tasks.task import TASKS, Scores, Task, best_metric, validation_metrics
from transformer_jax.tasks.trained.length_limits import check_lengths, position_table_rows
from transformer_jax.tasks.trained.loss_sums import by_example, loss_sums, loss_sums_of_rows, split_for_evaluation
from transformer_jax.typing import Params

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Scores parameters of one model on the splits of one corpus; `config` is resolved."""

    config: ExperimentConfig
    data: Data
    _made: list[tuple[Params, Any]] = dataclasses.field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def task(self) -> Task:
        """Return the task that the config names."""
        return TASKS[self.config.task.name]

    def check(self, split: str) -> None:
        """Check a split; raises DataError if there is none, or one of its examples is too long for the model."""
        lengths = self.task.lengths(self.config, self.data.splits[split])
        longest = np.maximum.reduce([*lengths.values()])
        check_lengths(self.config, longest, lambda index: f"split '{split}', example {index + 1}")

    def batches(self, params: Params, split: str) -> Iterator[tuple[Any, Int[np.ndarray, " B"]]]:
        """Yield the batches of a split, on the devices of the parameters, and the example index of each row.

        An empty row has example -1. Every example is in exactly one batch and is not truncated.
        """
        batches = evaluation_batches(self.config, self.data.splits[split], position_table_rows(self.config.model))
        mesh = mesh_of(params)
        if mesh is None:
            yield from batches
            return
        rows = RowPlacement(mesh)
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
                # CPU devices that exchange numbers in several programs at once may deadlock.
                jax.block_until_ready(parts[-1])
        parts = jax.device_get(parts)
        return {name: math.fsum(float(part[name]) for part in parts) for name in parts[0]}

    def sums_by_example(self, params: Params, split: str) -> dict[str, Float[np.ndarray, " examples"]]:
        """Return the sums of the loss for each example of a split; `sums` returns those over all examples.

        Raises: DataError as `check`.
        """
        self.check(split)
        params, parts, examples = on_one_device(params), [], []
        static, hyper = split_for_evaluation(self.config)
        for batch, of_rows in self.batches(params, split):
            parts.append(loss_sums_of_rows(static, params, batch, hyper))
            examples.append(of_rows)
        return by_example(parts, examples)

    def made_once(self, params: Params, make: Callable[[Params], _T]) -> _T:
        """Return `make` of the parameters, all of them on one device; the result is cached.

        Only the result for the newest parameters is kept, until `forget`.
        """
        if not self._made or self._made[0][0] is not params:
            self._made[:] = [(params, make(on_one_device(params)))]
        return self._made[0][1]

    def forget(self) -> None:
        """Free the parameters and the result that `made_once` keeps."""
        self._made.clear()

    def score(self, params: Params, split: str, generate: bool = True) -> Scores:
        """Return the task's scores of a split as JSON values; arguments as in `Task.score`.

        Raises: DataError as `check`, for any exception of a task or an architecture from outside of this package, and
          for a score that JSON cannot represent.
        """
        with errors_from_outside(self.config, f"score of split '{split}'", DataError):
            scores = self.task.score(self, params, split, generate)
            metrics = {name: _json_value(value, name) for name, value in scores.metrics.items()}
            return scores._replace(metrics=metrics)

    def validation(self, params: Params) -> dict[str, Any]:
        """Return the scores of the split `valid` that training logs.

        Outputs are generated and scored only if the metric that ranks the checkpoints needs them.

        Raises: DataError if that metric is not among the scores.
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
    """Return a score with NumPy and JAX scalars as Python scalars; raises DataError if JSON cannot represent it."""
    if isinstance(value, np.generic | np.ndarray | jax.Array) and value.ndim == 0:
        value = value.item()
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json_value(part, f"{metric}/{key}") for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part, metric) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise DataError(f"metric '{metric}': a score is a number, a text, or a list or dictionary of them; got {value!r}")


def make_validate(config: ExperimentConfig, data: Data) -> Callable[[Params], dict[str, Any]]:
    """Return the function that scores parameters on the validation split, an argument of `training.run.train`.

    Raises: DataError if there is no such split, one of its examples is too long, or the corpus does not fit the task;
      ConfigError if a validation does
      not measure `training.best_metric`. Both are raised here, not at the first validation.
    """
    best_metric(config)
    evaluator = Evaluator(config, data)
    evaluator.task.check_corpus(config, data)
    evaluator.check("valid")
    return evaluator.validation
