"""Where a trial of a sweep stands."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformer_jax.sweeps.trials import Trial


@dataclasses.dataclass
class Standing:
    """What is known of a trial: `waiting`, `running`, `finished`, `diverged`, `pruned` or `failed`, and why."""

    trial: Trial
    folder: Path
    status: str = "waiting"
    why: str = ""
    deaths: int = 0
    newest: int = -1

    @property
    def has_ended(self) -> bool:
        return self.status not in ("waiting", "running")
