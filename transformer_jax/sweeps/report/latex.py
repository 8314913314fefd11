"""Tables of a report in LaTeX, for the package booktabs: `\\input{tables.tex}` in a document that loads it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer_jax.sweeps.report.answer_tables import (
    AnswerTable,
    TableCell,
    axis_names,
    contrasts_table,
    labels_of,
    variants_table,
)
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.number_text import NOTHING
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.tuning import heads, table_rows

TABLES = "tables.tex"
_SPECIAL = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\char34{}",  # \textquotedbl is an error with LaTeX's default font encoding
    "`": r"\textasciigrave{}",
    "\N{MINUS SIGN}": "$-$",
    "±": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "★": r"$\star$",
    NOTHING: "--",
    "…": r"\ldots{}",
}


def tables_tex(results: StudyResults, rows: Sequence[Row], effects: Sequence[Effect]) -> str:
    """Return the tables of the variants, of the contrasts and of the tuning, if there are any, each as a `tabular`.

    A mean that is ahead of every other is bold. Comments hold the question and the number of seeds, for a caption.
    """
    has_best = any(row.best for row in rows)
    seeds = len({seed for variant in results.variants for seed in variant.seeds})
    comments = [
        f"% {' '.join(results.study.question.split())}",
        f"% Means over {seeds} seeds with half the width of the 95 % confidence interval (Student's t).",
        *(["% Bold: ahead of every other variant whose trials have all finished."] if has_best else []),
        "% p: two-sided paired t-test over seeds, corrected by the method of Holm. Needs \\usepackage{booktabs}.",
    ]
    tables = [_tabular(variants_table(results, rows))]
    if effects:
        tables.append(_tabular(contrasts_table(results, effects)))
    if results.tuning:
        tables.append(_tuning(results))
    return "\n".join([*comments, "\n\n".join(tables)]) + "\n"


def escaped(text: str) -> str:
    """Return LaTeX that shows a text unchanged, on one line, also as the first cell of a row."""
    # LaTeX joins repeated characters, such as two hyphens to a dash, unless an empty group is between them.
    parts = re.split(r"(?<=-)(?=[-\N{EN DASH}])|(?<=')(?=')|(?<=,)(?=,)", " ".join(text.split()))
    latex = "{}".join("".join(_SPECIAL.get(character, character) for character in part) for part in parts)
    # `\\` at the end of the row before would take these as its argument.
    return f"{{}}{latex}" if latex.startswith(("[", "*")) else latex


def _tuning(results: StudyResults) -> str:
    """Return a `tabular` of the chosen values."""
    axes, columns = axis_names(results), heads(results)
    lines = [
        rf"\begin{{tabular}}{{{'l' * len(axes)}{'r' * len(columns)}}}",
        r"\toprule",
        _line([*map(escaped, (*axes, *columns))]),
        r"\midrule",
        *(
            _line([*map(escaped, (*labels_of(line.variant, axes), *(text for text, _ in line.cells)))])
            for line in table_rows(results)
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _tabular(table: AnswerTable) -> str:
    """Return a `tabular` with a group of columns for each metric, and the trials if not all of them have finished."""
    left, width, last = len(table.axes), len(table.columns), [] if table.is_whole else ["trials"]
    groups, rules = [""] * left, []
    for number, group in enumerate(table.groups):
        start = left + 1 + number * width
        groups.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(group)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
    heads = ["$p$" if column == "p" else column for column in table.columns]
    lines = [
        rf"\begin{{tabular}}{{{'l' * left}{'r' * (width * len(table.groups))}{'l' * len(last)}}}",
        r"\toprule",
        _line([*groups, *([""] * len(last))]),
        "".join(rules),
        _line([*map(escaped, table.axes), *(heads * len(table.groups)), *last]),
        r"\midrule",
        *(
            _line([*map(escaped, line.marked), *map(_cell, line.cells), *([escaped(line.trials)] if last else [])])
            for line in table.lines
        ),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _cell(cell: TableCell) -> str:
    if cell.column == "p":
        return _p_value(cell.text)
    text = _signed(cell.text) if cell.column == "difference" else escaped(cell.text)
    return rf"\textbf{{{text}}}" if cell.is_best else text


def _signed(text: str) -> str:
    """Return a difference with a minus sign in place of a hyphen."""
    return escaped(text.replace("-", "\N{MINUS SIGN}", 1)) if text.startswith("-") else escaped(text)


def _p_value(text: str) -> str:
    """Return a p-value with a power of ten in place of an exponent."""
    mantissa, e, exponent = text.partition("e")
    return rf"${mantissa} \times 10^{{{int(exponent)}}}$" if e else escaped(text)


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
