"""Run or resume a study: train and score each of its variants with every seed.

    transformer-jax sweep --study=norm_placement --workdir=runs/norm_placement
    transformer-jax sweep --study=positions --workdir=runs/positions --executor=vmap
    transformer-jax sweep --study=num_heads --workdir=runs/heads --config=language_model
    transformer-jax sweep --study=tuning --workdir=runs/tuning --search=tpe --num_trials=30 --pruner=median

The trials of the study are work directories in WORKDIR/trials. The same command run again resumes the study: finished
trials stay, a trial whose process died resumes from its newest checkpoint, and no trial runs twice at the same time.
A trial whose loss becomes infinite or NaN has diverged; that is a result, not an error.

--results=FOLDER is the results folder of an earlier report, such as experiments/positions/results. Its trials count as
finished if they have the config and the corpus of the study now, so that a study continues on another machine; a line
names the fields in which the others differ. With --verify=2, two of these trials are trained again, in
WORKDIR/verification, and nothing else: the finished trials with the smallest SHA-256 of their names, one per variant as
long as there are others. Their metrics must be equal up to a relative difference of 0.001, since machines round
differently. Those that differ more are listed, and the exit code is 3.

--search=grid runs every variant; random draws --num_trials of them; tpe lets Optuna choose each variant by the results
of the others. --dry_run prints what a sweep would train, with parameters, operations and the expected minutes, and
trains nothing. --executor=local runs one process per trial, --num_workers at once; vmap trains trials together in one
compiled program if they differ only in seeds, rates and other scalars; slurm submits a job per trial; ray runs the
trials on the nodes of a cluster. --config.FIELD=VALUE overrides a field of every trial. --config=FILE or NAME asks the
study's question of another config, such as a language model; fields and metrics that it does not have are left out and
named. If the study has a pretraining, its trials run first, in WORKDIR/pretraining; --pretraining.FIELD=VALUE overrides
a field of theirs. `report` makes tables and figures of the results.

A study that is `tuned` trains every variant with several values of a field first, in WORKDIR/tuning, and then with its
own best value.

--until="test/loss: 0.015" trains as many seeds as the widths of the intervals need, by Stein's rule of two stages: five
seeds, and then as many as their spread asks for, at most --max_seeds. A study can declare such widths as `precision`.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from transformer_jax.builtin import study_folder
from transformer_jax.cli.arguments import PRETRAINING, Arguments, choice_flag, integer, path_flag, switch, text
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes

if TYPE_CHECKING:  # imports JAX
    from transformer_jax.sweeps.committed_trials import Matched, StageTrials
    from transformer_jax.sweeps.dry_run import Program
    from transformer_jax.sweeps.results import Given
    from transformer_jax.sweeps.results_folder import CommittedTrial, ResultsFolder
    from transformer_jax.sweeps.search.search import Search, SearchOptions
    from transformer_jax.sweeps.study import Study
    from transformer_jax.sweeps.trial_state import Standing
    from transformer_jax.sweeps.trials import Trial

OVERRIDES = ("config", PRETRAINING)


class _Stage(NamedTuple):
    """A study, its pretraining or its tuning.

    study: with the directions of its metrics. notes: on what its baseline lacks, and on derived defaults that its axes
    move. overrides: of config fields by name.
    """

    study: Study
    notes: list[str]
    overrides: Mapping[str, Any]
    is_pretraining: bool
    is_tuning: bool = False


def define(values: flags.FlagValues) -> None:
    path_flag(values, "study", "folder with a study.py, or the name of a built-in study (`transformer-jax list`)")
    path_flag(values, "workdir", "work directory of the sweep; the trials are in WORKDIR/trials")
    path_flag(
        values, "config", "config in place of the study's baseline: FILE.py[:ARGUMENT], WORKDIR/config.json, name"
    )
    from transformer_jax.sweeps.executors import NAMES as EXECUTORS
    from transformer_jax.sweeps.executors.executor import Options
    from transformer_jax.sweeps.executors.ray import RayOptions
    from transformer_jax.sweeps.executors.slurm import CLUSTERS, SlurmOptions
    from transformer_jax.sweeps.search.search import NAMES as SEARCHES
    from transformer_jax.sweeps.search.search import PRUNERS, SearchOptions

    choice_flag(values, "search", "which variants are run", SearchOptions.name, SEARCHES)
    integer(values, "num_trials", "`random`, `tpe`: number of variants, each with every seed of the study", None, 1)
    integer(values, "search_seed", "`random`, `tpe`: seed of the choice of variants", SearchOptions.seed, 0)
    choice_flag(values, "pruner", "`tpe`: rule that ends bad trials early", SearchOptions.pruner, PRUNERS)
    text(values, "until", "METRIC: WIDTH,...: half the width that the 95 % intervals of all contrasts are to have")
    integer(values, "max_seeds", "most seeds of a study with a precision; default the study's, 10", None, 1)
    path_flag(values, "results", "results folder of a report; its trials of equal config and corpus count as finished")
    integer(values, "verify", "number of trials of --results that are trained again and compared", None, 1)
    switch(values, "dry_run", "print trials, compiled programs and the expected time, measured in a few steps of each")
    choice_flag(values, "executor", "where trials run", "local", EXECUTORS)
    integer(values, "num_workers", "trials or jobs at once; default as many as fit, `slurm`: 1", None, 1)
    integer(values, "max_together", "`vmap`: most trials in one program", Options.max_together, 1)
    choice_flag(values, "trial_axis", "`vmap`: how a program runs its trials", "auto", ("auto", "vmap", "map"))
    choice_flag(values, "slurm_cluster", "`local`: run jobs as local processes", SlurmOptions.cluster, CLUSTERS)
    text(values, "slurm_partition", "partition of the jobs; default the cluster's")
    minutes = "time limit of a job; the trial saves a checkpoint before, and the next job resumes it"
    integer(values, "slurm_minutes", minutes, SlurmOptions.minutes, 1)
    integer(values, "slurm_gpus", "GPUs per job", None, 0)
    integer(values, "slurm_cpus", "cores per job", None, 1)
    integer(values, "slurm_memory_gb", "memory per job, in GB", None, 1)
    text(values, "slurm_options", "more parameters of submitit: qos=high,account=lab,signal_delay_s=120", "")
    text(
        values,
        "ray_address",
        "HOST:PORT of a cluster; `auto`: the one of this machine; `local`: start one",
        RayOptions.address,
    )
    integer(values, "ray_gpus", "GPUs per trial; default 1 if the cluster has any", None, 0)
    integer(values, "ray_cpus", "cores per trial", RayOptions.cpus, 1)


def run(arguments: Arguments) -> int:
    folder = study_folder(arguments.required("study"))
    values = arguments.flags
    _check_flags_of_results(values)
    if values.dry_run:
        return _dry_run(arguments, folder)
    workdir = Path(arguments.required("workdir"))

    from transformer_jax.sweeps.search.best import best
    from transformer_jax.sweeps.search.search import SearchOptions

    options = _checked_search_options(values)
    _check_flags_of_executors(values)
    standings: list[Standing] = []
    stages = _stages(arguments, folder, {"data.cache_dir": str((workdir / "token_cache").absolute())})
    if stages[-1].study.tuned is not None and options.name != "grid":
        raise ConfigError(f"--search={options.name}: a study that is tuned needs --search=grid")
    if values.verify is not None:
        return _verify(arguments, stages, folder, workdir)
    if stages[-1].study.tuned is not None:
        stages[-1], found, stopped_by = _tuned(arguments, stages[-1], folder, workdir)
        if stopped_by:
            return 128 + stopped_by
        if failed := _say_failed(found):
            return failed
    if values.results:
        _count_results(arguments, stages, folder, workdir)
    for stage in stages:
        search = SearchOptions() if stage.is_pretraining else options
        found, stopped_by = _run_stage(values, stage, folder, _place(stage, workdir), search, _given(arguments))
        standings += found
        if stopped_by:
            return 128 + stopped_by
    if failed := _say_failed(standings):
        return failed
    if options.name != "grid":
        print(best(found, stages[-1].study), file=sys.stderr)
    return exit_codes.OK


def _say_failed(standings: Sequence[Standing]) -> int:
    """Print the trials that could not be run; return the exit code if there are any, else 0."""
    failed = [standing for standing in standings if standing.status == "failed"]
    if not failed:
        return exit_codes.OK
    listing = "\n".join(f"  - {standing.trial.name}: {standing.why}" for standing in failed)
    print(f"{len(failed)} of {len(standings)} trials could not be run:\n{listing}", file=sys.stderr)
    return exit_codes.SOME_FAILED


def _place(stage: _Stage, workdir: Path) -> Path:
    """Return the work directory of a stage."""
    from transformer_jax.sweeps.trials import PRETRAINING as FIRST

    return workdir / FIRST if stage.is_pretraining else workdir


def _tuned(arguments: Arguments, stage: _Stage, folder: Path, workdir: Path) -> tuple[_Stage, list[Standing], int]:
    """Run or resume the tuning of a study.

    Returns: the stage with the chosen values, if all trials have ended and none has failed; the trials of the tuning;
      and the signal that has stopped them, or 0.
    """
    from transformer_jax.sweeps.search.search import Space
    from transformer_jax.sweeps.search.tuning import TuningGrid
    from transformer_jax.sweeps.tuning import TUNING

    values, place = arguments.flags, workdir / TUNING
    search = TuningGrid(Space(stage.study, stage.overrides))
    if values.results:
        _count_tuning(values, stage, folder, workdir, _given(arguments))
    else:
        _claim(values, stage, folder, workdir, _given(arguments))
    tuning = stage._replace(study=search.study, is_tuning=True)
    _claim(values, tuning, folder, place, _given(arguments))
    standings, stopped_by = _run_trials(values, tuning, folder, place, lambda _: search)
    if not stopped_by and all(standing.status != "failed" for standing in standings):
        stage = stage._replace(study=search.tuned_study())
    return stage, standings, stopped_by


def _count_tuning(values: flags.FlagValues, stage: _Stage, folder: Path, workdir: Path, given: Given) -> None:
    """Write the tuning trials of --results that have the config and corpus of the study into the work directory.

    Raises: ConfigError if the results were tuned under other settings.
    """
    from transformer_jax.sweeps.committed_trials import StageTrials, count_finished, matched
    from transformer_jax.sweeps.search.tuning import tuning_study
    from transformer_jax.sweeps.trials import grid
    from transformer_jax.sweeps.tuning import FACTOR, TUNING, factor_label

    found, tuned = _read_results(values, stage, folder), stage.study.tuned
    assert tuned is not None
    _claim(values, stage, folder, workdir, given, [found.asked] if found.trials else ())
    committed = found.tuning or []
    there = {of.trial.labels.get(FACTOR) for of in committed}
    factors = [of for of in tuned.widest if of in tuned.factors or factor_label(of) in there]
    study = tuning_study(stage.study, stage.overrides, factors)
    trials = StageTrials(grid(study, stage.overrides).trials, committed, study.metrics, workdir / TUNING)
    _claim(values, stage._replace(study=study, is_tuning=True), folder, trials.workdir, given)
    equal = matched(trials, None)
    for note in equal.notes:
        print(f"does not count: {note}", file=sys.stderr)
    count, notes = count_finished(equal, trials, None)
    print(f"{values.results}: {count} tuning trials count as finished here", file=sys.stderr)
    for note in notes:
        print(note, file=sys.stderr)


def _read_results(values: flags.FlagValues, stage: _Stage, folder: Path) -> ResultsFolder:
    """Return the content of --results; raise ConfigError if it is of another study, or tuned under other settings."""
    from transformer_jax.sweeps.results_folder import read_results_folder
    from transformer_jax.sweeps.tuning import check_alike

    place = Path(values.results)
    found = read_results_folder(place)
    if (name := folder.absolute().name) != found.study:
        raise ConfigError(f"--results={place}: is of the study '{found.study}', not of '{name}'")
    if found.is_pretraining:
        raise ConfigError(f"--results={place}: is of the pretraining of '{name}'; give the results of the study")
    check_alike(found.recorded.declaration.get("tuned"), stage.study.tuned, f"--results={place}")
    return found


def _matched(
    values: flags.FlagValues, stages: Sequence[_Stage], folder: Path, workdir: Path
) -> tuple[Matched, list[StageTrials], Mapping[str, Any] | None]:
    """Return the trials of --results that have the config and corpus of the study, and the trials of each stage.

    The third value is what the study of the results asked at its first trial; None if it is not known. Prints why the
    other trials do not count.

    Raises: ConfigError if it is no results folder, or one of another study or search; DataError for damaged files.
    """
    from transformer_jax.sweeps.committed_trials import StageTrials, matched

    found = _read_results(values, stages[-1], folder)
    trials = [
        StageTrials(
            planned := _planned(stage, _search_options(values))[0],
            found.first or [] if stage.is_pretraining else _of_first_stage(stage, planned, found.trials),
            stage.study.metrics,
            _place(stage, workdir),
            folder if stage.study.measure else None,
        )
        for stage in stages
    ]
    equal = matched(trials[-1], trials[0] if len(trials) > 1 else None)
    for note in equal.notes:
        print(f"does not count: {note}", file=sys.stderr)
    return equal, trials, found.asked


def _of_first_stage(
    stage: _Stage, planned: Sequence[Trial], committed: Sequence[CommittedTrial]
) -> list[CommittedTrial]:
    """Return the trials of a results folder without those of seeds that only a second stage can ask for."""
    from transformer_jax.sweeps.precision import extended

    if not stage.study.precision:
        return list(committed)
    later = {*extended(stage.study.seeds, stage.study.max_seeds)} - {trial.seed for trial in planned}
    return [of for of in committed if of.trial.seed not in later]


def _count_second_stage(
    values: flags.FlagValues, stage: _Stage, folder: Path, workdir: Path, trials: Sequence[Trial]
) -> None:
    """Write the trials of a second stage that --results has into the work directory."""
    from transformer_jax.sweeps.committed_trials import StageTrials, count_finished, matched
    from transformer_jax.sweeps.results_folder import read_results_folder

    names = {trial.name for trial in trials}
    committed = [of for of in read_results_folder(Path(values.results)).trials if of.trial.name in names]
    of = StageTrials(trials, committed, stage.study.metrics, workdir, folder if stage.study.measure else None)
    equal = matched(of, None)
    count, notes = count_finished(equal, of, None)
    for note in (*(f"does not count: {note}" for note in equal.notes), *notes):
        print(note, file=sys.stderr)
    print(f"{values.results}: {count} trials of the second stage count as finished here", file=sys.stderr)


def _count_results(arguments: Arguments, stages: Sequence[_Stage], folder: Path, workdir: Path) -> None:
    """Write the trials of --results that count as finished into the work directory."""
    from transformer_jax.sweeps.committed_trials import count_finished
    from transformer_jax.sweeps.results import RESULT
    from transformer_jax.sweeps.search.search import SearchOptions
    from transformer_jax.sweeps.search.storage import check_claim, record_search

    values = arguments.flags
    found, trials, asked = _matched(values, stages, folder, workdir)
    for stage, of in zip(stages, trials, strict=True):
        counted, known = (found.first, None) if stage.is_pretraining else (found.study, asked)
        _claim(values, stage, folder, of.workdir, _given(arguments), [known] if counted else ())
        options = SearchOptions() if stage.is_pretraining else _search_options(values)
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


def _verify(arguments: Arguments, stages: Sequence[_Stage], folder: Path, workdir: Path) -> int:
    """Train some trials of --results again and compare their metrics; return the exit code."""
    from transformer_jax.sweeps.committed_trials import chosen, compare
    from transformer_jax.sweeps.results import read_result
    from transformer_jax.sweeps.search.search import Listed

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
        _claim(values, stage, folder, of.workdir, _given(arguments))
        ended, stopped_by = _run_trials(values, stage, folder, of.workdir, lambda _, again=again: Listed(again))
        standings += ended
        if stopped_by:
            return 128 + stopped_by
    if failed := _say_failed(standings):
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


def _run_stage(
    values: flags.FlagValues, stage: _Stage, folder: Path, workdir: Path, options: SearchOptions, given: Given
) -> tuple[list[Standing], int]:
    """Run or resume the trials of a stage; return their standings, and the signal that has stopped them, or 0.

    Args:
      folder: of the study. workdir: of the stage. given: the command.
    """
    from transformer_jax.sweeps.search import make_search
    from transformer_jax.sweeps.search.two_stage import TwoStage

    def made(num_workers: int) -> Search:
        search = make_search(stage.study, stage.overrides, options, workdir, num_workers)
        if values.results and isinstance(search, TwoStage):
            search.before_second = functools.partial(_count_second_stage, values, stage, folder, workdir)
        return search

    _claim(values, stage, folder, workdir, given)
    return _run_trials(values, stage, folder, workdir, made)


def _claim(
    values: flags.FlagValues,
    stage: _Stage,
    folder: Path,
    workdir: Path,
    given: Given,
    asked_before: Sequence[Mapping[str, Any] | None] = (),
) -> None:
    """Make the work directory of a stage; raise ConfigError if it is of another study.

    Args:
      asked_before: as in `claim_sweep`.
    """
    from transformer_jax.sweeps.results import check_seeds, check_trials, check_tuned, claim_sweep
    from transformer_jax.sweeps.study_json import declaration_of

    if stage.study.precision:
        check_seeds(workdir, stage.study.max_seeds)
    check_tuned(workdir, stage.study)
    other = stage.study.baseline if values.config and not stage.is_pretraining else None
    declaration = declaration_of(stage.study)
    claim_sweep(workdir, folder, declaration, other, stage.is_pretraining, given, stage.is_tuning, asked_before)
    if not stage.is_tuning:  # the axis of factors grows while it runs
        check_trials(workdir, stage.study, folder)


def _run_trials(
    values: flags.FlagValues, stage: _Stage, folder: Path, workdir: Path, make_search: Callable[[int], Search]
) -> tuple[list[Standing], int]:
    """Run the trials of a search; return as `_run_stage`.

    Args:
      make_search: is called with the number of trials that run at once.
    """
    from transformer_jax.sweeps.sweep import Sweep
    from transformer_jax.sweeps.sweep_table import SweepTable

    measuring = folder if stage.study.measure else None
    executor = _executor(values, workdir, measuring)
    search = make_search(executor.num_workers)
    with SweepTable([*stage.notes, *search.notes]) as table:
        sweep = Sweep(search, stage.study.metrics, workdir, executor, measuring, bool(stage.study.contrasts))
        complete = sweep.run(table.show)
    if outcome := getattr(search, "outcome", ""):
        print(outcome, file=sys.stderr)
    return sweep.standings, 0 if complete else sweep.stopped_by


def _planned(stage: _Stage, options: SearchOptions) -> tuple[list[Trial], list[str]]:
    """Return the trials of a stage as far as they are known before any has ended, and notes on them."""
    from transformer_jax.sweeps.search.random import random_search
    from transformer_jax.sweeps.search.search import Space
    from transformer_jax.sweeps.trials import grid

    if options.name == "grid" or stage.is_pretraining:
        found = grid(stage.study, stage.overrides)
        return found.trials, [f"{name} is the same experiment as {other}" for name, other in found.same.items()]
    search = random_search(Space(stage.study, stage.overrides), options.num_trials or 1, options.seed)
    return search.next([]), list(search.notes)


def _dry_run(arguments: Arguments, folder: Path) -> int:
    from transformer_jax.sweeps.dry_run import print_plan, programs_of

    options = _checked_search_options(arguments.flags)
    for stage in _stages(arguments, folder, {}):
        trials, notes = _planned(stage, options)
        programs: list[Program] = []
        if stage.study.tuned is not None:
            programs = _plan_tuning(stage, options, trials)
            notes.append("the fields that are tuned have their own values here")
        if options.name == "tpe" and not stage.is_pretraining:
            notes.append("tpe chooses its variants by results; these are random draws, as many as it would choose")
        if stage.study.precision:
            notes.append(
                "this is the first stage; the second brings the seeds to as many as the widths need, at most "
                f"{stage.study.max_seeds}"
            )
        if stage.is_pretraining:
            notes.append("these trials are the pretraining; the next table has those that start from them")
        print_plan(trials, programs or programs_of(trials), [*stage.notes, *notes])
    return exit_codes.OK


def _plan_tuning(stage: _Stage, options: SearchOptions, trials: Sequence[Trial]) -> list[Program]:
    """Print the plan of the tuning of a study; return the programs of its trials, each measured once for both."""
    from transformer_jax.sweeps.dry_run import print_plan, programs_of
    from transformer_jax.sweeps.search.search import Space
    from transformer_jax.sweeps.search.tuning import TuningGrid

    if options.name != "grid":
        raise ConfigError(f"--search={options.name}: a study that is tuned needs --search=grid")
    search, tuned = TuningGrid(Space(stage.study, stage.overrides)), stage.study.tuned
    assert tuned is not None
    first = search.next([])
    together = programs_of([*first, *trials])
    names = {trial.name for trial in first}
    parts = [
        [dataclasses.replace(of, trials=kept) for of in together if (kept := tuple(filter(is_in, of.trials)))]
        for is_in in (lambda trial: trial.name in names, lambda trial: trial.name not in names)
    ]
    step = len(first) // len(tuned.factors)
    notes = [*search.notes, f"each extension adds {step} trials; these trials are the tuning, the next table the study"]
    print_plan(first, parts[0], notes)
    return parts[1]


def _given(arguments: Arguments) -> Given:
    from transformer_jax.sweeps.results import Given

    values, prefix = arguments.flags, f"{PRETRAINING}."
    overrides = [
        f"--{'' if name.startswith(prefix) else 'config.'}{name}={value}" for name, value in arguments.overrides.items()
    ]
    return Given(values.study, values.workdir, values.config, overrides)


def _checked_search_options(values: flags.FlagValues) -> SearchOptions:
    """Return the options of the search; raise ConfigError for those that cannot be, or not with --until."""
    from transformer_jax.sweeps.search.search import check_options

    options = _search_options(values)
    check_options(options)
    if values.until is not None and options.name != "grid":
        raise ConfigError(f"--until: needs --search=grid, not {options.name}")
    return options


def _search_options(values: flags.FlagValues) -> SearchOptions:
    from transformer_jax.sweeps.search.search import SearchOptions

    return SearchOptions(values.search, values.num_trials, values.search_seed, values.pruner)


def _stages(arguments: Arguments, folder: Path, defaults: Mapping[str, Any]) -> list[_Stage]:
    """Return the stages of a study in their order: its pretraining if it has one, and itself.

    Args:
      defaults: overrides of both that the command line may replace.
    Raises: ConfigError for overrides of a pretraining that the study does not have.
    """
    from transformer_jax.data.sources import load_source
    from transformer_jax.sweeps.axis_defaults import notes_on_axes
    from transformer_jax.sweeps.equal_notes import notes_on_equal
    from transformer_jax.sweeps.rebased_study import read_baseline, with_baseline
    from transformer_jax.sweeps.search.search import Space
    from transformer_jax.sweeps.study import load_study
    from transformer_jax.sweeps.trials import with_chosen
    from transformer_jax.tasks.task import TASKS

    given, prefix = arguments.overrides, f"{PRETRAINING}."
    own = {**defaults, **{name: value for name, value in given.items() if not name.startswith(prefix)}}
    of_first = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    study, notes, spec = load_study(folder), [], arguments.flags.config
    if study.pretraining is None and of_first:
        raise ConfigError(f"--{prefix}{next(iter(of_first))}: the study has no pretraining; leave it out")
    if spec:
        config = read_baseline(spec, own)
        study, notes = with_baseline(study, spec, config, load_source(config.data).split_names)
    study = _with_precision(study, arguments.flags)
    stages = [_Stage(study, notes, own, False)]
    if study.pretraining is not None:
        stages.insert(0, _Stage(study.pretraining, [], {**defaults, **of_first}, True))
    result = []
    for stage in stages:
        stage = stage._replace(study=with_chosen(stage.study, stage.overrides))
        first = Space(stage.study, stage.overrides).first()
        of_task = stage.study.for_task(TASKS[first.task.name], load_source(first.data).split_names)
        notes = [*stage.notes, *notes_on_equal(of_task, stage.overrides), *notes_on_axes(of_task, stage.overrides)]
        result.append(stage._replace(study=of_task, notes=notes))
    return result


def _with_precision(study: Study, values: flags.FlagValues) -> Study:
    """Return the study with the widths and the number of seeds that the flags give, and the seeds of its pilot."""
    from transformer_jax.sweeps.precision import parse_precision, with_pilot

    if values.until is not None:
        study = dataclasses.replace(
            study, precision=parse_precision(values.until), max_seeds=values.max_seeds or study.max_seeds
        )
    elif values.max_seeds is not None:
        if not study.precision:
            raise ConfigError("--max_seeds: the study lists its seeds; it is for --until or a study with a precision")
        study = dataclasses.replace(study, max_seeds=values.max_seeds)
    return with_pilot(study)


def _executor(values: flags.FlagValues, workdir: Path, study: Path | None) -> Any:
    from transformer_jax.sweeps.executors import make_executor
    from transformer_jax.sweeps.executors.executor import Options
    from transformer_jax.sweeps.executors.ray import RayOptions
    from transformer_jax.sweeps.executors.slurm import SlurmOptions, parse_more

    axis = None if values.trial_axis == "auto" else values.trial_axis
    slurm = SlurmOptions(
        cluster=values.slurm_cluster,
        partition=values.slurm_partition,
        minutes=values.slurm_minutes,
        gpus=values.slurm_gpus,
        cpus=values.slurm_cpus,
        memory_gb=values.slurm_memory_gb,
        more=parse_more(values.slurm_options),
    )
    ray = RayOptions(values.ray_address, values.ray_gpus, values.ray_cpus)
    options = Options(values.num_workers, values.max_together, axis, study)
    return make_executor(values.executor, options, workdir, slurm, ray)


def _check_flags_of_results(values: flags.FlagValues) -> None:
    """Raise ConfigError for flags that need --results, and for what cannot be done with it."""
    if not values.results:
        if values.verify is not None:
            raise ConfigError(f"--verify={values.verify}: needs --results=FOLDER, whose trials are trained again")
        return
    if values.dry_run:
        raise ConfigError("--results: has no effect with --dry_run, which reads no results; leave one out")
    if values.search == "tpe":
        raise ConfigError("--results: --search=tpe chooses its variants by results of its own; use grid or random")


def _check_flags_of_executors(values: flags.FlagValues) -> None:
    """Check the flags of executors; raises ConfigError for a flag of an executor other than the chosen one."""
    for flag in ("max_together", "trial_axis"):
        if values.executor != "vmap" and values[flag].present:
            raise ConfigError(f"--{flag} is for --executor=vmap, not for {values.executor}")
    for flag in values:
        executor = flag.partition("_")[0]
        if executor in ("slurm", "ray") and executor != values.executor and values[flag].present:
            raise ConfigError(f"--{flag} is for --executor={executor}, not for {values.executor}")
