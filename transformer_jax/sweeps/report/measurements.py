"""Every number of a study in tidy form: one row per trial, step and metric."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.metrics_file import DAMAGED, is_number
from transformer_jax.sweeps.report.collect import StudyResults, collect
from transformer_jax.sweeps.report.summary import csv_text
from transformer_jax.sweeps.report.variants import TrialResult
from transformer_jax.sweeps.results_folder import LOG, SCORE
from transformer_jax.trust import trust_modules

_NO_METRICS = ("step", "split")


class Measurement(NamedTuple):
    """A number of a trial.

    - trial: name of its folder in WORKDIR/trials.
    - labels: names of values by axis.
    - step: of the log's line; for a score after training, the number of updates that the trial made.
    - metric: SPLIT/METRIC. Metrics of the log and scores after training may have the same name; `of` tells them apart.
    - value: None if it was not finite.
    - of: `log`, a line of metrics.jsonl; or `score`, the result of the trial.
    """

    trial: str
    labels: dict[str, str]
    seed: int
    of: str
    step: int
    metric: str
    value: float | None


class StudyData(NamedTuple):
    """A study as data. results: the study, its variants and trials. measurements: every number."""

    results: StudyResults
    measurements: list[Measurement]


def read_study(workdir: Path | str, study: Path | str | None = None, *, trust: str | Sequence[str] = ()) -> StudyData:
    """Return a study and its numbers from the work directory of a sweep, finished or not.

    Args:
      study: folder of the study, whose study.py is then run; by default no code is run, see `collect`.
      trust: names of modules outside this package that the trials may name, and that are then imported.
    Raises: ConfigError if it is not the work directory of a study, or no trial has finished; DataError for a file that
      is damaged.
    """
    trust_modules(trust)
    results = collect(Path(workdir), None if study is None else Path(study))
    return StudyData(results, list(measurements(results)))


def measurements(results: StudyResults) -> Iterator[Measurement]:
    """Yield every number of every trial: its log in the order of lines, then its scores."""
    for trial in results.trials:
        for of, step, metric, value in _numbers(trial):
            labels = dict(trial.trial.labels)
            yield Measurement(trial.folder.name, labels, trial.trial.seed, of, step, metric, value)


def measurements_csv(results: StudyResults) -> str:
    """Return one CSV line per measurement, with a column for every axis; a number that was not finite is empty."""
    axes = [axis.name for axis in results.study.axes]
    lines = [
        [row.trial, *(row.labels[axis] for axis in axes), row.seed, row.of, row.step, row.metric, row.value]
        for row in measurements(results)
    ]
    return csv_text(["trial", *axes, "seed", "of", "step", "metric", "value"], lines)


def _numbers(trial: TrialResult) -> Iterator[tuple[str, int, str, float | None]]:
    for line in trial.log_lines:
        if line["split"] != DAMAGED:
            for name, value in line.items():
                if name not in _NO_METRICS and (value is None or is_number(value)):
                    yield LOG, line["step"], f"{line['split']}/{name}", value
    for metric, value in trial.metrics.items():
        yield SCORE, trial.result.steps if trial.result else 0, metric, value if math.isfinite(value) else None
