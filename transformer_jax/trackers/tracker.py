"""The interface of trackers, and the one table of them.

metrics.jsonl of the work directory is the record of a run. The other trackers have copies of it. When training starts
or resumes, they forget all lines after the checkpoint, and get the lines before it that they lack.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from transformer_jax.checkpoints.workdir import STUDY, sweep_of
from transformer_jax.config import ExperimentConfig, flat, parse_trackers
from transformer_jax.errors import ConfigError
from transformer_jax.host.origin import origin
from transformer_jax.host.versions import library_versions
from transformer_jax.registry import Factories

Job = Literal["train", "evaluate", "report"]
Ending = Literal["finished", "failed", "interrupted"]
"""How a run has ended; `interrupted` by a signal, so that it may be resumed."""


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """A run, as its trackers know it.

    workdir: of the run; of the sweep for its report. config: values by dotted name. job: what is tracked. group: name
    of the runs that belong together: of the sweep, or of the work directory. home: a folder that they share.
    versions: of the libraries, by name. origin: command, version and commits, see `host.origin`.
    """

    workdir: Path
    config: Mapping[str, Any]
    job: Job
    group: str
    home: Path
    versions: Mapping[str, str]
    origin: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the work directory: of a trial, its variant and seed."""
        return self.workdir.name

    @property
    def is_in_sweep(self) -> bool:
        """Whether the run is a trial of a sweep, or the sweep's own report."""
        return self.home != self.workdir or self.job == "report"

    @property
    def facts(self) -> dict[str, str]:
        """Command, commits and versions as short texts, by name."""
        states = {name: state for name in ("package", "folder") if (state := self.origin[name])}
        changed = {name: " with changes" if state["has_changes"] else "" for name, state in states.items()}
        return {
            "command": str(self.origin["command"]),
            **{f"commit.{name}": f"{state['commit']}{changed[name]}" for name, state in states.items()},
            **{f"version.{name}": version for name, version in self.versions.items()},
        }


@runtime_checkable
class Tracker(Protocol):
    """Where metrics go. A class of the table is called with a `TrackedRun`.

    A class attribute `essential = True` marks a tracker whose errors stop training, and that only training writes to.
    For the others, any exception ends the tracker with a warning, and training continues; all calls come from one
    thread. `package` is the name of the package, and of the extra, that a class needs.
    """

    def cut(self, step: int) -> int:
        """Forget everything after a step: training starts, or resumes, after it.

        Called once, before `write`, and only if the job is to train.

        Returns: the last step of what the tracker still has, 0 if it has nothing. The run's earlier lines after that
        step are then written again. A tracker that cannot forget may keep later lines, and skip them when they come.
        """
        ...

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Log one line; `scalars` returns its numbers. Scores of `evaluate` have the split evaluation/SPLIT."""
        ...

    def attach(self, file: Path, name: str) -> None:
        """Store a file under a name such as figures/loss.png."""
        ...

    def finish(self, ending: Ending) -> None:
        """Write everything and close. `ending` says how the run has ended."""
        ...


TRACKERS = Factories(
    "training.trackers",
    Tracker,
    {
        "jsonl": "transformer_jax.trackers.jsonl:JsonLines",
        "tensorboard": "transformer_jax.trackers.tensorboard:TensorBoard",
        "wandb": "transformer_jax.trackers.wandb_run:WeightsAndBiases",
        "mlflow": "transformer_jax.trackers.mlflow_run:MLflow",
    },
)


def tracked_run(config: ExperimentConfig, workdir: Path, job: Job) -> TrackedRun:
    """Return what the trackers may know of a run; a trial's group and home are those of its sweep."""
    workdir = workdir.absolute()
    sweep = workdir if job == "report" else sweep_of(workdir) or workdir
    home = sweep.parent if (sweep.parent / STUDY).is_file() else sweep  # of a stage, such as SWEEP/tuning
    group = sweep.relative_to(home.parent).as_posix()
    return TrackedRun(workdir, flat(config.to_dict()), job, group, home, library_versions(), origin())


def scalars(split: str, metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the finite numbers of a line by SPLIT/NAME."""
    return {
        f"{split}/{name}": value
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def is_essential(name: str) -> bool:
    """Return whether errors of a tracker stop training."""
    return bool(getattr(TRACKERS[name], "essential", False))


def check_trackers(config: ExperimentConfig) -> None:
    """Raise ConfigError if a tracker of the config needs a package that is not installed."""
    for name in parse_trackers(config.training.trackers):
        check_package(name)


def check_package(name: str) -> None:
    """Raise ConfigError if a tracker needs a package that is not installed."""
    package = getattr(TRACKERS[name], "package", "")
    if package and importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"training.trackers: {name} needs the package {package}; install the extra: "
            f"pip install 'transformer-jax[{package}]'"
        )
