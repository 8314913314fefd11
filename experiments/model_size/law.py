"""How the loss falls with size and length: a law of both (Kaplan et al. 2020, equation 1.6).

    L = (N_c / N)^alpha_N + (S_c / S)^alpha_S

N counts the parameters without embeddings, S the training steps. The four numbers are fitted by least squares to the
mean of log L over seeds, with one point per variant: the seeds of a variant share its distance from the curve, so they
are not independent points. Intervals are those of Student's t, from the linearised fit. Over less than two decades of N
and S the fit summarises the data and does not establish a law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LOSS, PARAMETERS, STEPS, FLOPS = "valid/loss", "size/parameters_without_embeddings", "size/steps", "size/train_flops"
NUMBERS = 4
"""Fitted numbers; an interval needs one point more."""


class Point(NamedTuple):
    """A variant. losses: of its finished trials, in nats per token."""

    parameters: float
    steps: float
    flops: float
    losses: Sequence[float]

    @property
    def loss(self) -> float:
        """Geometric mean of the losses."""
        return math.exp(math.fsum(map(math.log, self.losses)) / len(self.losses))


class Law(NamedTuple):
    """The fitted law. The half widths are those of 95 % intervals.

    share, share_half_width: N grows as operations to the power of this, where a given number of operations, in
      proportion to N S, gives the lowest loss: alpha_S / (alpha_N + alpha_S).
    """

    alpha_n: float
    alpha_n_half_width: float
    alpha_s: float
    alpha_s_half_width: float
    share: float
    share_half_width: float
    log_n_c: float
    log_s_c: float

    def loss(self, parameters: float, steps: float) -> float:
        """Return the loss of a model of so many parameters after so many steps."""
        logs = [math.log(parameters)], [math.log(steps)]
        return math.exp(_log_loss(logs, self.log_n_c, self.alpha_n, self.log_s_c, self.alpha_s)[0])


def _log_loss(
    logs: Any, log_n_c: float, alpha_n: float, log_s_c: float, alpha_s: float
) -> npt.NDArray[np.floating[Any]]:
    log_n, log_s = map(np.asarray, logs)
    return np.logaddexp(alpha_n * (log_n_c - log_n), alpha_s * (log_s_c - log_s))


def fit(points: Sequence[Point]) -> Law:
    """Return the law fitted to the points.

    Raises: ValueError for fewer than five points, for points of one size or one length, and if the fit does not
      converge.
    """
    from scipy.optimize import curve_fit
    from scipy.special import stdtrit

    if len(points) <= NUMBERS or len({p.parameters for p in points}) < 3 or len({p.steps for p in points}) < 2:
        raise ValueError(f"{len(points)} points; the law is fitted to five or more, of three sizes and two lengths")
    logs = np.log([[point.parameters for point in points], [point.steps for point in points]])
    losses = np.log([point.loss for point in points])
    low_n, low_s = logs.min(axis=1)
    start = (float(low_n), 0.1, float(low_s), 0.5)
    try:
        numbers, covariance = curve_fit(_log_loss, logs, losses, p0=start, maxfev=20_000)
    except RuntimeError as error:
        raise ValueError(f"the fit does not converge: {error}") from error
    if not np.isfinite(covariance).all():
        raise ValueError("the points do not determine the law")
    t = float(stdtrit(len(points) - NUMBERS, 0.975))
    log_n_c, alpha_n, log_s_c, alpha_s = map(float, numbers)
    total = alpha_n + alpha_s
    gradient = np.array([-alpha_s, alpha_n]) / total**2
    share_variance = gradient @ covariance[np.ix_([1, 3], [1, 3])] @ gradient
    return Law(
        alpha_n=alpha_n,
        alpha_n_half_width=t * math.sqrt(covariance[1, 1]),
        alpha_s=alpha_s,
        alpha_s_half_width=t * math.sqrt(covariance[3, 3]),
        share=alpha_s / total,
        share_half_width=t * math.sqrt(share_variance),
        log_n_c=log_n_c,
        log_s_c=log_s_c,
    )


def measure(scorer: Any) -> dict[str, float]:
    """Return the numbers by which the law goes: parameters, steps, and the operations of the training with padding."""
    import jax

    from transformer_jax.tasks.batches.of_split import training_batches
    from transformer_jax.tasks.flops import training_flops

    config, params = scorer.loaded.config, scorer.loaded.params
    plan = training_batches(config, scorer.evaluator.data.splits["train"])
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {
        PARAMETERS: float(sum(x.size for p, x in leaves if "embedding" not in str(p[0]))),
        STEPS: float(config.training.num_train_steps),
        FLOPS: float(training_flops(config, plan)),
    }


def points(results: Any) -> list[Point]:
    """Return a point for every variant with finished trials, in the order of steps and parameters."""
    found = []
    for variant in results.variants:
        losses, sizes = variant.values(LOSS), variant.values(PARAMETERS)
        if seeds := sorted(losses.keys() & sizes.keys()):
            steps, flops = variant.values(STEPS)[seeds[0]], variant.values(FLOPS)[seeds[0]]
            found.append(Point(sizes[seeds[0]], steps, flops, [losses[seed] for seed in seeds]))
    return sorted(found)


def _law(found: Sequence[Point]) -> Law | None:
    try:
        return fit(found)
    except ValueError:
        return None


def draw_by_parameters(axes: Any, results: Any) -> None:
    """Draw loss against parameters with a colour for each length, and the fitted law where there is one."""
    found = points(results)
    law = _law(found)
    for colour, steps in enumerate(sorted({point.steps for point in found})):
        same = [point for point in found if point.steps == steps]
        style = {"color": f"C{colour}"}
        for point in same:
            axes.plot([point.parameters] * len(point.losses), point.losses, "o", ms=4, alpha=0.7, **style)
        axes.plot([], [], "o", ms=4, label=f"{steps:,.0f} steps", **style)
        if law is not None:
            sizes = np.geomspace(same[0].parameters, same[-1].parameters, 50)
            axes.plot(sizes, [law.loss(size, steps) for size in sizes], "--", lw=1, **style)
    axes.legend(frameon=False)
    axes.set(xscale="log", yscale="log", xlabel="parameters without embeddings", ylabel="validation loss, nats")


def draw_by_operations(axes: Any, results: Any) -> None:
    """Draw loss against the operations of the training, with a line for each size."""
    found = points(results)
    for colour, size in enumerate(sorted({point.parameters for point in found})):
        same = [point for point in found if point.parameters == size]
        style = {"color": f"C{colour}", "label": f"{size:,.0f} parameters"}
        axes.plot([point.flops for point in same], [point.loss for point in same], "o-", ms=4, **style)
    axes.legend(frameon=False, fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="floating-point operations", ylabel="validation loss, nats")


def described_by_parameters(results: Any) -> str:
    """Return a description of the figure of `draw_by_parameters`, with the fitted numbers."""
    found = points(results)
    law = _law(found)
    said = f"Validation loss of {len(found)} variants against parameters without embeddings, by number of steps"
    if law is None:
        return f"{said}; no law is fitted"
    return (
        f"{said}, with a fitted law of the exponents {law.alpha_n:.3f} ± {law.alpha_n_half_width:.3f} for parameters "
        f"and {law.alpha_s:.3f} ± {law.alpha_s_half_width:.3f} for steps (95 % intervals). By it, parameters should "
        f"grow as operations to the power of {law.share:.2f} ± {law.share_half_width:.2f}"
    )


def described_by_operations(results: Any) -> str:
    """Return a description of the figure of `draw_by_operations`: the size with the lowest loss at each length."""
    found = points(results)
    if not found:
        return "No trial has finished"
    best = min(found, key=lambda point: point.loss)
    return (
        f"Validation loss of {len(found)} variants against the operations of their training. The lowest, "
        f"{best.loss:.3f}, has {best.parameters:,.0f} parameters and {best.flops:.2g} operations"
    )
