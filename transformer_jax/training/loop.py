"""The training loop: steps, metrics, evaluations and checkpoints, in a fixed order."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batching import Batch, TrainingBatches
from transformer_jax.errors import TrainingError
from transformer_jax.kill_points import kill_point
from transformer_jax.parallel.launchers import Launcher
from transformer_jax.parallel.processes import gathered, is_primary
from transformer_jax.training.hyper import Hyper
from transformer_jax.training.interruption import Interruption
from transformer_jax.training.metric_log import MetricLog, NoLog, Progress
from transformer_jax.training.state import TrainState
from transformer_jax.training.window import Window
from transformer_jax.typing import Params

logger = logging.getLogger(__name__)


class TrainResult(NamedTuple):
    """step: updates made; reason: "finished" or the name of the signal; metrics: of the last evaluation."""

    step: int
    reason: str
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Run:
    """What the loop works with. `evaluate(params)` returns validation metrics by name; `record` is the part of a
    checkpoint's record that does not change, `side_files` what lies beside it. `keep_batch(step, batch)` keeps the
    batch of a step that was not finite and returns where."""

    config: TrainingConfig
    plan: TrainingBatches
    launcher: Launcher
    hyper: Hyper
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


def run_loop(run: Run, log: MetricLog | NoLog, state: TrainState, record: Mapping[str, Any]) -> TrainResult:
    """Trains from `state` on to config.num_train_steps, to the end of config.patience, or until a signal.

    After every step, in this order: metrics, evaluation, checkpoint. A checkpoint thus holds all that was logged at
    its step, and a run that resumes from it logs what the uninterrupted run does.

    Args:
      record: of the checkpoint that `state` comes from; empty at the start.
    Raises:
      TrainingError: loss or gradient is not finite, and config.on_nonfinite or max_skipped_updates has it stop; the
        last checkpoint is from before.
      CheckpointError: a checkpoint or the log could not be written.
    """
    config = run.config
    step, total = int(state.step), config.num_train_steps
    standing = Standing.of(record, config)

    def on_nonfinite(step: int, batch: Batch, values: Mapping[str, float]) -> None:
        standing.not_finite(f"{_described(step, values)}; its batch is in {run.keep_batch(step, batch)}")

    window = Window(record.get("window", []), on_nonfinite)
    clock = _Clock(math.fsum(values.get("tokens", 0.0) for values in record.get("window", [])))
    stopped_by = None
    with Progress(step, total, is_primary()) as progress, Interruption() as interruption:
        while step < total and not standing.out_of_patience and stopped_by is None:
            batch = run.plan.batch(step, run.launcher.local_rows(run.plan.shape(step).rows))
            state, step_metrics = run.launcher.step(state, batch, run.hyper)
            step += 1
            window.add(step, batch, step_metrics)
            kill_point("after_batch", step)
            if progress.due():
                progress.update(step, window.latest_loss, clock.tokens_per_s)
            last = step == total
            if last or step % config.log_every_steps == 0:
                _log_window(run, log, window, clock, progress, step)
            evaluated = last or step % config.eval_every_steps == 0
            if evaluated:
                window.values()  # parameters that are no longer finite are not worth scoring
                with clock.paused():
                    # Of several processes one decides: each may have computed another last bit.
                    metrics = gathered(json.dumps(run.evaluate(state.params)))[0]
                    standing.validated(json.loads(metrics))
                    kill_point("inside_evaluation", step)
                log.write(step, "valid", standing.metrics)
                progress.say(f"step {step}  valid  " + _summary(standing.metrics))
                if standing.out_of_patience and not last:
                    last = True
                    progress.say(f"step {step}  {standing.out_of_patience}")
                    if not window.is_empty:
                        _log_window(run, log, window, clock, progress, step)
            due = last or step % config.checkpoint_every_steps == 0
            stopped_by = interruption.stops_after(step)
            if due or stopped_by is not None:
                window.values()  # the steps still in flight belong to training
                with clock.paused():
                    # The uninterrupted run has no checkpoint where this one is not due, so it cannot be the best.
                    _save(run, step, state, window, standing, ranked=due and evaluated)
        run.store.wait()
        if step == total or standing.out_of_patience or stopped_by is None:
            return TrainResult(step, "finished", standing.metrics)
        progress.say(f"{stopped_by}: the checkpoint of step {step} is saved; the same command goes on from it")
        return TrainResult(step, stopped_by, standing.metrics)


def _log_window(run: Run, log: MetricLog | NoLog, window: Window, clock: _Clock, progress: Progress, step: int) -> None:
    """Logs the averages since the last line, and begins the next window."""
    averages = window.close()
    clock.stop(averages["tokens"])
    progress.line(step, averages["loss"], clock.tokens_per_s or 0.0)
    clock_fields = {"seconds": clock.seconds, "tokens_per_s": clock.tokens_per_s}
    log.write(step, "train", averages | {"epoch": run.plan.epoch(step - 1)} | clock_fields)
    clock.start()


def _described(step: int, values: Mapping[str, float]) -> str:
    name = "loss" if not math.isfinite(values["loss"]) else "gradient_norm"
    return (
        f"{name} is {values[name]} at step {step} (loss {values['loss']:.4g}, gradient norm "
        f"{values['gradient_norm']:.4g}, learning rate {values['learning_rate']:.4g})"
    )


def _save(run: Run, step: int, state: TrainState, window: Window, standing: Standing, ranked: bool) -> None:
    record = dict(run.record) | {"window": window.values()} | standing.record()
    numbers = {k: v for k, v in standing.metrics.items() if isinstance(v, float)} if ranked else None
    run.store.save(step, state, record, run.side_files, numbers)
    kill_point("inside_save", step)


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
        self.start()

    def start(self) -> None:
        self._start = time.monotonic()

    def stop(self, tokens: float) -> None:
        self.seconds = time.monotonic() - self._start
        self.tokens_per_s = (tokens - self._tokens_before) / max(self.seconds, 1e-9)
        self._tokens_before = 0.0

    def paused(self) -> _Pause:
        return _Pause(self)

    def shift(self, seconds: float) -> None:
        self._start += seconds


class _Pause:
    def __init__(self, clock: _Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._clock.shift(time.monotonic() - self._since)
