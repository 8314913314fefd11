"""A report as Markdown: the table of the answer, and links to figures and files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.drawing import Drawn
from transformer_jax.sweeps.report.prose import STAR, answer, notes, subject
from transformer_jax.sweeps.report.reproduction import command_note, sweep_command
from transformer_jax.sweeps.report.summary import RESULTS, SUMMARY, Row
from transformer_jax.sweeps.report.wording import (
    difference_of,
    estimate_of,
    metric_label,
    p_value_of,
    trials_of,
)

FIGURES = "figures"


def document(results: StudyResults, rows: list[Row], figures: Sequence[Drawn]) -> str:
    command = sweep_command(results)
    parts = [
        f"# {escaped(results.study.question)}",
        escaped(subject(results)),
        f"**Answer:** {escaped(answer(results, rows))}",
        answer_table(results, rows),
        "\n".join(f"- {escaped(note)}" for note in notes(results)),
        *(f"![{escaped(figure.alt)}]({FIGURES}/{figure.file})\n\n**{escaped(figure.title)}**" for figure in figures),
        *([escaped(command_note(results)), f"```\n{command}\n```"] if command else []),
        f"Numbers in full: [{SUMMARY}]({SUMMARY}) by variant, [{RESULTS}]({RESULTS}) by trial; the exact configs are "
        "in [report.html](report.html).",
    ]
    return "\n\n".join(parts) + "\n"


def answer_table(results: StudyResults, rows: list[Row]) -> str:
    """A row per variant; for each of the study's metrics mean, difference to the reference, and its p-value."""
    metrics = [metric.name for metric in results.study.metrics]
    head = [", ".join(axis.name for axis in results.study.axes)]
    for metric in metrics:
        head += [f"{metric_label(metric)}, mean ± 95 %", "difference", "p (Holm)"]
    lines = [_line([*head, "trials"]), "|" + "---|" + "---:|" * (3 * len(metrics)) + "---|"]
    for variant in results.variants:
        cells = [escaped(variant.short_name + (" (reference)" if variant is results.reference else ""))]
        for row in (row for row in rows if row.variant is variant and row.metric in metrics):
            mean = escaped(estimate_of(row))
            cells += [f"**{mean}** {STAR}" if row.best else mean, difference_of(row), p_value_of(row)]
        lines.append(_line([*cells, trials_of(variant)]))
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Text as Markdown that shows it as it is, on one line, also within a table."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # An underscore within a word begins no emphasis.
    return re.sub(r"([\\`*|\[\]#~]|(?<!\w)_|_(?!\w))", r"\\\1", text)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
