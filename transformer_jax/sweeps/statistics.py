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

A width that is wanted needs a number of seeds that depends on their spread. Stein's rule of two stages (Stein 1945)
takes it from a pilot: n = ceil((t s / width)^2) with the standard deviation s of the pilot's n0 differences and the
97.5 % quantile t with n0 - 1 degrees of freedom, and at least n0. The interval m +- t s / sqrt(n) over all n seeds has
the pilot's s and t. It covers the expected difference with 95 % or more, since m and s are independent and n depends on
s alone. Seeds that are added until a p-value is small have no such interval.

The seeds of a study are scored on the same examples, so that the spread over seeds lacks what these examples have in
common. With the difference d of seed s and example i as mu + a_s + b_i + e_si, all independent with the mean 0 (a
crossed design of two random factors), the mean of S seeds and N examples has the variance

    V = var(a) / S + var(b) / N + var(e) / (S N)

and s^2 / S of the seeds estimates its first and last part together. `example_noise` estimates var(b) / N: the variance
of the means over seeds, divided by N, less that of the residual, which would else count twice. `with_example_noise`
adds it. The interval is m +- t sqrt(V), with the degrees of freedom of Satterthwaite (1946): for a sum of mean squares
x_j with f_j degrees of freedom each, they are (sum of x_j)^2 / sum of (x_j^2 / f_j). With two stages the number of
seeds depends on their spread, and such an interval covers 93 %. There t is the mean of the quantiles of both, weighted
by their variances (Cochran and Cox 1950), which covers 95 to 97 %.

An effect that is not found may be too small for the seeds. `seeds_to_find` is the number of seeds with which the test
would find an effect of a size with a probability of 80 %, and `smallest_effect` the size that a number of seeds finds
with this probability. Both take the measured spread of the paired differences for the true one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

CONFIDENCE = 0.95
LEVEL = 0.05
POWER = 0.8
PILOT = 5
"""Seeds of the first stage of a study that wants a precision."""
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


class ExampleNoise(NamedTuple):
    """Variances of a mean difference over the examples of a test set.

    - examples: their number N. seeds: the number S of seeds that they were measured with.
    - of_examples: variance over examples of the means over seeds, divided by N. residual: variance of what neither the
      example nor the seed explains, divided by S N.
    """

    examples: int
    seeds: int
    of_examples: float
    residual: float

    @property
    def variance(self) -> float:
        """Variance of the difference by the choice of the examples: what all seeds have in common."""
        return max(self.of_examples - self.residual, 0.0)

    @property
    def half_width(self) -> float:
        """Half the width of a 95 % interval that holds this noise alone."""
        from scipy.special import stdtrit

        return float(stdtrit(self.examples - 1, 0.5 + CONFIDENCE / 2)) * math.sqrt(self.variance)

    @property
    def over_freedom(self) -> float:
        """Sum of the squared mean squares, each divided by its degrees of freedom, for Satterthwaite's formula."""
        own = self.examples - 1
        return self.of_examples**2 / own + self.residual**2 / (own * (self.seeds - 1))


def estimate(values: Sequence[float]) -> Estimate:
    """Return mean and interval; NaN if there are no values or one of them is not finite."""
    count = len(values)
    if not count or not all(map(math.isfinite, values)):
        return Estimate(math.nan, math.nan, count)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, math.nan, 1)
    from scipy.special import stdtrit

    quantile = float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return Estimate(mean, quantile * deviation(values) / math.sqrt(count), count)


def mean_difference(differences: Sequence[float], magnitude: float) -> Difference:
    """Return the mean of paired differences with its interval and p-value.

    Args: magnitude: largest sum of the absolute values that a difference was made of, for its rounding error.
    """
    mean, half_width, count = estimate(differences)
    if count < 2 or not half_width > _ROUNDING * magnitude:
        return Difference(mean, half_width, math.nan, count)
    from scipy.special import stdtr, stdtrit

    error = half_width / float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
    return Difference(mean, half_width, 2 * float(stdtr(count - 1, -abs(mean) / error)), count)


def stein_seeds(pilots: Iterable[Sequence[float]], width: float) -> int:
    """Return the number of seeds with which the interval of every contrast has at most a half-width.

    Args: pilots: paired differences of each contrast over the seeds of the pilot. width: half the width, above 0.
    """
    return max((max(len(pilot), _stein_seeds(pilot, width)) for pilot in pilots), default=0)


def two_stage_difference(differences: Sequence[float], pilot: int, width: float, magnitude: float) -> Difference:
    """Return the mean of paired differences with Stein's interval, if they are as many as the half-width needs.

    The interval and the p-value have the spread of the pilot and its degrees of freedom. If there are fewer
    differences, or those of the pilot have no spread, the result is that of `mean_difference`.

    Args: differences: those of the pilot first. pilot: their number. width, magnitude: as in `stein_seeds` and
      `mean_difference`.
    """
    plain, count = mean_difference(differences, magnitude), len(differences)
    if not is_two_stage(differences, pilot, width, magnitude):
        return plain
    first = mean_difference(differences[:pilot], magnitude)
    from scipy.special import stdtr

    half_width = first.half_width * math.sqrt(pilot / count)
    error = deviation(differences[:pilot]) / math.sqrt(count)
    return Difference(plain.mean, half_width, 2 * float(stdtr(pilot - 1, -abs(plain.mean) / error)), count)


def is_two_stage(differences: Sequence[float], pilot: int, width: float, magnitude: float) -> bool:
    """Return whether `two_stage_difference` has Stein's interval, with the pilot's degrees of freedom."""
    count, first = len(differences), mean_difference(differences[:pilot], magnitude)
    is_tested = pilot >= 2 and math.isfinite(first.p_value) and math.isfinite(math.fsum(differences))
    return count > pilot and is_tested and count >= _stein_seeds(differences[:pilot], width)


def example_noise(influences: Float[np.ndarray, "seeds examples"]) -> ExampleNoise:
    """Return the noise of a test set in a difference.

    Args: influences: of every example on the difference with each seed, `tasks.metrics.jackknife`; two or more of both.
    """
    seeds, examples = influences.shape
    centred = influences - influences.mean(1, keepdims=True)
    means = centred.mean(0)
    rest = float(((centred - means) ** 2).sum()) / ((seeds - 1) * (examples - 1))
    return ExampleNoise(examples, seeds, float(means.var(ddof=1)) / examples, rest / (seeds * examples))


def standard_error(found: Difference, freedom: int) -> float:
    """Return the standard error of a mean difference with a Student interval; NaN without an interval."""
    from scipy.special import stdtrit

    return found.half_width / float(stdtrit(freedom, 0.5 + CONFIDENCE / 2)) if found.count > 1 else math.nan


def with_example_noise(found: Difference, freedom: int, noise: ExampleNoise, staged: bool = False) -> Difference:
    """Return a difference whose interval and p-value hold the noise of the test set too.

    Args:
      found: of the seeds alone, with an interval of `freedom` degrees of freedom.
      staged: the number of seeds follows from the spread of the first ones.
    """
    of_seeds = standard_error(found, freedom) ** 2
    total = of_seeds + noise.variance
    if not (noise.variance > 0 and math.isfinite(total)):
        return found
    from scipy.special import stdtr, stdtridf, stdtrit

    end = 0.5 + CONFIDENCE / 2
    if not staged:
        both = total**2 / (of_seeds**2 / freedom + noise.over_freedom)
    else:
        quantiles = float(stdtrit(freedom, end)), float(stdtrit(noise.examples - 1, end))
        both = float(stdtridf(end, (of_seeds * quantiles[0] + noise.variance * quantiles[1]) / total))
    half_width, error = float(stdtrit(both, end)) * math.sqrt(total), math.sqrt(total)
    return Difference(found.mean, half_width, 2 * float(stdtr(both, -abs(found.mean) / error)), found.count)


def _stein_seeds(pilot: Sequence[float], width: float) -> int:
    from scipy.special import stdtrit

    quantile = float(stdtrit(len(pilot) - 1, 0.5 + CONFIDENCE / 2))
    return math.ceil((quantile * deviation(pilot) / width) ** 2)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation with the divisor n - 1; NaN for fewer than two values."""
    count = len(values)
    if count < 2 or not all(map(math.isfinite, values)):
        return math.nan
    mean = math.fsum(values) / count
    return math.hypot(*(value - mean for value in values)) / math.sqrt(count - 1)  # squares may overflow


def power(effect: float, spread: float, count: int, level: float) -> float:
    """Return the probability that a two-sided paired t-test finds an effect, with the right sign.

    It is P(T > t) of Student's noncentral distribution: the mean of Phi(effect sqrt(n) / spread - t sqrt(V / (n - 1)))
    over a chi-squared V with n - 1 degrees of freedom, here at the midpoints of 2000 equal parts of its distribution.

    Args: spread: standard deviation of the paired differences, above 0. count: of the seeds n, at least 2. level: of
      the test.
    """
    return _power(abs(effect) / spread * math.sqrt(count), count - 1, level)


def seeds_to_find(
    effect: float, spread: float, level: float, most: int = 100, noise: ExampleNoise | None = None
) -> int | None:
    """Return the smallest number of seeds with which `power` reaches POWER; None if it is above `most`.

    Args: noise: of the test set, which more seeds do not lower.
    """
    if not (effect and math.isfinite(effect) and math.isfinite(spread)):
        return None
    if noise is not None and noise.variance > 0:
        for count in range(2, most + 1):
            error, freedom = _error_with(noise, spread, count)
            if _power(abs(effect) / error, freedom, level) >= POWER:
                return count
        return None
    if spread == 0:
        return 2
    return next((count for count in range(2, most + 1) if power(effect, spread, count, level) >= POWER), None)


def smallest_effect(spread: float, count: int, level: float, noise: ExampleNoise | None = None) -> float:
    """Return the smallest effect that `power` finds with probability POWER; NaN for fewer than two seeds.

    Args: noise: as in `seeds_to_find`.
    """
    if count < 2 or not math.isfinite(spread):
        return math.nan
    if noise is not None and noise.variance > 0:
        error, freedom = _error_with(noise, spread, count)
        return _smallest(freedom, level) * error
    return _smallest(count - 1, level) * spread / math.sqrt(count)


def _error_with(noise: ExampleNoise, spread: float, count: int) -> tuple[float, float]:
    """Return standard error and degrees of freedom of a mean over seeds on a test set."""
    of_seeds = spread**2 / count
    total = of_seeds + noise.variance
    freedom = total**2 / (of_seeds**2 / (count - 1) + noise.over_freedom)
    return math.sqrt(total), round(freedom, 1)  # so that few distributions are computed


def _smallest(freedom: int | float, level: float) -> float:
    """Return the smallest noncentrality that is found with probability POWER."""
    low, high = 0.0, 1.0
    while _power(high, freedom, level) < POWER:
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _power(middle, freedom, level) >= POWER else (middle, high)
    return high


def _power(noncentrality: float, freedom: int | float, level: float) -> float:
    from scipy.special import ndtr, stdtrit

    quantile = float(stdtrit(freedom, 1 - level / 2))
    return float(ndtr(noncentrality - quantile * _relative_spreads(freedom)).mean())


@functools.cache
def _relative_spreads(freedom: int | float) -> Any:
    """Return the measured spread, divided by the true one, at 2000 equally likely points of its distribution."""
    import numpy as np
    from scipy.special import chdtri

    return np.sqrt(chdtri(freedom, (np.arange(2000) + 0.5) / 2000) / freedom)


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
