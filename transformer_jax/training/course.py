"""What a run does about each of its steps: metrics, validation, checkpoint, in this order.

A checkpoint thus holds all that was logged at its step, and a run that resumes from it logs what the uninterrupted run
does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batching import Batch, TrainingBatches
from transformer_jax.errors import TrainingError
from transformer_jax.kill_points import kill_point
from transformer_jax.parallel.processes import gathered
from transformer_jax.training.metric_log import MetricLog, NoLog, Progress
from transformer_jax.training.state import TrainState
from transformer_jax.training.window import Window
from transformer_jax.typing import Params

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run works with. `evaluate(params)` returns validation metrics by name; `record` is the part of a
    checkpoint's record that does not change, `side_files` what lies beside it. `keep_batch(step, batch)` keeps the
    batch of a step that was not finite and returns where."""

    config: TrainingConfig
    plan: TrainingBatches
    store: CheckpointStore
    evaluate: Callable[[Params], dict[str, Any]]
    record: Mapping[str, Any]
    side_files: Mapping[str, bytes]
    keep_batch: Callable[[int, Batch], Path]


@dataclasses.dataclass
class Standing:
    """What a run has found out so far and a checkpoint keeps, besides the state and the window.

    metrics: of the last validation. best: value of best_metric in the best validation. stale: validations since.
    skipped: updates that were left out because they were not finite.
    """

    config: TrainingConfig
    metrics: dict[str, float]
    best: float | None = None
    stale: int = 0
    skipped: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any], config: TrainingConfig) -> Standing:
        """As a checkpoint's record has it; the record is empty at the start."""
        standing = cls(config, dict(record.get("metrics", {})), skipped=record.get("skipped_updates", 0))
        validations = record.get("validations", {})
        if validations.get("metric") == config.best_metric:  # values of another metric compare with nothing
            standing.best, standing.stale = validations["best"], validations["stale"]
        return standing

    def record(self) -> dict[str, Any]:
        validations = {"metric": self.config.best_metric, "best": self.best, "stale": self.stale}
        return {"metrics": self.metrics, "validations": validations, "skipped_updates": self.skipped}

    def validated(self, metrics: dict[str, float]) -> None:
        """Takes the metrics of a validation in."""
        self.metrics, value = metrics, metrics[self.config.best_metric]
        better = self.best is None or (value > self.best if self.config.higher_is_better else value < self.best)
        self.best, self.stale = (value, 0) if better else (self.best, self.stale + 1)

    @property
    def out_of_patience(self) -> str:
        """Why training ends before its last step, for the user; empty if it does not."""
        if not self.config.patience or self.stale < self.config.patience:
            return ""
        return f"{self.config.best_metric} has not improved in {self.stale} validations"

    def not_finite(self, problem: str) -> None:
        """Takes in a step that was not finite: counts it, or raises TrainingError if training is not to go on."""
        if self.config.on_nonfinite == "stop":
            raise TrainingError(
                f"{problem}; a lower optimizer.learning_rate, a longer optimizer.warmup_steps or norm_position='pre' "
                "may help, and training.on_nonfinite='skip' (here with --allow_config_change) leaves such updates out"
            )
        self.skipped += 1
        if self.skipped > self.config.max_skipped_updates:
            raise TrainingError(
                f"{problem}; {self.skipped} updates of this run were not finite, more than "
                f"training.max_skipped_updates={self.config.max_skipped_updates}"
            )
        logger.warning(
            "%s; the update is left out, %d of at most %d", problem, self.skipped, self.config.max_skipped_updates
        )


class Course:
    """One run on its way from step to step: what it has measured, logged and kept.

    After every step `taken` gets its metrics, as soon as they are known, and then each that is due of `log`,
    `validate` and `save`, in this order; they are to be called once everything before them has been taken.
    """

    def __init__(self, run: Run, log: MetricLog | NoLog, progress: Progress, record: Mapping[str, Any]) -> None:
        """record: of the checkpoint that the run comes from; empty at the start."""
        self.run, self.standing = run, Standing.of(record, run.config)
        self._log, self._progress = log, progress
        self._window = Window(record.get("window", []), self._not_finite)
        self._clock = _Clock(math.fsum(values.get("tokens", 0.0) for values in record.get("window", [])))
        self.shared_by = 1
        """Runs that train together: a share of the time is what is logged of each."""

    def is_over(self, step: int) -> bool:
        """Whether training ends after this step, at its last or because patience does."""
        return step >= self.run.config.num_train_steps or bool(self.standing.out_of_patience)

    def logs(self, step: int) -> bool:
        return self._is_last(step) or step % self.run.config.log_every_steps == 0

    def validates(self, step: int) -> bool:
        return self._is_last(step) or step % self.run.config.eval_every_steps == 0

    def saves(self, step: int) -> bool:
        return self.is_over(step) or step % self.run.config.checkpoint_every_steps == 0

    def taken(self, step: int, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Takes in the metrics of a step; raises TrainingError if they are not finite and the config has it stop."""
        self._window.take(step, batch, metrics)

    @property
    def latest_loss(self) -> float:
        """Of the newest step that has been taken in; NaN if there is none."""
        return self._window.latest_loss

    @property
    def tokens_per_s(self) -> float | None:
        """Over the last window that was logged."""
        return self._clock.tokens_per_s

    def show(self, step: int) -> None:
        """Moves the progress bar."""
        if self._progress.due():
            self._progress.update(step, self.latest_loss, self.tokens_per_s)

    def begin(self) -> None:
        """Has the time of the first window begin now."""
        self._clock.start()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        """While the body runs, nothing is trained."""
        return self._clock.paused()

    def log(self, step: int) -> float:
        """Logs the averages since the last line, and begins the next window; returns the average loss."""
        averages = self._window.close()
        self._clock.stop(averages["tokens"], self.shared_by)
        self._progress.line(step, averages["loss"], self._clock.tokens_per_s or 0.0)
        clock_fields = {"seconds": self._clock.seconds, "tokens_per_s": self._clock.tokens_per_s}
        self._log.write(step, "train", averages | {"epoch": self.run.plan.epoch(step - 1)} | clock_fields)
        self._clock.start()
        return averages["loss"]

    def validate(self, step: int, params: Params) -> None:
        """Scores parameters, and logs the window too if that ends training."""
        with self._clock.paused():
            # Of several processes one decides: each may have computed another last bit.
            metrics = gathered(json.dumps(self.run.evaluate(params)))[0]
            self.standing.validated(json.loads(metrics))
            kill_point("inside_evaluation", step)
        self._log.write(step, "valid", self.standing.metrics)
        self._progress.say(f"step {step}  valid  " + _summary(self.standing.metrics))
        if self.standing.out_of_patience and not self._is_last(step):
            self._progress.say(f"step {step}  {self.standing.out_of_patience}")
            if self._window.values:
                self.log(step)

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving a checkpoint."""
        with self._clock.paused():
            # The uninterrupted run has no checkpoint where this one is not due, so it cannot be the best.
            ranked = self.saves(step) and self.validates(step)
            record = dict(self.run.record) | {"window": self._window.values} | self.standing.record()
            numbers = {k: v for k, v in self.standing.metrics.items() if isinstance(v, float)} if ranked else None
            self.run.store.save(step, state, record, self.run.side_files, numbers)
            kill_point("inside_save", step)

    def _is_last(self, step: int) -> bool:
        return step == self.run.config.num_train_steps

    def _not_finite(self, step: int, batch: Batch, values: Mapping[str, float]) -> None:
        kept = self.run.keep_batch(step, batch)
        self.standing.not_finite(f"{_described(step, values)}; its batch is in {kept}")


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
    """Time spent in training steps: evaluation and saving do not count."""

    def __init__(self, tokens_before: float) -> None:
        """tokens_before: those of the first window that another process has trained on."""
        self.seconds = 0.0
        self.tokens_per_s: float | None = None
        self._tokens_before = tokens_before
        self._pauses, self._paused_at = 0, 0.0
        self.start()

    def start(self) -> None:
        self._start = self._paused_at = time.monotonic()

    def stop(self, tokens: float, shared_by: int) -> None:
        self.seconds = ((self._paused_at if self._pauses else time.monotonic()) - self._start) / shared_by
        self.tokens_per_s = (tokens - self._tokens_before) / max(self.seconds, 1e-9)
        self._tokens_before = 0.0

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """A pause within another is part of it."""
        if not self._pauses:
            self._paused_at = time.monotonic()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._start += time.monotonic() - self._paused_at
