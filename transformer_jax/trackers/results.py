"""Scores and reports for trackers: what a run results in after its training."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config import ExperimentConfig, parse_trackers
from transformer_jax.errors import ConfigError
from transformer_jax.trackers.guarded import Guarded, warn
from transformer_jax.trackers.tracker import Job, TrackedRun, is_essential, tracked_run


def track_scores(config: ExperimentConfig, workdir: Path, step: int, scores: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the scores of a checkpoint, by split, to the trackers of its config; they get the split evaluation/SPLIT.

    Those of raw weights have the split evaluation/SPLIT_raw.

    metrics.jsonl and TensorBoard get none: they are the log of the training. A tracker whose module is missing or not
    trusted is a warning.

    Args:
      step: of the checkpoint; of an average, the last one.
    """
    with _trackers(config, workdir, "evaluate") as trackers:
        for tracker in trackers:
            for split, metrics in scores.items():
                tracker.write(step, f"evaluation/{split}", metrics)


def track_report(config: ExperimentConfig, sweep: Path, files: Mapping[str, Path]) -> None:
    """Give the files of a report, by the name that they get there, to the trackers of the config of a trial."""
    with _trackers(config, sweep, "report") as trackers:
        for tracker in trackers:
            for name, file in files.items():
                tracker.attach(file, name)


@contextlib.contextmanager
def _trackers(config: ExperimentConfig, workdir: Path, job: Job) -> Generator[list[Guarded]]:
    names = parse_trackers(config.training.trackers)
    run = tracked_run(config, workdir, job)
    trackers = [Guarded(name, run) for name in names if _is_further(name, run)]
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.finish("finished")
        for tracker in trackers:
            tracker.wait()


def _is_further(name: str, run: TrackedRun) -> bool:
    """Return whether a tracker gets what comes after training; warn if its module is missing or not trusted."""
    try:
        return not is_essential(name)
    except ConfigError as error:
        warn(run, name, error)
        return False
