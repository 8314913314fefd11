"""Tables of a report in LaTeX, for the package booktabs: `\\input{tables.tex}` in a document that loads it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.formatting import difference_of, estimate_of, metric_label, p_value_of, trials_of
from transformer_jax.sweeps.report.number_text import NOTHING
from transformer_jax.sweeps.report.summary import Contrast, Row

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
    "★": r"$\star$",
    NOTHING: "--",
    "…": r"\ldots{}",
}


def tables_tex(results: StudyResults, rows: Sequence[Row], contrasts: Sequence[Contrast]) -> str:
    """Return the table of the variants, and that of the contrasts if the study has any, each as a `tabular`.

    The best mean of a metric is bold. Comments hold the question and the number of seeds, for a caption.
    """
    seeds = len({seed for variant in results.variants for seed in variant.seeds})
    comments = [
        f"% {' '.join(results.study.question.split())}",
        f"% Means over {seeds} seeds with half the width of the 95 % confidence interval (Student's t).",
        "% Bold: best mean among the variants whose trials have all finished.",
        "% p: two-sided paired t-test over seeds, corrected by the method of Holm. Needs \\usepackage{booktabs}.",
    ]
    tables = [_variants(results, rows), *([_contrasts(results, contrasts)] if contrasts else [])]
    return "\n".join([*comments, "\n\n".join(tables)]) + "\n"


def escaped(text: str) -> str:
    """Return LaTeX that shows a text unchanged, on one line, also as the first cell of a row."""
    # LaTeX joins repeated characters, such as two hyphens to a dash, unless an empty group is between them.
    parts = re.split(r"(?<=-)(?=[-\N{EN DASH}])|(?<=')(?=')|(?<=,)(?=,)", " ".join(text.split()))
    latex = "{}".join("".join(_SPECIAL.get(character, character) for character in part) for part in parts)
    # `\\` at the end of the row before would take these as its argument.
    return f"{{}}{latex}" if latex.startswith(("[", "*")) else latex


def _variants(results: StudyResults, rows: Sequence[Row]) -> str:
    metrics = [metric.name for metric in results.study.metrics]
    compared = [] if results.study.contrasts else ["difference", "$p$"]
    whole = all(variant.is_complete for variant in results.variants)
    names = [axis.name for axis in results.study.axes]
    body = []
    for variant in results.variants:
        cells = [escaped(variant.labels[name]) for name in names]
        if variant is results.reference:
            cells[-1] += " (reference)"
        for row in (row for row in rows if row.variant is variant and row.metric in metrics):
            mean = escaped(estimate_of(row))
            cells.append(rf"\textbf{{{mean}}}" if row.best else mean)
            if compared:
                cells += [_signed(difference_of(row)), _p_value(p_value_of(row))]
        body.append([*cells, *([] if whole else [escaped(trials_of(variant))])])
    head = [*map(escaped, names), *(["mean", *compared] * len(metrics)), *([] if whole else ["trials"])]
    return _tabular("l" * len(names), metrics, 1 + len(compared), "" if whole else "l", head, body, results)


def _contrasts(results: StudyResults, contrasts: Sequence[Contrast]) -> str:
    metrics = [metric.name for metric in results.study.metrics]
    body = []
    for first in range(0, len(contrasts), len(metrics)):
        together = contrasts[first : first + len(metrics)]
        numbers = [text for c in together for text in (_signed(difference_of(c)), _p_value(p_value_of(c)))]
        body.append([escaped(together[0].name), *numbers])
    head = ["one value minus another", *(["difference", "$p$"] * len(metrics))]
    return _tabular("l", metrics, 2, "", head, body, results)


def _tabular(
    left: str,
    metrics: Sequence[str],
    width: int,
    right: str,
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    results: StudyResults,
) -> str:
    """Return a `tabular` with a group of `width` columns for each metric.

    Args:
      left, right: alignments of the columns before and after the groups.
    """
    groups, rules = [""] * len(left), []
    for number, metric in enumerate(metrics):
        start = len(left) + 1 + number * width
        groups.append(rf"\multicolumn{{{width}}}{{c}}{{{escaped(metric_label(metric, results.task))}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
    lines = [
        rf"\begin{{tabular}}{{{left}{'r' * (width * len(metrics))}{right}}}",
        r"\toprule",
        _line([*groups, *([""] * len(right))]),
        "".join(rules),
        _line(head),
        r"\midrule",
        *map(_line, body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines)


def _signed(text: str) -> str:
    """Return a difference with a minus sign in place of a hyphen."""
    return escaped(text.replace("-", "\N{MINUS SIGN}", 1)) if text.startswith("-") else escaped(text)


def _p_value(text: str) -> str:
    """Return a p-value with a power of ten in place of an exponent."""
    mantissa, e, exponent = text.partition("e")
    return rf"${mantissa} \times 10^{{{int(exponent)}}}$" if e else escaped(text)


def _line(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"
