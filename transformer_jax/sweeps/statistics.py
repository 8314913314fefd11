"""Means over seeds, with their uncertainty.

With n values x of independent seeds, mean m and standard deviation s (with n - 1), the 95 % confidence interval of the
expected value is m +- t s / sqrt(n), t the 97.5 % quantile of Student's distribution with n - 1 degrees of freedom
(Student 1908). A difference to a reference is one of pairs: trials of a seed share data order and initial draws, so
that d = x - y per seed is what is averaged, and its p-value is that of the paired t-test, two-sided: the probability of
a mean difference as large or larger if the expected one were zero. Both take the values for normally distributed, and
with three seeds say little of small effects.

Of several variants that are compared with one reference some difference has a small p-value by chance. `holm` raises
the p-values so that the probability of any false alarm among those below a level is at most that level, whatever their
dependence (Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
_ROUNDING = 1e-12  # relative: what is less differs by the last bits of the subtraction alone


class Estimate(NamedTuple):
    """mean; half_width of the 95 % interval, NaN of fewer than two values; count of the values."""

    mean: float
    half_width: float
    count: int


class Difference(NamedTuple):
    """Of a variant to the reference: mean and half_width over the seeds that both have, and the paired p-value; both of
    the latter are NaN for fewer than two seeds, and for values that are not finite; p_value too where all differences
    are the same: without a spread there is nothing to measure them by."""

    mean: float
    half_width: float
    p_value: float
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and interval; NaN of no values, and where one of them is not finite."""
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        return Estimate(math.nan, math.nan, count)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, math.nan, 1)
    from scipy.special import stdtrit

    deviation = math.hypot(*(value - mean for value in values)) / math.sqrt(count - 1)  # squares may overflow
    quantile = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return Estimate(mean, quantile * deviation / math.sqrt(count), count)


def paired_difference(values: Mapping[int, float], reference: Mapping[int, float]) -> Difference:
    """Of values by seed to those of the reference."""
    seeds = [seed for seed in values if seed in reference]
    differences = [values[seed] - reference[seed] for seed in seeds]
    mean, half_width, count = estimate(differences)
    if count < 2 or not half_width > _ROUNDING * max(abs(values[seed]) + abs(reference[seed]) for seed in seeds):
        return Difference(mean, half_width, math.nan, count)
    from scipy.special import stdtr, stdtrit

    error = half_width / float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return Difference(mean, half_width, 2 * float(stdtr(count - 1, -abs(mean) / error)), count)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number by Holm's step-down procedure, in the order given.

    Of the m values in ascending order the i-th becomes max over j <= i of min(1, (m - j + 1) p_j). NaN, which is no
    test, stays NaN and does not count.
    """
    order = sorted((i for i, value in enumerate(p_values) if not math.isnan(value)), key=lambda i: p_values[i])
    corrected, largest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
