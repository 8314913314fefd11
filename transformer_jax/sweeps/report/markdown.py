"""A report as Markdown: tables, notes, and links to figures and files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.drawing import Drawn
from transformer_jax.sweeps.report.formatting import (
    difference_of,
    estimate_of,
    metric_label,
    p_value_of,
    trials_of,
)
from transformer_jax.sweeps.report.latex import TABLES
from transformer_jax.sweeps.report.measurements import MEASUREMENTS
from transformer_jax.sweeps.report.reproduction import command_note, sweep_command
from transformer_jax.sweeps.report.sentences import NOT_SHOWN, STAR, answer, notes, subject
from transformer_jax.sweeps.report.summary import CONTRASTS, RESULTS, SUMMARY, Contrast, Row

FIGURES = "figures"
_DOLLAR = "<span>$</span>"


def document(results: StudyResults, rows: list[Row], contrasts: list[Contrast], figures: Sequence[Drawn]) -> str:
    command = sweep_command(results)
    parts = [
        f"# {escaped(results.study.question)}",
        escaped(subject(results)),
        f"**Answer:** {escaped(answer(results, rows))}",
        *([f"**{NOT_SHOWN}** {escaped(not_shown)}"] if (not_shown := results.study.not_shown) else []),
        tables(results, rows, contrasts),
        "\n".join(f"- {escaped(note)}" for note in notes(results)),
        *(f"![{_alt(figure.alt)}]({FIGURES}/{figure.file})\n\n**{escaped(figure.title)}**" for figure in figures),
        *([escaped(command_note(results)), f"```\n{command}\n```"] if command else []),
        f"All numbers: [{SUMMARY}]({SUMMARY}) by variant, [{RESULTS}]({RESULTS}) by trial, "
        f"[{MEASUREMENTS}]({MEASUREMENTS}) by step"
        + (f", [{CONTRASTS}]({CONTRASTS})" if contrasts else "")
        + f". For papers: [{TABLES}]({TABLES}), and a PDF beside every figure. The exact configs are in "
        "[report.html](report.html).",
    ]
    return "\n\n".join(parts) + "\n"


def tables(results: StudyResults, rows: list[Row], contrasts: list[Contrast]) -> str:
    """Return the table of the variants, and that of the contrasts if the study has any."""
    return "\n\n".join([_answer_table(results, rows), *([_contrast_table(results, contrasts)] if contrasts else [])])


def _contrast_table(results: StudyResults, contrasts: list[Contrast]) -> str:
    """Return a table with a row per contrast: difference and p-value for each of the study's metrics."""
    metrics = [metric.name for metric in results.study.metrics]
    head = ["one value minus another"]
    for metric in metrics:
        head += [f"{escaped(metric_label(metric, results.task))}, difference", "p (Holm)"]
    lines = [_line(head), "|---|" + "---:|" * (2 * len(metrics))]
    for first in range(0, len(contrasts), len(metrics)):
        together = contrasts[first : first + len(metrics)]
        numbers = [text for contrast in together for text in (difference_of(contrast), p_value_of(contrast))]
        lines.append(_line([escaped(together[0].name), *numbers]))
    return "\n".join(lines)


def _answer_table(results: StudyResults, rows: list[Row]) -> str:
    """Return a table with a row per variant: mean, difference to the reference and p-value for each metric.

    If the study has contrasts, differences and p-values are left out.
    """
    metrics = [metric.name for metric in results.study.metrics]
    head = [escaped(", ".join(axis.name for axis in results.study.axes))]
    compared = ["difference", "p (Holm)"] if not results.study.contrasts else []
    for metric in metrics:
        head += [f"{escaped(metric_label(metric, results.task))}, mean ± 95 %", *compared]
    lines = [_line([*head, "trials"]), "|---|" + "---:|" * (len(head) - 1) + "---|"]
    for variant in results.variants:
        cells = [escaped(variant.short_name + (" (reference)" if variant is results.reference else ""))]
        for row in (row for row in rows if row.variant is variant and row.metric in metrics):
            mean = escaped(estimate_of(row))
            cells.append(f"**{mean}** {STAR}" if row.best else mean)
            if compared:
                cells += [difference_of(row), p_value_of(row)]
        lines.append(_line([*cells, trials_of(variant)]))
    return "\n".join(lines)


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
