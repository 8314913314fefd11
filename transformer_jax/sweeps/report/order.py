"""The variants of a study in the order of a metric, in groups that its seeds cannot tell apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from transformer_jax.sweeps.contrasts import Term
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import EXACT_SEEDS, Measured, measured_difference
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.statistics import LEVEL, estimate, holm, seeds_to_find


class Order(NamedTuple):
    """variants: those whose trials have all finished, the best mean first. p_values: of every pair of their indices,
    corrected by Holm's method for the number of pairs. apart: the pairs that differ. is_open: a variant without a mean,
    since a trial has not reached the value of `StepsTo`, may be better than the first. measured: the difference of
    every pair.
    """

    variants: Sequence[Variant]
    p_values: dict[tuple[int, int], float]
    apart: frozenset[tuple[int, int]]
    is_open: bool = False
    measured: Mapping[tuple[int, int], Measured] = {}

    def seeds_to_decide(self, pair: tuple[int, int]) -> int | None:
        """Return the number of seeds that find the measured difference of a pair with 80 % power; None if above 100.

        The level of the test is 5 % divided by the number of pairs. The measured spread is taken for the true one.
        """
        difference, spread = self.measured[pair].difference, self.measured[pair].spread
        tested = sum(not math.isnan(p_value) for p_value in self.p_values.values())
        found = seeds_to_find(difference.mean, spread, LEVEL / max(1, tested))
        return None if found is None else max(found, difference.count + 1)

    @property
    def groups(self) -> list[range]:
        """Indices of variants next to each other of which no two differ, as long as possible; groups may overlap."""
        found: list[range] = []
        for start in range(len(self.variants)):
            end = start + 1
            while end < len(self.variants) and not any((of, end) in self.apart for of in range(start, end)):
                end += 1
            if not found or end > found[-1].stop:
                found.append(range(start, end))
        return found

    @property
    def winner(self) -> Variant | None:
        """The variant that is ahead of every other; None if there is none, or no other."""
        others = range(1, len(self.variants))
        return (
            self.variants[0]
            if others and not self.is_open and all((0, other) in self.apart for other in others)
            else None
        )


def order(results: StudyResults, metric: str) -> Order:
    """Return the variants in the order of a metric that has a direction.

    Two variants differ if the interval of their paired difference excludes 0 and its corrected p-value is below 5 %, or
    if the difference is the same with each of at least three seeds, and not 0.
    """
    sign = -1 if results.direction(metric) == "max" else 1
    means = [(of, estimate(list(of.values(metric).values())).mean) for of in results.variants if of.is_complete]
    ranked = sorted([(of, mean) for of, mean in means if math.isfinite(mean)], key=lambda pair: sign * pair[1])
    variants = [of for of, _ in ranked]
    pairs = list(itertools.combinations(range(len(variants)), 2))
    measured = [_difference(results, metric, variants[a], variants[b]) for a, b in pairs]
    found = [of.difference for of in measured]
    corrected = holm([difference.p_value for difference in found])
    apart = (
        pair
        for pair, difference, p_value in zip(pairs, found, corrected, strict=True)
        if (p_value < LEVEL and abs(difference.mean) > difference.half_width)
        or (math.isnan(p_value) and difference.mean and difference.count >= EXACT_SEEDS)
    )
    least = [_least_mean(variant, metric) for variant in results.variants if variant.is_complete]
    is_open = bool(ranked) and any(mean is not None and mean <= ranked[0][1] for mean in least)
    p_values, by_pair = dict(zip(pairs, corrected, strict=True)), dict(zip(pairs, measured, strict=True))
    return Order(variants, p_values, frozenset(apart), is_open, by_pair)


def _least_mean(variant: Variant, metric: str) -> float | None:
    """Return what the mean of a metric of `StepsTo` is more than; None if all trials have reached the value."""
    if not (limits := variant.limits(metric)):
        return None
    known = [0.0 if math.isnan(limit) else limit for limit in limits.values()]
    reached = [value for value in variant.values(metric).values() if math.isfinite(value)]
    return math.fsum(known + reached) / (len(known) + len(reached))


def _difference(results: StudyResults, metric: str, one: Variant, other: Variant) -> Measured:
    terms = (Term(1, one.labels), Term(-1, other.labels))
    return measured_difference(results, metric, terms, (one, other))
