"""The state of a trial within a sweep."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformer_jax.sweeps.trials import Trial


@dataclasses.dataclass
class Standing:
    """A trial and its state.

    Attributes:
      status: `waiting`, `running`, `finished`, `diverged`, `pruned` or `failed`.
      why: the reason, of a trial that has diverged, failed or been pruned.
      deaths: how often in a row its process has died without a new checkpoint.
      newest: step of the newest checkpoint at the last death; -1 if there was none.
    """

    trial: Trial
    folder: Path
    status: str = "waiting"
    why: str = ""
    deaths: int = 0
    newest: int = -1

    @property
    def has_ended(self) -> bool:
        return self.status not in ("waiting", "running")
