"""One training run, started or resumed, from a config to a trained checkpoint."""

from __future__ import annotations

from pathlib import Path

from transformer_jax.checkpoints.workdir import open_workdir
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import TrainingError
from transformer_jax.parallel.processes import is_primary, primary_first
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.best_so_far import BestSoFar
from transformer_jax.training.describe import say_once
from transformer_jax.training.loop import Trained, TrainResult, run_loop
from transformer_jax.training.metric_log import MetricLog, NoLog, catch_up
from transformer_jax.training.progress import Progress
from transformer_jax.training.resume import check_not_converted
from transformer_jax.training.session import TrainingSession
from transformer_jax.training.set_up import MakeValidate, SetUp, claim, set_up
from transformer_jax.training.stepper import SingleStepper


def train(
    config: ExperimentConfig,
    workdir: Path,
    make_validate: MakeValidate,
    *,
    allow_config_change: bool = False,
) -> TrainResult:
    """Train in a work directory, from its newest good checkpoint if there is one.

    Args:
      config: resolved.
      workdir: created if missing; holds config.json, tokenizer.model, metrics.jsonl, tensorboard/ and checkpoints/.
      make_validate: returns the function that scores parameters on the validation split; raises errors of that function
        early.
      allow_config_change: resume in a work directory where another config was used.
    Raises:
      ConfigError: the work directory was used with another config; the config asks for more devices than JAX sees; the
        corpus cannot fill the vocabulary.
      DataError: the corpus cannot be read.
      CheckpointError: checkpoints cannot be read or written; the corpus has changed since the last one; the checkpoint
        of `training.init_from` does not fit.
      TrainingError: the loss is no longer finite; the batch is in WORKDIR/nonfinite/step_STEP.npz.
    """
    with primary_first("opening the work directory"):
        check_not_converted(workdir)  # before its config, which always differs
        opened = open_workdir(workdir, config.to_dict(), allow_config_change, lock=is_primary())
    with opened as directory:
        prepared = set_up(config, directory, make_validate)
        parts, record, step = prepared.parts, prepared.record, int(prepared.state.step)
        if why := _nothing_to_do(prepared, step):
            say_once(f"{directory.path}: nothing to do, {why}")
            if is_primary():
                catch_up(config, directory.path, step)
            return TrainResult(step, "finished", record["metrics"], Trained(prepared.state.evaluated, parts.data))
        claim(directory, record, step)
        with MetricLog(config, directory.path, step) if is_primary() else NoLog() as log, parts.store:
            unit = TASKS[config.task.name].unit
            progress = Progress(step, parts.config.num_train_steps, unit, is_primary())
            session = TrainingSession(parts, log, progress, record)
            stepper = SingleStepper(prepared.launcher, prepared.state, prepared.hyper, prepared.monitoring)
            [outcome] = run_loop([session], stepper, step, progress)
            if isinstance(outcome, TrainingError):
                raise outcome
            return outcome


def _nothing_to_do(prepared: SetUp, step: int) -> str:
    """Return the reason why a run has ended already; empty if it has not."""
    training = prepared.parts.config
    if step >= training.num_train_steps:
        return f"{step} of {training.num_train_steps} steps are done"
    best_so_far = BestSoFar.of(prepared.record, training, prepared.parts.higher_is_better)
    why = best_so_far.out_of_patience
    return f"{why} up to step {step}" if why else ""
