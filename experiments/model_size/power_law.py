"""How the loss falls with size: L = (N_c / N)^alpha (Kaplan et al. 2020, equation 1.1), fitted to a study's trials.

A straight line is fitted by least squares to the mean of log L over seeds against log N. The interval of alpha is that
of a slope with one point per size (Student's t): the seeds of a size share its distance from the line, so they are not
independent points. Over less than two decades of N the fit summarises the data and does not establish a law.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

LOSS = "test/loss"


class PowerLaw(NamedTuple):
    """log L = intercept - alpha log N, with intercept = alpha log N_c. `half_width`: of the 95 % interval of alpha."""

    alpha: float
    half_width: float
    intercept: float

    def loss(self, size: float) -> float:
        return math.exp(self.intercept - self.alpha * math.log(size))


def fit(points: Mapping[float, list[float]]) -> PowerLaw:
    """Return the power law fitted to losses by size. Raises ValueError for fewer than three sizes."""
    from scipy.special import stdtrit
    from scipy.stats import linregress

    if len(points) < 3:
        raise ValueError(f"{len(points)} sizes; a power law is fitted to three or more")
    means = [math.fsum(map(math.log, losses)) / len(losses) for losses in points.values()]
    line = linregress([math.log(size) for size in points], means)
    half_width = float(stdtrit(len(points) - 2, 0.975)) * float(line.stderr)
    return PowerLaw(-float(line.slope), half_width, float(line.intercept))


def measure(scorer: Any) -> dict[str, float]:
    """Return `size/parameters_without_embeddings`, and `size/train_flops` of the whole training with padding."""
    import jax

    from transformer_jax.tasks.batches.of_split import training_batches
    from transformer_jax.tasks.flops import training_flops

    config, params = scorer.loaded.config, scorer.loaded.params
    plan = training_batches(config, scorer.evaluator.data.splits["train"])
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {
        "size/parameters_without_embeddings": float(sum(x.size for p, x in leaves if "embedding" not in str(p[0]))),
        "size/train_flops": float(training_flops(config, plan)),
    }


def points(results: Any, size: str) -> dict[float, list[float]]:
    """Return the losses of the finished trials by size. size: the name of a metric."""
    found: dict[float, list[float]] = {}
    for variant in results.variants:
        sizes = variant.values(size)
        for seed, loss in variant.values(LOSS).items():
            found.setdefault(sizes[seed], []).append(loss)
    return dict(sorted(found.items()))


def draw(axes: Any, results: Any, size: str, name: str) -> None:
    """Draw loss against size on logarithmic axes, with the fitted line if there are at least three sizes."""
    found = points(results, size)
    for value, losses in found.items():
        axes.plot([value] * len(losses), losses, "o", color="C0", ms=4, alpha=0.7)
    if len(found) >= 3:
        law = fit(found)
        ends = [min(found), max(found)]
        label = f"$\\alpha$ = {law.alpha:.3f} ± {law.half_width:.3f}"
        axes.plot(ends, [law.loss(end) for end in ends], "--", color="C1", label=label)
        axes.legend(frameon=False)
    for variant in results.variants:
        sizes, losses = variant.values(size), variant.values(LOSS)
        if losses:
            place = next(iter(sizes.values())), math.fsum(losses.values()) / len(losses)
            axes.annotate(variant.short_name, place, xytext=(5, 3), textcoords="offset points", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel=name, ylabel="loss on test, nats per token")


def described(results: Any, size: str, name: str) -> str:
    """Return a description of the figure of `draw`."""
    found = points(results, size)
    if len(found) < 3:
        return f"Loss on test against {name}, for {len(found)} sizes"
    law = fit(found)
    return (
        f"Loss on test against {name}, for {len(found)} sizes, with a power law of exponent {law.alpha:.3f}, "
        f"95 % interval ±{law.half_width:.3f}"
    )
