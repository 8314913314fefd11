"""Progress of a sweep on stderr: a live table on a terminal, elsewhere one line per change."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from transformer_jax import metrics_file
from transformer_jax.host.terminal import say
from transformer_jax.sweeps.trial_state import Standing

_SHOW_SECONDS = 1.0


class SweepTable:
    """A display of the state of all trials, on stderr."""

    def __init__(self, notes: Sequence[str] = ()) -> None:
        """Print the notes, and prepare the live table if stderr is a terminal."""
        self._live: Any = None
        self._seen: dict[str, str] = {}
        self._next = 0.0
        self._latest: Sequence[Standing] = ()
        for note in notes:
            say(note)
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def show(self, standings: Sequence[Standing]) -> None:
        """Show the state of the trials, on a terminal at most once a second."""
        self._latest = standings
        if self._live is None:
            for standing in standings:
                if self._seen.get(standing.trial.name, "waiting") != standing.status:
                    say(f"{standing.trial.name}: {standing.status}{f', {standing.why}' if standing.why else ''}")
                self._seen[standing.trial.name] = standing.status
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _SHOW_SECONDS
            self._live.update(_table(standings), refresh=True)

    def __enter__(self) -> SweepTable:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.update(_table(self._latest), refresh=True)
            self._live.stop()


def _table(standings: Sequence[Standing]) -> Any:
    from rich.table import Table as RichTable

    table = RichTable("trial", "", "step", "loss")
    for standing in standings:
        step, loss = _latest(standing)
        total = f"{standing.trial.config.training.num_train_steps:,}"
        table.add_row(standing.trial.name, standing.status, f"{step:,} / {total}", loss)
    return table


def _latest(standing: Standing) -> tuple[int, str]:
    """Return the last step in a trial's log, and its loss as text."""
    last = metrics_file.last_value(standing.folder / metrics_file.NAME, "loss")
    if last is None:
        return 0, ""
    step, loss = last
    return step, "" if loss is None else f"{loss:.3f}"
