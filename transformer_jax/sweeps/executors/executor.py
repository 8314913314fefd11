"""Interface of executors: start the worker for one or several trials, and report its exit code."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from transformer_jax import trust
from transformer_jax.sweeps.trials import Trial


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of all executors.

    Attributes:
      num_workers: number of jobs at the same time; None lets the executor choose.
      max_together: most trials that train as one program.
      trial_axis: how one program runs several trials, "vmap" or "map"; None chooses by the backend.
      study: folder of the study whose function `measure` the workers call; None if it has none.
    """

    num_workers: int | None = None
    max_together: int = 16
    trial_axis: str | None = None
    study: Path | None = None


@runtime_checkable
class StartedWorker(Protocol):
    """A worker that has been started."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the worker runs."""
        ...

    def stop(self) -> None:
        """Make the worker save a checkpoint and exit, as SIGTERM does."""
        ...


@runtime_checkable
class Executor(Protocol):
    """A place where workers run, each for one trial or several."""

    num_workers: int

    def jobs(self, trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
        """Return the folders of the trials of each job."""
        ...

    def start(self, folders: Sequence[Path], slot: int) -> StartedWorker:
        """Start a job; `slot` is a number from 0 that no other running job has."""
        ...

    def close(self) -> None:
        """Release resources; called once no job runs any more."""
        ...


def worker_command(folders: Sequence[Path], options: Options) -> list[str]:
    """Return the command line of a worker.

    It trusts the modules that the sweep trusts. With -P it does not import from the current folder, which may contain
    files from elsewhere that are named like a module of Python.
    """
    axis = [f"--trial_axis={options.trial_axis}"] if options.trial_axis else []
    study = [] if options.study is None else [f"--study={options.study.absolute()}"]
    trusted = [f"--trust={','.join(names)}"] if (names := trust.modules()) else []
    words = ["-P", "-m", "transformer_jax.sweeps.worker", *map(str, folders), *axis, *study, *trusted]
    return [sys.executable, *words]


def each_alone(trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
    """Return a separate job for every trial."""
    return [[folder] for _, folder in trials]
