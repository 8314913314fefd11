"""One process of a sweep: trains and scores the trials in the given folders, and writes their results.

    python -P -m transformer_jax.sweeps.worker TRIAL_FOLDER ... [--trial_axis=vmap|map] [--study=FOLDER] [--trust=A,B]

Several trials train as one compiled program. Exit codes are those of `transformer-jax`. A trial whose loss becomes NaN
or infinite gets a result like any other; it is not an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax import metrics_file
from transformer_jax.config import ExperimentConfig, walk
from transformer_jax.errors import ConfigError, DataError, TrainingError, UserError
from transformer_jax.host import exit_codes
from transformer_jax.host.machine import processor
from transformer_jax.host.versions import library_versions
from transformer_jax.sweeps.results import (
    RESULT,
    SPEC,
    Result,
    Spec,
    failure,
    held,
    pruned_because,
    read_spec,
    result_of,
)
from transformer_jax.sweeps.results_folder import corpus_of_run
from transformer_jax.sweeps.steps_to import target_of
from transformer_jax.sweeps.study import FILE, load_study
from transformer_jax.sweeps.trial_examples import write_examples
from transformer_jax.sweeps.trials import Trial, starting_from
from transformer_jax.tasks.task import TASKS, declared
from transformer_jax.trust import command, trust_modules

if TYPE_CHECKING:  # imports JAX
    from transformer_jax.evaluation.scoring import Scorer
    from transformer_jax.training.loop import TrainResult

_OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # in the text of XLA's error


def run_trials(folders: Sequence[Path], axis: str | None = None, study: Path | None = None) -> int:
    """Train and score the trials, write result.json into every folder, and return the exit code.

    Args:
      study: the folder of the study whose `measure` may be called.
    """
    specs = {folder: read_spec(folder) for folder in folders}
    for folder, spec in specs.items():
        if spec.study is not None and (study is None or Path(spec.study) != study.absolute()):
            raise ConfigError(
                f"{folder / SPEC} names the study {spec.study}, whose code measures the trial. It is not run. If you "
                f"trust it, pass --study={spec.study}"
            )
    for folder in folders:
        if (why := pruned_because(folder)) is not None:
            _finish(folder, specs.pop(folder), None, why)
    own = {folder: run_config(folder, spec.trial) for folder, spec in specs.items() if spec.trial.trained_by is None}
    outcomes = _train(own, axis)
    for folder, spec in specs.items():
        try:
            if folder not in own:
                _finish_trained(folder, spec, folder.parent / str(spec.trial.trained_by))
            elif folder in outcomes:  # absent if a signal arrived before it started
                outcome, why = outcomes[folder], None
                reason = getattr(outcome, "reason", "finished")
                if reason != "finished" and (why := pruned_because(folder)) is None:
                    return exit_codes.OF_REASON[reason]
                if isinstance(outcome, UserError) and not isinstance(outcome, TrainingError):
                    raise outcome
                _finish(folder, spec, outcome, why)
        except UserError as error:  # concerns this trial only: the others continue
            print(f"error: {folder}: {error}", file=sys.stderr)
            failure(spec.trial, str(error)).write(folder)
    return exit_codes.OK


def run_config(folder: Path, trial: Trial) -> ExperimentConfig:
    """Return the config of a trial's run, with the path of the checkpoint that it starts from."""
    if trial.starts_from is None:
        return trial.config
    return starting_from(trial.config, str(folder.parent.parent / trial.starts_from))


def _train(configs: Mapping[Path, ExperimentConfig], axis: str | None) -> dict[Path, TrainResult | UserError]:
    """Train in each of the folders: as one program, or one by one if training together fails."""
    from transformer_jax.evaluation.evaluator import make_validate
    from transformer_jax.sweeps.vmap_training import default_trial_axis, train_together
    from transformer_jax.training.run import train

    outcomes: dict[Path, TrainResult | UserError] = {}
    if len(configs) > 1:
        together: Any = train_together
        try:
            return together(configs, make_validate, axis or default_trial_axis())
        except Exception as error:
            if not (isinstance(error, UserError) or _OUT_OF_MEMORY in str(error)):
                raise
            said = str(error) if isinstance(error, UserError) else "out of memory; use a smaller --max_together=N"
            print(f"the trials cannot train together: {said}; training them one by one", file=sys.stderr)
    for folder, config in configs.items():
        try:
            result = train(config, folder, make_validate)
            # After a failure together, the parameters of all trials at once may not fit into memory.
            outcomes[folder] = result if len(configs) == 1 else dataclasses.replace(result, trained=None)
        except UserError as error:
            outcomes[folder] = error
        except Exception as error:
            if _OUT_OF_MEMORY not in str(error):
                raise
            outcomes[folder] = ConfigError(
                "out of memory; use a smaller data.tokens_per_batch or model, or set model.remat"
            )
        if getattr(outcomes[folder], "reason", "finished") != "finished":
            break
    return outcomes


def _finish(folder: Path, spec: Spec, outcome: TrainResult | UserError | None, pruned: str | None) -> None:
    """Score a trained trial and write its result; `pruned`: why it was pruned, and so is not scored, or None."""
    import jax

    from transformer_jax.data.sources import load_source
    from transformer_jax.tasks.task import param_shapes

    result = None if isinstance(outcome, UserError) else outcome
    diverged = isinstance(outcome, TrainingError)
    scored = not diverged and pruned is None
    log = folder / metrics_file.NAME
    lines = metrics_file.read_lines(log)
    is_accelerated = jax.default_backend() != "cpu"
    shapes = param_shapes(spec.trial.config)
    Result(
        labels=dict(spec.trial.labels),
        seed=spec.trial.seed,
        status="diverged" if diverged else "finished" if pruned is None else "pruned",
        why=str(outcome) if diverged else pruned or "",
        metrics=_numbers(folder, spec, folder, result) if scored else {},
        steps=max((line["step"] for line in lines), default=0),
        seconds=math.fsum(line.get("seconds", 0.0) for line in lines if line["split"] == "train"),
        parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes)),
        machine=f"{jax.device_count()} x {jax.devices()[0].device_kind}" if is_accelerated else processor(),
        versions=library_versions(),
        log_sha256=metrics_file.digest(log),
        corpus=corpus_of_run(folder) or load_source(spec.trial.config.data).fingerprint()["sha256"],
    ).write(folder)


def _finish_trained(folder: Path, spec: Spec, trained: Path) -> None:
    """Score the parameters that another trial has trained, with the decoding and evaluation of this one."""
    result = result_of(read_spec(trained).trial, trained)
    if result is None:
        raise DataError(f"{trained}: has no result yet; {folder} needs its checkpoint")
    if result.status == "finished":
        result = dataclasses.replace(result, metrics=_numbers(folder, spec, trained, None), seconds=0.0)
    dataclasses.replace(result, labels=dict(spec.trial.labels)).write(folder)


def _numbers(folder: Path, spec: Spec, trained: Path, outcome: TrainResult | None) -> dict[str, int | float]:
    """Return all numbers of a trial by SPLIT/METRIC: training log, splits of the metrics, the study's own measurements.

    Args:
      trained: the folder of the trial that has trained the parameters; outcome: of this training, if it was here.
    Raises: DataError if a metric of the study is not among them.
    """
    from transformer_jax.evaluation.table import print_table
    from transformer_jax.trackers.results import track_scores

    log = metrics_file.read_lines(trained / metrics_file.NAME)
    lines = [line for line in log if line["split"] == "train"]
    last = lines[-1] if lines else {}
    numbers: dict[str, Any] = {
        f"train/{name}": value for name, value in last.items() if name not in metrics_file.CLOCK_FIELDS
    }
    scorer = _scorer(folder, spec.trial, trained, outcome)
    known = set(scorer.evaluator.data.source.split_names) - {"train"}
    splits = dict.fromkeys(metric.name.rpartition("/")[0] for metric in spec.metrics)
    scores = {split: scorer.score(split) for split in splits if split in known}
    if scores:
        print_table(scores, scorer.evaluator.task.metrics)
        track_scores(spec.trial.config, folder, scorer.loaded.steps[-1], scores)
    if spec.examples:
        write_examples(folder, scorer, spec.metrics, scores)
    numbers |= {f"{split}/{name}": value for split, metrics in scores.items() for name, value in metrics.items()}
    if spec.study is not None:
        numbers |= _measured(Path(spec.study), scorer)
    numbers = {
        name: value
        for name, value in numbers.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and not name.endswith("/step")
    }
    if missing := [name for name, value in numbers.items() if not math.isfinite(value)]:
        print(f"warning: {folder}: not finite, and so unknown: {', '.join(missing)}", file=sys.stderr)
    for metric in spec.metrics:
        if (target := target_of(metric.name)) is not None:
            direction = declared(TASKS[spec.trial.config.task.name], target.quantity).direction
            numbers[metric.name] = target.cost_of(log, direction)
    for metric in spec.metrics:
        if metric.name not in numbers:
            split = metric.name.rpartition("/")[0] + "/"
            there = ", ".join(sorted(name for name in numbers if name.startswith(split))) or "none of that split"
            raise DataError(f"{folder}: no metric '{metric.name}'; there are {there}")
    return numbers


def _measured(study: Path, scorer: Scorer) -> Mapping[str, int | float]:
    """Return the numbers of the study's `measure` function; raise DataError if it raises."""
    measure = load_study(study).measure
    if measure is None:
        return {}
    try:
        return measure(scorer)
    except UserError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise DataError(f"{study / FILE}: measure raised {type(error).__name__}: {error}") from error


def _scorer(folder: Path, trial: Trial, trained: Path, outcome: TrainResult | None) -> Scorer:
    """Return a scorer of the trained parameters that decodes as the trial says and writes into its folder.

    The parameters come from `outcome` if it has them and no average of checkpoints is scored, else from the checkpoint.
    """
    from transformer_jax.evaluation.scoring import Scorer

    if outcome is not None and outcome.trained is not None and trial.config.evaluation.average_checkpoints == 1:
        return Scorer.of_training(run_config(folder, trial), *outcome.trained, outcome.step, folder)
    fields = {name: value for name, _, value in walk(trial.config)}
    overrides = {
        name: fields[name]
        for name, _, value in walk(read_spec(trained).trial.config)
        if fields[name] != value and name.startswith(("decode.", "evaluation."))
    }
    return dataclasses.replace(Scorer.from_checkpoint(trained, overrides), folder=folder / "evaluation")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--trial_axis", choices=("vmap", "map"))
    parser.add_argument("--study", type=Path, help="folder of the study whose `measure` may be called")
    parser.add_argument("--trust", action="append", default=[], help="modules that trial.json may name")
    arguments = parser.parse_args(argv)
    try:
        with command(), held(arguments.folders) as free:
            trust_modules(arguments.trust, "--trust")
            if not free:
                print("another process is running these trials", file=sys.stderr)
                return exit_codes.IN_USE
            todo = [folder for folder in arguments.folders if not (folder / RESULT).exists()]
            return run_trials(todo, arguments.trial_axis, arguments.study) if todo else exit_codes.OK
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return exit_codes.USER_ERROR
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    from transformer_jax.host.compilation_cache import use_compilation_cache
    from transformer_jax.host.huge_pages import restart_with_huge_pages

    restart_with_huge_pages()
    use_compilation_cache()
    sys.exit(main())
