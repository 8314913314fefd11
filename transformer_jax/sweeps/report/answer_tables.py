"""The two tables of a report, before they are written as HTML, Markdown or LaTeX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

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
from transformer_jax.sweeps.report.summary import Row

Column = Literal["mean", "difference", "p", "verdict"]
HEADS: dict[Column, str] = {
    "mean": "mean ± 95 %",
    "difference": "difference",
    "p": "p (Holm)",
    "verdict": "verdict",
}
"""Heads of the columns of a group."""


class TableCell(NamedTuple):
    """A number as text, and the column of its group that it is in."""

    column: Column
    text: str
    is_best: bool = False


class TableRow(NamedTuple):
    """A variant or a contrast.

    name: in one cell. labels: in one cell per name of `AnswerTable.axes`. trials: by status; empty for a contrast.
    """

    name: str
    labels: Sequence[str]
    cells: Sequence[TableCell]
    trials: str = ""


class AnswerTable(NamedTuple):
    """A table with a group of columns for each metric.

    axes: heads of the columns before the groups, if a line has several. groups: labels of the metrics. columns: of each
    group. is_whole: whether all trials of all lines have finished.
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
    axes = [axis.name for axis in results.study.axes]
    columns: list[Column] = ["mean"] if results.study.contrasts else ["mean", "difference", "p"]
    metrics = [metric.name for metric in results.study.metrics]
    lines = []
    for variant in results.variants:
        own = [row for row in rows if row.variant is variant and row.metric in metrics]
        mark = " (reference)" if variant is results.reference else ""
        labels = [variant.labels[name] for name in axes]
        labels[-1] += mark
        cells = [cell for row in own for cell in _of_row(row) if cell.column in columns]
        lines.append(TableRow(variant.short_name + mark, labels, cells, trials_of(variant)))
    return AnswerTable(axes, _groups(results), columns, lines, all(variant.is_complete for variant in results.variants))


def contrasts_table(results: StudyResults, effects: Sequence[Effect]) -> AnswerTable:
    """Return a line per contrast: difference, p-value and verdict for each metric."""
    lines, count = [], len(results.study.metrics)
    for first in range(0, len(effects), count):
        together = effects[first : first + count]
        name = together[0].name
        lines.append(TableRow(name, [name], [cell for effect in together for cell in _of_effect(effect)]))
    return AnswerTable(["one value minus another"], _groups(results), ["difference", "p", "verdict"], lines)


def _groups(results: StudyResults) -> list[str]:
    return [metric_label(metric.name, results.task) for metric in results.study.metrics]


def _of_row(row: Row) -> Iterator[TableCell]:
    yield TableCell("mean", estimate_of(row), row.best)
    yield from _compared(row)


def _of_effect(effect: Effect) -> Iterator[TableCell]:
    yield from _compared(effect)
    yield TableCell("verdict", verdict_of(effect))


def _compared(row: Row | Effect) -> Iterator[TableCell]:
    yield TableCell("difference", difference_of(row))
    yield TableCell("p", p_value_of(row))
