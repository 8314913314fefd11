"""Which checkpoints stay: the newest, and the best by a metric."""

import math
from collections.abc import Mapping
from typing import NamedTuple

Metrics = Mapping[str, float] | None  # of one checkpoint; None if it was saved without an evaluation


class Retention(NamedTuple):
    """keep_last: number of newest checkpoints kept, None for all; keep_best: number of best ones, by `best_metric`.

    Of equally good checkpoints the older is the better one. One without the metric, or with NaN, is never good. A step
    that is no multiple of `every` is kept only while it is the newest: so a run that saved when it was interrupted ends
    with the checkpoints of one that was not.
    """

    keep_last: int | None = None
    keep_best: int = 0
    best_metric: str | None = None
    higher_is_better: bool = False
    every: int = 1

    def check(self) -> None:
        """Raises ValueError for a combination that makes no sense."""
        if (self.keep_last is not None and self.keep_last < 1) or self.keep_best < 0:
            raise ValueError(f"{self}: counts are too low")
        if self.keep_best and self.best_metric is None:
            raise ValueError(f"{self}: keep_best needs best_metric")

    def ranked(self, metrics: Mapping[int, Metrics]) -> list[int]:
        """The steps that have the metric, best first."""
        sign = -1.0 if self.higher_is_better else 1.0
        ranks = {step: sign * (values or {}).get(self.best_metric or "", math.nan) for step, values in metrics.items()}
        return sorted((step for step in ranks if not math.isnan(ranks[step])), key=lambda step: (ranks[step], step))

    def kept(self, metrics: Mapping[int, Metrics]) -> set[int]:
        """The steps that stay."""
        if self.keep_last is None:
            return set(metrics)
        newest = max(metrics, default=None)
        regular = sorted(step for step in metrics if step % self.every == 0 or step == newest)
        return {*regular[-self.keep_last :], *self.ranked(metrics)[: self.keep_best]}
