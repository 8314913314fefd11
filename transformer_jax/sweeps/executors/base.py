"""What a sweep asks of an executor: to start a command for some trials, and to say how it has ended."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from transformer_jax.sweeps.trials import Trial


@dataclasses.dataclass(frozen=True)
class Options:
    """num_workers: jobs at once; None for as many as the executor finds room for. max_together: trials of one program
    at most. trial_axis: how a program runs its trials, "vmap" or "map"; None for what suits the backend."""

    num_workers: int | None = None
    max_together: int = 16
    trial_axis: str | None = None


@runtime_checkable
class Job(Protocol):
    """A command that has been started."""

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        ...

    def stop(self) -> None:
        """Has it save and end, as SIGTERM does."""
        ...


@runtime_checkable
class Executor(Protocol):
    """Runs the worker of a sweep for one trial or several."""

    num_workers: int

    def jobs(self, trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
        """Which trials a job is to have, by their folders."""
        ...

    def start(self, folders: Sequence[Path], slot: int) -> Job:
        """Starts a job; `slot` tells jobs that run at once apart, from 0."""
        ...

    def close(self) -> None:
        """Once no job runs any more."""
        ...


def command(folders: Sequence[Path], options: Options) -> list[str]:
    """The worker's."""
    axis = [f"--trial_axis={options.trial_axis}"] if options.trial_axis else []
    return [sys.executable, "-m", "transformer_jax.sweeps.worker", *map(str, folders), *axis]


def each_alone(trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
    """A job for every trial."""
    return [[folder] for _, folder in trials]
