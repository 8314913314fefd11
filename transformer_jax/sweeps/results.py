"""Files of a sweep's work directory: one folder per trial, which is also the work directory of that run.

WORKDIR/study.json             name, folder and declaration of the study; another study is refused
WORKDIR/pretraining            the work directory of the study's pretraining, if it has one
WORKDIR/tuning                 the work directory of its tuning, if it is tuned
WORKDIR/trials/TRIAL/          config.json, metrics.jsonl, checkpoints, evaluation, and
WORKDIR/trials/TRIAL/trial.json   the task: labels, seed, config, metrics
WORKDIR/trials/TRIAL/result.json  the outcome; written atomically at the end
WORKDIR/trials/TRIAL/examples.json  how much every example moves its scores, if the study has contrasts
WORKDIR/trials/TRIAL/output.txt   stdout and stderr of its process
WORKDIR/trials/TRIAL/pruned.txt   why the search has pruned it; its worker then ends it
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from transformer_jax.checkpoints.workdir import STUDY
from transformer_jax.config import ExperimentConfig, is_rounding, nearest, walk
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import (
    check_path_is_text,
    json_text,
    open_own_file,
    try_lock,
    with_checksum,
    without_checksum,
    write_atomically,
)
from transformer_jax.metrics_file import is_number
from transformer_jax.readers import parse_json, read_bytes, read_text
from transformer_jax.sweeps.study import FILE, Axis, Metric, Study
from transformer_jax.sweeps.trials import TRIALS, Trial, variant_name
from transformer_jax.sweeps.tuning import TUNING, check_alike
from transformer_jax.trust import UntrustedError, reading

SPEC, RESULT, OUTPUT, LOCK = "trial.json", "result.json", "output.txt", ".worker_lock"
PRUNED = "pruned.txt"
ASKED, _ASKED = "asked_first", ("contrasts", "metrics", "precision", "tuned")


class Given(NamedTuple):
    """The arguments of `sweep` as given on the command line. Paths are relative to the folder where it was run.

    overrides: flags, such as `--config.model.mlp_dim=40`.
    """

    study: str
    workdir: str
    config: str | None
    overrides: list[str]


class Spec(NamedTuple):
    """The content of trial.json.

    - study: the folder of the study if it has a `measure` function, else None.
    - examples: whether the influences of examples are measured too, `trial_examples`.
    """

    trial: Trial
    metrics: list[Metric]
    study: str | None
    examples: bool = False


Status = Literal["finished", "diverged", "pruned", "failed"]


@dataclasses.dataclass(frozen=True)
class Result:
    """How a trial has ended.

    Attributes:
      status: `diverged`: its loss became NaN or infinite; this counts as an answer. `pruned`: the search ended it,
        since other trials were better by then. `failed`: it cannot be run, and another attempt would fail in the same
        way.
      why: the reason, if it is not finished; else empty.
      metrics: numbers by SPLIT/METRIC; none if it is not finished. One that is not finite is null in the file, and NaN
        when it is read.
      steps: the last step in the log.
      seconds: time of the training steps in the log, without validation, saving and scoring. Trials that train together
        share it. 0 for a trial that uses the training of another.
      parameters: number of parameters of the model.
      machine: the accelerators that it ran on, or the processor.
      versions: version by library.
      log_sha256: `metrics_file.digest` of its log; empty if it had none.
      corpus: sha256 of the corpus that it was trained on; empty if it is not known.
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
    log_sha256: str = ""
    corpus: str = ""

    def write(self, folder: Path) -> None:
        write_object(folder / RESULT, dataclasses.asdict(self))


def claim_sweep(
    workdir: Path,
    study: Path,
    declaration: Mapping[str, Any] | None = None,
    config: str | None = None,
    is_pretraining: bool = False,
    given: Given | None = None,
    is_tuning: bool = False,
    asked_before: Sequence[Mapping[str, Any] | None] = (),
) -> None:
    """Make the work directory of the study in a folder; raise ConfigError if it belongs to another study.

    Args:
      declaration: of `sweeps.study_json`, with which `report` needs no code of the study.
      config: the baseline in place of the study's own, if there is one.
      is_pretraining: the work directory is that of the study's pretraining.
      given: the command, for the report.
      is_tuning: the work directory is that of the study's tuning.
      asked_before: what the study asked at the first trial, if trials of a results folder are to count here; None if it
        is not known. The results were known before this sweep.
    """
    check_path_is_text(workdir)
    check_path_is_text(study)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(
            f"--workdir={workdir}: cannot be a folder, since a file has that path or part of it; choose another"
        ) from error
    except OSError as error:
        raise ConfigError(f"--workdir={workdir}: cannot be made: {error.strerror}") from error
    name, folder, asked = study.absolute().name, str(study.absolute()), None
    if (workdir / STUDY).exists():
        record = read_object(workdir / STUDY, STUDY_FIELDS)
        if (other := record["study"]) != name:
            raise ConfigError(f"--workdir={workdir}: belongs to the study '{other}', not to '{name}'; choose another")
        if (before := record.get("config")) != config:
            other = f"--config={before}" if before else "the study's own baseline"
            raise ConfigError(f"--workdir={workdir}: was started with {other}; give the same, or choose another folder")
        asked = record.get(ASKED)
    record: dict[str, Any] = {"study": name, "folder": folder, "declaration": declaration, "config": config}
    if not _has_trials(workdir):
        asked = asked_before[0] if asked_before else asked_by(declaration)
    if asked is not None:
        record[ASKED] = asked
    if given is not None:
        record["given"] = given._asdict()
    kinds = {"is_pretraining": is_pretraining, "is_tuning": is_tuning}
    write_object(workdir / STUDY, record | {name: True for name, is_it in kinds.items() if is_it})


def _has_trials(workdir: Path) -> bool:
    """Return whether a study has begun: with its own trials, or those of its tuning."""
    return any(any((place / TRIALS).glob(f"*/{SPEC}")) for place in (workdir, workdir / TUNING))


def check_tuned(workdir: Path, study: Study) -> None:
    """Raise ConfigError, which names the settings, if trials in the work directory were tuned under others."""
    if not (workdir / STUDY).exists() or not _has_trials(workdir):
        return
    declaration = read_object(workdir / STUDY, STUDY_FIELDS).get("declaration")
    if isinstance(declaration, dict):
        check_alike(declaration.get("tuned"), study.tuned, f"--workdir={workdir}")


def asked_by(declaration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what a declaration asks: contrasts, metrics, widths and tuning, the sha256 of these, and the seeds."""
    if declaration is None:
        return None
    asked = {name: declaration[name] for name in _ASKED if name != "tuned" or declaration[name] is not None}
    return asked | {"sha256": _text_sha256(json_text(asked)), "seeds": declaration["seeds"]}


def changes_of(record: Mapping[str, Any], declaration: Mapping[str, Any]) -> list[str] | None:
    """Return which of contrasts, metrics, widths and tuning a study has changed since its first trial; None if unknown.

    Args: record: content of study.json. declaration: of the study as it is now.
    """
    first = record.get(ASKED)
    if not isinstance(first, dict):
        return None
    return [name for name in _ASKED if _without_words(first.get(name)) != _without_words(declaration[name])]


def _without_words(asked: Any) -> Any:
    """Return contrasts without the frames of their sentences, which change no number; other values as they are."""
    if not isinstance(asked, list):
        return asked
    return [{n: v for n, v in of.items() if n != "says"} if isinstance(of, dict) else of for of in asked]


def given_of(record: Mapping[str, Any]) -> Given | None:
    """Return the command in the content of study.json; None if the study was not started by the command."""
    values = record.get("given")
    if not isinstance(values, dict):
        return None
    given = Given(*(values.get(name) for name in Given._fields))
    is_list = isinstance(given.overrides, list)
    texts = [given.study, given.workdir, *(given.overrides if is_list else ())]
    if not is_list or not all(map(_text, texts)) or not _text_or_none(given.config):
        return None
    return given


def write_spec(
    folder: Path, trial: Trial, metrics: Sequence[Metric], study: Path | None = None, examples: bool = False
) -> None:
    """Make the folder of a trial and write trial.json into it.

    Args:
      study: the folder of the study, if it has a `measure` function. examples: as in `Spec`.
    Raises: ConfigError if the folder has a trial with another config.
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
            f"{folder}: was started with other values: {', '.join(changed)}; choose another --workdir for the changed "
            "study"
        )
    values = {
        "labels": dict(trial.labels),
        "seed": trial.seed,
        "config": trial.config.to_dict(),
        "trained_by": trial.trained_by,
        "starts_from": trial.starts_from,
        "metrics": [dataclasses.asdict(metric) for metric in metrics],
        "study": None if study is None else str(study.absolute()),
        **({"examples": True} if examples else {}),
    }
    write_object(folder / SPEC, values)


def check_trials(workdir: Path, study: Study, folder: Path) -> None:
    """Raise ConfigError if a trial in the work directory does not belong to the study as its file is now."""
    for file in sorted((workdir / TRIALS).glob(f"*/{SPEC}")):
        check_labels(read_spec(file.parent).trial.labels, study, folder, file.parent)


def check_seeds(workdir: Path, max_seeds: int) -> None:
    """Raise ConfigError if the work directory has trials with more seeds than it is to have."""
    seeds = {read_spec(file.parent).trial.seed for file in (workdir / TRIALS).glob(f"*/{SPEC}")}
    if len(seeds) > max_seeds:
        raise ConfigError(f"--max_seeds={max_seeds}: {workdir} has trials with {len(seeds)} seeds already")


_MOVE = "restore the study, or move the trial's folder away, or run the changed study in another --workdir"


def check_labels(labels: Mapping[str, str], study: Study, folder: Path, place: Path | str, cure: str = _MOVE) -> None:
    """Raise ConfigError if the trial in `place` does not belong to the study in `folder` as its file is now."""
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
        raise ConfigError(f"{place}: is not a trial of {folder / FILE} as it is now: {problem}; {cure}")


def read_spec(folder: Path) -> Spec:
    """Return the content of trial.json; raise DataError if it cannot be read, UntrustedError as `trust.check`."""
    values = read_object(folder / SPEC, _SPEC_FIELDS)
    try:
        with reading(folder / SPEC):
            config = ExperimentConfig.from_config_dict(values["config"])
        trial = Trial(values["labels"], values["seed"], config, values["trained_by"], values["starts_from"])
        metrics = [Metric(**metric) for metric in values["metrics"]]
        return Spec(trial, metrics, values["study"], values.get("examples") is True)
    except UntrustedError:
        raise
    except (TypeError, ConfigError) as error:
        raise DataError(f"{folder / SPEC}: does not describe a trial: {error}") from error


def read_result(folder: Path) -> Result | None:
    """Return the result of a trial, None if it has none yet; raise DataError for a file that is not a whole result."""
    if not (folder / RESULT).exists():
        return None
    try:
        values = read_object(folder / RESULT, _RESULT_FIELDS)
        values["metrics"] = {n: math.nan if number is None else number for n, number in values["metrics"].items()}
        return Result(**values)
    except TypeError as error:
        raise DataError(f"{folder / RESULT}: is not the result of a trial: {error}; {_CURE}") from error
    except DataError as error:
        raise DataError(f"{error}; {_CURE}") from error


def result_of(trial: Trial, folder: Path) -> Result | None:
    """Return the result of a trial as `read_result`; raise DataError also for the result of another trial."""
    result = read_result(folder)
    if result is not None and (dict(result.labels), result.seed) != (dict(trial.labels), trial.seed):
        other = f"{variant_name(result.labels)},seed={result.seed}"
        raise DataError(f"{folder / RESULT}: is the result of {other}, not of {trial.name}; {_CURE}")
    return result


def failure(trial: Trial, why: str) -> Result:
    """Return the result of a trial that cannot be run."""
    return Result(dict(trial.labels), trial.seed, "failed", why, {}, 0, 0.0, 0, "", {})


def forget_result(folder: Path) -> None:
    """Delete the result of a trial, so that it is run again from its newest checkpoint."""
    (folder / RESULT).unlink(missing_ok=True)


def mark_pruned(folder: Path, why: str) -> None:
    """Write pruned.txt, upon which the worker of a trial, running or next, ends it as `pruned`.

    Its last line is the sha256 of the text before.
    """
    write_atomically(folder / PRUNED, f"{why}\nsha256 {_text_sha256(why)}\n".encode())


def pruned_because(folder: Path) -> str | None:
    """Return why a trial is pruned; None if it is not.

    Raises: DataError if the file cannot be read or is damaged.
    """
    file = folder / PRUNED
    try:
        text = read_text(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    match = re.fullmatch(r"(.*)\nsha256 ([0-9a-f]+)\n?", text, re.DOTALL)
    if match is None or match[2] != _text_sha256(match[1]):
        raise DataError(f"{file}: is damaged; delete it, and the trial continues")
    return match[1]


def _text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def held(folders: Sequence[Path]) -> Generator[bool]:
    """Hold the locks of trials while the body runs; yield whether no other process had any of them.

    On a file system without locks this is always True.
    """
    with contextlib.ExitStack() as opened:
        yield all(_locked(folder, opened) for folder in folders)


def is_running(folder: Path) -> bool:
    """Return whether a process, of this or another sweep, holds the lock of a trial."""
    if not (folder / LOCK).exists():
        return False
    with held([folder]) as free:
        return not free


def _locked(folder: Path, opened: contextlib.ExitStack) -> bool:
    return try_lock(opened.enter_context(open_own_file(folder / LOCK))) != "in use"


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(number is None or is_number(number) for number in value.values())


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _text_or_none(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _integer(value: Any) -> bool:
    return type(value) is int


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


_CURE = "delete it; the trial is then scored again from its checkpoint"
_Fields = Mapping[str, Callable[[Any], bool]]
STUDY_FIELDS: _Fields = {"study": _text}
_SPEC_FIELDS: _Fields = {
    "labels": _texts,
    "seed": _integer,
    "config": lambda value: isinstance(value, dict),
    "trained_by": _text_or_none,
    "starts_from": _text_or_none,
    "metrics": _objects,
    "study": _text_or_none,
}
_RESULT_FIELDS: _Fields = {
    "labels": _texts,
    "seed": _integer,
    "status": lambda value: value in get_args(Status),
    "why": _text,
    "metrics": _numbers,
    "steps": _integer,
    "seconds": is_number,
    "parameters": _integer,
    "machine": _text,
    "versions": _texts,
}
"""Checks by field of a file."""


def read_object(file: Path, fields: _Fields) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises: DataError, which names the file and the field, if it is missing or damaged, or a field has another type.
    """
    try:
        values = parse_json(read_bytes(file))
    except FileNotFoundError as error:
        raise DataError(f"{file}: is missing") from error
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(
            f"{file}: cannot be read or is cut short: {getattr(error, 'strerror', None) or error}"
        ) from error
    if not isinstance(values, dict):
        raise DataError(f"{file}: expected a JSON object")
    try:
        values = without_checksum(values)
    except ValueError as error:
        raise DataError(f"{file}: {error}") from error
    for name, is_valid in fields.items():
        if name not in values:
            raise DataError(f"{file}: lacks '{name}'")
        if not is_valid(values[name]):
            raise DataError(f"{file}: '{name}' has a value of another kind: {json.dumps(values[name])[:80]}")
    return values


def write_object(file: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON object with its checksum."""
    text = json_text(with_checksum(values), indent=2)
    write_atomically(file, f"{text}\n".encode())
