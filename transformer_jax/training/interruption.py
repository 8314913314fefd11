"""Signals as requests to save and stop after the current step: Ctrl-C, SIGTERM and SIGUSR1."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""SIGINT comes from a user, SIGTERM from a cluster that reclaims the machine, SIGUSR1 from Slurm as a warning."""


class Interruption:
    """Context that stores the name of the first of SIGNALS in `signal_name`; a second SIGINT interrupts at once.

    Several processes all stop after the same step, even if only one gets the signal: JAX waits for SIGTERM in each
    process and makes them agree on the step. Outside the main thread, where Python delivers no signals, the context
    does nothing.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._previous: dict[int, object] = {}
        self._several = jax.process_count() > 1

    def stops_after(self, step: int) -> str | None:
        """Return the name of the signal that ends the run after this step, or None. Call it once after every step."""
        if not self._several:
            return self.signal_name
        return (self.signal_name or "SIGTERM") if multihost_utils.reached_preemption_sync_point(step) else None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS if not self._several else [s for s in SIGNALS if s != signal.SIGTERM]:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # ty: ignore[invalid-argument-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_name is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
        if self._several:
            os.kill(os.getpid(), signal.SIGTERM)
