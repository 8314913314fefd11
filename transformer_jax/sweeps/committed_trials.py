"""Trials of a results folder in a sweep: those of equal config and corpus count as finished or are trained again."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax import metrics_file
from transformer_jax.checkpoints.folders import list_steps
from transformer_jax.checkpoints.workdir import CHECKPOINTS, lasting_differences
from transformer_jax.config import DataConfig
from transformer_jax.data.sources import load_source
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import write_atomically
from transformer_jax.sweeps.results import RESULT, Result, forget_result, is_running, result_of, write_spec
from transformer_jax.sweeps.results_folder import CommittedTrial
from transformer_jax.sweeps.study import Metric
from transformer_jax.sweeps.trials import TRIALS, Trial

TOLERANCE = 1e-3
"""Largest difference of a metric of a trial that is trained again, relative to the larger of the two values.

On the machine and with the versions of the results the difference is 0. Others round differently, and training enlarges
rounding; a decoded text may change, and with it a score that counts texts.
"""
_DATA_DIR = "data.dir"  # may differ between machines: the corpora are compared


class StageTrials(NamedTuple):
    """The trials of a study, or of its pretraining, and those that a results folder has of it.

    workdir: of this stage. study: the folder of the study if it has a `measure` function.
    """

    trials: Sequence[Trial]
    committed: Sequence[CommittedTrial]
    metrics: Sequence[Metric]
    workdir: Path
    study: Path | None = None

    def folder(self, trial: Trial) -> Path:
        return self.workdir / TRIALS / trial.name


class Matched(NamedTuple):
    """Committed trials by name whose config and corpus are equal to those of the study's trial.

    notes: why the others do not count, a line per reason.
    """

    first: dict[str, CommittedTrial]
    study: dict[str, CommittedTrial]
    notes: list[str]


class Comparison(NamedTuple):
    """A trial that was trained again.

    - largest: relative difference of a metric.
    - differing: a line per metric outside of TOLERANCE.
    - origins: what differs in machine and versions, as lines.
    """

    name: str
    num_metrics: int
    largest: float
    differing: list[str]
    origins: list[str]

    @property
    def text(self) -> str:
        """The result in lines."""
        found = f"{self.num_metrics} metrics, largest relative difference {self.largest:.2g}"
        if not self.differing:
            return f"{self.name}: equal: {found}, at most {TOLERANCE:g} allowed"
        lines = [*self.differing, *self.origins] if self.origins else [*self.differing, "the same machine and versions"]
        return f"{self.name}: DIFFERS: {found}" + "".join(f"\n  - {line}" for line in lines)


def matched(study: StageTrials, first: StageTrials | None) -> Matched:
    """Return the committed trials that have the config and the corpus of the study's trials of the same name.

    Paths of the corpus and of the token cache may differ, and fields that change only the rounding of numbers, or when
    something is logged, validated or saved.

    Args:
      first: the pretraining, on which the trials of the study depend; None without one.
    """
    reasons: dict[str, list[str]] = {}
    corpora = functools.cache(_corpus)

    def find(stage: StageTrials, before: Mapping[str, CommittedTrial]) -> dict[str, CommittedTrial]:
        found, trials = {}, {trial.name: trial for trial in stage.trials}
        for of in stage.committed:
            trial = trials.get(of.trial.name)
            why = ["it is not a trial of the study now"] if trial is None else _differences(of, trial, stage, corpora)
            if not why and trial is not None and trial.starts_from and Path(trial.starts_from).name not in before:
                why = ["its pretraining does not count"]
            for reason in why:
                reasons.setdefault(reason, []).append(of.trial.name)
            if not why:
                found[of.trial.name] = of
        return found

    before = {} if first is None else find(first, {})
    own = find(study, before)
    notes = [
        f"{names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {reason}" for reason, names in reasons.items()
    ]
    return Matched(before, own, notes)


def count_finished(found: Matched, study: StageTrials, first: StageTrials | None) -> tuple[int, list[str]]:
    """Write the trials that count as finished into the work directory, unless it has results or checkpoints of its own.

    A trial whose checkpoint another trial needs counts only if that one has finished too, since results have no
    checkpoints. If a needed trial was counted before, its result is deleted, so that it is trained.

    Returns: how many trials were written, and a line for each that is trained for the sake of another.
    """
    notes = []
    wanted = {trial.name for trial in study.trials if trial.name in found.study and _is_free(study.folder(trial))}
    done = {trial.name for trial in study.trials if _has_ended(trial, study.folder(trial))} | wanted
    needed = {}
    for trial in study.trials:
        if trial.name not in done and trial.trained_by is not None:
            needed[trial.trained_by] = trial.name
    for name, by in needed.items():
        if _lacks_checkpoint(study.folder(_named(name, study.trials))):
            notes.append(f"{name} is trained, since {by} needs its checkpoint")
            done.discard(name)
            forget_result(study.workdir / TRIALS / name)
    wanted -= needed.keys()
    before: set[str] = set()
    if first is not None:
        starts = {Path(str(t.starts_from)).name: t.name for t in study.trials if t.name not in done and t.starts_from}
        before = {t.name for t in first.trials if t.name in found.first and _is_free(first.folder(t))} - starts.keys()
        for name in starts:
            if _lacks_checkpoint(place := first.workdir / TRIALS / name):
                forget_result(place)
    for stage, names, committed in ((first, before, found.first), (study, wanted, found.study)):
        for trial in stage.trials if stage is not None else ():
            if stage is not None and trial.name in names:
                _write(trial, committed, stage, trial.trained_by in names)
    return len(wanted) + len(before), notes


def chosen(found: Matched, count: int) -> list[str]:
    """Return the names of the committed trials to be trained again.

    These are the finished trials that are trained themselves, in the order of the SHA-256 of their names, so that
    nobody chooses them. A variant comes a second time only after all others.

    Raises: ConfigError if there are fewer.
    """
    trials = [of.trial for of in found.study.values() if of.result and of.result.status == "finished"]
    trained = [trial for trial in trials if trial.trained_by is None]
    seen: dict[str, int] = {}
    ranks = {}
    for trial in sorted(trained, key=lambda trial: hashlib.sha256(trial.name.encode()).hexdigest()):
        ranks[trial.name] = seen[trial.variant] = seen.get(trial.variant, -1) + 1
    if len(ranks) < count:
        raise ConfigError(
            f"--verify={count}: only {len(ranks)} trials of the results are finished, train themselves and have the "
            "config and the corpus of the study"
        )
    return sorted(ranks, key=lambda name: ranks[name])[:count]


def compare(committed: CommittedTrial, again: Result) -> Comparison:
    """Compare status, steps and metrics of a trial with those of the same trial, trained again."""
    before = committed.result
    assert before is not None
    differing, largest = [], 0.0
    if (before.status, before.steps) != (again.status, again.steps):
        differing.append(f"{before.status} at step {before.steps} before, {again.status} at step {again.steps} now")
    names = [name for name in before.metrics if name.rpartition("/")[2] not in metrics_file.CLOCK_FIELDS]
    for name in names:
        old, new = float(before.metrics[name]), float(again.metrics.get(name, math.nan))
        if math.isnan(old) and math.isnan(new):
            continue
        difference = abs(old - new) / max(abs(old), abs(new)) if old != new else 0.0
        largest = max(largest, difference)
        if not difference <= TOLERANCE:
            differing.append(f"{name}: {old!r} before, {new!r} now, relative difference {difference:.2g}")
    others = [f"{was} before, {now} now" for was, now in _origins(before, again) if was != now]
    return Comparison(committed.trial.name, len(names), largest, differing, others)


def _origins(before: Result, again: Result) -> Iterable[tuple[str, str]]:
    yield before.machine, again.machine
    for name in sorted({*before.versions, *again.versions}):
        yield f"{name} {before.versions.get(name, '-')}", f"{name} {again.versions.get(name, '-')}"


def _differences(of: CommittedTrial, trial: Trial, stage: StageTrials, corpora: Any) -> list[str]:
    """Return why a committed trial is not this one, finished; empty if it is."""
    if of.result is None or of.result.status not in ("finished", "diverged"):
        return [f"it has the status '{of.result.status if of.result else 'none yet'}'"]
    lines = lasting_differences(of.trial.config.to_dict(), trial.config.to_dict(), "the results")
    lines.pop(_DATA_DIR, None)
    if lines:
        return list(lines.values())
    missing = [metric.name for metric in stage.metrics if metric.name not in of.result.metrics]
    if of.result.status == "finished" and missing:
        return [f"it lacks the metric {name}" for name in missing]
    if not of.corpus:
        return ["its corpus is not known"]
    if (now := corpora(trial.config.data)) != of.corpus:
        return [f"its corpus has the sha256 {of.corpus[:12]} in the results, {now[:12]} now"]
    return []


def _corpus(config: DataConfig) -> str:
    return load_source(config).fingerprint()["sha256"]


def _named(name: str, trials: Sequence[Trial]) -> Trial:
    return next(trial for trial in trials if trial.name == name)


def _has_ended(trial: Trial, folder: Path) -> bool:
    result = result_of(trial, folder)
    return result is not None and result.status != "failed"


def _is_free(folder: Path) -> bool:
    """Return whether the folder of a trial has neither a result nor a checkpoint, and no process works there."""
    return _lacks_checkpoint(folder) and not (folder / RESULT).exists() and not is_running(folder)


def _lacks_checkpoint(folder: Path) -> bool:
    return not list_steps(folder / CHECKPOINTS)


def _write(trial: Trial, committed: Mapping[str, CommittedTrial], stage: StageTrials, has_trainer: bool) -> None:
    """Write the files of a finished trial; its result comes last, so that a killed sweep starts it again.

    Args:
      has_trainer: the trial that has trained it is written too, with the log of both.
    """
    of, folder = committed[trial.name], stage.folder(trial)
    write_spec(folder, trial, stage.metrics, stage.study)
    place = folder.parent / str(trial.trained_by) if has_trainer else folder
    log = place / metrics_file.NAME
    if not has_trainer:
        texts = []
        for line in of.lines:
            numbers = {name: value for name, value in line.items() if name not in ("step", "split")}
            texts.append(metrics_file.format_line(line["step"], line["split"], numbers))
        write_atomically(log, "".join(texts).encode())
    assert of.result is not None
    dataclasses.replace(of.result, labels=dict(trial.labels), log_sha256=metrics_file.digest(log)).write(folder)
