"""One compiled step for a group of runs: the launcher's step for one run, a step over an axis of trials for several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.batching import Batch
from transformer_jax.parallel.launchers import Launcher
from transformer_jax.training.hyper import Hyper
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import TrainStep

TrialAxis = Literal["vmap", "map"]


@runtime_checkable
class Stepper(Protocol):
    """The states of a group of runs, and the compiled step that updates all of them at once."""

    def local_rows(self, num_rows: int) -> slice:
        """Return the rows of a batch of `num_rows` rows that the devices of this process compute."""
        ...

    def step(self, batches: Sequence[Batch], monitored: bool = False) -> Any:
        """Update the state of every run on its batch; return metrics on the device, for `metrics_of`.

        Args:
          monitored: whether the program is that of a monitored step; see training/monitor.py.
        """
        ...

    def metrics_of(self, metrics: Any, number: int) -> Mapping[str, Any]:
        """Return the metrics of one run by name, from the metrics of all runs on the host."""
        ...

    def state_of(self, number: int) -> TrainState:
        """Return the state of one run; it is valid until the next step."""
        ...


class SingleStepper:
    """The step of any launcher, for one run."""

    def __init__(self, launcher: Launcher, state: TrainState, hyper: Hyper, monitoring: Launcher | None = None) -> None:
        """state: donated to the first step, so it must not be used again. monitoring: runs the monitored steps."""
        self._launcher, self._state, self._hyper, self._monitoring = launcher, state, hyper, monitoring

    def local_rows(self, num_rows: int) -> slice:
        return self._launcher.local_rows(num_rows)

    def step(self, batches: Sequence[Batch], monitored: bool = False) -> Any:
        [batch] = batches
        launcher = self._monitoring if monitored and self._monitoring is not None else self._launcher
        self._state, metrics = launcher.step(self._state, batch, self._hyper)
        return metrics

    def metrics_of(self, metrics: Any, number: int) -> Mapping[str, Any]:
        return metrics

    def state_of(self, number: int) -> TrainState:
        return self._state


class StackedStepper:
    """A step over a leading axis of runs, on one device."""

    def __init__(
        self,
        step: Callable[..., Any],
        states: Sequence[TrainState],
        hypers: Sequence[Hyper],
        monitoring: Callable[..., Any] | None = None,
    ) -> None:
        """step: from `over_trials`. states, hypers: one per run, in their order, with equal structure.

        monitoring: like `step`, for the monitored steps.
        """
        self._step, self._monitoring = step, monitoring
        self._state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
        self._hyper = stacked(hypers)

    def local_rows(self, num_rows: int) -> slice:
        return slice(0, num_rows)

    def step(self, batches: Sequence[Batch], monitored: bool = False) -> Any:
        step = self._monitoring if monitored and self._monitoring is not None else self._step
        self._state, metrics = step(self._state, stacked(batches), self._hyper)
        return metrics

    def metrics_of(self, metrics: Any, number: int) -> Mapping[str, Any]:
        return {name: values[number] for name, values in metrics.items()}

    def state_of(self, number: int) -> TrainState:
        return _of_trial(self._state, number)


def over_trials(step: TrainStep, axis: TrialAxis) -> Callable[[TrainState, Batch, Hyper], tuple[TrainState, Any]]:
    """Return the jitted training step over a leading axis of state, batch and hyperparameters.

    Args:
      axis: `vmap` computes all trials at once, `map` one after the other. Both donate the state.
    """

    def together(state: TrainState, batch: Any, hyper: Hyper) -> tuple[TrainState, Any]:
        if axis == "vmap":
            return jax.vmap(lambda s, b, h: step(s, b, h))(state, batch, hyper)
        return jax.lax.map(lambda trial: step(*trial), (state, batch, hyper))

    return jax.jit(together, donate_argnums=0)


def stacked(trees: Sequence[Any]) -> Any:
    """Return one tree with a leading axis from trees of arrays or Python numbers; numbers get 32 bits."""
    return jax.tree.map(lambda *leaves: np.stack([_typed(leaf) for leaf in leaves]), *trees)


def _typed(leaf: Any) -> np.ndarray:
    if isinstance(leaf, int | float):
        return np.asarray(leaf, np.int32 if isinstance(leaf, int) else np.float32)
    return np.asarray(leaf)


@jax.jit
def _of_trial(state: Any, number: Any) -> Any:
    """Return the state of one trial from a state with a leading axis of trials."""
    return jax.tree.map(lambda leaf: leaf[number], state)
