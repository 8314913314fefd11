"""Text of numbers and names, the same in the page, the Markdown file and the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping

from transformer_jax.sweeps.report.summary import Contrast, Row
from transformer_jax.sweeps.report.variants import NO_RESULT, Variant
from transformer_jax.tasks.base import Task, declared

NOTHING = "\N{EN DASH}"
_PLACES = 10


def metric_name(metric: str, task: Task) -> str:
    """Return `test exact match` for `test/exact_match`, as the task declares it."""
    return f"{metric.rpartition('/')[0]} {declared(task, metric).label}".strip()


def metric_label(metric: str, task: Task) -> str:
    """Return name and unit, as in the label of an axis."""
    unit = declared(task, metric).unit
    return f"{metric_name(metric, task)} ({unit})" if unit else metric_name(metric, task)


def interval(mean: float, half_width: float, sign: bool = False) -> str:
    """Return `12.3 ± 4.5`: two digits of the half-width, and the mean with as many decimal places.

    Without a half-width, the mean has four digits.

    Args:
      sign: write + before positive means.
    """
    if math.isnan(mean):
        return NOTHING
    if not math.isfinite(mean):
        return str(mean)
    known = math.isfinite(half_width)
    places = _places(half_width, 2) if known and half_width > 0 else _places(mean, 4)
    return f"{mean:{'+' if sign else ''}.{places}f}" + (f" ± {half_width:.{places}f}" if known else "")


def p_value(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}" if value > 0 else "0"


def number(value: int | float) -> str:
    """Return the text of a number of one trial; a float has four significant digits."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.{_places(value, 4)}f}" if math.isfinite(value) else str(value)


def trials_of(variant: Variant) -> str:
    """Return the counts of trials by status: `3 finished` or `2 finished, 1 of 3 diverged`."""
    counts = variant.counts
    finished = [f"{count} finished"] if (count := counts.get("finished")) else []
    return ", ".join([*finished, *unfinished(counts)])


def unfinished(counts: Mapping[str, int]) -> list[str]:
    """Return `1 of 3 diverged` for every status except finished."""
    of = sum(counts.values())
    return [f"{count} of {of} {status_words(status)}" for status, count in counts.items() if status != "finished"]


def status_words(status: str) -> str:
    return "without a result yet" if status == NO_RESULT else status


def estimate_of(row: Row) -> str:
    return interval(row.estimate.mean, row.estimate.half_width)


def difference_of(row: Row | Contrast) -> str:
    if row.difference is None:
        return NOTHING
    return interval(row.difference.mean, row.difference.half_width, sign=True)


def p_value_of(row: Row | Contrast) -> str:
    return p_value(row.corrected)


def _places(value: float, digits: int) -> int:
    """Return the number of decimal places that shows this many significant digits of a value."""
    if value == 0:
        return 2
    return min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), _PLACES)
