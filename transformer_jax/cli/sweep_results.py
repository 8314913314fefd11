"""Trials of `sweep --results` that count as finished, and those that `--verify` trains again."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from transformer_jax.cli.arguments import Arguments
from transformer_jax.cli.sweep_stages import (
    Stage,
    claim,
    given_by,
    place_of,
    planned_trials,
    run_trials,
    say_failed,
    search_options,
)
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.sweeps.committed_trials import Matched, StageTrials, chosen, compare, count_finished, matched
from transformer_jax.sweeps.precision import extended
from transformer_jax.sweeps.results import RESULT, Given, read_result
from transformer_jax.sweeps.results_folder import CommittedTrial, ResultsFolder, read_results_folder
from transformer_jax.sweeps.search.search import Listed, SearchOptions
from transformer_jax.sweeps.search.storage import check_claim, record_search
from transformer_jax.sweeps.search.tuning import tuning_study
from transformer_jax.sweeps.trial_state import Standing
from transformer_jax.sweeps.trials import Trial, grid
from transformer_jax.sweeps.tuning import FACTOR, TUNING, check_alike, factor_label


def count_tuning(values: flags.FlagValues, stage: Stage, folder: Path, workdir: Path, given: Given) -> None:
    """Write the tuning trials of --results that have the config and corpus of the study into the work directory.

    Raises: ConfigError if the results were tuned under other settings.
    """
    found, tuned = _read_results(values, stage, folder), stage.study.tuned
    assert tuned is not None
    claim(values, stage, folder, workdir, given, [found.asked] if found.trials else ())
    committed = found.tuning or []
    there = {of.trial.labels.get(FACTOR) for of in committed}
    factors = [of for of in tuned.widest if of in tuned.factors or factor_label(of) in there]
    study = tuning_study(stage.study, stage.overrides, factors)
    trials = StageTrials(grid(study, stage.overrides).trials, committed, study.metrics, workdir / TUNING)
    claim(values, stage._replace(study=study, is_tuning=True), folder, trials.workdir, given)
    _count(values, trials, "tuning trials")


def count_results(arguments: Arguments, stages: Sequence[Stage], folder: Path, workdir: Path) -> None:
    """Write the trials of --results that count as finished into the work directory."""
    values = arguments.flags
    found, trials, asked = _matched(values, stages, folder, workdir)
    for stage, of in zip(stages, trials, strict=True):
        counted, known = (found.first, None) if stage.is_pretraining else (found.study, asked)
        claim(values, stage, folder, of.workdir, given_by(arguments), [known] if counted else ())
        options = SearchOptions() if stage.is_pretraining else search_options(values)
        check_claim(of.workdir, options)
        record_search(of.workdir, options)
    before = sum(
        (of.folder(trial) / RESULT).exists()
        for of, names in zip(reversed(trials), (found.study, found.first), strict=False)
        for trial in of.trials
        if trial.name in names
    )
    count, notes = count_finished(found, trials[-1], trials[0] if len(trials) > 1 else None)
    already = f", and {before} were finished here before" if before else ""
    print(f"{values.results}: {count} trials count as finished here{already}", file=sys.stderr)
    for note in notes:
        print(note, file=sys.stderr)


def count_second_stage(
    values: flags.FlagValues, stage: Stage, folder: Path, workdir: Path, trials: Sequence[Trial]
) -> None:
    """Write the trials of a second stage that --results has into the work directory."""
    names = {trial.name for trial in trials}
    committed = [of for of in read_results_folder(Path(values.results)).trials if of.trial.name in names]
    of = StageTrials(trials, committed, stage.study.metrics, workdir, folder if stage.study.measure else None)
    _count(values, of, "trials of the second stage")


def _count(values: flags.FlagValues, trials: StageTrials, kind: str) -> None:
    """Write trials of --results that count as finished into the work directory. Args: kind: their name, plural."""
    equal = _equal(trials, None)
    count, notes = count_finished(equal, trials, None)
    print(f"{values.results}: {count} {kind} count as finished here", file=sys.stderr)
    for note in notes:
        print(note, file=sys.stderr)


def verify(arguments: Arguments, stages: Sequence[Stage], folder: Path, workdir: Path) -> int:
    """Train some trials of --results again and compare their metrics; return the exit code."""
    values, place = arguments.flags, workdir / "verification"
    if stages[-1].study.tuned is not None:
        tuned_values = _read_results(values, stages[-1], folder).recorded.declaration["chosen"]
        stages = [stages[-1]._replace(study=dataclasses.replace(stages[-1].study, chosen=tuned_values))]
    found, trials, _ = _matched(values, stages, folder, place)
    names = chosen(found, values.verify)
    starts = {Path(str(t.starts_from)).name for t in trials[-1].trials if t.name in names and t.starts_from}
    standings: list[Standing] = []
    for stage, of in zip(stages, trials, strict=True):
        again = [trial for trial in of.trials if trial.name in (starts if stage.is_pretraining else names)]
        claim(values, stage, folder, of.workdir, given_by(arguments))
        ended, stopped_by = run_trials(values, stage, folder, of.workdir, lambda _, again=again: Listed(again))
        standings += ended
        if stopped_by:
            return 128 + stopped_by
    if failed := say_failed(standings):
        return failed
    differ = False
    for standing in standings:
        committed = (found.study if standing.trial.name in names else found.first)[standing.trial.name]
        result = read_result(standing.folder)
        assert result is not None
        comparison = compare(committed, result)
        differ = differ or bool(comparison.differing)
        print(comparison.text)
    return exit_codes.SOME_FAILED if differ else exit_codes.OK


def _read_results(values: flags.FlagValues, stage: Stage, folder: Path) -> ResultsFolder:
    """Return the content of --results; raise ConfigError if it is of another study, or tuned under other settings."""
    place = Path(values.results)
    found = read_results_folder(place)
    if (name := folder.absolute().name) != found.study:
        raise ConfigError(f"--results={place}: is of the study '{found.study}', not of '{name}'")
    if found.is_pretraining:
        raise ConfigError(f"--results={place}: is of the pretraining of '{name}'; give the results of the study")
    check_alike(found.recorded.declaration.get("tuned"), stage.study.tuned, f"--results={place}")
    return found


def _matched(
    values: flags.FlagValues, stages: Sequence[Stage], folder: Path, workdir: Path
) -> tuple[Matched, list[StageTrials], Mapping[str, Any] | None]:
    """Return the trials of --results that have the config and corpus of the study, and the trials of each stage.

    The third value is what the study of the results asked at its first trial; None if it is not known. Prints why the
    other trials do not count.

    Raises: ConfigError if it is no results folder, or one of another study or search; DataError for damaged files.
    """
    found = _read_results(values, stages[-1], folder)
    trials = [
        StageTrials(
            planned := planned_trials(stage, search_options(values))[0],
            found.first or [] if stage.is_pretraining else _of_first_stage(stage, planned, found.trials),
            stage.study.metrics,
            place_of(stage, workdir),
            folder if stage.study.measure else None,
        )
        for stage in stages
    ]
    return _equal(trials[-1], trials[0] if len(trials) > 1 else None), trials, found.asked


def _equal(study: StageTrials, first: StageTrials | None) -> Matched:
    """Return as `committed_trials.matched`, and print why the other trials do not count."""
    equal = matched(study, first)
    for note in equal.notes:
        print(f"does not count: {note}", file=sys.stderr)
    return equal


def _of_first_stage(
    stage: Stage, planned: Sequence[Trial], committed: Sequence[CommittedTrial]
) -> list[CommittedTrial]:
    """Return the trials of a results folder without those of seeds that only a second stage can ask for."""
    if not stage.study.precision:
        return list(committed)
    later = {*extended(stage.study.seeds, stage.study.max_seeds)} - {trial.seed for trial in planned}
    return [of for of in committed if of.trial.seed not in later]
