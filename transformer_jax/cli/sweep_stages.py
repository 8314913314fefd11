"""The stages that `sweep` runs, which are a study, its pretraining and its tuning: from the flags to their trials."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from transformer_jax.cli.arguments import PRETRAINING, Arguments
from transformer_jax.data.sources import load_source
from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.sweeps.axis_defaults import notes_on_axes
from transformer_jax.sweeps.equal_notes import notes_on_equal
from transformer_jax.sweeps.executors import make_executor
from transformer_jax.sweeps.executors.executor import Options
from transformer_jax.sweeps.executors.ray import RayOptions
from transformer_jax.sweeps.executors.slurm import SlurmOptions, parse_more
from transformer_jax.sweeps.precision import parse_precision, with_pilot
from transformer_jax.sweeps.rebased_study import read_baseline, with_baseline
from transformer_jax.sweeps.results import Given, check_seeds, check_trials, check_tuned, claim_sweep
from transformer_jax.sweeps.search.random import random_search
from transformer_jax.sweeps.search.search import Search, SearchOptions, Space, check_options
from transformer_jax.sweeps.study import Study, load_study
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.sweep_table import SweepTable
from transformer_jax.sweeps.trial_state import Standing
from transformer_jax.sweeps.trials import PRETRAINING as FIRST
from transformer_jax.sweeps.trials import Trial, grid, with_chosen
from transformer_jax.tasks.task import TASKS


class Stage(NamedTuple):
    """A study, its pretraining or its tuning.

    study: with the directions of its metrics. notes: on what its baseline lacks, and on derived defaults that its axes
    move. overrides: of config fields by name.
    """

    study: Study
    notes: list[str]
    overrides: Mapping[str, Any]
    is_pretraining: bool
    is_tuning: bool = False


def stages_of(arguments: Arguments, folder: Path, defaults: Mapping[str, Any]) -> list[Stage]:
    """Return the stages of a study in their order: its pretraining if it has one, and itself.

    Args:
      defaults: overrides of both that the command line may replace.
    Raises: ConfigError for overrides of a pretraining that the study does not have, and for flags that it cannot have.
    """
    given, prefix = arguments.overrides, f"{PRETRAINING}."
    own = {**defaults, **{name: value for name, value in given.items() if not name.startswith(prefix)}}
    of_first = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    study, notes, spec = load_study(folder), [], arguments.flags.config
    if study.pretraining is None and of_first:
        raise ConfigError(f"--{prefix}{next(iter(of_first))}: the study has no pretraining; leave it out")
    if spec:
        config = read_baseline(spec, own)
        study, notes = with_baseline(study, spec, config, load_source(config.data).split_names)
    if study.tuned is not None and (search := arguments.flags.search) != "grid":
        raise ConfigError(f"--search={search}: a study that is tuned needs --search=grid")
    study = _with_precision(study, arguments.flags)
    stages = [Stage(study, notes, own, False)]
    if study.pretraining is not None:
        stages.insert(0, Stage(study.pretraining, [], {**defaults, **of_first}, True))
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
    if values.until is not None:
        study = dataclasses.replace(
            study, precision=parse_precision(values.until), max_seeds=values.max_seeds or study.max_seeds
        )
    elif values.max_seeds is not None:
        if not study.precision:
            raise ConfigError("--max_seeds: the study lists its seeds; it is for --until or a study with a precision")
        study = dataclasses.replace(study, max_seeds=values.max_seeds)
    return with_pilot(study)


def checked_search_options(values: flags.FlagValues) -> SearchOptions:
    """Return the options of the search; raise ConfigError for those that cannot be, or not with --until."""
    options = search_options(values)
    check_options(options)
    if values.until is not None and options.name != "grid":
        raise ConfigError(f"--until: needs --search=grid, not {options.name}")
    return options


def search_options(values: flags.FlagValues) -> SearchOptions:
    return SearchOptions(values.search, values.num_trials, values.search_seed, values.pruner)


def given_by(arguments: Arguments) -> Given:
    values, prefix = arguments.flags, f"{PRETRAINING}."
    overrides = [
        f"--{'' if name.startswith(prefix) else 'config.'}{name}={value}" for name, value in arguments.overrides.items()
    ]
    return Given(values.study, values.workdir, values.config, overrides)


def place_of(stage: Stage, workdir: Path) -> Path:
    """Return the work directory of a stage."""
    return workdir / FIRST if stage.is_pretraining else workdir


def planned_trials(stage: Stage, options: SearchOptions) -> tuple[list[Trial], list[str]]:
    """Return the trials of a stage as far as they are known before any has ended, and notes on them."""
    if options.name == "grid" or stage.is_pretraining:
        found = grid(stage.study, stage.overrides)
        return found.trials, [f"{name} is the same experiment as {other}" for name, other in found.same.items()]
    search = random_search(Space(stage.study, stage.overrides), options.num_trials or 1, options.seed)
    return search.next([]), list(search.notes)


def claim(
    values: flags.FlagValues,
    stage: Stage,
    folder: Path,
    workdir: Path,
    given: Given,
    asked_before: Sequence[Mapping[str, Any] | None] = (),
) -> None:
    """Make the work directory of a stage; raise ConfigError if it is of another study.

    Args:
      asked_before: as in `claim_sweep`.
    """
    if stage.study.precision:
        check_seeds(workdir, stage.study.max_seeds)
    check_tuned(workdir, stage.study)
    other = stage.study.baseline if values.config and not stage.is_pretraining else None
    declaration = declaration_of(stage.study)
    claim_sweep(workdir, folder, declaration, other, stage.is_pretraining, given, stage.is_tuning, asked_before)
    if not stage.is_tuning:  # the axis of factors grows while it runs
        check_trials(workdir, stage.study, folder)


def run_trials(
    values: flags.FlagValues, stage: Stage, folder: Path, workdir: Path, make_search: Callable[[int], Search]
) -> tuple[list[Standing], int]:
    """Run or resume the trials of a search; return their standings, and the signal that has stopped them, or 0.

    Args:
      folder: of the study. workdir: of the stage.
      make_search: is called with the number of trials that run at once.
    """
    measuring = folder if stage.study.measure else None
    executor = _executor(values, workdir, measuring)
    search = make_search(executor.num_workers)
    with SweepTable([*stage.notes, *search.notes]) as table:
        sweep = Sweep(search, stage.study.metrics, workdir, executor, measuring, bool(stage.study.contrasts))
        complete = sweep.run(table.show)
    if outcome := getattr(search, "outcome", ""):
        print(outcome, file=sys.stderr)
    return sweep.standings, 0 if complete else sweep.stopped_by


def say_failed(standings: Sequence[Standing]) -> int:
    """Print the trials that could not be run; return the exit code if there are any, else 0."""
    failed = [standing for standing in standings if standing.status == "failed"]
    if not failed:
        return exit_codes.OK
    listing = "\n".join(f"  - {standing.trial.name}: {standing.why}" for standing in failed)
    print(f"{len(failed)} of {len(standings)} trials could not be run:\n{listing}", file=sys.stderr)
    return exit_codes.SOME_FAILED


def _executor(values: flags.FlagValues, workdir: Path, study: Path | None) -> Any:
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
