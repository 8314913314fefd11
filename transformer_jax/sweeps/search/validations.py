"""What trials log of themselves while they train."""

from __future__ import annotations

import contextlib
import json

from transformer_jax.sweeps.standing import Standing


class Validations:
    """Reads a metric of the validation split from the logs of trials."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._seen: dict[str, tuple[int, int]] = {}

    def read(self, standing: Standing) -> dict[int, float]:
        """All that a trial has logged by step, once the file has changed; else nothing."""
        file = standing.folder / "metrics.jsonl"
        try:
            status = file.stat()
            state = (status.st_mtime_ns, status.st_size)
            if self._seen.get(standing.trial.name) == state:
                return {}
            self._seen[standing.trial.name] = state
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            return {}
        values = {}
        for text in lines:
            with contextlib.suppress(ValueError):  # a line that is being written
                line = json.loads(text)
                if line["split"] == "valid" and line[self._metric] is not None:
                    values[line["step"]] = line[self._metric]
        return values
