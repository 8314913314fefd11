"""What the trials of a study have come to, on disk: one folder per trial, which is a work directory as any run has.

WORKDIR/study.json             what is asked: the study and its trials; it refuses another study
WORKDIR/trials/TRIAL/          config.json, metrics.jsonl, checkpoints, evaluation, and
WORKDIR/trials/TRIAL/trial.json   what is to be done: labels, seed, config, metrics
WORKDIR/trials/TRIAL/result.json  what came of it; written at the end, at once
WORKDIR/trials/TRIAL/output.txt   what its process has said
WORKDIR/trials/TRIAL/pruned.txt   why a search has no more use for it: its worker is to end it
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transformer_jax.config import ExperimentConfig, is_rounding, nearest, walk
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.files import try_lock, write_atomically
from transformer_jax.sweeps.study import FILE, Axis, Metric, Study
from transformer_jax.sweeps.trials import Trial

STUDY, TRIALS = "study.json", "trials"
SPEC, RESULT, OUTPUT, LOCK = "trial.json", "result.json", "output.txt", ".worker_lock"
PRUNED = "pruned.txt"


class Spec(NamedTuple):
    """What is to be done in the folder of a trial; `study`: the folder of the study, if it is to be asked for more."""

    trial: Trial
    metrics: list[Metric]
    study: str | None


Status = Literal["finished", "diverged", "pruned", "failed"]


@dataclasses.dataclass(frozen=True)
class Result:
    """How a trial has ended.

    Attributes:
      status: `diverged`: its loss did not stay finite, which is an answer. `pruned`: a search has ended it,
        because others did better by then. `failed`: it cannot be run, for a reason that another attempt would meet
        again.
      why: of what is not finished.
      metrics: numbers by SPLIT/METRIC; of a diverged or pruned trial none.
      steps: the last that is logged.
      seconds: of training steps, as the log has them: without validation, saving and scoring; of trials that train
        together each has its share. 0 of one that is scored with another's training.
      parameters: how many the model has.
      machine: the accelerators that it ran on, or the processor.
      versions: of the libraries.
    """

    labels: Mapping[str, str]
    seed: int
    status: Status
    why: str
    metrics: Mapping[str, int | float]
    steps: int
    seconds: float
    parameters: int
    machine: str
    versions: Mapping[str, str]

    def write(self, folder: Path) -> None:
        _write(folder / RESULT, dataclasses.asdict(self))


def claim(workdir: Path, study: Path) -> None:
    """Makes the work directory of a study, by its folder; raises ConfigError if it is that of another."""
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--workdir={workdir}: cannot be a folder, since a file is in its place") from error
    name, folder = study.absolute().name, str(study.absolute())
    if (workdir / STUDY).exists():
        other = _read(workdir / STUDY).get("study")
        if other != name:
            raise ConfigError(f"--workdir={workdir}: is that of the study '{other}', not of '{name}'")
    _write(workdir / STUDY, {"study": name, "folder": folder})


def write_spec(folder: Path, trial: Trial, metrics: Sequence[Metric], study: Path | None = None) -> None:
    """Says in a trial's folder, which is made, what is to be done there.

    Args:
      study: the folder of a study that measures more.
    Raises: ConfigError if something else has been done there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = read_spec(folder).trial.config if (folder / SPEC).exists() else trial.config
    before = {name: value for name, _, value in walk(known)}
    now = {name: value for name, _, value in walk(trial.config)}
    # Another architecture or task may have other fields.
    differing = [n for n in {**before, **now} if before.get(n) != now.get(n) and not is_rounding(n)]
    if differing:
        changed = [f"{name} ({before.get(name)} before, {now.get(name)} now)" for name in differing]
        raise ConfigError(
            f"{folder}: has been begun with other values: {', '.join(changed)}; choose another --workdir for the "
            "changed study"
        )
    values = {
        "labels": dict(trial.labels),
        "seed": trial.seed,
        "config": trial.config.to_dict(),
        "trained_by": trial.trained_by,
        "metrics": [dataclasses.asdict(metric) for metric in metrics],
        "study": None if study is None else str(study.absolute()),
    }
    _write(folder / SPEC, values)


def check_trials(workdir: Path, study: Study, folder: Path) -> None:
    """Raises ConfigError if a trial there is none of the study as its file is now."""
    for file in sorted((workdir / TRIALS).glob(f"*/{SPEC}")):
        check_labels(read_spec(file.parent).trial.labels, study, folder, file.parent)


def check_labels(labels: Mapping[str, str], study: Study, folder: Path, place: Path) -> None:
    """Raises ConfigError for a trial, in `place`, that is none of the study in `folder` as its file is now."""
    axes = {axis.name: axis for axis in study.axes}
    problem = ""
    if set(labels) != set(axes):
        problem = f"it has the axes {', '.join(labels)}, and the study has {', '.join(axes)}"
    else:
        for name, label in labels.items():
            axis = axes[name]
            if isinstance(axis, Axis) and label not in axis.values:
                problem = f"the axis '{name}' has no value '{label}' now{nearest(label, list(axis.values))}"
    if problem:
        raise ConfigError(
            f"{place}: is no trial of {folder / FILE} as it is now: {problem}; put the study back, or "
            "move the trial's folder away, or run the changed study in another --workdir"
        )


def read_spec(folder: Path) -> Spec:
    """What `write_spec` has written; raises DataError if it cannot be read."""
    values = _read(folder / SPEC)
    try:
        config = ExperimentConfig.from_config_dict(values["config"])
        trial = Trial(values["labels"], values["seed"], config, values["trained_by"])
        return Spec(trial, [Metric(**metric) for metric in values["metrics"]], values["study"])
    except (KeyError, TypeError) as error:
        raise DataError(f"{folder / SPEC}: is not that of a trial: {error}") from error


def read_result(folder: Path) -> Result | None:
    """What came of a trial; None while nothing has. Raises DataError for a file that is cut short or another's."""
    if not (folder / RESULT).exists():
        return None
    cure = "delete it, and the trial is scored again from its checkpoint"
    try:
        return Result(**_read(folder / RESULT))
    except TypeError as error:
        raise DataError(f"{folder / RESULT}: is not the result of a trial: {error}; {cure}") from error
    except DataError as error:
        raise DataError(f"{error}; {cure}") from error


def failure(trial: Trial, why: str) -> Result:
    """Of a trial that cannot be run."""
    return Result(dict(trial.labels), trial.seed, "failed", why, {}, 0, 0.0, 0, "", {})


def forget_result(folder: Path) -> None:
    """Has a trial be run again, from its newest checkpoint."""
    (folder / RESULT).unlink(missing_ok=True)


def mark_pruned(folder: Path, why: str) -> None:
    """Has the worker of a trial, the one that runs or the next, end it as `pruned`."""
    write_atomically(folder / PRUNED, why.encode())


def pruned_because(folder: Path) -> str | None:
    """Why a trial is to be ended; None if it is not."""
    try:
        return (folder / PRUNED).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def held(folders: Sequence[Path]) -> Generator[bool]:
    """Holds the locks of trials while the body runs; yields whether they could be had: no other process has them.

    A file system without locks gives them to everybody.
    """
    with contextlib.ExitStack() as opened:
        yield all(_locked(folder, opened) for folder in folders)


def is_running(folder: Path) -> bool:
    """Whether a process works on a trial, of this sweep or of another."""
    if not (folder / LOCK).exists():
        return False
    with held([folder]) as free:
        return not free


def _locked(folder: Path, opened: contextlib.ExitStack) -> bool:
    return try_lock(opened.enter_context((folder / LOCK).open("ab"))) != "in use"


def _read(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{file}: is missing") from error
    except (ValueError, OSError) as error:
        raise DataError(f"{file}: cannot be read, or was cut short: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{file}: expected an object of JSON")
    return values


def _write(file: Path, values: Mapping[str, Any]) -> None:
    write_atomically(file, (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode())
