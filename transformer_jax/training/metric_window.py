"""Metrics of training steps: fetched from the device one step late, and averaged for each line of the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from transformer_jax.data.batching import Batch

_SUMMED_OR_LATEST = ("gradient_norm", "learning_rate", "weight", "tokens", "filled", "slots")
"""Metrics of a step that are not averages over its targets."""


@runtime_checkable
class OnNonfinite(Protocol):
    """Handle a step whose loss or gradient norm is not finite; raises if training must end."""

    def __call__(self, step: int, batch: Batch, values: Mapping[str, float]) -> None: ...


RecordMetrics = Callable[[int, Any, Any], None]


class InFlight:
    """Steps whose metrics are still on the device, fetched one step late.

    Fetching waits for the step before the newest one. So the device always has work, but never more than two steps. A
    signal is answered within two steps, and a loss that is not finite is noticed one step later.
    """

    def __init__(self, record_metrics: RecordMetrics) -> None:
        """record_metrics: called with every step's number, batch and metrics on the host, in order."""
        self._pending: list[tuple[int, Any, Any]] = []
        self._record_metrics = record_metrics

    def push(self, step: int, batch: Any, metrics: Any) -> None:
        """Add a step; wait for the one before it."""
        self._pending.append((step, batch, metrics))
        self._fetch(leave=1)

    def drain(self) -> None:
        """Wait for all steps."""
        self._fetch(leave=0)

    def _fetch(self, leave: int) -> None:
        while len(self._pending) > leave:
            step, batch, metrics = self._pending.pop(0)
            self._record_metrics(step, batch, jax.device_get(metrics))


class MetricWindow:
    """Metrics of the steps since the last line of the log.

    Checkpoints store them, so that a resumed run logs the same averages.
    """

    def __init__(self, values: list[dict[str, float]], on_nonfinite: OnNonfinite) -> None:
        """values: metrics of earlier steps, in the form of the attribute `values`."""
        self.values = list(values)
        """Metrics of every step. A step that was not finite has only `learning_rate`, `filled` and `slots`."""
        self._on_nonfinite = on_nonfinite
        self._averaged: list[str] = []

    def record_metrics(self, step: int, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Add the metrics of a step; raises what `on_nonfinite` raises.

        Args:
          metrics: scalars on the host: `loss`, `gradient_norm`, `learning_rate`, `weight` of the targets, `tokens`,
            and any others. `filled` counts the positions of the batch that are not padding, `slots` all positions.
        """
        values = {name: float(value) for name, value in metrics.items()}
        # Compiled programs return dictionaries in the order of their keys; the loss comes first in a log.
        self._averaged = sorted(values.keys() - set(_SUMMED_OR_LATEST), key=lambda name: (name != "loss", name))
        if math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
            self.values.append(values)
        else:
            self._on_nonfinite(step, batch, values)
            self.values.append({name: values[name] for name in ("learning_rate", "filled", "slots")})

    @property
    def latest_loss(self) -> float | None:
        """Loss of the newest finite step of the window; None if there is none."""
        return next((values["loss"] for values in reversed(self.values) if "loss" in values), None)

    def close(self) -> dict[str, Any]:
        """Return averages over the window, and begin the next one.

        Every metric of a step is averaged over its targets, which are tokens or labels, with these exceptions:
        `gradient_norm` is averaged over steps; `learning_rate` is the last one; `tokens` is a sum; `padding_efficiency`
        is the fraction of the batches' slots that hold tokens. Steps that were not finite are counted in `nonfinite`
        and left out of the averages. An average over no target is NaN.
        """
        values = self.values
        finite = [v for v in values if "loss" in v]
        result: dict[str, Any] = {name: _average(finite, name) for name in self._averaged}
        norms = math.fsum(v["gradient_norm"] for v in finite)
        result["gradient_norm"] = norms / len(finite) if finite else math.nan
        result["learning_rate"] = values[-1]["learning_rate"]
        result["tokens"] = math.fsum(v["tokens"] for v in finite)
        filled, slots = (math.fsum(v[name] for v in values) for name in ("filled", "slots"))
        if slots:  # 0 if the batches have neither `inputs_mask` nor `weights`
            result["padding_efficiency"] = filled / slots
        if len(finite) < len(values):
            result["nonfinite"] = len(values) - len(finite)
        self.values = []
        return result


def _average(steps: list[dict[str, float]], name: str) -> float:
    """Return the average over the targets of the steps that have the metric; NaN if there are none."""
    known = [(values[name], values["weight"]) for values in steps if name in values]
    total = math.fsum(weight for _, weight in known)
    return math.fsum(value * weight for value, weight in known) / total if total else math.nan
