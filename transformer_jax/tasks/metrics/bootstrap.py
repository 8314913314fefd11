"""Paired bootstrap resampling of scores (Koehn 2004, "Statistical significance tests for machine translation
evaluation"), as sacreBLEU defines it.

The examples of the test set are resampled with replacement N times. Every system is scored on the same draws. Let d be
the difference from the first system on the test set, and d_n that on draw n. The p-value is

    p = (1 + number of draws with |d_n| - mean of |d_n| > |d|) / (N + 1)

It estimates the probability of a difference as large as d, in either direction, if both systems were equally good: the
draws show how far a difference varies around its mean. It is never below 1 / (N + 1). It accounts only for the choice
of examples, not for the training seed; whether another seed gives the same difference takes other runs to show.

If two systems score the same on every draw, because their outputs are equal, or all right, or all wrong, this formula
gives p = 1 / (N + 1) too. Such a p-value is meaningless: the systems do not differ.

BLEU and chrF come from sacreBLEU itself (text_bootstrap.py). Every other metric is a function of sums over examples and
is computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.tasks.task import SAMPLES, SEED, SystemScore

_DRAWN_TOGETHER = 1 << 22
"""Number of drawn examples whose statistics are in memory at once."""


def paired_bootstrap_of_sums(
    systems: Sequence[Float[np.ndarray, "examples k"]],
    from_sums: Callable[[Float[np.ndarray, "*draws k"]], Float[np.ndarray, "*draws"]],
    samples: int = SAMPLES,
    seed: int = SEED,
) -> list[SystemScore]:
    """Compare every system with the first, in one metric.

    Args:
      systems: two or more; k statistics of each example, which add up.
      from_sums: the metric as a function of statistics [..., k], summed over examples.
      samples: N, at least 1. seed: of the draws, at least 1, as in sacreBLEU.
    Raises: ValueError for other arguments, and for statistics or a metric that are not finite.
    """
    shapes = [statistics.shape for statistics in systems]
    if len(shapes) < 2 or len(set(shapes)) > 1 or not shapes[0][0]:
        raise ValueError(f"statistics of shapes {shapes}: expected two systems or more, with the same examples")
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
    if not (np.isfinite(whole).all() and np.isfinite(drawn).all()):
        raise ValueError("statistics, or the metric of a draw, that are not finite")
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


def _interval(on_draws: Float[np.ndarray, " draws"]) -> float:
    """Return half the width of the 95 % interval: without a fortieth of the draws at each end, as in sacreBLEU."""
    ordered, cut = np.sort(on_draws), len(on_draws) // 40
    return float(ordered[len(ordered) - cut - 1] - ordered[cut]) / 2
