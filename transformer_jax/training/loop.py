"""The training loop: steps until the end or a signal, for one run or for several runs that share a step."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.data.batching import Batch, BatchShape
from transformer_jax.data.datasets import Data
from transformer_jax.errors import TrainingError
from transformer_jax.host.kill_points import kill_point
from transformer_jax.trackers.tracker import Ending
from transformer_jax.training.interruption import Interruption
from transformer_jax.training.metric_window import InFlight
from transformer_jax.training.monitor import is_monitored
from transformer_jax.training.progress import Progress
from transformer_jax.training.session import TrainingSession
from transformer_jax.training.stepper import Stepper
from transformer_jax.typing import Params


class Trained(NamedTuple):
    """The parameters of a run after its last update, as passes outside of training read them, and its corpus."""

    params: Params
    data: Data


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Result of a run.

    step: number of updates made. reason: "finished" or the name of the signal. metrics: of the last validation.
    trained: what was trained; None if it was not kept.
    """

    step: int
    reason: str
    metrics: dict[str, float]
    trained: Trained | None = dataclasses.field(default=None, compare=False, repr=False)


Outcome = TrainResult | TrainingError


def run_loop(sessions: Sequence[TrainingSession], stepper: Stepper, step: int, progress: Progress) -> list[Outcome]:
    """Train a group of runs from `step` until each ends: at its last step, by its patience, or by a signal.

    Args:
      sessions: one per run; all runs log, validate and save at the same steps. An ordinary run is a group of one.
      stepper: holds the states of the runs, in the same order.
      progress: shows the progress of the group.
    Returns: the result of every session, or the error that ended it: loss or gradient is not finite, and its config
      says to stop (`on_nonfinite` or `max_skipped_updates`). Its last checkpoint is older than that step. The other
      runs continue.
    Raises:
      CheckpointError: a checkpoint or the log could not be written.
    """
    group, stopped_by = _Group(sessions, stepper), None
    in_flight = InFlight(group.record_metrics)
    with progress, Interruption() as interruption:
        group.start(step)
        while group.active and stopped_by is None:
            batches = group.batches(step)
            monitored = group.monitors(step + 1)
            with progress.training(step + 1, *group.shape(step, monitored)):
                metrics = stepper.step(batches, monitored)
            step += 1
            in_flight.push(step, batches, metrics)
            kill_point("after_batch", step)
            group.show(step, progress)
            if group.logs(step) or group.validates(step):
                in_flight.drain()
            if group.logs(step):
                group.log(step, progress)
            if group.validates(step):
                with progress.paused("validating"):
                    group.validate(step)
            stopped_by = interruption.stops_after(step)
            if group.saves(step) or stopped_by is not None:
                in_flight.drain()  # records the last steps; their time counts as training
                with progress.paused("saving a checkpoint"):
                    group.save(step, everyone=stopped_by is not None)
            group.end_those_that_are_over(step)
        if group.active:
            group.end_all(step, str(stopped_by))
            one = len(sessions) == 1
            progress.say(
                f"{stopped_by}: the checkpoint{'' if one else 's'} of step {step} {'is' if one else 'are'} saved; "
                f"the same command resumes from {'it' if one else 'them'}"
            )
    return group.outcomes


class MonitoredShape(NamedTuple):
    """The shape of a batch of a monitored step, which has a program of its own."""

    shape: BatchShape

    def __str__(self) -> str:
        return f"{self.shape}, monitored"


class _Group:
    """Runs that train together, and the results of those that have ended."""

    def __init__(self, sessions: Sequence[TrainingSession], stepper: Stepper) -> None:
        self._sessions, self._stepper = sessions, stepper
        self._ended: dict[int, Outcome] = {}

    @property
    def active(self) -> dict[int, TrainingSession]:
        """The sessions that have not ended, by number."""
        return {number: session for number, session in enumerate(self._sessions) if number not in self._ended}

    @property
    def outcomes(self) -> list[Outcome]:
        return [self._ended[number] for number in range(len(self._sessions))]

    def start(self, step: int) -> None:
        """End the runs that are over already, and start the clocks of the others."""
        self.end_those_that_are_over(step)
        for session in self.active.values():
            session.shared_by = len(self.active)
            session.start_clock()

    def batches(self, step: int) -> list[Batch]:
        """Return a batch for every run, also for ended ones, because the compiled step computes all runs."""
        plans = [session.parts.plan for session in self._sessions]
        return [plan.batch(step, self._stepper.local_rows(plan.shape(step).rows)) for plan in plans]

    def monitors(self, step: int) -> bool:
        """Return whether an update is monitored; it is the same for all runs."""
        return is_monitored(step, self._sessions[0].parts.config.monitor_every_steps)

    def shape(self, step: int, monitored: bool) -> tuple[BatchShape | MonitoredShape, int]:
        """Return the shape of the batches of a step, and the number of programs; they are the same for all runs."""
        plan, every = self._sessions[0].parts.plan, self._sessions[0].parts.config.monitor_every_steps
        shape = plan.shape(step)
        return MonitoredShape(shape) if monitored else shape, len(plan.shapes) * (2 if every else 1)

    def record_metrics(self, step: int, batches: Sequence[Batch], metrics: Any) -> None:
        """Give each run its metrics of a step; end a run that raises TrainingError."""
        for number, session in self.active.items():
            values: Mapping[str, Any] = self._stepper.metrics_of(metrics, number)
            try:
                session.record_metrics(step, batches[number], values)
            except TrainingError as error:
                self._end(number, error)

    def logs(self, step: int) -> bool:
        return any(session.logs(step) for session in self.active.values())

    def validates(self, step: int) -> bool:
        return any(session.validates(step) for session in self.active.values())

    def saves(self, step: int) -> bool:
        return any(session.saves(step) for session in self.active.values())

    def show(self, step: int, progress: Progress) -> None:
        """Show the progress, if an update is due."""
        if (sessions := list(self.active.values())) and progress.due():
            speeds = [session.tokens_per_s for session in sessions if session.tokens_per_s is not None]
            losses = [session.latest_loss for session in sessions if session.latest_loss is not None]
            progress.update(step, _mean(losses) if losses else None, _mean(speeds) if speeds else None)

    def log(self, step: int, progress: Progress) -> None:
        """Log each run that is due, and show the mean over these runs."""
        logging = [session for session in self.active.values() if session.logs(step)]
        losses = [session.log(step) for session in logging]
        progress.update(step, _mean(losses), _mean([session.tokens_per_s or 0.0 for session in logging]))

    def validate(self, step: int) -> None:
        with self._all_paused():
            for number, session in self.active.items():
                if session.validates(step):
                    session.validate(step, self._stepper.state_of(number).evaluated)

    def save(self, step: int, everyone: bool) -> None:
        """Save each run that is due, or with `everyone` all runs."""
        with self._all_paused():
            for number, session in self.active.items():
                if everyone or session.saves(step):
                    session.save(step, self._stepper.state_of(number))

    def end_those_that_are_over(self, step: int) -> None:
        for number, session in self.active.items():
            if session.is_over(step):
                self._stop(number, step, "finished")

    def end_all(self, step: int, reason: str) -> None:
        for number in self.active:
            self._stop(number, step, reason)

    def _stop(self, number: int, step: int, reason: str) -> None:
        session = self._sessions[number]
        session.parts.store.wait()
        trained = Trained(self._stepper.state_of(number).evaluated, session.parts.data)
        self._end(number, TrainResult(step, reason, session.best_so_far.metrics, trained))

    def _end(self, number: int, outcome: Outcome) -> None:
        self._ended[number] = outcome
        self._sessions[number].end(_ending(outcome))
        for session in self.active.values():
            session.shared_by = len(self.active)

    @contextlib.contextmanager
    def _all_paused(self) -> Generator[None]:
        """Return a context that pauses the clocks of all runs: while one run validates or saves, none trains."""
        with contextlib.ExitStack() as opened:
            for session in self.active.values():
                opened.enter_context(session.paused())
            yield


def _ending(outcome: Outcome) -> Ending:
    if isinstance(outcome, TrainingError):
        return "failed"
    return "finished" if outcome.reason == "finished" else "interrupted"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
