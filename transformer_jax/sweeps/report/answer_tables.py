"""The two tables of a report, before they are written as HTML, Markdown or LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from transformer_jax.sweeps.figures import number_of
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.formatting import (
    difference_of,
    estimate_of,
    metric_label,
    p_value_of,
    trials_of,
    verdict_of,
)
from transformer_jax.sweeps.report.number_text import NOTHING
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.study import Axis

REFERENCE = "(reference)"
CONTRAST = "contrast"
"""Head of the column that names the two values of a contrast."""
Column = Literal["mean", "difference", "p", "verdict"]
HEADS: dict[Column, str] = {
    "mean": "mean ± 95 %",
    "difference": "difference",
    "p": "p (Holm)",
    "verdict": "verdict",
}
"""Heads of the columns of a group."""


class TableCell(NamedTuple):
    """A number as text, and the column of its group that it is in.

    value: the number in full precision; NaN if there is none, as for a verdict.
    """

    column: Column
    text: str
    is_best: bool = False
    value: float = math.nan


class TableRow(NamedTuple):
    """A variant or a contrast.

    labels: one per name of `AnswerTable.axes`. trials: by status; empty for a contrast.
    """

    labels: Sequence[str]
    cells: Sequence[TableCell]
    trials: str = ""
    is_reference: bool = False

    @property
    def marked(self) -> list[str]:
        """The labels; the last of the reference says so."""
        *first, last = self.labels
        return [*first, f"{last} {REFERENCE}" if self.is_reference else last]


class AnswerTable(NamedTuple):
    """A table with a group of columns for each metric.

    axes: heads of the columns before the groups: one per axis of the study; of contrasts first CONTRAST, then each axis
    whose value is a condition. groups: labels of the metrics. columns: of each group. is_whole: whether all trials of
    all lines have finished.
    """

    axes: Sequence[str]
    groups: Sequence[str]
    columns: Sequence[Column]
    lines: Sequence[TableRow]
    is_whole: bool = True


def variants_table(results: StudyResults, rows: Sequence[Row]) -> AnswerTable:
    """Return a line per variant: mean, difference to the reference and p-value for each metric.

    If the study has contrasts, differences and p-values are left out.
    """
    axes = axis_names(results)
    columns: list[Column] = ["mean"] if results.study.contrasts else ["mean", "difference", "p"]
    metrics = [metric.name for metric in results.study.metrics]
    lines = []
    for variant in results.variants:
        own = [row for row in rows if row.variant is variant and row.metric in metrics]
        cells = [cell for row in own for cell in _of_row(row) if cell.column in columns]
        lines.append(TableRow(labels_of(variant, axes), cells, trials_of(variant), variant is results.reference))
    return AnswerTable(axes, _groups(results), columns, lines, all(variant.is_complete for variant in results.variants))


def contrasts_table(results: StudyResults, effects: Sequence[Effect]) -> AnswerTable:
    """Return a line per contrast and condition: difference, p-value and verdict for each metric."""
    lines, count = [], len(results.study.metrics)
    conditions = [name for name in axis_names(results) if any(name in of.comparison.condition for of in effects)]
    for first in range(0, len(effects), count):
        together = effects[first : first + count]
        compared = together[0].comparison
        labels = [compared.contrast, *(compared.condition.get(name, NOTHING) for name in conditions)]
        lines.append(TableRow(labels, [cell for effect in together for cell in _of_effect(effect)]))
    return AnswerTable([CONTRAST, *conditions], _groups(results), ["difference", "p", "verdict"], lines)


def axis_names(results: StudyResults) -> list[str]:
    return [axis.name for axis in results.study.axes]


def labels_of(variant: Variant, axes: Sequence[str]) -> list[str]:
    return [variant.labels[name] for name in axes]


def label_orders(results: StudyResults) -> Mapping[str, Mapping[str, float]]:
    """Return by axis the numbers by which its labels are sorted: the values themselves if all of them are numbers, else
    their places in the study.
    """
    orders = {}
    for axis in results.study.axes:
        found = dict.fromkeys(axis.values if isinstance(axis, Axis) else ())
        found |= dict.fromkeys(variant.labels[axis.name] for variant in results.variants)
        numbers = {label: number_of(label) for label in found}
        is_numeric = all(map(math.isfinite, numbers.values()))
        orders[axis.name] = numbers if is_numeric else {label: float(at) for at, label in enumerate(found)}
    return orders


def _groups(results: StudyResults) -> list[str]:
    return [metric_label(metric.name, results.task) for metric in results.study.metrics]


def _of_row(row: Row) -> Iterator[TableCell]:
    value = math.nan if row.variant.limits(row.metric) else row.estimate.mean
    yield TableCell("mean", estimate_of(row), row.best, value)
    yield from _compared(row)


def _of_effect(effect: Effect) -> Iterator[TableCell]:
    yield from _compared(effect)
    yield TableCell("verdict", verdict_of(effect))


def _compared(row: Row | Effect) -> Iterator[TableCell]:
    difference = math.nan if row.difference is None else row.difference.mean
    yield TableCell("difference", difference_of(row), value=difference)
    yield TableCell("p", p_value_of(row), value=row.corrected)
