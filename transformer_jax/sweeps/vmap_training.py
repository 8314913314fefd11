"""Several runs as one compiled program: the training step over a leading axis of trials.

Every run has its own work directory and the same data order, schedule, dropout, metrics and checkpoints as if it ran
alone. It may be resumed alone or with others.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory, open_workdir
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import CheckpointError
from transformer_jax.tasks.outside_errors import errors_from_outside
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.hyper import SplitConfig, split
from transformer_jax.training.implementations import check_implementations, check_step
from transformer_jax.training.long_texts import check_long_texts
from transformer_jax.training.loop import Outcome, TrainResult, run_loop
from transformer_jax.training.metric_log import MetricLog, ending_of
from transformer_jax.training.progress import Progress
from transformer_jax.training.session import TrainingSession
from transformer_jax.training.set_up import (
    MakeValidate,
    claim,
    find_start,
    make_parts,
    open_data,
    open_store,
)
from transformer_jax.training.start import Start
from transformer_jax.training.state import state_template
from transformer_jax.training.step import make_train_step, monitored
from transformer_jax.training.stepper import StackedStepper, TrialAxis, over_trials


def default_trial_axis() -> TrialAxis:
    """Return `map` on a CPU, which one trial keeps busy, else `vmap`: an accelerator needs several small trials."""
    return "map" if jax.default_backend() == "cpu" else "vmap"


@dataclasses.dataclass(frozen=True)
class _Member:
    """One of the runs that train together."""

    config: ExperimentConfig
    split: SplitConfig
    directory: WorkDirectory
    store: CheckpointStore
    start: Start


def train_together(
    configs: Mapping[Path, ExperimentConfig], make_validate: MakeValidate, axis: TrialAxis
) -> dict[Path, Outcome]:
    """Train runs as one program, each in its work directory, from its newest valid checkpoint if it has one.

    Runs are at different steps if the process died between two checkpoints. Runs at the same step train as one group.

    Args:
      configs: by work directory; equal except for hyperparameters, see `trials.program_key`.
    Returns: for every run its result, or the error that its loss became NaN or infinite. Runs that did not start
      because of a signal are left out.
    Raises: ConfigError, DataError and CheckpointError as `training.run.train`.
    """
    outcomes: dict[Path, Outcome] = {}
    with contextlib.ExitStack() as opened:
        members = {path: _open(config, path, axis, opened) for path, config in configs.items()}
        while members:
            step = min(member.start.step for member in members.values())
            paths = [path for path, member in members.items() if member.start.step == step]
            # Popped, so that no reference here keeps the states of a group in memory.
            group = _train([members.pop(path) for path in paths], make_validate, axis, opened)
            outcomes |= zip(paths, group, strict=True)
            if any(isinstance(outcome, TrainResult) and outcome.reason != "finished" for outcome in group):
                break
    return outcomes


def _open(config: ExperimentConfig, path: Path, axis: TrialAxis, opened: contextlib.ExitStack) -> _Member:
    with errors_from_outside(config):
        check_implementations(config, axis)
        directory = opened.enter_context(open_workdir(path, config.to_dict(), False))
        store = opened.enter_context(open_store(config, directory))
        parts = split(config)
        start = find_start(config, directory, store, state_template(*parts, _device()))
        return _Member(config, parts, directory, store, start)


def _train(
    members: Sequence[_Member], make_validate: MakeValidate, axis: TrialAxis, opened: contextlib.ExitStack
) -> list[Outcome]:
    """Train runs that are at the same step until each has an outcome."""
    first = members[0]
    with errors_from_outside(first.config):
        data = open_data(first.config, first.directory, first.start)
        for member in members:
            tokenizer = member.start.tokenizer
            if tokenizer is not None and tokenizer.sha256 != data.tokenizer.sha256:
                raise CheckpointError(f"{member.directory.path}: has another tokenizer than {first.directory.path}")
            member.start.check_labels(data.labels)
        parts = [make_parts(m.config, m.directory, m.store, data, make_validate) for m in members]
        if not first.start.record:
            check_long_texts(first.config, parts[0].plan)
        check_step(first.config, first.split, parts[0].plan)
    step, total = first.start.step, first.config.training.num_train_steps
    unit = TASKS[first.config.task.name].unit
    sessions, logs = [], []
    for member, of_member in zip(members, parts, strict=True):
        claim(member.directory, member.start.record, step)
        log = opened.enter_context(MetricLog(member.config, member.directory.path, step))
        logs.append(log)
        sessions.append(TrainingSession(of_member, log, Progress(step, total, unit, shown=False), member.start.record))
    stepper = _stepper(members, axis)
    del members, first, member
    try:
        return run_loop(sessions, stepper, step, Progress(step, total, unit))
    except BaseException as error:
        for log in logs:  # all before the first is waited for
            log.finish(ending_of(error))
        raise


def _stepper(members: Sequence[_Member], axis: TrialAxis) -> StackedStepper:
    states = [member.start.first_state(*member.split, _device()) for member in members]
    statics, hypers = zip(*(member.split for member in members), strict=True)
    monitoring = None
    if members[0].config.training.monitor_every_steps:
        monitoring = over_trials(make_train_step(monitored(statics[0])), axis)
    return StackedStepper(over_trials(make_train_step(statics[0]), axis), states, hypers, monitoring)


def _device() -> jax.sharding.SingleDeviceSharding:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])
