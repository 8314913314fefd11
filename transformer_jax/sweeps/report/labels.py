"""Labels of rows and lines in figures: names of variants, wrapped to fit, and counts of unfinished trials."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.formatting import metric_label, unfinished
from transformer_jax.sweeps.report.variants import Variant

_LONGEST_LABEL, _ROW_LABEL = 54, 30  # characters that fit
_LEGEND_ROW = 0.19  # inches


def legend_of_variants(
    axes: Any, handles: Sequence[Any], lines: Sequence[Sequence[Variant]], results: StudyResults
) -> None:
    """Add a legend of lines, each of one variant or of several with the same training."""
    labels = [" and ".join(v.short_name for v in alike) + missing(alike[:1]) for alike in lines]
    legend(axes, handles, labels, axis_of(results))


def axis_of(results: StudyResults) -> str:
    """Return the name of the only axis, as title above short variant names; empty if there are several axes."""
    return plain_label(results.study.axes[0].name) if len(results.study.axes) == 1 else ""


def legend(axes: Any, handles: Sequence[Any], names: Sequence[str], title: str = "") -> None:
    """Add a legend below the axes and make the figure taller; long names are wrapped between words."""
    broken = [_broken(name, _LONGEST_LABEL) for name in names]
    longest = max(len(line) for lines in broken for line in lines)
    columns = 3 if longest <= 12 else 2 if longest <= 26 else 1
    rows = math.ceil(sum(map(len, broken)) / columns) + bool(title)
    axes.figure.set_figheight(axes.figure.get_figheight() + _LEGEND_ROW * rows)
    labels = ["\n".join(map(plain_label, lines)) for lines in broken]
    axes.figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9, title=title)


def metric_text(metric: str, results: StudyResults) -> str:
    """Return the words of the style for a metric or a quantity, by default its name and unit."""
    return results.style.labels.get(metric) or metric_label(metric, results.task)


def row_label(variant: Variant, results: StudyResults) -> str:
    reference = " (reference)" if variant is results.reference else ""
    name = "\n".join(map(plain_label, textwrap.wrap(variant.short_name, _ROW_LABEL, break_on_hyphens=False)))
    return name + reference + missing([variant]).replace(" (", "\n(", 1)


def missing(variants: Sequence[Variant]) -> str:
    """Return ` (1 of 3 diverged)` for the trials of all variants together; empty if all have finished."""
    apart = {tuple(trial.folder for trial in variant.trials): variant.counts for variant in variants}
    lost = unfinished(sum(map(Counter, apart.values()), Counter()))
    return f" ({', '.join(lost)})" if lost else ""


def plain_label(text: str) -> str:
    """Return text that matplotlib shows unchanged, cut to the longest label.

    Without this, `$` would start a formula and a leading `_` would hide the label.
    """
    if len(text) > _LONGEST_LABEL:
        text = f"{text[: _LONGEST_LABEL // 2]}…{text[-_LONGEST_LABEL // 2 + 1 :]}"
    text = literal(text)
    return f" {text}" if text.startswith("_") else text


def literal(text: str) -> str:
    return text.replace("$", r"\$")


def _broken(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
