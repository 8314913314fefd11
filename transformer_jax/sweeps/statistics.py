"""Means over seeds, with their uncertainty.

For n values x of independent seeds with mean m and standard deviation s (divisor n - 1), the 95 % confidence interval
of the expected value is m +- t s / sqrt(n), where t is the 97.5 % quantile of Student's distribution with n - 1 degrees
of freedom (Student 1908).

Differences to a reference are paired, since trials with the same seed share data order and initial draws: d = x - y is
averaged over the seeds. The p-value is that of the two-sided paired t-test, the probability of a mean difference at
least this large if the expected difference were zero. Interval and test assume normally distributed values; with three
seeds they can show only large effects.

If several variants are compared with one reference, some p-values are small by chance. `holm` raises the p-values so
that the probability of any false rejection at a level is at most that level, however the tests depend on each other
(Holm 1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONFIDENCE = 0.95
_ROUNDING = 1e-12  # relative; smaller spreads are rounding errors of the subtraction


class Estimate(NamedTuple):
    """mean; half_width of the 95 % interval, NaN for fewer than two values; count of the values."""

    mean: float
    half_width: float
    count: int


class Difference(NamedTuple):
    """Difference of a variant to the reference over the `count` seeds that both have: mean, half_width, paired p_value.

    half_width and p_value are NaN for fewer than two seeds or values that are not finite. p_value is also NaN if all
    differences are equal: the t-test needs a spread.
    """

    mean: float
    half_width: float
    p_value: float
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and interval; NaN if there are no values or one of them is not finite."""
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
    """Return the difference of values by seed to those of the reference."""
    seeds = [seed for seed in values if seed in reference]
    differences = [values[seed] - reference[seed] for seed in seeds]
    mean, half_width, count = estimate(differences)
    if count < 2 or not half_width > _ROUNDING * max(abs(values[seed]) + abs(reference[seed]) for seed in seeds):
        return Difference(mean, half_width, math.nan, count)
    from scipy.special import stdtr, stdtrit

    error = half_width / float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return Difference(mean, half_width, 2 * float(stdtr(count - 1, -abs(mean) / error)), count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number by Holm's step-down procedure, in the order given.

    With the m values in ascending order, the i-th becomes max over j <= i of min(1, (m - j + 1) p_j). NaN means that
    there was no test: it stays NaN and does not count in m.
    """
    order = sorted((i for i, value in enumerate(p_values) if not math.isnan(value)), key=lambda i: p_values[i])
    corrected, largest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
