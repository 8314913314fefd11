"""The rule that decides which checkpoints are kept: the newest, and the best by a metric."""

import math
from collections.abc import Mapping
from typing import NamedTuple

Metrics = Mapping[str, float] | None  # of one checkpoint; None if it was saved without an evaluation


class Retention(NamedTuple):
    """The numbers of checkpoints to keep.

    keep_last: number of newest checkpoints, None for all; keep_best: number of best ones to keep too, by `best_metric`.
    Of equal checkpoints, the older one counts as better. A checkpoint without the metric, or with NaN, is never among
    the best. A step that is not a multiple of `every` is kept only while it is the newest. So an interrupted run, which
    saves such a step, ends with the same checkpoints as an uninterrupted one.
    """

    keep_last: int | None = None
    keep_best: int = 0
    best_metric: str | None = None
    higher_is_better: bool = False
    every: int = 1

    def check(self) -> None:
        """Check the values; raises ValueError for an invalid combination."""
        if (self.keep_last is not None and self.keep_last < 1) or self.keep_best < 0:
            raise ValueError(f"{self}: keep_last must be at least 1 and keep_best at least 0")
        if self.keep_best and self.best_metric is None:
            raise ValueError(f"{self}: keep_best needs best_metric")

    def ranked(self, metrics: Mapping[int, Metrics]) -> list[int]:
        """Return the steps that have the metric, best first."""
        sign = -1.0 if self.higher_is_better else 1.0
        ranks = {step: sign * (values or {}).get(self.best_metric or "", math.nan) for step, values in metrics.items()}
        return sorted((step for step in ranks if not math.isnan(ranks[step])), key=lambda step: (ranks[step], step))

    def kept(self, metrics: Mapping[int, Metrics]) -> set[int]:
        """Return the steps to keep."""
        if self.keep_last is None:
            return set(metrics)
        newest = max(metrics, default=None)
        regular = sorted(step for step in metrics if step % self.every == 0 or step == newest)
        return {*regular[-self.keep_last :], *self.ranked(metrics)[: self.keep_best]}
