"""Steps, or another cost of training, until the validations first reach a value: `study.StepsTo`.

Its metric is named after what is reached: `valid[loss:1.5]/steps` are the steps until valid/loss is at most 1.5. The
value is the step of the first validation that reaches it, so it is a multiple of `training.eval_every_steps`; between
validations nothing is interpolated. If none reaches it, the training was too short to know the value, which then is NaN
and more than the step of the last validation.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.metrics_file import values_by_step
from transformer_jax.tasks.task import TRAIN

COSTS = {"steps": "step", "flops": "flops", "seconds": "seconds"}
"""Names of the costs in `sweeps.figures.COSTS`, by the last part of the metric's name."""
WORDS = {"steps": "steps", "flops": "floating-point operations", "seconds": "seconds of training"}
_NAME = re.compile(r"(\w+)\[(\w+):(-?[\d.]+(?:e-?\d+)?)\]/(\w+)")


class Target(NamedTuple):
    """A value of a logged quantity, SPLIT/NAME, and the cost that is counted until it is reached: a name of COSTS."""

    quantity: str
    value: float
    cost: str

    @property
    def name(self) -> str:
        """The name of the metric."""
        split, _, of = self.quantity.rpartition("/")
        value = f"{self.value:g}" if float(f"{self.value:g}") == self.value else repr(self.value)
        return f"{split}[{of}:{value.replace('+', '')}]/{self.cost}"

    def cost_of(self, lines: Sequence[Mapping[str, Any]], direction: str) -> float:
        """Return the cost until the first validation that reaches the value; NaN if none does.

        Args:
          lines: of metrics.jsonl. direction: of the quantity; `max` if higher values are better.
        """
        logged = values_by_step(lines, self.quantity)
        reached = (
            step for step, of in logged.items() if (of >= self.value if direction == "max" else of <= self.value)
        )
        if (first := min(reached, default=None)) is None:
            return math.nan
        return self._cost_at(lines, first)

    def limit(self, lines: Sequence[Mapping[str, Any]]) -> float:
        """Return the cost until the last validation; NaN if there is none."""
        last = max(values_by_step(lines, self.quantity), default=None)
        return math.nan if last is None else self._cost_at(lines, last)

    def _cost_at(self, lines: Sequence[Mapping[str, Any]], step: int) -> float:
        return cost_by_step(lines, COSTS[self.cost], [step]).get(step, math.nan)


def target_of(metric: str) -> Target | None:
    """Return what a metric counts the cost of; None for a metric of another kind."""
    match = _NAME.fullmatch(metric)
    if match is None or match[4] not in COSTS:
        return None
    return Target(f"{match[1]}/{match[2]}", float(match[3]), match[4])


def cost_by_step(lines: Sequence[Mapping[str, Any]], name: str, steps: Iterable[int]) -> dict[int, float]:
    """Return the cost of a training up to each of some steps, without steps after the last line of the log.

    Args:
      name: of `sweeps.figures.COSTS`. The log has the costs since its line before; between lines they are linear.
    """
    if name == "step":
        return {step: float(step) for step in steps}
    import numpy as np

    logged = values_by_step(lines, f"{TRAIN}/{name}")
    known, totals = [0, *logged], [0.0, *itertools.accumulate(logged.values())]
    return {step: float(np.interp(step, known, totals)) for step in steps if logged and step <= known[-1]}
