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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from transformer_jax.builtin import study_folder
from transformer_jax.cli.arguments import PRETRAINING, Arguments, choice_flag, integer, path_flag, switch, text
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes

if TYPE_CHECKING:  # imports JAX
    from transformer_jax.cli.sweep_stages import Stage
    from transformer_jax.sweeps.dry_run import Program
    from transformer_jax.sweeps.results import Given
    from transformer_jax.sweeps.search.search import Search, SearchOptions
    from transformer_jax.sweeps.trial_state import Standing
    from transformer_jax.sweeps.trials import Trial

OVERRIDES = ("config", PRETRAINING)


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

    from transformer_jax.cli.sweep_results import count_results, verify
    from transformer_jax.cli.sweep_stages import checked_search_options, given_by, place_of, say_failed, stages_of
    from transformer_jax.sweeps.search.best import best
    from transformer_jax.sweeps.search.search import SearchOptions

    options = checked_search_options(values)
    _check_flags_of_executors(values)
    standings: list[Standing] = []
    stages = stages_of(arguments, folder, {"data.cache_dir": str((workdir / "token_cache").absolute())})
    if values.verify is not None:
        return verify(arguments, stages, folder, workdir)
    if stages[-1].study.tuned is not None:
        stages[-1], found, stopped_by = _tuned(arguments, stages[-1], folder, workdir)
        if stopped_by:
            return 128 + stopped_by
        if failed := say_failed(found):
            return failed
    if values.results:
        count_results(arguments, stages, folder, workdir)
    for stage in stages:
        search = SearchOptions() if stage.is_pretraining else options
        found, stopped_by = _run_stage(values, stage, folder, place_of(stage, workdir), search, given_by(arguments))
        standings += found
        if stopped_by:
            return 128 + stopped_by
    if failed := say_failed(standings):
        return failed
    if options.name != "grid":
        print(best(found, stages[-1].study), file=sys.stderr)
    return exit_codes.OK


def _tuned(arguments: Arguments, stage: Stage, folder: Path, workdir: Path) -> tuple[Stage, list[Standing], int]:
    """Run or resume the tuning of a study.

    Returns: the stage with the chosen values, if all trials have ended and none has failed; the trials of the tuning;
      and the signal that has stopped them, or 0.
    """
    from transformer_jax.cli.sweep_results import count_tuning
    from transformer_jax.cli.sweep_stages import claim, given_by, run_trials
    from transformer_jax.sweeps.search.search import Space
    from transformer_jax.sweeps.search.tuning import TuningGrid
    from transformer_jax.sweeps.tuning import TUNING

    values, place = arguments.flags, workdir / TUNING
    search = TuningGrid(Space(stage.study, stage.overrides))
    if values.results:
        count_tuning(values, stage, folder, workdir, given_by(arguments))
    else:
        claim(values, stage, folder, workdir, given_by(arguments))
    tuning = stage._replace(study=search.study, is_tuning=True)
    claim(values, tuning, folder, place, given_by(arguments))
    standings, stopped_by = run_trials(values, tuning, folder, place, lambda _: search)
    if not stopped_by and all(standing.status != "failed" for standing in standings):
        stage = stage._replace(study=search.tuned_study())
    return stage, standings, stopped_by


def _run_stage(
    values: flags.FlagValues, stage: Stage, folder: Path, workdir: Path, options: SearchOptions, given: Given
) -> tuple[list[Standing], int]:
    """Run or resume the trials of a stage; return their standings, and the signal that has stopped them, or 0.

    Args:
      folder: of the study. workdir: of the stage. given: the command.
    """
    from transformer_jax.cli.sweep_results import count_second_stage
    from transformer_jax.cli.sweep_stages import claim, run_trials
    from transformer_jax.sweeps.search import make_search
    from transformer_jax.sweeps.search.two_stage import TwoStage

    def made(num_workers: int) -> Search:
        search = make_search(stage.study, stage.overrides, options, workdir, num_workers)
        if values.results and isinstance(search, TwoStage):
            search.before_second = functools.partial(count_second_stage, values, stage, folder, workdir)
        return search

    claim(values, stage, folder, workdir, given)
    return run_trials(values, stage, folder, workdir, made)


def _dry_run(arguments: Arguments, folder: Path) -> int:
    from transformer_jax.cli.sweep_stages import checked_search_options, planned_trials, stages_of
    from transformer_jax.sweeps.dry_run import print_plan, programs_of

    options = checked_search_options(arguments.flags)
    for stage in stages_of(arguments, folder, {}):
        trials, notes = planned_trials(stage, options)
        programs: list[Program] = []
        if stage.study.tuned is not None:
            programs = _plan_tuning(stage, trials)
            notes.append("fields that are tuned have their values from before the tuning here")
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


def _plan_tuning(stage: Stage, trials: Sequence[Trial]) -> list[Program]:
    """Print the plan of the tuning of a study; return the programs of its trials, each measured once for both."""
    from transformer_jax.sweeps.dry_run import print_plan, programs_of
    from transformer_jax.sweeps.search.search import Space
    from transformer_jax.sweeps.search.tuning import TuningGrid

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
    notes = [
        *search.notes,
        f"each extension of the grid adds {step} trials",
        "these trials are the tuning; the next table has those of the study",
    ]
    print_plan(first, parts[0], notes)
    return parts[1]


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
