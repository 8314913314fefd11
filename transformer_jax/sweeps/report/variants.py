"""A trial of a study with what came of it, and a variant: the trials of a value on every axis."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax import metrics_file
from transformer_jax.sweeps.results import Result
from transformer_jax.sweeps.trials import Trial

NO_RESULT, NOT_BEGUN = "none yet", "not begun"
STATUSES = ("finished", "diverged", "failed", "pruned", NO_RESULT)


@dataclasses.dataclass(frozen=True)
class TrialResult:
    """A trial and what came of it. `result` is None while nothing has."""

    trial: Trial
    folder: Path
    result: Result | None

    @property
    def status(self) -> str:
        """One of STATUSES."""
        return NO_RESULT if self.result is None else self.result.status

    @property
    def metrics(self) -> Mapping[str, int | float]:
        """By SPLIT/METRIC; none of a trial that has not finished."""
        return self.result.metrics if self.result is not None and self.status == "finished" else {}

    @property
    def ran(self) -> Result | None:
        """The result if it tells of a run; that of a trial that could not be run has nothing to tell."""
        return None if self.status == "failed" else self.result

    @property
    def log_file(self) -> Path:
        """Its metrics.jsonl, or that of the trial whose training is its own too."""
        own = self.folder / metrics_file.NAME
        if self.trial.trained_by is None or own.exists():
            return own
        return self.folder.parent / self.trial.trained_by / metrics_file.NAME

    @functools.cached_property
    def log(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl.

        Raises: DataError for a line that cannot be read. The last may be half written, and is then left out, unless the
          training has come to its end.
        """
        return metrics_file.read_lines(self.log_file, may_be_growing=self.status not in ("finished", "diverged"))

    def logged(self, quantity: str) -> dict[int, float]:
        """Values of a quantity, SPLIT/NAME, by step; without those that were not finite."""
        return metrics_file.values_by_step(self.log, quantity)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A value on every axis, and the trials of it, by seed. seeds: that it is to have trials of."""

    labels: Mapping[str, str]
    trials: tuple[TrialResult, ...]
    seeds: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As in a sentence."""
        return ", ".join(map("=".join, self.labels.items()))

    @property
    def short_name(self) -> str:
        """Where the axis is named besides: without it, if there is one alone."""
        return ", ".join(self.labels.values() if len(self.labels) == 1 else map("=".join, self.labels.items()))

    @property
    def counts(self) -> dict[str, int]:
        """Number of trials by status, of those statuses that there are; a seed without a trial is NOT_BEGUN."""
        counts = Counter(trial.status for trial in self.trials)
        counts[NOT_BEGUN] = len(set(self.seeds).difference(trial.trial.seed for trial in self.trials))
        return {status: counts[status] for status in (*STATUSES, NOT_BEGUN) if counts[status]}

    @property
    def is_complete(self) -> bool:
        """Whether trials of all its seeds have finished, so that its mean compares with that of others."""
        return set(self.counts) <= {"finished"}

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed, of the trials that have finished."""
        return {t.trial.seed: float(t.metrics[metric]) for t in self.trials if metric in t.metrics}
