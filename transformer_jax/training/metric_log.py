"""The metrics of a run, for all its trackers."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from transformer_jax.config import ExperimentConfig, parse_trackers
from transformer_jax.host.files import naming_errors
from transformer_jax.metrics_file import DAMAGED, NAME, readable_lines
from transformer_jax.trackers.guarded import Guarded
from transformer_jax.trackers.jsonl import JsonLines
from transformer_jax.trackers.notes import COMPLETE, recall
from transformer_jax.trackers.tracker import TRACKERS, Ending, Tracker, is_essential, tracked_run


class NoLog:
    """Replacement of MetricLog in a process that writes nothing."""

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Do nothing."""

    def digest(self) -> str:
        return ""

    def finish(self, ending: Ending) -> None:
        """Do nothing."""

    def __enter__(self) -> NoLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


class MetricLog:
    """Writer of metrics to the trackers of a config (`training.trackers`); metrics.jsonl is always one of them."""

    def __init__(self, config: ExperimentConfig, workdir: Path, step: int) -> None:
        """Open the log of a run that resumes after `step`: lines of later steps are cut off.

        Raises: CheckpointError if the files of the work directory cannot be read or written.
        """
        run = tracked_run(config, workdir, "train")
        names = parse_trackers(config.training.trackers)
        self._trackers: list[Tracker | Guarded] = []
        self._has_ended = False
        with contextlib.ExitStack() as opened:
            for name in sorted(names, key=lambda name: not is_essential(name)):
                if is_essential(name):
                    tracker: Tracker = TRACKERS.make(name, run)
                    tracker.cut(step)
                    opened.callback(tracker.finish, "failed")
                    if isinstance(tracker, JsonLines):
                        self._record = tracker
                    self._trackers.append(tracker)
                else:
                    guarded = Guarded(name, run)
                    lines = readable_lines(self._record.path)
                    guarded.start(step, [line for line in lines if line["split"] != DAMAGED])
                    self._trackers.append(guarded)
            opened.pop_all()

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Write one line to every tracker.

        Raises: CheckpointError if the disk is full or a file of the work directory cannot be written.
        """
        for tracker in self._trackers:
            tracker.write(step, split, metrics)

    def digest(self) -> str:
        """Return `metrics_file.digest` of the lines so far."""
        return self._record.digest()

    def finish(self, ending: Ending) -> None:
        """Close the log of a run that has ended; nothing is written after that, and later calls do nothing.

        The end of the `with` block waits for the trackers.
        """
        if not self._has_ended:
            self._has_ended = True
            for tracker in self._trackers:
                tracker.finish(ending)

    def __enter__(self) -> MetricLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.finish(ending_of(error))
        for tracker in self._trackers:
            if isinstance(tracker, Guarded):
                tracker.wait()


def catch_up(config: ExperimentConfig, workdir: Path, step: int) -> None:
    """Give the trackers of a finished run the lines that they lack, for example because they failed during training.

    A tracker that has noted that the run is complete is left alone.

    Args:
      step: the last one of the run.
    Raises: CheckpointError if the log cannot be read.
    """
    names = [name for name in parse_trackers(config.training.trackers) if not is_essential(name)]
    names = [name for name in names if recall(workdir, name).get(COMPLETE) is not True]
    if not names:
        return
    run, file = tracked_run(config, workdir, "train"), workdir / NAME
    with naming_errors(file):
        lines = [line for line in readable_lines(file) if line["split"] != DAMAGED]
    trackers = [Guarded(name, run) for name in names]
    for tracker in trackers:
        tracker.start(step, lines)
        tracker.finish("finished")
    for tracker in trackers:
        tracker.wait()


def ending_of(error: BaseException | None) -> Ending:
    """Return how a run has ended that raised an error, or none."""
    if error is None:
        return "finished"
    return "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
