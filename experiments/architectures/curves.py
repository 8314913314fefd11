"""Learning curves against the cost of training: floating-point operations, or seconds.

The cost of a step is that of the whole training divided by its steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

QUANTITY = "valid/loss"
FLOPS = "training/flops"


class Cost(NamedTuple):
    """A cost of training: its label in a figure, and the number of a finished trial, None if it is not known."""

    label: str
    of_trial: Any


COSTS = {
    "flops": Cost("floating-point operations", lambda trial: trial.metrics.get(FLOPS)),
    "seconds": Cost("seconds of training, of a trial", lambda trial: trial.ran and trial.ran.seconds),
}


def curve(variant: Any, cost: Cost) -> list[tuple[float, float]]:
    """Return the points (cost, loss) of a variant: means over its finished trials, one point per logged step."""
    by_step: dict[int, list[tuple[float, float]]] = {}
    for trial in variant.trials:
        total = cost.of_trial(trial) if trial.status == "finished" else None
        if total:
            for step, loss in trial.logged(QUANTITY).items():
                by_step.setdefault(step, []).append((total * step / trial.ran.steps, loss))
    return [
        (math.fsum(cost for cost, _ in found) / len(found), math.fsum(loss for _, loss in found) / len(found))
        for _, found in sorted(by_step.items())
    ]


def draw(axes: Any, results: Any, name: str) -> None:
    """Draw the loss on `valid` against a cost of `COSTS`, a line for every variant."""
    for variant in results.variants:
        points = curve(variant, COSTS[name])
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=variant.short_name)
    axes.set(xscale="log", yscale="log", xlabel=COSTS[name].label, ylabel="loss on valid, nats per token")
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)


def described(results: Any, name: str) -> str:
    """Return a description of the figure of `draw`."""
    ends = {variant.short_name: curve(variant, COSTS[name])[-1:] for variant in results.variants}
    at_end = ", ".join(f"{who} {points[0][1]:.3f} after {points[0][0]:.3g}" for who, points in ends.items() if points)
    return f"Loss on valid against {COSTS[name].label}, a line for every variant. At the end: {at_end or 'no trial'}."
