"""The best variant of a search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from transformer_jax.sweeps.results import read_result
from transformer_jax.sweeps.statistics import estimate
from transformer_jax.sweeps.study import Study
from transformer_jax.sweeps.trial_state import Standing


def best(standings: Sequence[Standing], study: Study) -> str:
    """Return a line with the variant that has the best mean in the first metric, of those finished with every seed."""
    metric = study.metrics[0]
    by_variant: dict[str, list[float]] = {}
    for standing in standings:
        if standing.status == "finished" and (result := read_result(standing.folder)) is not None:
            by_variant.setdefault(standing.trial.variant, []).append(result.metrics[metric.name])
    means = {name: estimate(values) for name, values in by_variant.items() if len(values) == len(study.seeds)}
    means = {name: mean for name, mean in means.items() if math.isfinite(mean.mean)}
    tried = len({standing.trial.variant for standing in standings})
    if not means:
        return f"none of {tried} variants has finished with every seed, with a finite {metric.name}"
    choose = max if metric.direction == "max" else min
    name = choose(means, key=lambda name: means[name].mean)
    seeds = f", mean of {len(study.seeds)} seeds" if len(study.seeds) > 1 else ""
    return f"best of {tried} variants: {name}: {metric.name} {means[name].mean:.4g}{seeds}"
