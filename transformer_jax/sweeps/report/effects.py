"""The measured contrasts of a study, and what each of them shows."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from transformer_jax.sweeps.contrasts import Comparison, Term, comparisons, difference_by_seed
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.statistics import (
    LEVEL,
    Difference,
    ExampleNoise,
    deviation,
    holm,
    is_two_stage,
    mean_difference,
    seeds_to_find,
    smallest_effect,
    standard_error,
    two_stage_difference,
    with_example_noise,
)
from transformer_jax.sweeps.trial_examples import noise_of_difference

Verdict = Literal["ahead", "equal", "undecided", "not compared", ""]
EXACT_SEEDS = 3
"""Seeds with which a difference that is always the same counts as one, since there is no test without a spread."""


class Measured(NamedTuple):
    """A difference over seeds, the degrees of freedom of its interval, and the spread of the differences.

    staged: its number of seeds follows from the spread of the first ones, also where these suffice.
    """

    difference: Difference
    freedom: int
    spread: float
    staged: bool = False


@dataclasses.dataclass(frozen=True)
class Effect:
    """A contrast or an interaction in one metric, under one condition.

    Attributes:
      direction: max or min; empty if neither is better.
      difference: over the seeds with which all its variants have finished. Interval and p-value hold the noise of the
        test set too, if it is known.
      corrected: p-value of the difference after Holm's correction for the number of contrasts in this metric.
      level: 5 % divided by this number.
      spread: standard deviation of the differences over the seeds.
      width: half the width of the interval that the study wants in this metric; NaN if it does not say.
      variants: those of the terms of the comparison.
      of_seeds: the same difference, with an interval that holds the noise of the seeds alone.
      seed_error: its standard error; NaN for fewer than two seeds.
      noise: of the test set; None if it is not known.
    """

    comparison: Comparison
    metric: str
    direction: str
    difference: Difference
    corrected: float
    level: float
    spread: float
    width: float
    variants: tuple[Variant, ...]
    of_seeds: Difference
    seed_error: float
    noise: ExampleNoise | None

    @property
    def test_error(self) -> float:
        """Standard error of the difference by the choice of the test examples; NaN if it is not known."""
        return math.nan if self.noise is None else math.sqrt(self.noise.variance)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels of the first variant."""
        return self.comparison.labels

    @property
    def axis(self) -> str:
        """Name of the axis; of an interaction, both names with a colon."""
        return ":".join(self.comparison.axes)

    @property
    def against(self) -> str:
        """The value, or both, that the first variant is compared with."""
        return ":".join(self.comparison.against.values())

    @property
    def name(self) -> str:
        """Name such as `norm: pre minus post, where warmup=yes, depth=2`."""
        return self.comparison.name

    @property
    def is_exact(self) -> bool:
        """Whether the difference is the same with every seed, so that there is no test."""
        return math.isfinite(self.difference.half_width) and math.isnan(self.difference.p_value)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the contrast; empty if the metric has no direction.

        `ahead`: the interval excludes 0 and the corrected p-value is below 5 %, or the difference is the same with each
        of at least three seeds. `equal`: both ends of the interval are within the declared width, or the difference is
        0 with every seed. `not compared`: not all trials have finished, or a value is not finite.
        """
        mean, half_width, _, count = self.difference
        if not self.direction:
            return ""
        if not (all(variant.is_complete for variant in self.variants) and math.isfinite(mean)):
            return "not compared"
        if self.is_exact and (count >= EXACT_SEEDS or mean == 0):
            return "ahead" if mean else "equal"
        if abs(mean) > half_width and self.corrected < LEVEL:
            return "ahead"
        return "equal" if self.is_within_width else "undecided"

    @property
    def is_within_width(self) -> bool:
        """Whether both ends of the interval are within the declared width around 0."""
        return abs(self.difference.mean) + self.difference.half_width <= self.width

    @property
    def is_wider(self) -> bool:
        """Whether the interval is wider than the study wants."""
        return self.difference.half_width > self.width

    @property
    def is_test_set_too_small(self) -> bool:
        """Whether an interval for the noise of the test set alone is wider than the study wants."""
        return self.noise is not None and self.noise.half_width > self.width

    @property
    def first_is_ahead(self) -> bool:
        """Whether the sign of the difference is in favour of the first variant."""
        return (self.difference.mean > 0) == (self.direction == "max")

    @property
    def seeds_to_decide(self) -> int | None:
        """Number of seeds that find an effect of the measured size with 80 % power; None if it is above 100.

        Its test has the level `level`, and the differences have the measured spread.
        """
        found = seeds_to_find(self.difference.mean, self.spread, self.level, noise=self.noise)
        return None if found is None else max(found, self.difference.count + 1)

    @property
    def smallest(self) -> float:
        """The smallest effect that these seeds find with 80 % power, at the level `level`; NaN if it is not known."""
        if not self.direction:
            return math.nan
        return smallest_effect(self.spread, self.difference.count, self.level, self.noise)


def effects(results: StudyResults) -> list[Effect]:
    """Return the contrasts of the study under all conditions, in all metrics of the study."""
    study = results.study
    compared = [
        (one, [of for term in one.terms if (of := results.at(term.labels)) is not None])
        for one in comparisons(
            study.contrasts, study.reference_variant, [variant.labels for variant in results.everywhere]
        )
    ]
    compared = [(one, variants) for one, variants in compared if _differ(one.terms, variants)]
    by_metric = [_effects_in(results, metric.name, compared) for metric in study.metrics]
    return [effect for together in zip(*by_metric, strict=True) for effect in together]


def measured_difference(
    results: StudyResults, metric: str, terms: Sequence[Term], variants: Sequence[Variant]
) -> Measured:
    """Return a difference of variants over the seeds that all have, without the noise of the test set."""
    values = [variant.values(metric) for variant in variants]
    by_seed = difference_by_seed(terms, values)
    magnitude = max((math.fsum(abs(of[seed]) for of in values) for seed in by_seed), default=0.0)
    pilot = [seed for seed in results.study.seeds if seed in by_seed]
    differences = [by_seed[seed] for seed in (*pilot, *(seed for seed in by_seed if seed not in pilot))]
    width = results.study.precision.get(metric)
    if width is None or len(pilot) < len(results.study.seeds):
        return Measured(mean_difference(differences, magnitude), len(differences) - 1, deviation(differences))
    found = two_stage_difference(differences, len(pilot), width, magnitude)
    has_own = is_two_stage(differences, len(pilot), width, magnitude)
    freedom = (len(pilot) if has_own else len(differences)) - 1
    return Measured(found, freedom, deviation(differences), staged=True)


def _effects_in(
    results: StudyResults, metric: str, compared: Sequence[tuple[Comparison, list[Variant]]]
) -> list[Effect]:
    found = [measured_difference(results, metric, one.terms, variants) for one, variants in compared]
    noises = [_noise(results, metric, one, variants) for one, variants in compared]
    whole = [
        of.difference if noise is None else with_example_noise(of.difference, of.freedom, noise, of.staged)
        for of, noise in zip(found, noises, strict=True)
    ]
    corrected = holm([difference.p_value for difference in whole])
    level = LEVEL / max(1, sum(not math.isnan(p_value) for p_value in corrected))
    return [
        Effect(
            one,
            metric,
            results.direction(metric),
            difference,
            p_value,
            level,
            of.spread,
            results.study.precision.get(metric, math.nan),
            tuple(variants),
            of.difference,
            standard_error(of.difference, of.freedom),
            noise,
        )
        for (one, variants), of, noise, difference, p_value in zip(
            compared, found, noises, whole, corrected, strict=True
        )
    ]


def _noise(
    results: StudyResults, metric: str, comparison: Comparison, variants: Sequence[Variant]
) -> ExampleNoise | None:
    if results.is_committed:
        return results.noise.get((comparison.name, metric))
    terms = [
        (
            term.sign,
            {of.trial.seed: of.influences[metric] for of in variant.trials if metric in of.influences},
        )
        for term, variant in zip(comparison.terms, variants, strict=True)
    ]
    return noise_of_difference(terms)


def _differ(terms: Sequence[Term], variants: Sequence[Variant]) -> bool:
    """Return whether the terms do not cancel out, as those of variants that are the same experiment do."""
    signs: Counter[tuple[str, ...]] = Counter()
    for term, variant in zip(terms, variants, strict=True):
        signs[tuple(str(trial.folder) for trial in variant.trials)] += term.sign
    return any(signs.values())
