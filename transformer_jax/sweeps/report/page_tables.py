"""The tables of a report's page. Cells have their numbers in full precision (`data-value`), for sorting."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from transformer_jax.sweeps.report.answer_tables import (
    CONTRAST,
    HEADS,
    REFERENCE,
    AnswerTable,
    TableCell,
    axis_names,
    contrasts_table,
    label_orders,
    labels_of,
    variants_table,
)
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.formatting import metric_label, status_words, value_of
from transformer_jax.sweeps.report.grid_from_results import config_of_variant, values_by_name
from transformer_jax.sweeps.report.html import Html, element, head_cell, table
from transformer_jax.sweeps.report.number_text import NOTHING, number_text
from transformer_jax.sweeps.report.reproduction import differing_fields
from transformer_jax.sweeps.report.sentences import STAR
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.tuning import TUNING_TABLE, heads, table_rows
from transformer_jax.sweeps.report.variants import TrialResult

_LONG = 14
"""Characters of a label that may be broken into lines, and needs room for it."""
Orders = Mapping[str, Mapping[str, float]]


def answer_table(results: StudyResults, rows: Sequence[Row]) -> Html:
    """Return the table of the variants."""
    shown = variants_table(results, rows)
    last = element("th", "trials", rowspan="2", scope="col", class_="text")
    return _grouped(shown, " ".join(_directions(results)), "answer", label_orders(results), [last])


def contrast_table(results: StudyResults, effects: Sequence[Effect]) -> Html:
    shown = contrasts_table(results, effects)
    return _grouped(shown, "Over the seeds that both have.", "differences", label_orders(results))


def differences_table(results: StudyResults) -> Html:
    """Return a table of the fields in which variants differ, and their numbers of parameters."""
    axes, orders, names = axis_names(results), label_orders(results), differing_fields(results)
    head = [*(_label_head(axis) for axis in axes), *map(head_cell, names), head_cell("parameters")]
    body = []
    for variant in results.variants:
        fields = values_by_name(config_of_variant(variant))
        counts = sorted({trial.ran.parameters for trial in variant.trials if trial.ran is not None})
        parameters = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]]))) or NOTHING
        cells = [_cell(str(fields[name]), _number(fields[name])) for name in names]
        size = _cell(parameters, counts[0] if counts else math.nan)
        body.append([*_labels(axes, labels_of(variant, axes), orders), *cells, size])
    return table("All other fields except the seed are the same.", [head], body, "differences of the configs")


def trials_table(results: StudyResults) -> Html:
    axes, orders = axis_names(results), label_orders(results)
    metrics = [metric.name for metric in results.study.metrics]
    head = [
        *map(_label_head, axes),
        _label_head("seed", class_=""),
        _label_head("status", class_=""),
        *(head_cell(metric_label(name, results.task)) for name in metrics),
        *map(head_cell, ("steps", "seconds")),
        element("th", "why", scope="col", class_="text"),
    ]
    body = []
    for variant in results.variants:
        for trial in variant.trials:
            seed, ran = trial.trial.seed, trial.ran
            numbers = [(value_of(trial, name), _measured(trial, name)) for name in metrics]
            numbers += [(NOTHING, math.nan)] * 2 if ran is None else _cost(ran.steps, ran.seconds)
            body.append(
                [
                    *_labels(axes, labels_of(variant, axes), orders),
                    _cell(str(seed), seed),
                    element("td", status_words(trial.status)),
                    *(_cell(text, number) for text, number in numbers),
                    element("td", _why(results, trial), class_="text"),
                ]
            )
    return table("All numbers are in results.csv.", [head], body, "trials")


def tuning_table(results: StudyResults) -> Html:
    """Return a table of the values that the tuning has chosen."""
    axes, orders = axis_names(results), label_orders(results)
    head = [*map(_label_head, axes), *map(head_cell, heads(results))]
    body = [
        [*_labels(axes, labels_of(line.variant, axes), orders), *(_cell(text, value) for text, value in line.cells)]
        for line in table_rows(results)
    ]
    return table(f"All numbers are in {TUNING_TABLE}.", [head], body, "tuning")


def _grouped(shown: AnswerTable, caption: str, label: str, orders: Orders, last: Sequence[Html] = ()) -> Html:
    """Return a table with two lines of heads; last: the head of a column of trials."""
    first = [_label_head(name, rowspan="2") for name in shown.axes]
    groups = [element("th", group, colspan=str(len(shown.columns)), scope="colgroup") for group in shown.groups]
    columns = [head_cell(HEADS[column]) for column in shown.columns] * len(groups)
    body = []
    for line in shown.lines:
        trials = [element("td", line.trials, class_="text")] if last else []
        labels = _labels(shown.axes, line.labels, orders, line.is_reference)
        body.append([*labels, *map(_number_cell, line.cells), *trials])
    return table(caption, [[*first, *groups, *last], columns], body, label)


def _label_head(name: str, **attributes: str) -> Html:
    """Return the head of a column by whose values rows can be filtered."""
    return element("th", name, **({"scope": "col", "class_": "label", "data_filter": ""} | attributes))


def _labels(axes: Sequence[str], labels: Sequence[str], orders: Orders, is_reference: bool = False) -> Iterator[Html]:
    """Yield the head of a row: a cell per axis."""
    for axis, label in zip(axes, labels, strict=True):
        is_marked = is_reference and axis == axes[-1]
        mark = [" ", element("span", REFERENCE, class_="mark")] if is_marked else []
        order = {} if axis == CONTRAST else {"data_value": _text(orders[axis].get(label, math.nan))}
        width = {"class_": "long"} if len(label) > _LONG else {}
        yield element("th", label, *mark, scope="row", data_label=label, **width, **order)


def _number_cell(cell: TableCell) -> Html:
    if cell.column == "verdict":
        return element("td", cell.text)
    if not cell.is_best:
        return _cell(cell.text, cell.value)
    star = element("span", STAR, class_="star", aria_hidden="true")
    said = element("span", " (best)", class_="hidden")
    return element("td", star, " ", cell.text, said, class_="best", data_value=_text(cell.value))


def _cell(text: str, number: float | None) -> Html:
    """Return a cell with a number, NaN if it is missing; None for a text."""
    return element("td", text) if number is None else element("td", text, data_value=_text(number))


def _text(number: float) -> str:
    return "" if math.isnan(number) else repr(number)


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _measured(trial: TrialResult, metric: str) -> float:
    return math.nan if trial.limit(metric) is not None else trial.metrics.get(metric, math.nan)


def _cost(steps: int, seconds: float) -> Iterable[tuple[str, float]]:
    return (str(steps), steps), (number_text(seconds), seconds)


def _directions(results: StudyResults) -> Iterator[str]:
    for direction, word in (("max", "Higher"), ("min", "Lower")):
        if names := [metric_label(m.name, results.task) for m in results.study.metrics if m.direction == direction]:
            yield f"{word} is better: {', '.join(names)}."


def _why(results: StudyResults, trial: TrialResult) -> str:
    """Return the reason in a trial's result, without the path of the work directory."""
    why = "" if trial.result is None else trial.result.why
    for place in (results.workdir.absolute(), results.workdir):
        why = why.replace(f"{place}/", "")
    return why
