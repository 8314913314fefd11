"""Results of a run that decide whether it continues: the best validation and the updates that were skipped."""

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
    """Results of a run that a checkpoint keeps, apart from the state and the window of metrics.

    metrics: of the last validation. best: value of best_metric in the best validation. stale: validations since.
    skipped: updates that were left out because they were not finite.
    """

    config: TrainingConfig
    higher_is_better: bool
    metrics: dict[str, float]
    best: float | None = None
    stale: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any], config: TrainingConfig, higher_is_better: bool) -> BestSoFar:
        """Return the results that a checkpoint's record holds; those of a new run if the record is empty."""
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
        """Why training ends before its last step, for the user; empty if it does not."""
        if not self.config.patience or self.stale < self.config.patience:
            return ""
        return f"{self.config.best_metric} has not improved in {self.stale} validations"

    def record_nonfinite(self, problem: str) -> None:
        """Count an update that was not finite; raises TrainingError if the config says that training ends."""
        if self.config.on_nonfinite == "stop":
            raise TrainingError(
                f"{problem}; a lower optimizer.learning_rate, a longer optimizer.warmup_steps or norm_position='pre' "
                "may help, and training.on_nonfinite='skip' (here with --allow_config_change) leaves such updates out"
            )
        self.skipped += 1
        if self.skipped > self.config.max_skipped_updates:
            raise TrainingError(
                f"{problem}; {self.skipped} updates of this run were not finite, more than "
                f"training.max_skipped_updates={self.config.max_skipped_updates}"
            )
        logger.warning(
            "%s; the update is left out, %d of at most %d", problem, self.skipped, self.config.max_skipped_updates
        )
