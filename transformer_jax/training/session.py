"""The work of one run between two training steps: metrics, validations and checkpoints, in this order.

With this order, a checkpoint contains everything that was logged at its step, and a resumed run logs the same as an
uninterrupted run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batching import Batch, BatchShape, TrainingBatches
from transformer_jax.data.datasets import Data
from transformer_jax.host.kill_points import kill_point
from transformer_jax.parallel.processes import gathered
from transformer_jax.readers import parse_json
from transformer_jax.trackers.tracker import Ending
from transformer_jax.training import monitor
from transformer_jax.training.best_so_far import BestSoFar
from transformer_jax.training.metric_log import MetricLog, NoLog
from transformer_jax.training.metric_window import MetricWindow
from transformer_jax.training.progress import Progress
from transformer_jax.training.state import TrainState
from transformer_jax.typing import Params


@dataclasses.dataclass(frozen=True)
class RunParts:
    """The objects that a run uses.

    higher_is_better: direction of `config.best_metric`. evaluate: returns validation metrics of parameters by name.
    record: the constant part of a checkpoint's record. side_files: content, by name, of the files beside the arrays.
    keep_batch: stores the batch of a step that was not finite, and returns the file.
    step_flops: returns the floating-point operations of a step with a batch of a shape, or None if they are not known.
    """

    config: TrainingConfig
    data: Data
    higher_is_better: bool
    plan: TrainingBatches
    store: CheckpointStore
    evaluate: Callable[[Params], dict[str, Any]]
    record: Mapping[str, Any]
    side_files: Mapping[str, bytes]
    keep_batch: Callable[[int, Batch], Path]
    step_flops: Callable[[BatchShape], int | None] = lambda shape: None


class TrainingSession:
    """One run in the process that trains it, with its metrics, log and checkpoints.

    Call `record_metrics` once per step, in order; then, if due, `log`, `validate` and `save`. Record all steps so far
    before any of these three.
    """

    def __init__(self, parts: RunParts, log: MetricLog | NoLog, progress: Progress, record: Mapping[str, Any]) -> None:
        """Args:
        progress: shows validations of this run.
        record: of the checkpoint that the run resumes from; empty for a new run.
        """
        self.parts = parts
        self.best_so_far = BestSoFar.of(record, parts.config, parts.higher_is_better)
        self._log, self._progress = log, progress
        self._window = MetricWindow(record.get("window", []), self._on_nonfinite)
        self._clock = _Clock(
            math.fsum(values.get("tokens", 0.0) for values in record.get("window", [])),
            record.get("window_seconds", 0.0),
        )
        self.shared_by = 1
        """Number of runs that train together; each logs its share of the time."""

    def is_over(self, step: int) -> bool:
        """Return whether training ends after this step: it is the last one, or patience has run out."""
        return step >= self.parts.config.num_train_steps or bool(self.best_so_far.out_of_patience)

    def logs(self, step: int) -> bool:
        return self._is_last(step) or step % self.parts.config.log_every_steps == 0

    def validates(self, step: int) -> bool:
        return self._is_last(step) or step % self.parts.config.eval_every_steps == 0

    def saves(self, step: int) -> bool:
        return self.is_over(step) or step % self.parts.config.checkpoint_every_steps == 0

    def record_metrics(self, step: int, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a step, and log what a monitored one has found.

        Raises TrainingError if they are not finite and the config says to stop.
        """
        own, monitored = monitor.parted(metrics)
        if monitored:
            self._log.write(step, monitor.SPLIT, {name: float(value) for name, value in monitored.items()})
        self._window.record_metrics(step, batch, own)

    @property
    def latest_loss(self) -> float | None:
        """Loss of the newest step since the last log that was recorded and finite; None if there is none."""
        return self._window.latest_loss

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second over the last logged window; None before the first one."""
        return self._clock.tokens_per_s

    def start_clock(self) -> None:
        """Start the clock of the first window."""
        self._clock.start()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """Return a context whose time does not count as training."""
        return self._clock.paused()

    def log(self, step: int) -> float:
        """Log averages since the last line, and begin the next window; return the average loss."""
        steps = range(step - len(self._window.values), step)
        averages = self._window.close()
        self._clock.stop(averages["tokens"], self.shared_by)
        counted = [self.parts.step_flops(self.parts.plan.shape(before)) for before in steps]
        if known := [flops for flops in counted if flops is not None]:
            averages["flops"] = sum(known)
        clock_fields = {"seconds": self._clock.seconds, "tokens_per_s": self._clock.tokens_per_s}
        self._log.write(step, "train", averages | {"epoch": self.parts.plan.epoch(step - 1)} | clock_fields)
        self._clock.start()
        return averages["loss"]

    def validate(self, step: int, params: Params) -> None:
        """Score parameters and log the result; if that ends training, log the current window too."""
        # With several processes, all use the numbers of process 0: theirs may differ by rounding.
        metrics = gathered(json.dumps(self.parts.evaluate(params)))[0]
        self.best_so_far.record_validation(parse_json(metrics))
        kill_point("inside_evaluation", step)
        self._log.write(step, "valid", self.best_so_far.metrics)
        self._progress.say(f"step {step}  valid  " + _summary(self.best_so_far.metrics))
        if self.best_so_far.out_of_patience and not self._is_last(step):
            self._progress.say(f"step {step}  {self.best_so_far.out_of_patience}")
            if self._window.values:
                self._progress.update(step, self.log(step), self.tokens_per_s)

    def save(self, step: int, state: TrainState) -> None:
        """Start saving a checkpoint."""
        # A checkpoint that is not due, saved because of a signal, is never ranked as the best, because an uninterrupted
        # run does not have it.
        ranked = self.saves(step) and self.validates(step)
        window = {
            "window": self._window.values,
            "window_seconds": self._clock.elapsed(self.shared_by) if self._window.values else 0.0,
        }
        record = dict(self.parts.record) | window | self.best_so_far.record() | {"log_sha256": self._log.digest()}
        values = self.best_so_far.metrics.items()
        numbers = {k: v for k, v in values if isinstance(v, int | float) and not isinstance(v, bool)}
        self.parts.store.save(step, state, record, self.parts.side_files, numbers if ranked else None)
        kill_point("inside_save", step)

    def end(self, ending: Ending) -> None:
        """Close the log, since the run has ended."""
        self._log.finish(ending)

    def _is_last(self, step: int) -> bool:
        return step == self.parts.config.num_train_steps

    def _on_nonfinite(self, step: int, batch: Batch, values: Mapping[str, float]) -> None:
        kept = self.parts.keep_batch(step, batch)
        self.best_so_far.record_nonfinite(f"{_described(step, values)}; its batch is in {kept}")


def _described(step: int, values: Mapping[str, float]) -> str:
    name = "loss" if not math.isfinite(values["loss"]) else "gradient_norm"
    return (
        f"{name} is {values[name]} at step {step} (loss {values['loss']:.4g}, gradient norm "
        f"{values['gradient_norm']:.4g}, learning rate {values['learning_rate']:.4g})"
    )


def _summary(metrics: Mapping[str, Any]) -> str:
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, dict)}
    return "  ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v:.4g}" for k, v in numbers.items())


class _Clock:
    """Clock of the time in training steps, without evaluation and saving."""

    def __init__(self, tokens_before: float, seconds_before: float) -> None:
        """tokens_before, seconds_before: of the first window, by an earlier process."""
        self.seconds = 0.0
        """Of the last window."""
        self.tokens_per_s: float | None = None
        """Speed of this process in the last window."""
        self._tokens_before, self._seconds_before = tokens_before, seconds_before
        self._is_paused, self._paused_at = False, 0.0
        self.start()

    def start(self) -> None:
        self._start = self._paused_at = time.monotonic()

    def elapsed(self, shared_by: int) -> float:
        """Return the seconds of the window so far, those of an earlier process included."""
        return self._seconds_before + self._own(shared_by)

    def stop(self, tokens: float, shared_by: int) -> None:
        own = self._own(shared_by)
        self.seconds = self._seconds_before + own
        self.tokens_per_s = (tokens - self._tokens_before) / max(own, 1e-9)
        self._tokens_before = self._seconds_before = 0.0

    def _own(self, shared_by: int) -> float:
        return ((self._paused_at if self._is_paused else time.monotonic()) - self._start) / shared_by

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        self._is_paused, self._paused_at = True, time.monotonic()
        try:
            yield
        finally:
            self._is_paused = False
            self._start += time.monotonic() - self._paused_at
