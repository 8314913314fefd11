"""A report as one HTML page that loads nothing from elsewhere and needs no script."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer_jax.readers import read_text
from transformer_jax.sweeps.report.answer import answer
from transformer_jax.sweeps.report.answer_tables import HEADS, AnswerTable, TableCell, contrasts_table, variants_table
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.drawing import Drawn
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.formatting import metric_label, status_words, value_of
from transformer_jax.sweeps.report.grid_from_results import config_of_variant, derived_differences, values_by_name
from transformer_jax.sweeps.report.html import Html, element, table
from transformer_jax.sweeps.report.latex import TABLES
from transformer_jax.sweeps.report.number_text import NOTHING, number_text
from transformer_jax.sweeps.report.reproduction import (
    command_note,
    differing_fields,
    exact_config,
    machines,
    sweep_command,
    versions,
)
from transformer_jax.sweeps.report.sentences import NOT_SHOWN, STAR, asked, notes, subject
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.tuning import TUNING_TABLE, heads, sentences, table_rows
from transformer_jax.sweeps.report.variants import TrialResult
from transformer_jax.sweeps.results_folder import FIGURES, MEASUREMENTS

_FILES = (
    f"Beside this page: every figure as SVG and PDF in {FIGURES}/, the tables for LaTeX in {TABLES}, and all numbers "
    f"of all trials in {MEASUREMENTS}."
)


def page(results: StudyResults, rows: list[Row], effects: list[Effect], figures: Sequence[Drawn]) -> str:
    question = results.study.question
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", question),
        element("link", rel="icon", href="data:,"),
        element("style", Html(read_text(Path(__file__).parent / "style.css"))),
    )
    main = element(
        "main",
        element("h1", question),
        element("p", subject(results), class_="soft"),
        *_section("Answer", *_answer(answer(results, rows, effects)), *_not_shown(results), *_changed(results)),
        _answer_table(results, rows),
        *(_section("Differences", _contrast_table(results, effects)) if effects else []),
        *_section("Figures", element("div", *map(_figure, figures), class_="figures")),
        element("p", _FILES, class_="soft"),
        *_tuning(results),
        *_section("How to read it", element("ul", *(element("li", note) for note in notes(results, rows, effects)))),
        *_section("Config fields that differ", _differences(results), *_derived(results)),
        *_section("Trials", element("details", element("summary", "Every trial"), _trials(results))),
        *_section("Exact configs", *_configs(results)),
        *_section("How it was made", *_origin(results)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


def _tuning(results: StudyResults) -> list[Html]:
    said = sentences(results)
    if not said:
        return []
    body = [
        [element("th", name, scope="row"), *(element("td", cell) for cell in cells)]
        for name, *cells in table_rows(results)
    ]
    shown = table(f"All numbers are in {TUNING_TABLE}.", [[*map(_head, heads(results))]], body, "tuning")
    return _section("Tuning", element("ul", *(element("li", sentence) for sentence in said)), shown)


def _section(title: str, *content: Html) -> list[Html]:
    return [element("h2", title), *content]


def _answer(sentences: Sequence[str]) -> list[Html]:
    if len(sentences) == 1:
        return [element("p", *sentences, class_="answer")]
    return [element("ul", *(element("li", sentence) for sentence in sentences), class_="answer")]


def _not_shown(results: StudyResults) -> list[Html]:
    said = results.study.not_shown
    return [element("p", element("strong", NOT_SHOWN), f" {said}")] if said else []


def _changed(results: StudyResults) -> list[Html]:
    said = asked(results)
    return [element("p", element("strong", said))] if said else []


def _answer_table(results: StudyResults, rows: list[Row]) -> Html:
    last = element("th", "trials", rowspan="2", scope="col", class_="text")
    shown = variants_table(results, rows)
    return _table(shown, " ".join(_directions(results)), "answer", [last])


def _contrast_table(results: StudyResults, effects: list[Effect]) -> Html:
    return _table(contrasts_table(results, effects), "Over the seeds that both have.", "differences")


def _table(shown: AnswerTable, caption: str, label: str, last: Sequence[Html] = ()) -> Html:
    """Return a table with two lines of heads; last: the head of a column of trials."""
    first = element("th", ", ".join(shown.axes), rowspan="2", scope="col")
    width = str(len(shown.columns))
    groups = [element("th", group, colspan=width, scope="colgroup") for group in shown.groups]
    columns = [_head(HEADS[column]) for column in shown.columns] * len(groups)
    body = []
    for line in shown.lines:
        trials = [element("td", line.trials, class_="text")] if last else []
        body.append([element("th", line.name, scope="row"), *map(_cell, line.cells), *trials])
    return table(caption, [[first, *groups, *last], columns], body, label)


def _cell(cell: TableCell) -> Html:
    if not cell.is_best:
        return element("td", cell.text)
    star = element("span", STAR, class_="star", aria_hidden="true")
    return element("td", star, " ", cell.text, element("span", " (best)", class_="hidden"), class_="best")


def _directions(results: StudyResults) -> Iterator[str]:
    for direction, word in (("max", "Higher"), ("min", "Lower")):
        if names := [metric_label(m.name, results.task) for m in results.study.metrics if m.direction == direction]:
            yield f"{word} is better: {', '.join(names)}."


def _figure(figure: Drawn) -> Html:
    image = element("img", src=f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}", alt=figure.alt)
    caption = element("figcaption", element("strong", figure.title), element("small", figure.alt))
    return element("figure", image, caption)


def _differences(results: StudyResults) -> Html:
    """Return a table of the fields in which variants differ, and their numbers of parameters."""
    names = differing_fields(results)
    head = [_head("variant"), *map(_head, names), _head("parameters")]
    body = []
    for variant in results.variants:
        fields = values_by_name(config_of_variant(variant))
        counts = sorted({trial.ran.parameters for trial in variant.trials if trial.ran is not None})
        parameters = " to ".join(map(str, dict.fromkeys([*counts[:1], *counts[-1:]]))) or NOTHING
        cells = [element("td", str(fields[name])) for name in names]
        body.append([element("th", variant.short_name, scope="row"), *cells, element("td", parameters)])
    return table("All other fields except the seed are the same.", [head], body, "differences of the configs")


def _derived(results: StudyResults) -> list[Html]:
    said = [
        f"{name} follows from {' and '.join(causes)}." for name, causes in derived_differences(results.variants).items()
    ]
    return [element("p", " ".join(said), class_="soft")] if said else []


def _trials(results: StudyResults) -> Html:
    metrics = [metric.name for metric in results.study.metrics]
    columns = ["seed", "status", *(metric_label(m, results.task) for m in metrics), "steps", "seconds"]
    body = []
    for variant in results.variants:
        for trial in variant.trials:
            values = [value_of(trial, metric) for metric in metrics]
            done = [] if trial.ran is None else [str(trial.ran.steps), number_text(trial.ran.seconds)]
            texts = [str(trial.trial.seed), status_words(trial.status), *values, *(done or [NOTHING] * 2)]
            why = element("td", _why(results, trial), class_="text")
            name = element("th", variant.short_name, scope="row")
            body.append([name, *(element("td", text) for text in texts), why])
    return table("All numbers are in results.csv.", [list(map(_head, ["variant", *columns, "why"]))], body, "trials")


def _why(results: StudyResults, trial: TrialResult) -> str:
    """Return the reason in a trial's result, without the path of the work directory."""
    why = "" if trial.result is None else trial.result.why
    for place in (results.workdir.absolute(), results.workdir):
        why = why.replace(f"{place}/", "")
    return why


def _configs(results: StudyResults) -> list[Html]:
    shown = [
        element("details", element("summary", variant.short_name), element("pre", exact_config(variant), tabindex="0"))
        for variant in results.variants
    ]
    said = "All fields except the seed, which differs by trial, and data.cache_dir, the folder of the token cache."
    return [element("p", said, class_="soft"), *shown]


def _origin(results: StudyResults) -> list[Html]:
    command = sweep_command(results)
    seconds = sum(trial.result.seconds for trial in results.trials if trial.result is not None)
    if command is None:
        said = [element("p", "The study's file as it is now does not make these configs; the exact configs are above.")]
    else:
        said = [
            element("p", command_note(results)),
            element("pre", command, tabindex="0"),
        ]
    lines = [
        *_counted("Machine", machines(results)),
        *_counted("Versions", versions(results)),
        f"Training: {number_text(seconds)} seconds in total over all trials.",
    ]
    return [*said, element("ul", *(element("li", line) for line in lines))]


def _counted(title: str, counts: Counter[str]) -> list[str]:
    """Return a line per value, with the number of trials if there is more than one value."""
    return [
        f"{title}: {value or 'not known'}" + (f" ({count} trials)" if len(counts) > 1 else "")
        for value, count in counts.items()
    ]


def _head(text: str) -> Html:
    return element("th", text, scope="col")
