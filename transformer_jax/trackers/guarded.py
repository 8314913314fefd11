"""A tracker that cannot disturb the run: in a thread of its own, and its failure is one warning."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.host.terminal import doing
from transformer_jax.trackers.tracker import TRACKERS, Ending, Job, TrackedRun, Tracker, check_package

FINISH_SECONDS = 120.0
"""Longest time that a finished run waits for its trackers, such as for an upload."""

_STILL: Mapping[Job, str] = {
    "train": "Training is not affected, and metrics.jsonl has every line. Starting this training again catches up",
    "evaluate": "The scores are complete in the folder evaluation",
    "report": "The report is complete",
}
_LONGEST = 600  # characters of an error
logger = logging.getLogger(__name__)


class Guarded:
    """A tracker whose calls are made later, in order, by a thread.

    After an exception it gets no more calls.
    """

    def __init__(self, name: str, run: TrackedRun) -> None:
        """Args: name: in the table `TRACKERS`. The tracker is opened in the thread too."""
        self._name, self._run = name, run
        self._calls: queue.SimpleQueue[Callable[[Tracker], object] | None] = queue.SimpleQueue()
        self._failed, self._deadline = False, 0.0
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def start(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Have the tracker cut after a step, and give it those of the earlier lines that it lacks."""

        def catch_up(tracker: Tracker) -> None:
            last = tracker.cut(step)
            for line in lines:
                if line["step"] > last:
                    metrics = {name: value for name, value in line.items() if name not in ("step", "split")}
                    tracker.write(line["step"], line["split"], metrics)

        self._calls.put(catch_up)

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        line = dict(metrics)
        self._calls.put(lambda tracker: tracker.write(step, split, line))

    def attach(self, file: Path, name: str) -> None:
        self._calls.put(lambda tracker: tracker.attach(file, name))

    def finish(self, ending: Ending) -> None:
        """Have the tracker closed; `wait` waits for that."""
        self._calls.put(lambda tracker: tracker.finish(ending))
        self._calls.put(None)
        self._deadline = time.monotonic() + FINISH_SECONDS

    def wait(self) -> None:
        """Wait until the tracker has everything, for at most `FINISH_SECONDS` since `finish`.

        Call `finish` of all trackers first, so that they share the time.
        """
        with doing(f"waiting for the tracker {self._name}"):
            self._thread.join(max(self._deadline - time.monotonic(), 0))
        if self._thread.is_alive():
            self._failed = True  # the process may end in the middle of a call: no second warning
            warn(self._run, self._name, f"it has not finished after {FINISH_SECONDS:.0f} s")

    def _work(self) -> None:
        tracker: Tracker | None = None
        try:
            check_package(self._name)
            tracker = TRACKERS.make(self._name, self._run)
            while (call := self._calls.get()) is not None:
                call(tracker)
        except (Exception, SystemExit) as error:
            if not self._failed:
                warn(self._run, self._name, error)
            if tracker is not None:
                with contextlib.suppress(Exception, SystemExit):
                    tracker.finish("failed")


def warn(run: TrackedRun, name: str, error: BaseException | str) -> None:
    """Log the one warning that a tracker has failed, and what is complete without it."""
    why = error if isinstance(error, str) else f"{type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}"
    logger.warning(
        "%s: the tracker %s gets nothing more from this process: %s. %s", run.workdir, name, why, _STILL[run.job]
    )
