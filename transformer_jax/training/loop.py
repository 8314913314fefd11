"""The training loop: steps, metrics, evaluations and checkpoints, in a fixed order."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batching import Batch, TrainingBatches
from transformer_jax.errors import TrainingError
from transformer_jax.kill_points import kill_point
from transformer_jax.parallel.launchers import Launcher
from transformer_jax.training.hyper import Hyper
from transformer_jax.training.interruption import Interruption
from transformer_jax.training.metric_log import MetricLog, Progress
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import Metrics
from transformer_jax.typing import Params


class TrainResult(NamedTuple):
    """step: updates made; reason: "finished", "SIGINT" or "SIGTERM"; metrics: of the last evaluation."""

    step: int
    reason: str
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Run:
    """What the loop works with. `evaluate(params)` returns validation metrics by name; `record` is the part of a
    checkpoint's record that does not change, `side_files` what lies beside it."""

    config: TrainingConfig
    plan: TrainingBatches
    launcher: Launcher
    hyper: Hyper
    store: CheckpointStore
    evaluate: Callable[[Params], dict[str, Any]]
    record: Mapping[str, Any]
    side_files: Mapping[str, bytes]


class Window:
    """Metrics of the steps since the last line of the log, fetched from the device as late as possible.

    Whatever has been fetched goes into checkpoints, so that a resumed run logs the same averages.
    """

    def __init__(self, values: list[dict[str, float]]) -> None:
        self._values = list(values)
        self._pending: list[tuple[int, dict[str, float], Metrics]] = []

    def add(self, step: int, batch: Batch, metrics: Metrics) -> None:
        """Takes in the metrics of a step, and how much of its batch is no padding."""
        sides = (batch["inputs"], batch["targets"])
        filled = {"ids": float(sum(map(np.count_nonzero, sides))), "slots": float(sum(side.size for side in sides))}
        self._pending.append((step, filled, metrics))

    def latest_loss(self) -> float:
        """The loss of the last step but one; waits for the device to finish it."""
        return float(self._pending[max(len(self._pending) - 2, 0)][-1]["loss"])

    @property
    def is_empty(self) -> bool:
        return not self._values and not self._pending

    def values(self) -> list[dict[str, float]]:
        """Metrics of every step so far; waits for the device.

        Raises: TrainingError that names the first step whose loss or gradient is not finite.
        """
        fetched = jax.device_get([metrics for _, _, metrics in self._pending])
        for (step, filled, _), metrics in zip(self._pending, fetched, strict=True):
            values = filled | {name: float(value) for name, value in metrics.items()}
            for name in ("loss", "gradient_norm"):
                if not math.isfinite(values[name]):
                    raise TrainingError(
                        f"{name} is {values[name]} at step {step} (loss {values['loss']:.4g}, gradient norm "
                        f"{values['gradient_norm']:.4g}, learning rate {values['learning_rate']:.4g}); a lower "
                        "optimizer.learning_rate, a longer optimizer.warmup_steps or norm_position='pre' may help"
                    )
            self._values.append(values)
        self._pending.clear()
        return self._values

    def close(self) -> dict[str, float]:
        """Averages over the window, per token where a metric is per token; the next window begins.

        `padding_efficiency` is the part of the slots of inputs and targets that are no padding.
        """
        values = self.values()
        tokens = math.fsum(v["tokens"] for v in values)
        result = {
            name: math.fsum(v[name] * v["tokens"] for v in values) / tokens for name in ("loss", "nll", "accuracy")
        }
        result["gradient_norm"] = math.fsum(v["gradient_norm"] for v in values) / len(values)
        result["learning_rate"] = values[-1]["learning_rate"]
        result["tokens"] = tokens
        # Checkpoints of earlier versions do not know it of their steps.
        ids, slots = (math.fsum(v.get(name, 0.0) for v in values) for name in ("ids", "slots"))
        result["padding_efficiency"] = ids / slots
        self._values = []
        return result


@dataclasses.dataclass
class Standing:
    """What a run has found out so far and a checkpoint keeps, besides the state.

    metrics: of the last validation. best: value of best_metric in the best validation. stale: validations since.
    """

    config: TrainingConfig
    window: Window
    metrics: dict[str, float]
    best: float | None = None
    stale: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any], config: TrainingConfig) -> Standing:
        """As a checkpoint's record has it; the record is empty at the start."""
        standing = cls(config, Window(record.get("window", [])), dict(record.get("metrics", {})))
        validations = record.get("validations", {})
        if validations.get("metric") == config.best_metric:  # values of another metric compare with nothing
            standing.best, standing.stale = validations["best"], validations["stale"]
        return standing

    def record(self) -> dict[str, Any]:
        validations = {"metric": self.config.best_metric, "best": self.best, "stale": self.stale}
        return {"window": self.window.values(), "metrics": self.metrics, "validations": validations}

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


def run_loop(run: Run, log: MetricLog, state: TrainState, record: Mapping[str, Any]) -> TrainResult:
    """Trains from `state` on to config.num_train_steps, to the end of config.patience, or until a signal.

    After every step, in this order: metrics, evaluation, checkpoint. A checkpoint thus holds all that was logged at
    its step, and a run that resumes from it logs what the uninterrupted run does.

    Args:
      record: of the checkpoint that `state` comes from; empty at the start.
    Raises:
      TrainingError: loss or gradient is not finite; the last checkpoint is from before.
      CheckpointError: a checkpoint or the log could not be written.
    """
    config = run.config
    step, total = int(state.step), config.num_train_steps
    standing = Standing.of(record, config)
    clock = _Clock(math.fsum(values["tokens"] for values in record.get("window", [])))
    with Progress(step, total) as progress, Interruption() as interruption:
        while step < total and not standing.out_of_patience and interruption.signal_name is None:
            batch = run.plan.batch(step)
            state, step_metrics = run.launcher.step(state, batch, run.hyper)
            step += 1
            standing.window.add(step, batch, step_metrics)
            kill_point("after_batch", step)
            if progress.due():
                progress.update(step, standing.window.latest_loss(), clock.tokens_per_s)
            last = step == total
            if last or step % config.log_every_steps == 0:
                _log_window(run, log, standing.window, clock, progress, step)
            evaluated = last or step % config.eval_every_steps == 0
            if evaluated:
                standing.window.values()  # parameters that are no longer finite are not worth scoring
                with clock.paused():
                    standing.validated(run.evaluate(state.params))
                    kill_point("inside_evaluation", step)
                log.write(step, "valid", standing.metrics)
                progress.say(f"step {step}  valid  " + _summary(standing.metrics))
                if standing.out_of_patience and not last:
                    last = True
                    progress.say(f"step {step}  {standing.out_of_patience}")
                    if not standing.window.is_empty:
                        _log_window(run, log, standing.window, clock, progress, step)
            due = last or step % config.checkpoint_every_steps == 0
            if due or interruption.signal_name is not None:
                standing.window.values()  # the steps still in flight belong to training
                with clock.paused():
                    # The uninterrupted run has no checkpoint where this one is not due, so it cannot be the best.
                    _save(run, step, state, standing, ranked=due and evaluated)
        return _finish(run, state, step, standing, interruption.signal_name)


def _log_window(run: Run, log: MetricLog, window: Window, clock: _Clock, progress: Progress, step: int) -> None:
    """Logs the averages since the last line, and begins the next window."""
    averages = window.close()
    clock.stop(averages["tokens"])
    progress.line(step, averages["loss"], clock.tokens_per_s or 0.0)
    clock_fields = {"seconds": clock.seconds, "tokens_per_s": clock.tokens_per_s}
    log.write(step, "train", averages | {"epoch": run.plan.epoch(step - 1)} | clock_fields)
    clock.start()


def _save(run: Run, step: int, state: TrainState, standing: Standing, ranked: bool) -> None:
    record = dict(run.record) | standing.record()
    numbers = {k: v for k, v in standing.metrics.items() if isinstance(v, float)} if ranked else None
    run.store.save(step, state, record, run.side_files, numbers)
    kill_point("inside_save", step)


def _finish(run: Run, state: TrainState, step: int, standing: Standing, signal_name: str | None) -> TrainResult:
    """Waits for the last save; a signal that came after the step's checkpoint was decided has one of its own."""
    if signal_name is not None and step > 0 and not run.store.has(step):
        _save(run, step, state, standing, ranked=False)
    run.store.wait()
    finished = step == run.config.num_train_steps or bool(standing.out_of_patience)
    return TrainResult(step, "finished" if finished else signal_name or "finished", standing.metrics)


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
