"""The trials in the work directory of a study, by variant, with their measurements and logs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.builtin import studies
from transformer_jax.checkpoints.workdir import CONFIG, lasting_differences, read_stored_config
from transformer_jax.config import flat, nearest, outside_parts
from transformer_jax.config_file import load_config_dict
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.metrics_file import is_number
from transformer_jax.sweeps.figures import number_of
from transformer_jax.sweeps.precision import needed_seeds, planned_seeds, with_pilot
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.report.grid_from_results import absent_variants
from transformer_jax.sweeps.report.variants import STATUSES, TrialResult, Variant
from transformer_jax.sweeps.results import (
    ASKED,
    RESULT,
    SPEC,
    STUDY,
    STUDY_FIELDS,
    TRIALS,
    Given,
    changes_of,
    check_labels,
    given_of,
    is_running,
    read_object,
    read_spec,
    result_of,
)
from transformer_jax.sweeps.results_folder import KeptFigure, Recorded, is_results_folder
from transformer_jax.sweeps.search.search import SearchOptions
from transformer_jax.sweeps.search.storage import recorded
from transformer_jax.sweeps.statistics import ExampleNoise
from transformer_jax.sweeps.study import INIT_FROM, Axis, Study, load_study
from transformer_jax.sweeps.study_json import declaration_of, declared_study, with_code
from transformer_jax.sweeps.trials import PRETRAINING, Trial, grid_labels
from transformer_jax.sweeps.tuning import FACTOR, TUNING, Tuned, factor_label, from_record
from transformer_jax.tasks.task import TASKS, Task
from transformer_jax.trust import own

logger = logging.getLogger(__name__)


class Asked(NamedTuple):
    """first: contrasts, metrics and widths at the first trial, with their sha256. changes: which are others now."""

    first: Mapping[str, Any]
    changes: list[str]

    @property
    def sha256(self) -> str:
        """The sha256 of `first`; empty if the record has none."""
        return str(self.first.get("sha256", ""))

    def added(self, seeds: Sequence[int]) -> list[int]:
        """Return which of the seeds that a study lists now it did not list then; none if that is not known."""
        then = self.first.get("seeds")
        return [seed for seed in seeds if seed not in then] if isinstance(then, list) else []


@dataclasses.dataclass(frozen=True)
class StudyResults:
    """A study and its variants, in the study's order of axes and values.

    folder: the folder of the study, whose name is `name`. search: the search that has chosen the variants.
    code: the folder of the study if its study.py was run; None if the study is the recorded one.
    asked: whether contrasts, metrics and widths are those of the first trial; None if it is not known.
    is_pretraining: `study` is the pretraining of the study in the folder. given: the command of the sweep; None
    if it was not started by the command. config: the baseline in place of the study's own.
    first: the pretraining of the study; None if there is none, or its trials cannot be read. tuning: the trials of its
    tuning.
    is_committed: from a results folder, `workdir`. recorded: what only the work directory shows; None if the study has
    changed since. kept: figures of the earlier report by number, for those that cannot be drawn. style: of the figures
    that are drawn.
    noise: of the test set, by name of a contrast and metric; the trials of a work directory have it themselves.
    """

    study: Study
    folder: Path
    workdir: Path
    variants: tuple[Variant, ...]
    search: SearchOptions = SearchOptions()
    is_pretraining: bool = False
    code: Path | None = None
    given: Given | None = None
    asked: Asked | None = None
    config: str | None = None
    first: StudyResults | None = None
    tuning: tuple[TrialResult, ...] = ()
    is_committed: bool = False
    recorded: Recorded | None = None
    kept: Mapping[int, KeptFigure] = dataclasses.field(default_factory=dict)
    style: Style = Style()
    noise: Mapping[tuple[str, str], ExampleNoise] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.absolute().name

    @property
    def trials(self) -> list[TrialResult]:
        return [trial for variant in self.variants for trial in variant.trials]

    @property
    def lost(self) -> list[str]:
        """The logs that are missing, or not those of their results, as texts."""
        return [trial.log_problem for trial in (*self.trials, *self.tuning) if trial.log_problem]

    @property
    def unscored(self) -> list[Path]:
        """Folders of trials that are trained to their end, have no result and are not being scored."""
        return [trial.folder for trial in self.trials if _is_unscored(trial)]

    @property
    def task(self) -> Task:
        """The task of the trials, which declares their metrics."""
        return TASKS[self.trials[0].trial.config.task.name]

    @property
    def reference(self) -> Variant | None:
        """The variant that all others are compared with; None if there are contrasts or it has no trials."""
        return None if self.study.contrasts else self.at(self.study.reference_variant)

    def at(self, labels: Mapping[str, str]) -> Variant | None:
        """Return the variant with these labels, or one that is the same experiment; None if it has no trials."""
        return self._named(Variant(labels, ()).name)

    @functools.cached_property
    def absent(self) -> dict[str, str]:
        """Variants of the study's grid without trials: name -> name of a variant that is the same experiment, or ""."""
        return absent_variants(self.study, self.variants) if self.recorded is None else self.recorded.absent

    @property
    def everywhere(self) -> list[Variant]:
        """All variants of the grid that have trials, their own or those of a variant that is the same experiment.

        For a study with ranges: its variants.
        """
        named = [(labels, self.at(labels)) for labels in grid_labels(self.study)]
        found = [dataclasses.replace(variant, labels=labels) for labels, variant in named if variant is not None]
        return found or list(self.variants)

    @property
    def metrics(self) -> list[str]:
        """Names of the measured metrics: those of the study first, then all others in alphabetical order."""
        found = {name for trial in self.trials for name in trial.metrics}
        first = [metric.name for metric in self.study.metrics]
        return first + sorted(found.difference(first))

    @property
    def logged(self) -> list[str]:
        """Names of the logged quantities, as SPLIT/NAME."""
        lines = [line for trial in self.trials for line in trial.log_lines]
        names = {(line["split"], name) for line in lines for name, value in line.items() if is_number(value)}
        return sorted(f"{split}/{name}" for split, name in names if name != "step")

    def _named(self, name: str) -> Variant | None:
        by_name = {variant.name: variant for variant in self.variants}
        return by_name[name] if name in by_name else by_name.get(self.absent.get(name, ""))

    def direction(self, metric: str) -> str:
        """Return max or min; empty if the study does not name the metric, or neither is better."""
        return next((known.direction for known in self.study.metrics if known.name == metric), "")


def collect(workdir: Path, folder: Path | None = None) -> StudyResults:
    """Read the work directory of a study.

    Args:
      folder: the folder of the study, whose study.py is then run. By default no code is run: the study is the one that
        the sweep has recorded, without the figures that it draws itself. The code of built-in studies is always run.
    Raises: ConfigError if it is not a work directory of this study, or no trial has finished yet; DataError for a file
      that cannot be read.
    """
    record = _study_record(workdir)
    if record.get("is_tuning"):
        raise ConfigError(
            f"--workdir={workdir}: is the tuning of a study; report the study: --workdir={workdir.parent}"
        )
    if folder is None:
        study, folder, code = _recorded_study(workdir, record)
    else:
        study, code = loaded_study(folder, workdir / STUDY, record), folder
    if (name := folder.absolute().name) != record["study"]:
        raise ConfigError(f"--workdir={workdir}: belongs to the study '{record['study']}', not to '{name}'")
    folders = [path for path in sorted((workdir / TRIALS).glob("*")) if path.is_dir()]
    if nameless := [path.name for path in folders if not (path / SPEC).exists() and any(path.iterdir())]:
        logger.warning("%s: without %s, so they are left out: %s", workdir / TRIALS, SPEC, ", ".join(nameless))
    trials = [_trial(path) for path in folders if (path / SPEC).exists()]
    for trial in trials:
        check_labels(trial.trial.labels, study, folder, trial.folder)
    check_there_are_results(trials, study, f"--workdir={workdir}", f"--study={folder} --workdir={workdir}")
    if pending := [trial.folder.name for trial in trials if trial.result is None]:
        logger.warning("%s: without a result yet, or it was deleted: %s", workdir / TRIALS, ", ".join(pending))
    study = with_pilot(study.for_task(TASKS[trials[0].trial.config.task.name]))
    results = StudyResults(
        study,
        folder,
        workdir,
        variants_of(trials, study),
        recorded(workdir),
        bool(record.get("is_pretraining")),
        code,
        given_of(record),
        asked=asked_of(record, study),
        config=record.get("config"),
        first=_first(study, workdir, code),
        tuning=_tuning(study, workdir),
    )
    results = with_second_stage(results)
    for what in results.lost:
        logger.warning("%s; its numbers are missing from this report", what)
    for place in results.unscored:
        logger.warning("%s: is trained and not scored, or %s was lost; run the sweep again", place, RESULT)
    return results


def asked_of(record: Mapping[str, Any], study: Study) -> Asked | None:
    """Return what a study asked at its first trial; None if the content of study.json does not say it."""
    changes = changes_of(record, declaration_of(study))
    return None if changes is None else Asked(record[ASKED], changes)


def with_second_stage(results: StudyResults) -> StudyResults:
    """Return the results with the seeds of both stages, if there are two and all trials of the first have ended."""
    if not results.study.precision:
        return results
    seeds = results.study.seeds
    first = [trial for trial in results.trials if trial.trial.seed in seeds]
    if any(trial.status not in ("finished", "diverged") for trial in first) or not all(
        set(seeds) <= {trial.trial.seed for trial in variant.trials} for variant in results.variants
    ):
        return results

    def values(labels: Mapping[str, str], metric: str) -> Mapping[int, float]:
        variant = results.at(labels)
        return {} if variant is None else variant.values(metric)

    needed = needed_seeds(results.study, [variant.labels for variant in results.everywhere], values)
    planned = planned_seeds(results.study, needed)
    variants = tuple(dataclasses.replace(variant, seeds=planned) for variant in results.variants)
    return dataclasses.replace(results, variants=variants)


def variants_of(trials: Iterable[TrialResult], study: Study) -> tuple[Variant, ...]:
    """Return the variants of trials, in the study's order of axes and values, and their trials by seed."""
    by_variant: dict[str, list[TrialResult]] = {}
    for trial in sorted(trials, key=lambda trial: _order(trial, study)):
        by_variant.setdefault(trial.trial.variant, []).append(trial)
    return tuple(Variant(of[0].trial.labels, tuple(of), study.seeds) for of in by_variant.values())


def _first(study: Study, workdir: Path, code: Path | None) -> StudyResults | None:
    """Return the pretraining; None if the study has none, it was moved, or is of another version of the study."""
    if study.pretraining is None:
        return None
    with contextlib.suppress(ConfigError):
        return collect(workdir / PRETRAINING, code)
    return None


def _tuning(study: Study, workdir: Path) -> tuple[TrialResult, ...]:
    """Return the trials of the tuning; none if the study is not tuned."""
    if study.tuned is None:
        return ()
    if not (workdir / TUNING / TRIALS).is_dir():
        logger.warning("%s: is missing, so the report does not show how values were tuned", workdir / TUNING)
    trials = [_trial(file.parent) for file in sorted((workdir / TUNING / TRIALS).glob(f"*/{SPEC}"))]
    return checked_tuning(trials, study)


def checked_tuning(trials: Iterable[TrialResult], study: Study) -> tuple[TrialResult, ...]:
    """Return the trials of a tuning; raise DataError for one that the study's tuning cannot have."""
    trials = tuple(trials)
    if study.tuned is None:
        return ()
    known = {axis.name: axis.values for axis in study.axes if isinstance(axis, Axis)}
    known[FACTOR] = {factor_label(factor): {} for factor in study.tuned.widest}
    for trial in trials:
        labels = trial.trial.labels
        if labels.keys() != known.keys() or any(label not in known[axis] for axis, label in labels.items()):
            raise DataError(f"{trial.folder}: is not a trial of the tuning as it was recorded; move it away")
    return trials


def _study_record(workdir: Path) -> dict[str, Any]:
    file = workdir / STUDY
    if is_results_folder(workdir) and not file.exists():
        raise ConfigError(f"--workdir={workdir}: is a results folder; give it as --results={workdir}")
    if not file.exists():
        raise ConfigError(
            f"--workdir={workdir}: has no {STUDY}, so it is not the work directory of a study; "
            f"make one with: transformer-jax sweep --study=experiments/NAME --workdir={workdir}"
        )
    return read_object(file, STUDY_FIELDS)


def loaded_study(folder: Path, file: Path, record: Mapping[str, Any]) -> Study:
    """Return the study of a folder; if the sweep had another baseline, as the sweep has recorded it.

    Args:
      file: with the record, for messages.
    """
    study, declaration = load_study(folder), record.get("declaration")
    _trust_parts(study)
    if record.get("is_pretraining"):
        if study.pretraining is None:
            raise ConfigError(f"{file}: is of a pretraining, which the study in {folder} does not have now")
        study = study.pretraining
    study = dataclasses.replace(study, tuned=_tuned_as(declaration, study))
    if isinstance(declaration, dict) and declaration.get("precision"):  # it may be that of flags
        study = dataclasses.replace(study, precision=declaration["precision"], max_seeds=declaration["max_seeds"])
    if record.get("config") is None or not isinstance(declaration, dict):
        chosen = declaration.get("chosen") if isinstance(declaration, dict) else None
        return dataclasses.replace(study, chosen=chosen) if isinstance(chosen, dict) else study
    return with_code(declared_study(declaration, file), study)


def _tuned_as(declaration: Any, study: Study) -> Tuned | None:
    """Return how the trials of a declaration were tuned, with the margin of the study as its file is now."""
    before = from_record(declaration.get("tuned")) if isinstance(declaration, dict) else None
    if before is None or study.tuned is None:
        return before or study.tuned
    return dataclasses.replace(before, margin=study.tuned.margin)


def _trust_parts(study: Study) -> None:
    """Trust the modules that the study's baseline names, as those of its settings: its code is trusted."""
    for part in (study, *filter(None, [study.pretraining])):
        with contextlib.suppress(ConfigError):  # a report needs no baseline
            if not (file := part.find_baseline()).endswith(".json"):
                own(outside_parts(flat(load_config_dict(file).to_dict())).values())


def _recorded_study(workdir: Path, record: Mapping[str, Any]) -> tuple[Study, Path, Path | None]:
    """Return the study of a work directory, its folder, and the folder again if its code was run.

    Only the code of built-in studies is run.
    """
    file, folder, declaration = workdir / STUDY, record.get("folder"), record.get("declaration")
    built_in = studies().get(record["study"])
    if built_in is not None and folder == str(built_in.absolute()):
        return loaded_study(built_in, file, record), built_in, built_in
    place = Path(folder) if isinstance(folder, str) else Path(record["study"])
    if isinstance(declaration, dict):
        if left_out := declaration.get("custom_figures"):
            logger.warning("%s: figures that the study draws itself need --study=%s: %s", file, place, left_out)
        return declared_study(declaration, file), place, None
    raise ConfigError(f"{file}: does not contain the study; to run the code of its folder, pass --study={place}")


def _trial(folder: Path) -> TrialResult:
    """Return the trial in a folder; raise DataError if its files cannot be read or are those of another trial."""
    trial = read_spec(folder).trial
    if trial.name != folder.name:
        raise DataError(f"{folder / SPEC}: is of the trial {trial.name}; restore the file of this folder")
    _check_config(trial, folder)
    result = result_of(trial, folder)
    if result is not None and result.status not in STATUSES:
        raise DataError(f"{folder}: its result has the unknown status '{result.status}'")
    return TrialResult(trial, folder, result)


def _check_config(trial: Trial, folder: Path) -> None:
    """Raise DataError if the run in the folder of a trial has another config than the trial."""
    if trial.trained_by is not None:
        return
    try:
        stored = read_stored_config(folder)
    except CheckpointError:  # training refuses it; here it only confirms trial.json
        return
    if stored is None:
        return
    found = lasting_differences(stored, trial.config.to_dict(), CONFIG)
    if lines := [line for name, line in found.items() if name != INIT_FROM]:  # a path, relative and absolute
        listing = "".join(f"\n  - {line.removesuffix(' now')} in {SPEC}" for line in lines)
        raise DataError(f"{folder}: {SPEC} and {CONFIG} are of two trials; restore the right file{listing}")


def _is_unscored(trial: TrialResult) -> bool:
    """Return whether a trial without a result has been trained to its end and is not being scored."""
    if trial.result is not None or not trial.log_lines:
        return False
    ended = trial.log_lines[-1]["step"] >= trial.trial.config.training.num_train_steps
    with contextlib.suppress(OSError):  # no permission to lock
        return ended and not is_running(trial.folder)
    return ended


def check_there_are_results(trials: Iterable[TrialResult], study: Study, place: str, flags: str) -> None:
    """Raise ConfigError if no trial has finished, or none has measured a metric of the study.

    Args:
      place: the flag that names the folder of the trials. flags: of the sweep that runs them.
    """
    trials = list(trials)
    counts = Counter(trial.status for trial in trials)
    if not (counts["finished"] or counts["diverged"]):
        there = ", ".join(f"{count} {status}" for status, count in counts.items())
        raise ConfigError(
            f"{place}: no trial has finished{f' ({there})' if there else ''}, so there is nothing to "
            f"report; run or resume them with: transformer-jax sweep {flags}"
        )
    for metric in study.metrics if counts["finished"] else ():
        if not any(metric.name in trial.metrics for trial in trials):
            found = sorted({name for trial in trials for name in trial.metrics})
            raise ConfigError(
                f"metric '{metric.name}': no trial has measured it; there are {', '.join(found)}"
                f"{nearest(metric.name, found)}"
            )


def _order(trial: TrialResult, study: Study) -> tuple[Any, ...]:
    """Return a sort key: the study's order of axes and values, drawn values by size, then the seed."""
    keys = []
    for axis in study.axes:
        label = trial.trial.labels[axis.name]
        if isinstance(axis, Axis):
            keys.append((list(axis.values).index(label), ""))
        else:
            keys.append((number_of(label), label))
    return *keys, trial.trial.seed
