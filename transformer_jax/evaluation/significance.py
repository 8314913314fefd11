"""Paired bootstrap resampling of scores (Koehn 2004, "Statistical significance tests for machine translation
evaluation"), as sacreBLEU defines it.

The examples of the test set are drawn anew, with replacement, N times; every system is scored on the same draws. With
d the difference to the first system on the test set and d_n that on draw n, the p-value is

    p = (1 + number of draws with |d_n| - mean of |d_n| > |d|) / (N + 1)

It estimates the chance of a difference as large as d, in either direction, if both systems were equally good: the draws
show how far a difference strays from its mean. It is never below 1 / (N + 1). It speaks of the choice of examples
alone; that another seed of the training would give the same difference is for other runs to show.

Of two systems that score the same on every draw, because their outputs are alike or all right or all wrong, p is
1 / (N + 1) as well, by this definition: no chance is in their difference of zero. It does not make them different.

Scores of text come from sacreBLEU itself (tasks/text_bootstrap.py). Any other metric is a function of sums over
examples, and is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.tasks.base import SAMPLES, SEED, PairedBootstrap, SystemScore, Task

_DRAWN_TOGETHER = 1 << 22
"""Examples of draws whose statistics are in memory at once."""


def paired_bootstrap_of_sums(
    systems: Sequence[Float[np.ndarray, "examples k"]],
    from_sums: Callable[[Float[np.ndarray, "*draws k"]], Float[np.ndarray, "*draws"]],
    samples: int = SAMPLES,
    seed: int = SEED,
) -> list[SystemScore]:
    """Compare every system with the first, in one metric.

    Args:
      systems: two or more; k statistics of each example, which add up.
      from_sums: the metric, from statistics [..., k] that were added over examples.
      samples: N, at least 1. seed: of the draws, at least 1, as sacreBLEU has it.
    Raises: ValueError for arguments that are not so.
    """
    shapes = [statistics.shape for statistics in systems]
    if len(shapes) < 2 or len(set(shapes)) > 1 or not shapes[0][0]:
        raise ValueError(f"statistics of shapes {shapes}: expected two systems or more, of the same examples")
    if samples < 1 or seed < 1:
        raise ValueError(f"samples={samples}, seed={seed}: expected at least 1")
    stacked = np.stack(systems).astype(np.float64)  # [systems, examples, k]
    count = stacked.shape[1]
    rng = np.random.default_rng(seed)
    sums = []
    for first in range(0, samples, chunk := max(_DRAWN_TOGETHER // count, 1)):
        draws = rng.choice(count, size=(min(chunk, samples - first), count))
        # One statistic of one system at a time: [draws, examples] -> [draws].
        sums.append([[column[draws].sum(-1) for column in system.T] for system in stacked])
    drawn = from_sums(np.moveaxis(np.concatenate(sums, axis=-1), 1, -1))  # [systems, k, draws] -> [systems, draws]
    whole = from_sums(stacked.sum(1))  # [systems]
    found = []
    for system, (score, on_draws) in enumerate(zip(whole, drawn, strict=True)):
        mean, interval = float(on_draws.mean()), _interval(on_draws)
        if not system:
            found.append(SystemScore(float(score), mean, interval, None, None))
            continue
        difference = float(score - whole[0])
        distances = np.abs(on_draws - drawn[0])
        p_value = float(1 + (distances - distances.mean() > abs(difference)).sum()) / (samples + 1)
        always_equal = difference == 0 and not distances.any()
        found.append(SystemScore(float(score), mean, interval, difference, p_value, always_equal))
    return found


def compare_statistics(
    task: Task,
    systems: Sequence[Mapping[str, Float[np.ndarray, " examples"]]],
    samples: int = SAMPLES,
    seed: int = SEED,
) -> PairedBootstrap:
    """Compare systems in every metric of a task that follows from the statistics and has a direction.

    Args:
      systems: of each, what `Task.statistics` returns.
    """
    names = list(systems[0])
    stacked = [np.stack([system[name] for name in names], axis=-1) for system in systems]
    there = task.from_sums(dict(zip(names, stacked[0].sum(0), strict=True)))

    def metric(name: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda sums: np.asarray(task.from_sums(dict(zip(names, np.moveaxis(sums, -1, 0), strict=True)))[name])

    specs = [spec for spec in task.metrics if spec.direction and spec.name in there]
    scores = {spec.name: paired_bootstrap_of_sums(stacked, metric(spec.name), samples, seed) for spec in specs}
    return PairedBootstrap(scores, {spec.name: f"bs:{samples}|seed:{seed}" for spec in specs})


def _interval(on_draws: Float[np.ndarray, " draws"]) -> float:
    """Half the width of what is left without a fortieth of the draws at either end, as sacreBLEU has it."""
    ordered, cut = np.sort(on_draws), len(on_draws) // 40
    return float(ordered[len(ordered) - cut - 1] - ordered[cut]) / 2
