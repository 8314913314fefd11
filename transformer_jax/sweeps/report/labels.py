"""Labels of rows and lines in figures: names of variants, wrapped to fit, and counts of unfinished trials."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.report.formatting import metric_label, metric_name, unfinished
from transformer_jax.sweeps.report.variants import Variant

_LONGEST_LABEL, _ROW_LABEL = 54, 30  # characters that fit
_LEGEND_ROW = 0.019  # inches per point of the font
_NOTE = 64  # characters that fit


def legend(
    canvas: Any,
    handles: Sequence[Any],
    names: Sequence[str],
    style: Style,
    title: str = "",
    columns: int | None = None,
    is_above: bool = False,
) -> None:
    """Add a legend below or above all axes of a figure and make it taller; long names are wrapped between words.

    Args: columns: by default as many as fit, at most three.
    """
    broken = [_broken(name, style.fits(_LONGEST_LABEL)) or [""] for name in names]
    longest = max(len(line) for lines in broken for line in lines)
    columns = columns or (3 if longest <= style.fits(12) else 2 if longest <= style.fits(26) else 1)
    rows = math.ceil(sum(map(len, broken)) / columns) + bool(title)
    canvas.set_figheight(canvas.get_figheight() + _LEGEND_ROW * rows * style.font_size)
    canvas.legend(
        handles,
        ["\n".join(map(plain_label, lines)) for lines in broken],
        loc=f"outside {'upper' if is_above else 'lower'} center",
        ncols=columns,
        fontsize=0.9 * style.font_size,
        title=plain_label(title),
    )


def axis_of(results: StudyResults) -> str:
    """Return the name of the only axis, as title above short variant names; empty if there are several axes."""
    return plain_label(results.style.axis(results.study.axes[0].name)) if len(results.study.axes) == 1 else ""


def say(axes: Any, note: str, style: Style) -> None:
    """Show a note above axes."""
    if note:
        axes.set_title(wrapped_note(note, style), fontsize=0.9 * style.font_size, loc="left")


def wrapped_note(note: str, style: Style) -> str:
    return literal("\n".join(textwrap.wrap(note, style.fits(_NOTE))))


def metric_text(metric: str, results: StudyResults) -> str:
    """Return the words of the style for a metric or a quantity, by default its name and unit."""
    return results.style.labels.get(metric) or metric_label(metric, results.task)


def short_metric_text(metric: str, results: StudyResults) -> str:
    """Return the words of the style for a metric or a quantity, by default its name."""
    return results.style.labels.get(metric) or metric_name(metric, results.task)


def variant_words(variant: Variant, results: StudyResults) -> str:
    """Return `norm pre, depth 2`."""
    return results.style.words(variant.labels)


def row_label(variant: Variant, results: StudyResults) -> str:
    """Return the words for a variant, of one axis only the value, wrapped to fit beside a row."""
    reference = " (reference)" if variant is results.reference else ""
    words = variant_words(variant, results)
    if len(variant.labels) == 1:
        ((axis, value),) = variant.labels.items()
        words = results.style.value(axis, value)
    name = "\n".join(map(plain_label, textwrap.wrap(words, results.style.fits(_ROW_LABEL), break_on_hyphens=False)))
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
