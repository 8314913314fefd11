"""The results that decide whether a run continues: its best validation and the number of skipped updates."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import TrainingError

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class BestSoFar:
    """Results of a run that a checkpoint stores, apart from the state and the window of metrics.

    metrics: of the last validation. best: value of best_metric in the best validation. stale: number of validations
    since then. skipped: number of updates that were skipped because they were not finite.
    """

    config: TrainingConfig
    higher_is_better: bool
    metrics: dict[str, float]
    best: float | None = None
    stale: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any], config: TrainingConfig, higher_is_better: bool) -> BestSoFar:
        """Return the results in a checkpoint's record; with an empty record, those of a new run."""
        result = cls(
            config, higher_is_better, dict(record.get("metrics", {})), skipped=record.get("skipped_updates", 0)
        )
        validations = record.get("validations", {})
        if validations.get("metric") == config.best_metric:  # values of another metric cannot be compared
            result.best, result.stale = validations["best"], validations["stale"]
        return result

    def record(self) -> dict[str, Any]:
        """Return the entries of a checkpoint's record that `of` reads."""
        validations = {"metric": self.config.best_metric, "best": self.best, "stale": self.stale}
        return {"metrics": self.metrics, "validations": validations, "skipped_updates": self.skipped}

    def record_validation(self, metrics: dict[str, float]) -> None:
        """Compare a validation with the best one."""
        self.metrics, value = metrics, metrics[self.config.best_metric]
        better = self.best is None or (value > self.best if self.higher_is_better else value < self.best)
        self.best, self.stale = (value, 0) if better else (self.best, self.stale + 1)

    @property
    def out_of_patience(self) -> str:
        """The reason to end training early, as text for the user; empty if there is none."""
        if not self.config.patience or self.stale < self.config.patience:
            return ""
        return f"{self.config.best_metric} has not improved in {self.stale} validations"

    def record_nonfinite(self, problem: str) -> None:
        """Count an update that was not finite; raises TrainingError if the config says to end training."""
        if self.config.on_nonfinite == "stop":
            raise TrainingError(
                f"{problem}; try a lower optimizer.learning_rate, more optimizer.warmup_steps or norm_position='pre', "
                "or skip such updates with training.on_nonfinite='skip' (here with --allow_config_change)"
            )
        self.skipped += 1
        if self.skipped > self.config.max_skipped_updates:
            raise TrainingError(
                f"{problem}; {self.skipped} updates of this run were not finite, more than "
                f"training.max_skipped_updates={self.config.max_skipped_updates}"
            )
        logger.warning(
            "%s; the update is skipped, %d of at most %d", problem, self.skipped, self.config.max_skipped_updates
        )
