"""Text of numbers in reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

from transformer_jax.sweeps.statistics import Estimate

NOTHING = "\N{EN DASH}"
_PLACES = 10
_MOST_DIGITS = 8


def interval(mean: float, half_width: float, sign: bool = False, digits: int = 2) -> str:
    """Return `12.3 ± 4.5`: `digits` of the half-width, and the mean with as many decimal places.

    Without a half-width, the mean has two digits more.

    Args:
      sign: write + before positive means.
    """
    if math.isnan(mean):
        return NOTHING
    if not math.isfinite(mean):
        return str(mean)
    known = math.isfinite(half_width)
    places = _places(half_width, digits) if known and half_width > 0 else _places(mean, digits + 2)
    return f"{mean:{'+' if sign else ''}.{places}f}" + (f" ± {half_width:.{places}f}" if known else "")


def digits_apart(estimates: Sequence[Estimate], of: int) -> list[int]:
    """Return how many digits `interval` needs per estimate, so that no other mean looks the same as that of `of`.

    Two digits, unless two means would look the same after rounding.

    Args:
      of: index of the estimate, such as the best.
    """
    digits = [2] * len(estimates)
    for index, estimate in enumerate(estimates):
        while (
            estimate.mean != estimates[of].mean
            and _mean(estimate, digits[index]) == _mean(estimates[of], digits[of])
            and digits[of] < _MOST_DIGITS
        ):
            digits[index] = digits[of] = max(digits[index], digits[of]) + 1
    return digits


def _mean(estimate: Estimate, digits: int) -> str:
    return interval(estimate.mean, estimate.half_width, digits=digits).partition(" ")[0]


def p_value(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return f"{value:.3f}" if value >= 0.001 else f"{value:.1e}" if value > 0 else "0"


def number_text(value: int | float) -> str:
    """Return the text of a number of one trial; a float has four significant digits."""
    if isinstance(value, int):
        return str(value)
    return f"{value:.{_places(value, 4)}f}" if math.isfinite(value) else str(value)


def rounded(value: float) -> str:
    """Return the text of a positive number with two significant digits, as of a half-width."""
    return f"{value:.{_places(value, 2)}f}"


def _places(value: float, digits: int) -> int:
    """Return the number of decimal places that shows this many significant digits of a value."""
    if value == 0:
        return 2
    return min(max(digits - 1 - math.floor(math.log10(abs(value))), 0), _PLACES)
