"""Metrics of the steps since the last line of the log, and what becomes of a step that was not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax

from transformer_jax.data.batching import Batch

_MEANS = ("loss", "nll", "accuracy")


@runtime_checkable
class OnNonfinite(Protocol):
    """What is done about a step whose loss or gradient is not finite; raises if training is not to go on."""

    def __call__(self, step: int, batch: Batch, values: Mapping[str, float]) -> None: ...


Take = Callable[[int, Any, Any], None]


class InFlight:
    """Steps whose metrics are still on the device, fetched one step late.

    Fetching waits for the step before the newest, so that the device always has work, but never more than two steps of
    it: a signal is answered within these, and a loss that is not finite is seen in the step after it.
    """

    def __init__(self, take: Take) -> None:
        """take: is called with every step's number, batch and metrics on the host, in order."""
        self._pending: list[tuple[int, Any, Any]] = []
        self._take = take

    def push(self, step: int, batch: Any, metrics: Any) -> None:
        """Adds a step; waits for the one before it."""
        self._pending.append((step, batch, metrics))
        self._fetch(leave=1)

    def drain(self) -> None:
        """Waits for all."""
        self._fetch(leave=0)

    def _fetch(self, leave: int) -> None:
        while len(self._pending) > leave:
            step, batch, metrics = self._pending.pop(0)
            self._take(step, batch, jax.device_get(metrics))


class Window:
    """Metrics of the steps since the last line of the log; they go into checkpoints, so that a resumed run logs the
    same averages."""

    def __init__(self, values: list[dict[str, float]], on_nonfinite: OnNonfinite) -> None:
        """values: of earlier steps, as `values` has them."""
        self.values = list(values)
        """Metrics of every step; one that was not finite has no `loss`, as no other number that followed from it."""
        self._on_nonfinite = on_nonfinite

    def take(self, step: int, batch: Batch, metrics: Mapping[str, Any]) -> None:
        """Takes in the metrics of a step; raises what `on_nonfinite` does."""
        values = {name: float(value) for name, value in metrics.items()}
        if math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
            self.values.append(values)
        else:
            self._on_nonfinite(step, batch, values)
            self.values.append({name: values[name] for name in ("learning_rate", "filled", "slots")})

    @property
    def latest_loss(self) -> float:
        """Of the newest step that has one; NaN if there is none."""
        return next((values["loss"] for values in reversed(self.values) if "loss" in values), math.nan)

    def close(self) -> dict[str, Any]:
        """Averages over the window, per token where a metric is per token; the next window begins.

        `padding_efficiency` is the part of the slots of inputs and targets that are no padding. Steps that were not
        finite count as `nonfinite` and in nothing else; averages over none are NaN.
        """
        values = self.values
        finite = [v for v in values if "loss" in v]
        tokens = math.fsum(v["tokens"] for v in finite)
        result: dict[str, Any] = {
            name: math.fsum(v[name] * v["tokens"] for v in finite) / tokens if finite else math.nan for name in _MEANS
        }
        norms = math.fsum(v["gradient_norm"] for v in finite)
        result["gradient_norm"] = norms / len(finite) if finite else math.nan
        result["learning_rate"] = values[-1]["learning_rate"]
        result["tokens"] = tokens
        known = [v for v in values if "filled" in v]  # not by checkpoints of earlier versions
        filled, slots = (math.fsum(v[name] for v in known) for name in ("filled", "slots"))
        result["padding_efficiency"] = filled / slots
        if len(finite) < len(values):
            result["nonfinite"] = len(values) - len(finite)
        self.values = []
        return result
