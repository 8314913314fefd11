"""The tuning of a study in its report: the response of the metric to the tuned value, chosen values and good ranges."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from transformer_jax.config import walk
from transformer_jax.sweeps.report.collect import StudyResults, variants_of
from transformer_jax.sweeps.report.formatting import amount, metric_label, metric_name, unfinished
from transformer_jax.sweeps.report.number_text import NOTHING, number_text
from transformer_jax.sweeps.report.summary import csv_text, finite
from transformer_jax.sweeps.report.variants import TrialResult, Variant
from transformer_jax.sweeps.search.tuning import mean
from transformer_jax.sweeps.study import Axis
from transformer_jax.sweeps.trials import grid_labels
from transformer_jax.sweeps.tuning import (
    FACTOR,
    RELATIVE_MARGIN,
    GoodRange,
    Tuned,
    best_factor,
    factor_label,
    good_range,
)

TUNING_TABLE = "tuning.csv"
HEADS = ("chosen value", "factor", "metric there", "good values", "best at the edge", "tuning trials")


class Point(NamedTuple):
    """A tuned value of a variant. score: mean of the metric over the tuning seeds; NaN if a trial has none."""

    factor: float
    value: float
    score: float
    trials: tuple[TrialResult, ...]

    @property
    def finished(self) -> int:
        return sum(trial.status == "finished" for trial in self.trials)

    @property
    def diverged(self) -> int:
        return sum(trial.status == "diverged" for trial in self.trials)


@dataclasses.dataclass(frozen=True)
class Response:
    """A variant and its points by ascending factor.

    best: the factor with the best score; None if all trials have diverged, so that the variant keeps its own value.
    margin: in the units of the metric. good: the range around the best, in factors.
    """

    variant: Variant
    points: tuple[Point, ...]
    best: float | None
    margin: float
    good: GoodRange | None

    @property
    def chosen(self) -> Point:
        """The point with the value that the study trains."""
        return self.at(1 if self.best is None else self.best)

    def at(self, factor: float) -> Point:
        return next(point for point in self.points if math.isclose(point.factor, factor))

    @property
    def edge(self) -> str:
        """`lower` or `upper` if the best lies at this edge of the grid; else nothing."""
        if self.best is None or self.best not in (self.points[0].factor, self.points[-1].factor):
            return ""
        return "lower" if self.best == self.points[0].factor else "upper"

    def is_good(self, point: Point) -> bool:
        return self.good is not None and self.good.low <= point.factor <= self.good.high


def tuning_results(results: StudyResults) -> StudyResults:
    """Return the trials of the tuning as those of a study, with an axis of factors."""
    study = results.study
    factors = [factor for factor in _tuned(results).widest if factor_label(factor) in _labels(results)]
    axis = Axis(FACTOR, {factor_label(factor): {} for factor in factors})
    of_tuning = dataclasses.replace(
        study, axes=(*study.axes, axis), seeds=_tuned(results).seed_numbers, precision={}, tuned=None
    )
    return StudyResults(of_tuning, results.folder, results.workdir, variants_of(results.tuning, of_tuning))


def responses(results: StudyResults) -> list[Response]:
    """Return the response of every variant that was tuned, in the order of the study; none for another study."""
    if not results.tuning:
        return []
    tuned = _tuned(results)
    metric = results.study.metric_for_task(results.study.tuning_metric, results.task, None)
    by_name = {variant.name: variant for variant in tuning_results(results).variants}
    factors = [factor for factor in tuned.widest if factor_label(factor) in _labels(results)]
    found = []
    for labels in grid_labels(results.study):
        points = []
        for factor in factors:
            of = by_name.get(Variant({**labels, FACTOR: factor_label(factor)}, ()).name)
            if of is not None:
                score = mean([float(trial.metrics.get(metric.name, math.nan)) for trial in of.trials])
                points.append(Point(factor, _value(of.trials[0], tuned.field), score, of.trials))
        if points:  # else the same experiment as another variant
            scores = {point.factor: point.score for point in points}
            best = best_factor(scores, metric.direction)
            margin = math.nan if best is None else tuned.margin_of(scores[best])
            good = None if best is None else good_range(scores, best, margin)
            found.append(Response(Variant(labels, ()), tuple(points), best, margin, good))
    return found


def tuning_csv(results: StudyResults) -> str:
    """Return one CSV line per variant and tuned value, with a column for every axis.

    `chosen` and `good` are `yes` or empty; a metric without a value is empty.
    """
    axes, name = [axis.name for axis in results.study.axes], results.study.tuning_metric.name
    header = [*axes, FACTOR, "value", "metric", "mean", "seeds", "diverged", "chosen", "good", "margin"]
    lines = []
    for response in responses(results):
        for point in response.points:
            marks = ["yes" if of else "" for of in (point is response.chosen, response.is_good(point))]
            labels = [response.variant.labels[axis] for axis in axes]
            numbers = [
                factor_label(point.factor),
                point.value,
                name,
                finite(point.score),
                point.finished,
                point.diverged,
            ]
            lines.append([*labels, *numbers, *marks, finite(response.margin)])
    return csv_text(header, lines)


def sentences(results: StudyResults) -> list[str]:
    """Return sentences on the rule of the tuning, and on what it has found; none for a study without one."""
    found = responses(results)
    if not found:
        return []
    tuned, metric = _tuned(results), results.study.tuning_metric.name
    seeds = ", ".join(map(str, tuned.seed_numbers))
    label = metric_name(metric, results.task)
    below, above = tuned.reached(point.factor for point in found[0].points)
    trials = [trial for response in found for point in response.points for trial in point.trials]
    counts = Variant({}, tuple(trials)).counts
    lost = unfinished(counts)
    worst = "; a diverged trial is worse than all others" if counts.get("diverged") else ""
    said = [
        f"{tuned.field} is tuned for every variant by the same rule: {_factors(tuned)} times its own value, with "
        f"{'seed' if tuned.seeds == 1 else 'seeds'} {seeds}, which no trial of the study has. The value with the best "
        f"{label} is chosen; the test set is not used.",
        f"Each variant has {len(trials) // len(found)} tuning trials, {len(trials)} in all"
        + (f"; {', '.join(lost)}{worst}." if lost else "."),
    ]
    if below or above:
        steps = [
            f"{_times(count)} to {side} values" for count, side in ((below, "smaller"), (above, "larger")) if count
        ]
        said.append(f"A best value lay at the edge, so the grid was extended for all variants: {' and '.join(steps)}.")
    for side, more in (("lower", "smaller"), ("upper", "larger")):
        if names := [response.variant.name for response in found if response.edge == side]:
            verb = "lies" if len(names) == 1 else "lie"
            said.append(
                f"In the end the best value of {'; '.join(names)} still {verb} at the {side} edge of the grid: a "
                f"{more} one may be better."
            )
    if not any(response.edge for response in found):
        said.append("In the end no best value lies at the edge of the grid.")
    if names := [response.variant.name for response in found if response.best is None]:
        said.append(f"All tuning trials of {'; '.join(names)} diverged, so it keeps its own value.")
    within = f"{RELATIVE_MARGIN * 100:g} % of the best {label}"
    if tuned.margin is not None:
        within = amount(f"{tuned.margin:g}", metric, results.task)
    said.append(f"Good values are the best one and its neighbours that differ from it by at most {within}.")
    return said


class TuningLine(NamedTuple):
    """A line of the table: the labels of a variant by axis, and its cells in the order of HEADS.

    A cell has its text, and the number by which it is sorted; None for a text.
    """

    variant: Variant
    cells: tuple[tuple[str, float | None], ...]


def table_rows(results: StudyResults) -> list[TuningLine]:
    rows = []
    for response in responses(results):
        chosen, good, width = response.chosen, NOTHING, math.nan
        if response.good is not None:
            low, high = (response.at(factor).value for factor in response.good[:2])
            good, width = number(low), high / low
            if low != high:
                good += f" to {number(high)} (\N{MULTIPLICATION SIGN}{width:.3g})"
            good += "".join(
                f", or {more}"
                for more, is_open in (
                    ("smaller", response.good.is_open_below),
                    ("larger", response.good.is_open_above),
                )
                if is_open
            )
        counts = Variant({}, tuple(trial for point in response.points for trial in point.trials)).counts
        trials = ", ".join([*([f"{n} finished"] if (n := counts.get("finished")) else []), *unfinished(counts)])
        score = number_text(chosen.score) if math.isfinite(chosen.score) else "diverged"
        edge = response.edge or ("all diverged" if response.best is None else "no")
        cells = (
            (number(chosen.value), chosen.value),
            (factor_label(chosen.factor), chosen.factor),
            (score, chosen.score),
            (good, width),
            (edge, None),
            (trials, None),
        )
        rows.append(TuningLine(response.variant, cells))
    return rows


def heads(results: StudyResults) -> list[str]:
    """Return the heads of the cells of `table_rows`, with the name of the metric."""
    metric = metric_label(results.study.tuning_metric.name, results.task)
    return [metric if head == "metric there" else head for head in HEADS]


def number(value: float) -> str:
    """Return a tuned value as text."""
    return f"{value:.4g}"


def _tuned(results: StudyResults) -> Tuned:
    assert results.study.tuned is not None
    return results.study.tuned


def _labels(results: StudyResults) -> set[str]:
    return {trial.trial.labels[FACTOR] for trial in results.tuning}


def _value(trial: TrialResult, field: str) -> float:
    values: Mapping[str, float] = {name: value for name, _, value in walk(trial.trial.config)}
    return values[field]


def _factors(tuned: Tuned) -> str:
    *others, last = [factor_label(factor) for factor in tuned.factors]
    return f"{', '.join(others)} and {last}"


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
