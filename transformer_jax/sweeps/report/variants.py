"""Trials of a study with their results, and variants, which group trials that differ only in the seed."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import metrics_file
from transformer_jax.errors import DataError
from transformer_jax.sweeps.results import Result
from transformer_jax.sweeps.steps_to import cost_by_step, target_of
from transformer_jax.sweeps.trial_examples import Influences, read_examples
from transformer_jax.sweeps.trials import Trial

NO_RESULT, NOT_BEGUN = "none yet", "not begun"
STATUSES = ("finished", "diverged", "failed", "pruned", NO_RESULT)


@dataclasses.dataclass(frozen=True)
class TrialResult:
    """A trial and its result, which is None while there is none.

    recorded_lines: its log, if it is from a results folder; None if it is in `log_file`.
    """

    trial: Trial
    folder: Path
    result: Result | None
    recorded_lines: Sequence[dict[str, Any]] | None = dataclasses.field(default=None, repr=False)

    @property
    def status(self) -> str:
        """One of STATUSES."""
        return NO_RESULT if self.result is None else self.result.status

    @property
    def metrics(self) -> Mapping[str, int | float]:
        """Values by SPLIT/METRIC; empty for a trial that has not finished."""
        return self.result.metrics if self.result is not None and self.status == "finished" else {}

    @functools.cached_property
    def influences(self) -> dict[str, Influences]:
        """Those of the examples by SPLIT/METRIC, if its folder has them; raises as `read_examples`."""
        return read_examples(self.folder, self.metrics) if self.metrics else {}

    @property
    def ran(self) -> Result | None:
        """The result; None if there is none, or the trial failed, since it then has no steps, seconds or parameters."""
        return None if self.status == "failed" else self.result

    @property
    def log_file(self) -> Path:
        """Its metrics.jsonl; if another trial has trained it, the file of that trial."""
        own = self.folder / metrics_file.NAME
        if self.trial.trained_by is None or own.exists():
            return own
        return self.folder.parent / self.trial.trained_by / metrics_file.NAME

    @functools.cached_property
    def log_lines(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; none if there is a `log_problem`.

        A half-written last line is left out if training has not ended.

        Raises: DataError for any other line that cannot be read.
        """
        return [] if self.log_problem else self._lines

    @functools.cached_property
    def log_problem(self) -> str:
        """Why the log does not belong to the result; empty if it does, or `ran` is None. Raises as `log_lines`."""
        if self.ran is None or self.recorded_lines is not None:
            return ""
        file, last = self.log_file, max((line["step"] for line in self._lines), default=0)
        if not self._lines:
            return f"{file} is missing or empty" if self.ran.steps else ""
        if last != self.ran.steps:
            return f"{file} ends at step {last}, its result is of step {self.ran.steps}"
        try:
            if self.ran.log_sha256 and metrics_file.digest(file) != self.ran.log_sha256:
                return f"{file} is not the one that its result was made from"
        except OSError as error:
            raise DataError(f"{file}: cannot be read: {error.strerror}") from error
        return ""

    @functools.cached_property
    def _lines(self) -> list[dict[str, Any]]:
        if self.recorded_lines is not None:
            return list(self.recorded_lines)
        return metrics_file.read_lines(self.log_file, may_be_growing=self.status not in ("finished", "diverged"))

    def logged(self, quantity: str) -> dict[int, float]:
        """Return the finite values of a quantity, SPLIT/NAME, by step."""
        return metrics_file.values_by_step(self.log_lines, quantity)

    def cost(self, name: str, steps: Iterable[int]) -> dict[int, float]:
        """Return `cost_by_step` of its log."""
        return cost_by_step(self.log_lines, name, steps)

    def limit(self, metric: str) -> float | None:
        """Return what a metric of `StepsTo` is more than, NaN if that is not known; None if the metric has a value."""
        target = target_of(metric)
        if target is None or metric not in self.metrics or not math.isnan(self.metrics[metric]):
            return None
        return target.limit(self.log_lines)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A value on every axis, and the trials with it, one per seed. seeds: all seeds of the study."""

    labels: Mapping[str, str]
    trials: tuple[TrialResult, ...]
    seeds: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name for use in sentences: `norm=pre, depth=2`."""
        return ", ".join(map("=".join, self.labels.items()))

    @property
    def short_name(self) -> str:
        """Name for tables whose heading has the axes: without the axis if there is only one."""
        return ", ".join(self.labels.values() if len(self.labels) == 1 else map("=".join, self.labels.items()))

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by status, without zeros; a seed without a trial counts as NOT_BEGUN."""
        counts = Counter(trial.status for trial in self.trials)
        counts[NOT_BEGUN] = len(set(self.seeds).difference(trial.trial.seed for trial in self.trials))
        return {status: counts[status] for status in (*STATUSES, NOT_BEGUN) if counts[status]}

    @property
    def is_complete(self) -> bool:
        """Whether the trials of all seeds have finished, so that the mean can be compared with others."""
        return set(self.counts) <= {"finished"}

    def limits(self, metric: str) -> dict[int, float]:
        """Return `TrialResult.limit` by seed, for the finished trials that did not reach the value of `StepsTo`."""
        limits = {trial.trial.seed: trial.limit(metric) for trial in self.trials}
        return {seed: limit for seed, limit in limits.items() if limit is not None}

    def values(self, metric: str) -> dict[int, float]:
        """Return the values of a metric by seed, for the finished trials."""
        return {t.trial.seed: float(t.metrics[metric]) for t in self.trials if metric in t.metrics}
