"""The differences with single seeds that contrasts are means of."""

from __future__ import annotations

from collections.abc import Sequence

from transformer_jax.sweeps.contrasts import difference_by_seed
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.summary import csv_text, finite

DIFFERENCES = "differences.csv"


def differences_of(effect: Effect) -> dict[int, float]:
    """Return the difference by seed, for the seeds with which all variants of a contrast have finished."""
    values = [variant.values(effect.metric) for variant in effect.variants]
    return dict(sorted(difference_by_seed(effect.comparison.terms, values).items()))


def differences_csv(found: Sequence[Effect]) -> str:
    """Return one CSV line per contrast, metric and seed; the columns of the axes are those of contrasts.csv."""
    axes = list(found[0].labels) if found else []
    lines = [
        [*effect.labels.values(), effect.axis, effect.against, effect.metric, seed, finite(of)]
        for effect in found
        for seed, of in differences_of(effect).items()
    ]
    return csv_text([*axes, "axis", "against", "metric", "seed", "difference"], lines)
