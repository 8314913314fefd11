"""The training loop: one step after the other, until the end or a signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.kill_points import kill_point
from transformer_jax.parallel.launchers import Launcher
from transformer_jax.parallel.processes import is_primary
from transformer_jax.training.course import Course, Run
from transformer_jax.training.hyper import Hyper
from transformer_jax.training.interruption import Interruption
from transformer_jax.training.metric_log import MetricLog, NoLog, Progress
from transformer_jax.training.state import TrainState
from transformer_jax.training.window import InFlight


class TrainResult(NamedTuple):
    """step: updates made; reason: "finished" or the name of the signal; metrics: of the last evaluation."""

    step: int
    reason: str
    metrics: dict[str, float]


def run_loop(
    run: Run, launcher: Launcher, hyper: Hyper, log: MetricLog | NoLog, state: TrainState, record: Mapping[str, Any]
) -> TrainResult:
    """Trains from `state` on to config.num_train_steps, to the end of config.patience, or until a signal.

    Args:
      record: of the checkpoint that `state` comes from; empty at the start.
    Raises:
      TrainingError: loss or gradient is not finite, and config.on_nonfinite or max_skipped_updates has it stop; the
        last checkpoint is from before.
      CheckpointError: a checkpoint or the log could not be written.
    """
    step, total, stopped_by = int(state.step), run.config.num_train_steps, None
    with Progress(step, total, is_primary()) as progress, Interruption() as interruption:
        course = Course(run, log, progress, record)
        in_flight = InFlight(course.taken)
        while not course.is_over(step) and stopped_by is None:
            batch = run.plan.batch(step, launcher.local_rows(run.plan.shape(step).rows))
            state, metrics = launcher.step(state, batch, hyper)
            step += 1
            in_flight.push(step, batch, metrics)
            kill_point("after_batch", step)
            course.show(step)
            if course.logs(step) or course.validates(step):
                in_flight.drain()
            if course.logs(step):
                course.log(step)
            if course.validates(step):
                course.validate(step, state.params)
            stopped_by = interruption.stops_after(step)
            if course.saves(step) or stopped_by is not None:
                in_flight.drain()  # the steps still in flight belong to training
                course.save(step, state)
        run.store.wait()
        if course.is_over(step) or stopped_by is None:
            return TrainResult(step, "finished", course.standing.metrics)
        progress.say(f"{stopped_by}: the checkpoint of step {step} is saved; the same command goes on from it")
        return TrainResult(step, stopped_by, course.standing.metrics)
