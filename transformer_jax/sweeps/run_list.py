"""The work directories and sweeps below a folder, as their own files describe them.

Nothing is imported that a file names, no array is read, and JAX is not needed. A folder that cannot be read is listed
with the reason.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax import metrics_file
from transformer_jax.checkpoints.folders import list_steps
from transformer_jax.checkpoints.manifest import read_manifest
from transformer_jax.checkpoints.workdir import CHECKPOINTS, CONFIG
from transformer_jax.checkpoints.workdir import LOCK as RUN_LOCK
from transformer_jax.config import ExperimentConfig, flat, is_bookkeeping
from transformer_jax.errors import CheckpointError, ConfigError, UserError
from transformer_jax.host.files import without_checksum
from transformer_jax.readers import read_json_object, read_text
from transformer_jax.sweeps.results import SPEC, STUDY, read_object, read_result
from transformer_jax.sweeps.trials import PRETRAINING, TRIALS
from transformer_jax.sweeps.tuning import TUNING

STATES = ("finished", "running", "interrupted", "failed", "diverged", "pruned", "waiting", "converted", "broken")
"""The values of `Run.state`; `sweeps.results` describes those of trials that have ended."""

_ENDED = ("finished", "diverged", "pruned", "failed")
_RECENT_SECONDS = 3600.0
_HOLDER = re.compile(r"process (\d+) on (\S+)")
_KEPT_BATCH = re.compile(r"step_(\d+)\D.*")
_UNREADABLE = (UserError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
_PLACES = ("data.cache_dir",)  # where files are does not change a run


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A work directory, a trial of a sweep, or a sweep.

    Attributes:
      name: its path below the folder; "." for the folder itself.
      kind: `run`, `trial` or `sweep`.
      why: the reason of a state that has one.
      step: the last step in the log or of a checkpoint; of a sweep, the number of trials that have ended.
      total: the number of steps, or of trials.
      metric: SPLIT/METRIC of `best`: of a run its `training.best_metric` in validations up to the newest checkpoint; of
        a trial with a result the first metric of its study.
      seconds: time of the training steps in the log, or in all logs of a sweep.
      config: its values by dotted name, without fields that change no result.
    """

    name: str
    kind: str
    state: str
    why: str = ""
    step: int | None = None
    total: int | None = None
    metric: str = ""
    best: float | None = None
    seconds: float | None = None
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def runs_below(folder: Path) -> list[Run]:
    """Return what is in a folder and in the folders below it, by path; a sweep stands before its trials.

    Links to folders, hidden folders and folders inside of a work directory are left out.

    Raises: ConfigError if there is no such folder, it is a file, or there is no run in it.
    """
    if not folder.exists():
        raise ConfigError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; expected a folder with work directories or sweeps")
    runs = list(_below(folder, "."))
    if not runs:
        raise ConfigError(f"{folder}: no work directory and no sweep in it; `train --workdir=...` makes one")
    return runs


def _below(folder: Path, name: str) -> Iterator[Run]:
    try:
        is_sweep = (folder / STUDY).exists()
        is_run = any((folder / part).exists() for part in (SPEC, metrics_file.NAME, CHECKPOINTS, RUN_LOCK))
        parts = [part for part in (TRIALS, PRETRAINING, TUNING) if is_sweep and (folder / part).is_dir()]
    except OSError as error:
        yield _unlisted(name, error)
        return
    if is_sweep:
        inside = [run for part in parts for run in _inside(folder / part, _joined(name, part))]
        yield _sweep(name, [run for run in inside if run.name.rpartition("/")[0] == _joined(name, TRIALS)])
        yield from inside
    elif is_run:
        yield _run(folder, name)
    else:
        yield from _inside(folder, name)


def _unlisted(name: str, error: OSError) -> Run:
    return Run(name=name, kind="run", state="broken", why=f"cannot be listed: {error.strerror}")


def _inside(folder: Path, name: str) -> Iterator[Run]:
    try:
        below = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        yield _unlisted(name, error)
        return
    for part in below:
        if not part.startswith("."):
            yield from _below(folder / part, _joined(name, part))


def _joined(name: str, part: str) -> str:
    return part if name == "." else f"{name}/{part}"


def _run(folder: Path, name: str) -> Run:
    """Return the run of a work directory; `broken` if it cannot be read."""
    kind = "trial" if (folder / SPEC).exists() else "run"
    try:
        read = _trial if kind == "trial" else _ordinary
        return dataclasses.replace(read(folder), name=name)
    except _UNREADABLE as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        return Run(name=name, kind=kind, state="broken", why=text.splitlines()[0].replace(f"{folder}{os.sep}", ""))


def _trial(folder: Path) -> Run:
    spec = read_object(folder / SPEC, {"config": lambda value: isinstance(value, dict), "metrics": _has_names})
    config, total = _compared(spec["config"]), _total(spec["config"])
    result = read_result(folder)
    if result is None:
        run = _ordinary(folder)
        is_waiting = run.state == "interrupted" and not run.step
        state, why = ("waiting", "") if is_waiting else (run.state, run.why)
        return dataclasses.replace(run, kind="trial", state=state, why=why, config=config, total=total)
    metric = spec["metrics"][0]["name"]
    return Run(
        name="",
        kind="trial",
        state=result.status,
        why=result.why,
        step=result.steps,
        total=total,
        metric=metric,
        best=result.metrics.get(metric),
        seconds=result.seconds,
        config=config,
    )


def _has_names(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(metric.get("name"), str) for metric in value)


class _Checkpoint(NamedTuple):
    """The newest checkpoint whose record can be read. why: what is wrong with a newer one."""

    step: int
    record: Mapping[str, Any]
    why: str


def _ordinary(folder: Path) -> Run:
    newest = _newest_checkpoint(folder)
    try:
        config: Mapping[str, Any] | None = without_checksum(read_json_object(folder / CONFIG))
    except FileNotFoundError:
        config = newest.record.get("config")
    except ValueError as error:
        raise CheckpointError(f"{CONFIG}: {error}; it was edited or is damaged") from error
    lines = metrics_file.readable_lines(folder / metrics_file.NAME)
    step = max((newest.step, *(line["step"] for line in lines)))
    if config is None:
        if step:
            raise CheckpointError(f"has no {CONFIG}, and no checkpoint that can be read; {newest.why}".rstrip("; "))
        state, why = ("running", "") if _is_held(folder) else ("interrupted", "ended before its first step")
        return Run(name="", kind="run", state=state, why=why, step=0)
    state, why = _state(folder, config, newest)
    validations = newest.record.get("validations", {})
    best = validations.get("best") if metrics_file.is_number(validations.get("best")) else None
    return Run(
        name="",
        kind="run",
        state=state,
        why=why or newest.why,
        step=step,
        total=None if state == "converted" else _total(config),
        metric="" if best is None else f"valid/{validations['metric']}",
        best=best,
        seconds=sum(line["seconds"] for line in lines if metrics_file.is_number(line.get("seconds"))),
        config=_compared(config),
    )


def _newest_checkpoint(folder: Path) -> _Checkpoint:
    why = ""
    for step in reversed(list_steps(folder / CHECKPOINTS)):
        try:
            return _Checkpoint(step, read_manifest(folder / CHECKPOINTS / str(step)).record, why)
        except CheckpointError as error:
            why = (
                why
                or f"checkpoint {step} cannot be read: {str(error).splitlines()[0].replace(f'{folder}{os.sep}', '')}"
            )
    return _Checkpoint(0, {}, why)


def _state(folder: Path, config: Mapping[str, Any], newest: _Checkpoint) -> tuple[str, str]:
    """Return the state of a run that has a config, and the reason."""
    training, record = config["training"], newest.record
    if "converted" in record:
        return "converted", ""
    if newest.step >= training["num_train_steps"]:
        return "finished", ""
    stale, patience = record.get("validations", {}).get("stale", 0), training.get("patience", 0)
    if patience and stale >= patience:
        return "finished", f"best_metric has not improved in {stale} validations"
    if _is_held(folder):
        return "running", ""
    later = [step for step in _nonfinite_steps(folder) if step > newest.step]
    allowed = 0 if training.get("on_nonfinite", "stop") == "stop" else training["max_skipped_updates"]
    if later and len(later) + record.get("skipped_updates", 0) > allowed:
        return "failed", f"step {later[-1]}: a loss or gradient was not finite"
    return "interrupted", ""


def _nonfinite_steps(folder: Path) -> list[int]:
    """Return the steps whose batches `training.bad_batches` has kept."""
    matches = [_KEPT_BATCH.fullmatch(file.name) for file in (folder / "nonfinite").glob("step_*.npz")]
    return sorted({int(match[1]) for match in matches if match})


def _is_held(folder: Path) -> bool:
    """Return whether a process may be training: the one named in the lock lives, or has logged elsewhere lately.

    The lock itself is not tried: a run that starts at that moment would find it taken.
    """
    try:
        holder = _HOLDER.match(read_text(folder / RUN_LOCK))
    except (OSError, ValueError):
        return False
    if holder is None:
        return False
    if holder[2] != socket.gethostname():
        files = [file for file in (folder / metrics_file.NAME, folder / RUN_LOCK) if file.exists()]
        return time.time() - max(file.stat().st_mtime for file in files) < _RECENT_SECONDS
    try:
        os.kill(int(holder[1]), 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def _sweep(name: str, trials: Sequence[Run]) -> Run:
    """Return the row of a sweep; `broken` trials are named in its reason."""
    counts = Counter(run.state for run in trials)
    ended = sum(counts[state] for state in _ENDED)
    if counts["running"]:
        state = "running"
    elif trials and ended == len(trials):
        state = "failed" if counts["failed"] else "finished"
    else:
        state = "waiting" if counts["waiting"] == len(trials) else "interrupted"
    parts = ", ".join(f"{counts[of]} {of}" for of in STATES if counts[of] and (of, len(trials)) != (state, counts[of]))
    seconds = sum(run.seconds or 0.0 for run in trials)
    return Run(name=name, kind="sweep", state=state, why=parts, step=ended, total=len(trials), seconds=seconds)


def _total(config: Mapping[str, Any]) -> int:
    return int(config["training"]["num_train_steps"])


def _compared(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a stored config by dotted name, without fields that change no result."""
    values = flat(config)
    return {name: value for name, value in values.items() if name not in _PLACES and not is_bookkeeping(name, values)}


def differences(runs: Sequence[Run], against: str = "") -> dict[str, dict[str, Any]]:
    """Return the config fields in which a run differs, with its values, by the name of the run.

    A field that an older version did not store has its default.

    Args:
      against: name of the run to compare with; empty for the most common value of every field, and of several values
        that are equally common the first.
    Raises: ConfigError if no run has this name, or it has no config.
    """
    defaults = {name: value for name, value in flat(ExperimentConfig().to_dict()).items() if value is not None}
    configs = {run.name: {**defaults, **run.config} for run in runs if run.config}
    if against and against not in configs:
        known = [run.name for run in runs if run.config]
        raise ConfigError(
            f"--against={against}: no run of this name with a config; there are {', '.join(known) or 'none'}"
        )
    fields = dict.fromkeys(name for config in configs.values() for name in config)
    reference = {}
    for name in fields:
        found = [configs[against]] if against else list(configs.values())
        texts = Counter(json.dumps(config.get(name)) for config in found)
        reference[name] = texts.most_common(1)[0][0]
    return {
        of: {name: config[name] for name in fields if name in config and json.dumps(config[name]) != reference[name]}
        for of, config in configs.items()
    }
