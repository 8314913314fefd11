"""The order of activations beside that of Narang et al. 2021 (table 1, final loss of T5 with 223M parameters)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LOSS = "test/loss"
FINAL_LOSS = {
    "relu": 1.838,
    "gelu": 1.838,
    "silu": 1.847,
    "elu": 1.932,
    "glu": 1.814,
    "geglu": 1.792,
    "reglu": 1.803,
    "selu": 1.948,
    "swiglu": 1.789,
    "bilinear": 1.798,
    "sigmoid": 1.867,
    "softplus": 1.850,
}
"""Nats per token on C4, by the values of `model.activation`; their Swish is `silu`, their LiGLU `bilinear`."""


class Ranked(NamedTuple):
    """Losses here and there of the activations that both have, and Spearman's correlation of their ranks.

    low, high: 95 % interval over seeds, from 2,000 bootstrap samples of them.
    """

    names: tuple[str, ...]
    here: tuple[float, ...]
    there: tuple[float, ...]
    correlation: float
    low: float
    high: float


def ranked(losses: dict[str, dict[int, float]]) -> Ranked | None:
    """Return the comparison for losses by activation and seed; None for fewer than three activations or no common seed.

    The samples draw seeds, the same for all activations, since trials of one seed share their order of batches.
    """
    from scipy.stats import spearmanr

    names = tuple(name for name in FINAL_LOSS if losses.get(name))
    seeds = sorted(set.intersection(*(set(losses[name]) for name in names))) if names else []
    if len(names) < 3 or not seeds:
        return None
    table = np.array([[losses[name][seed] for seed in seeds] for name in names])
    there = tuple(FINAL_LOSS[name] for name in names)

    def correlation(chosen: Any) -> float:
        return float(spearmanr(table[:, chosen].mean(axis=1), there).statistic)

    draws = np.random.default_rng(0).integers(len(seeds), size=(2000, len(seeds)))
    low, high = np.quantile([correlation(draw) for draw in draws], (0.025, 0.975))
    here = tuple(map(float, table.mean(axis=1)))
    return Ranked(names, here, there, correlation(slice(None)), float(low), float(high))


def _ranked(results: Any) -> Ranked | None:
    return ranked({variant.labels["activation"]: dict(variant.values(LOSS)) for variant in results.variants})


def draw(axes: Any, results: Any) -> None:
    """Draw a point per activation: the mean test loss here against theirs."""
    if (found := _ranked(results)) is None:
        return
    axes.plot(found.there, found.here, "o", ms=4)
    for name, here, there in zip(found.names, found.here, found.there, strict=True):
        axes.annotate(name, (there, here), xytext=(3, 3), textcoords="offset points", fontsize=7)
    axes.set(xlabel="final loss in Narang et al. 2021, nats", ylabel="test loss here, nats per token")


def described(results: Any) -> str:
    """Return a description of the figure, with the rank correlation."""
    if (found := _ranked(results)) is None:
        return "Too few trials have finished"
    return (
        f"Test loss of {len(found.names)} activations against the final loss in Narang et al. 2021. Spearman's rank "
        f"correlation is {found.correlation:.2f}, from {found.low:.2f} to {found.high:.2f} in 95 % of bootstrap "
        "samples of the seeds"
    )
