"""Validation metrics of trials while they train."""

from __future__ import annotations

from transformer_jax import metrics_file
from transformer_jax.sweeps.trial_state import Standing


class Validations:
    """A reader of one validation metric from the logs of trials."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._seen: dict[str, tuple[int, int]] = {}

    def read(self, standing: Standing) -> dict[int, float]:
        """Return all logged values of a trial by step if its log has changed since the last call; else nothing."""
        file = standing.folder / metrics_file.NAME
        try:
            status = file.stat()
            state = (status.st_mtime_ns, status.st_size)
            if self._seen.get(standing.trial.name) == state:
                return {}
            self._seen[standing.trial.name] = state
            lines = metrics_file.readable_lines(file)  # the last may be half written
        except OSError:
            return {}
        return metrics_file.values_by_step(lines, f"valid/{self._metric}")
