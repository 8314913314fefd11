"""The report of a study from its results folder alone, and the files that make this possible."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from transformer_jax.builtin import studies
from transformer_jax.errors import ConfigError
from transformer_jax.readers import through_json
from transformer_jax.sweeps.figures import CustomFigure
from transformer_jax.sweeps.precision import with_pilot
from transformer_jax.sweeps.report.collect import (
    StudyResults,
    asked_of,
    check_there_are_results,
    checked_tuning,
    loaded_study,
    variants_of,
    with_second_stage,
)
from transformer_jax.sweeps.report.drawing import Drawn
from transformer_jax.sweeps.report.measurements import measurements_csv
from transformer_jax.sweeps.report.noise_table import read_noise
from transformer_jax.sweeps.report.older_results import is_older_folder, read_older_results
from transformer_jax.sweeps.report.reproduction import sweep_command
from transformer_jax.sweeps.report.tuning import tuning_results
from transformer_jax.sweeps.report.variants import TrialResult
from transformer_jax.sweeps.results import ASKED, check_labels
from transformer_jax.sweeps.results_folder import (
    DECLARATION,
    EXAMPLE_NOISE,
    FIGURES,
    MEASUREMENTS,
    PRETRAINING_FILE,
    TRIALS_FILE,
    TUNING_FILE,
    CommittedTrial,
    KeptFigure,
    Recorded,
    ResultsFolder,
    content_sha256,
    corpus_of_run,
    file_text,
    read_results_folder,
    trials_record,
)
from transformer_jax.sweeps.search.search import SearchOptions
from transformer_jax.sweeps.study import Study
from transformer_jax.sweeps.study_json import declaration_of, declared_study
from transformer_jax.sweeps.trials import TRIALS
from transformer_jax.sweeps.tuning import TUNING
from transformer_jax.tasks.task import TASKS

logger = logging.getLogger(__name__)

_RESTORE = "restore the study, or give a folder with the study as it was as --study"


def collect_results(path: Path, folder: Path | None = None) -> StudyResults:
    """Return the study in a results folder, as `collect` returns that of a work directory.

    Args:
      folder: the folder of the study, whose study.py is then run. By default the study is the recorded one, and figures
        that it drew itself stay as they are. The code of built-in studies is always run.
    Raises: ConfigError if it is no results folder, or one of another study; DataError for a file that is damaged,
      edited, missing or of a newer version.
    """
    if is_older_folder(path):
        return _collect_older(path, folder)
    found = read_results_folder(path)
    built_in = studies().get(found.study)
    if folder is None and built_in is not None and (found.recorded.is_built_in or path.absolute().parent == built_in):
        folder = built_in
    if folder is None:
        study, place = declared_study(found.recorded.declaration, found.file), Path(found.place)
    else:
        if (name := folder.absolute().name) != found.study:
            raise ConfigError(f"--results={path}: is of the study '{found.study}', not of '{name}'")
        record = {
            "is_pretraining": found.is_pretraining,
            "config": found.config,
            "declaration": found.recorded.declaration,
        }
        study, place = loaded_study(folder, found.file, record), folder
    trials = _trial_results(found.trials, path)
    for trial in trials:
        check_labels(trial.trial.labels, study, place, f"--results={path}: {trial.trial.name}", _RESTORE)
    check_there_are_results(trials, study, f"--results={path}", f"--study={place} --workdir=... --results={path}")
    if without := [trial.folder.name for trial in trials if trial.ran and trial.ran.steps and not trial.log_lines]:
        logger.warning(
            "%s: %d trials have no log, and so no curves, such as %s", path / MEASUREMENTS, len(without), without[0]
        )
    study = with_pilot(study.for_task(TASKS[trials[0].trial.config.task.name]))
    is_as_it_was = folder is None or (_is_unchanged(study, found, place) and found.recorded.with_code)
    results = StudyResults(
        study,
        place,
        path,
        variants_of(trials, study),
        found.search,
        found.is_pretraining,
        folder,
        found.given,
        asked=asked_of({ASKED: found.asked}, study),
        config=found.config,
        first=_first(study, found, path, place, folder),
        tuning=checked_tuning(_trial_results(found.tuning or [], path / TUNING), study),
        is_committed=True,
        recorded=found.recorded if is_as_it_was else None,
        kept={figure.number: figure for figure in found.kept if folder is None or not figure.is_own},
        noise=read_noise(path / EXAMPLE_NOISE) if EXAMPLE_NOISE in found.listing["files"] else {},
    )
    return with_second_stage(results)


def _collect_older(path: Path, folder: Path | None) -> StudyResults:
    """Return the study in a results folder of an earlier version; arguments and errors as `collect_results`."""
    built_in = next((place for place in studies().values() if place == path.absolute().parent), None)
    if (folder := folder or built_in) is None:
        raise ConfigError(
            f"--results={path}: an earlier version has written it, without the declaration of its study; pass "
            "--study=FOLDER"
        )
    study = loaded_study(folder, path, {})
    found = read_older_results(path, study, studies().get(folder.absolute().name) == folder)
    trials = _trial_results(found.trials, path)
    check_there_are_results(trials, study, f"--results={path}", f"--study={folder} --workdir=...")
    study = with_pilot(study.for_task(TASKS[trials[0].trial.config.task.name]))
    return StudyResults(
        study,
        folder,
        path,
        variants_of(trials, study),
        found.search,
        code=folder,
        is_committed=True,
        recorded=found.recorded._replace(declaration=through_json(declaration_of(study))),
        kept=found.kept,
    )


def results_files(results: StudyResults, figures: Sequence[Drawn], tables: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files by name that make a results folder of a report, besides its tables.

    Args:
      figures: all that were drawn, in their order. tables: the CSV files of the report by name.
    """
    own = {number for number, of in results.kept.items() if of.is_own}
    own |= {number for number, of in enumerate(results.study.figures, start=1) if isinstance(of, CustomFigure)}
    kept = [of for of in figures if of.is_kept or of.number in own]
    files = [pair for of in kept for pair in ((of.file, of.svg), (of.pdf_file, of.pdf))]
    drawn = {f"{FIGURES}/{name}": data for name, data in files if data}
    folder = results.folder.absolute()
    declaration = {
        "study": results.name,
        "place": f"{folder.parent.name}/{folder.name}",
        "config": results.config,
        "is_pretraining": results.is_pretraining,
        "given": None if results.given is None else results.given._asdict(),
        ASKED: None if results.asked is None else results.asked.first,
        "search": dataclasses.asdict(results.search),
        **_record(results)._asdict(),
        "kept": [KeptFigure(of.number, of.file, of.title, of.alt, of.number in own)._asdict() for of in kept],
    }
    first = results.first
    more = {} if first is None else {PRETRAINING_FILE: measurements_csv(first).encode()}
    if results.tuning:
        more[TUNING_FILE] = measurements_csv(tuning_results(results)).encode()
    trials = {
        "study": results.name,
        "files": {name: content_sha256(data) for name, data in {**tables, **more, **drawn}.items()},
        **trials_record(_committed(results.trials, results.workdir)),
        "pretraining": None if first is None else trials_record(_committed(first.trials, first.workdir)),
        **({"tuning": trials_record(_committed(results.tuning, results.workdir))} if results.tuning else {}),
    }
    return {DECLARATION: file_text(declaration), TRIALS_FILE: file_text(trials), **more}


def _record(results: StudyResults) -> Recorded:
    if results.recorded is not None:
        return results.recorded
    return Recorded(
        declaration_of(results.study),
        results.code is not None and studies().get(results.name) == results.code,
        results.code is not None,
        dict(results.absent),
        sweep_command(results),
    )


def _committed(trials: Sequence[TrialResult], workdir: Path) -> list[CommittedTrial]:
    """Return trials as a results folder has them: reasons without the path of the work directory."""
    found = []
    for trial in trials:
        result, corpus = trial.result, ""
        if result is not None:
            why = result.why
            for place in (workdir.absolute(), workdir):
                why = why.replace(f"{place}/", "")
            corpus = result.corpus or corpus_of_run(trial.log_file.parent)
            result = dataclasses.replace(result, why=why)
        found.append(CommittedTrial(trial.trial, result, corpus, trial.log_lines))
    return found


def _trial_results(trials: Iterable[CommittedTrial], path: Path) -> list[TrialResult]:
    return [TrialResult(of.trial, path / TRIALS / of.trial.name, of.result, of.lines) for of in trials]


def _first(study: Study, found: ResultsFolder, path: Path, place: Path, code: Path | None) -> StudyResults | None:
    """Return the pretraining of a study in a results folder; None if there is none."""
    if study.pretraining is None or found.first is None:
        return None
    trials = _trial_results(found.first, path)
    for trial in trials:
        check_labels(trial.trial.labels, study.pretraining, place, f"--results={path}: {trial.trial.name}", _RESTORE)
    variants = variants_of(trials, study.pretraining)
    return StudyResults(study.pretraining, place, path, variants, SearchOptions(), True, code, is_committed=True)


def _is_unchanged(study: Study, found: ResultsFolder, place: Path) -> bool:
    """Return whether the study is the recorded one; warn of what has changed since."""
    now, then = through_json(declaration_of(study)), found.recorded.declaration
    changed = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    if changed:
        logger.warning("%s: differs from the study in %s: %s", found.file, place, ", ".join(changed))
    return not changed
