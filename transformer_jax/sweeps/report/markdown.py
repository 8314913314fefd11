"""A report as Markdown: tables, notes, and links to figures and files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer_jax.sweeps.report.answer import answer_parts
from transformer_jax.sweeps.report.answer_tables import (
    HEADS,
    AnswerTable,
    TableCell,
    axis_names,
    contrasts_table,
    labels_of,
    variants_table,
)
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.differences import DIFFERENCES
from transformer_jax.sweeps.report.drawing import Drawn
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.latex import TABLES
from transformer_jax.sweeps.report.reproduction import command_note, sweep_command
from transformer_jax.sweeps.report.sentences import NOT_SHOWN, STAR, asked, notes, subject
from transformer_jax.sweeps.report.summary import CONTRASTS, RESULTS, SUMMARY, Row
from transformer_jax.sweeps.report.tuning import TUNING_TABLE, heads, sentences, table_rows
from transformer_jax.sweeps.results_folder import FIGURES, MEASUREMENTS

_DOLLAR = "<span>$</span>"


def document(results: StudyResults, rows: list[Row], effects: list[Effect], figures: Sequence[Drawn]) -> str:
    command = sweep_command(results)
    parts = [
        f"# {escaped(results.study.question)}",
        escaped(subject(results)),
        answered(results, rows, effects),
        *([f"**{NOT_SHOWN}** {escaped(not_shown)}"] if (not_shown := results.study.not_shown) else []),
        *([f"**{changed}**"] if (changed := escaped(asked(results))) else []),
        *(_figure(figure) for figure in figures if figure.opens_page),
        tables(results, rows, effects),
        *_tuning(results),
        "\n".join(f"- {escaped(note)}" for note in notes(results, rows, effects)),
        *(_figure(figure) for figure in figures if not figure.opens_page),
        *([escaped(command_note(results)), f"```\n{command}\n```"] if command else []),
        f"All numbers: [{SUMMARY}]({SUMMARY}) by variant, [{RESULTS}]({RESULTS}) by trial, "
        f"[{MEASUREMENTS}]({MEASUREMENTS}) by step"
        + (f", [{CONTRASTS}]({CONTRASTS}), [{DIFFERENCES}]({DIFFERENCES}) by seed" if effects else "")
        + (f", [{TUNING_TABLE}]({TUNING_TABLE})" if results.tuning else "")
        + f". For papers: [{TABLES}]({TABLES}), and a PDF beside every figure. The exact configs are in "
        "[report.html](report.html).",
    ]
    return "\n\n".join(parts) + "\n"


def _figure(figure: Drawn) -> str:
    caption = f" {escaped(figure.caption)}" if figure.caption else ""
    return f"![{_alt(figure.alt)}]({FIGURES}/{figure.file})\n\n**{escaped(figure.title)}**{caption}"


def answered(results: StudyResults, rows: list[Row], effects: list[Effect]) -> str:
    """Return the answer, as a list if it has several sentences, with the details of a sentence below it."""
    parts = answer_parts(results, rows, effects)
    if len(parts) == 1 and not parts[0].details:
        return f"**Answer:** {escaped(parts[0].sentence)}"
    lines = ["**Answer:**", ""]
    for part in parts:
        lines += [f"- {escaped(part.sentence)}", *(f"  - {escaped(sentence)}" for sentence in part.details)]
    return "\n".join(lines)


def tables(results: StudyResults, rows: list[Row], effects: list[Effect]) -> str:
    """Return the table of the variants, and that of the contrasts if the study has any."""
    written = [_table(variants_table(results, rows), has_trials=True)]
    if effects:
        written.append(_table(contrasts_table(results, effects), has_trials=False))
    return "\n\n".join(written)


def _tuning(results: StudyResults) -> list[str]:
    """Return the sentences and the table of the tuning; none for a study without one."""
    said = sentences(results)
    if not said:
        return []
    axes, columns = axis_names(results), heads(results)
    lines = [_line([*map(escaped, (*axes, *columns))]), "|" + "---|" * len(axes) + "---:|" * len(columns)]
    lines += [
        _line([*map(escaped, (*labels_of(line.variant, axes), *(text for text, _ in line.cells)))])
        for line in table_rows(results)
    ]
    return ["\n".join(["**Tuning:**", "", *(f"- {escaped(sentence)}" for sentence in said)]), "\n".join(lines)]


def _table(table: AnswerTable, has_trials: bool) -> str:
    """Return a table with a row per line and a column per axis; the first column of a group names its metric."""
    head, last = [*map(escaped, table.axes)], ["trials"] if has_trials else []
    for group in table.groups:
        first, *others = (HEADS[column] for column in table.columns)
        head += [f"{escaped(group)}, {first}", *others]
    left = len(table.axes)
    lines = [_line([*head, *last]), "|" + "---|" * left + "---:|" * (len(head) - left) + "---|" * len(last)]
    lines += [
        _line([*map(escaped, line.marked), *map(_cell, line.cells), *([line.trials] if has_trials else [])])
        for line in table.lines
    ]
    return "\n".join(lines)


def _cell(cell: TableCell) -> str:
    text = escaped(cell.text) if cell.column == "mean" else cell.text
    return f"**{text}** {STAR}" if cell.is_best else text


def escaped(text: str) -> str:
    """Return Markdown that shows a text unchanged on one line, also within a table."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore within a word does not start emphasis. Some readers of Markdown make a dash of two hyphens.
    text = re.sub(r"([\\`*|\[\]#~^]|(?<![^\W_])_|_(?![^\W_])|-(?=-))", r"\\\1", text)
    # Forges show `$...$` as a formula, with a backslash too.
    return text.replace("$", _DOLLAR)


def _alt(text: str) -> str:
    """Return a text for the alt text of an image, which has no elements and no formulas."""
    return escaped(text).replace(_DOLLAR, r"\$")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
