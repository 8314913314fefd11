"""Several runs as one compiled program: the training step over a leading axis of trials.

Every run has its own work directory, and in it what it would have alone: data order, schedule, dropout, metrics and
checkpoints. It may be resumed alone, or with others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.checkpoints.workdir import WorkDirectory, open_workdir
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import CheckpointError, TrainingError
from transformer_jax.kill_points import kill_point
from transformer_jax.training.course import Course
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.interruption import Interruption
from transformer_jax.training.loop import TrainResult
from transformer_jax.training.metric_log import MetricLog, Progress
from transformer_jax.training.run import (
    MakeValidate,
    check_attention,
    make_run,
    open_data,
    open_files,
    open_store,
    restore,
)
from transformer_jax.training.state import TrainState, placed_state, state_template
from transformer_jax.training.step import TrainStep, make_train_step

TrialAxis = Literal["vmap", "map"]
Outcome = TrainResult | TrainingError


def default_trial_axis() -> TrialAxis:
    """`map` on a CPU, whose cores one trial fills; `vmap` on an accelerator, which many small trials fill together."""
    return "map" if jax.default_backend() == "cpu" else "vmap"


def over_trials(step: TrainStep, axis: TrialAxis) -> Callable[[TrainState, Batch, Hyper], tuple[TrainState, Any]]:
    """The training step over a leading axis of state, batch and hyperparameters, compiled; the state is donated."""

    def together(state: TrainState, batch: Any, hyper: Hyper) -> tuple[TrainState, Any]:
        if axis == "vmap":
            return jax.vmap(lambda s, b, h: step(s, b, h))(state, batch, hyper)
        return jax.lax.map(lambda trial: step(*trial), (state, batch, hyper))

    return jax.jit(together, donate_argnums=0)


@dataclasses.dataclass
class _Member:
    """One of the runs; `outcome` once it has ended."""

    config: ExperimentConfig
    directory: WorkDirectory
    store: CheckpointStore
    hyper: Hyper
    state: TrainState | None
    record: dict[str, Any]
    tokenizer: Tokenizer | None
    course: Course | None = None
    outcome: Outcome | None = None

    @property
    def step(self) -> int:
        return 0 if self.state is None else int(self.state.step)


def train_together(
    configs: Mapping[Path, ExperimentConfig], make_validate: MakeValidate, axis: TrialAxis
) -> dict[Path, Outcome]:
    """Trains runs of one program, each in its work directory, from its newest good checkpoint if it has one.

    Runs that stand at different steps, because the process died between two checkpoints, train in groups of equal step.

    Args:
      configs: by work directory; equal but for hyperparameters, see `trials.program_key`.
    Returns: of every run its result, or the error that it has not stayed finite; not of those that a signal has kept
      from starting.
    Raises: ConfigError, DataError and CheckpointError as `training.run.train`.
    """
    outcomes: dict[Path, Outcome] = {}
    with contextlib.ExitStack() as opened:
        members = {path: _open(config, path, opened) for path, config in configs.items()}
        by_step = sorted(members.items(), key=lambda item: item[1].step)
        for _, group in itertools.groupby(by_step, key=lambda item: item[1].step):
            together = dict(group)
            _train(list(together.values()), make_validate, axis, opened)
            for path, member in together.items():
                assert member.outcome is not None
                outcomes[path] = member.outcome
            if any(isinstance(o, TrainResult) and o.reason != "finished" for o in outcomes.values()):
                break
    return outcomes


def _open(config: ExperimentConfig, path: Path, opened: contextlib.ExitStack) -> _Member:
    check_attention(config)
    directory = opened.enter_context(open_workdir(path, config.to_dict(), False))
    store = opened.enter_context(open_store(config, directory))
    static, hyper = split(config)
    member = _Member(config, directory, store, hyper, None, {}, None)
    if store.steps():
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        member.state, member.record, member.tokenizer = restore(
            config, directory, store, state_template(static, hyper, device), None
        )
    return member


def _train(
    members: Sequence[_Member], make_validate: MakeValidate, axis: TrialAxis, opened: contextlib.ExitStack
) -> None:
    """Trains runs that stand at the same step until each has an outcome."""
    first = members[0]
    data = open_data(first.config, first.directory, first.record, first.tokenizer)
    for member in members:
        if member.tokenizer is not None and member.tokenizer.sha256 != data.tokenizer.sha256:
            raise CheckpointError(f"{member.directory.path}: has another tokenizer than {first.directory.path}")
    static, step, total = split(first.config)[0], first.step, first.config.training.num_train_steps
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    progress = opened.enter_context(Progress(step, total))
    for member in members:
        if member.state is None:
            member.state = placed_state(static, member.hyper, device)
        open_files(member.directory, member.record)
        log = opened.enter_context(MetricLog(member.directory.path, step))
        run = make_run(member.config, member.directory, member.store, data, make_validate)
        member.course = Course(run, log, Progress(step, total, shown=False), member.record)
    _Group(list(members), over_trials(make_train_step(static), axis), progress).train(step)


class _Group:
    """Runs on their way together."""

    def __init__(self, members: list[_Member], step: Callable[..., Any], progress: Progress) -> None:
        self._members, self._step, self._progress = members, step, progress
        self._courses = {number: member.course for number, member in enumerate(members) if member.course is not None}
        self._state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(member.state for member in members))
        self._hyper = stacked([member.hyper for member in members])
        for member in members:
            member.state = None  # it is in the group's

    def train(self, step: int) -> None:
        self._end_those_who_are_over(step)
        for course in self._courses.values():
            course.begin()
        pending: list[tuple[int, list[Batch], Any]] = []
        stopped_by = None
        with Interruption() as interruption:
            while self._courses and stopped_by is None:
                batches = [course.run.plan.batch(step, _all_rows(course, step)) for course in self._all()]
                self._state, metrics = self._step(self._state, stacked(batches), self._hyper)
                step += 1
                pending.append((step, batches, metrics))
                self._take(pending, leave=1)
                kill_point("after_batch", step)
                stopped_by = interruption.stops_after(step)
                # Runs of one program agree in what is due when.
                due = [c for c in self._courses.values() if c.logs(step) or c.validates(step) or c.saves(step)]
                if due or stopped_by is not None:
                    self._take(pending, leave=0)
                    self._do_what_is_due(step, stopped_by is not None)
                self._end_those_who_are_over(step)
        for number, course in self._courses.items():
            course.run.store.wait()
            self._members[number].outcome = TrainResult(step, str(stopped_by), course.standing.metrics)
        if self._courses:
            self._progress.say(
                f"{stopped_by}: the checkpoints of step {step} are saved; the same command goes on from them"
            )

    def _all(self) -> list[Course]:
        return [member.course for member in self._members if member.course is not None]

    def _take(self, pending: list[tuple[int, list[Batch], Any]], leave: int) -> None:
        """Hands the metrics of steps to the runs; one that does not stay finite ends, and the others go on."""
        while len(pending) > leave:
            step, batches, metrics = pending.pop(0)
            metrics = jax.device_get(metrics)
            for number, course in list(self._courses.items()):
                try:
                    course.taken(step, batches[number], {name: values[number] for name, values in metrics.items()})
                except TrainingError as error:
                    self._end(number, error)

    def _do_what_is_due(self, step: int, stopping: bool) -> None:
        for course in self._courses.values():
            course.shared_by = len(self._courses)
        logging_courses = [course for course in self._courses.values() if course.logs(step)]
        if losses := [course.log(step) for course in logging_courses]:
            speeds = [course.tokens_per_s or 0.0 for course in logging_courses]
            self._progress.line(step, float(np.mean(losses)), float(np.mean(speeds)))
        with contextlib.ExitStack() as opened:
            for course in self._courses.values():
                opened.enter_context(course.paused())
            for number, course in self._courses.items():
                self._validate_and_save(number, course, step, stopping)

    def _validate_and_save(self, number: int, course: Course, step: int, stopping: bool) -> None:
        saves, state = course.saves(step) or stopping, None
        if course.validates(step):
            state = _of_trial(self._state, number)
            course.validate(step, state.params)
            saves = saves or course.is_over(step)
        if saves:
            course.save(step, _of_trial(self._state, number) if state is None else state)

    def _end_those_who_are_over(self, step: int) -> None:
        for number, course in list(self._courses.items()):
            if course.is_over(step):
                course.run.store.wait()
                self._end(number, TrainResult(step, "finished", course.standing.metrics))

    def _end(self, number: int, outcome: Outcome) -> None:
        self._members[number].outcome = outcome
        del self._courses[number]


@jax.jit
def _of_trial(state: Any, number: Any) -> Any:
    """The state of one trial of many, of whose leaves each has a leading axis of trials."""
    return jax.tree.map(lambda leaf: leaf[number], state)


def stacked(trees: Sequence[Any]) -> Any:
    """Trees of arrays or Python numbers as one, whose leaves have a leading axis; numbers become 32 bits wide."""
    return jax.tree.map(lambda *leaves: np.stack([_typed(leaf) for leaf in leaves]), *trees)


def _typed(leaf: Any) -> np.ndarray:
    if isinstance(leaf, int | float):
        return np.asarray(leaf, np.int32 if isinstance(leaf, int) else np.float32)
    return np.asarray(leaf)


def _all_rows(course: Course, step: int) -> slice:
    return slice(0, course.run.plan.shape(step).rows)
