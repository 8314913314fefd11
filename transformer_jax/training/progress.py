"""The progress of training on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import collections
import contextlib
import os
import sys
import time
from collections.abc import Generator, Hashable
from types import TracebackType
from typing import Any

from transformer_jax.host import terminal

_RECENT_STEPS = 100


class Progress:
    """Progress of training on stderr: a bar on a terminal, elsewhere a line per log interval.

    Times are counted from the first step of this process. Call `training` around every step and `paused` around all
    other long work, so that the time left is estimated from recent steps without compilation.
    """

    def __init__(self, first_step: int, num_steps: int, unit: str = "tokens", shown: bool = True) -> None:
        """unit: of the speed, `Task.unit`. shown: whether anything is printed."""
        self._silent = not shown
        self._unit = unit
        self._total = num_steps
        self._start = time.monotonic()
        self._shown = 0.0
        self._bar: Any = None
        self._time_left = _TimeLeft(first_step, num_steps)
        self._opened = contextlib.ExitStack()
        if shown and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bar, self._task = _bar(first_step, num_steps)

    def due(self) -> bool:
        """Return whether to call `update`: a second has passed, or without a bar `terminal.SILENCE_SECONDS`."""
        if self._bar is None:
            return not self._silent and terminal.is_silent()
        return time.monotonic() - self._shown > 1.0

    def update(self, step: int, loss: float | None, tokens_per_s: float | None) -> None:
        """Move the bar to `step`; without a bar, print a line. None: not known yet."""
        loss_text = "" if loss is None else f"loss {loss:.3f}"
        speed = "" if tokens_per_s is None else f"{tokens_per_s:,.0f} {self._unit}/s"
        left = self._time_left.seconds(step)
        if self._bar is not None:
            text = "" if left is None else f"{_clock(left)} left"
            self._bar.update(self._task, completed=step, loss=loss_text, speed=speed, left=text)
            self._shown = time.monotonic()
            return
        times = f"{_clock(time.monotonic() - self._start)} spent" + ("" if left is None else f", {_clock(left)} left")
        self.say("  ".join(filter(None, [f"step {step}/{self._total}", loss_text, speed, times])))

    @contextlib.contextmanager
    def training(self, step: int, shape: Hashable, num_shapes: int) -> Generator[None]:
        """Return a context for update number `step`, which computes a batch of a shape, one of `num_shapes`.

        The first batch of every shape compiles a program.
        """
        new = self._time_left.begin_step(shape, num_shapes)
        name = f"compiling program {new} of {num_shapes}" if new else f"step {step}/{self._total}"
        if not new:
            with terminal.doing(name):
                yield
            return
        if self._bar is None:
            self.say(f"{name}: {shape}")
        with self._shown_as(name):
            yield
        self._time_left.end_compilation()

    @contextlib.contextmanager
    def paused(self, activity: str) -> Generator[None]:
        """Return a context for other work than training, such as `validating`."""
        with self._shown_as(activity), self._time_left.paused():
            yield

    @contextlib.contextmanager
    def _shown_as(self, activity: str) -> Generator[None]:
        with terminal.doing(activity):
            if self._bar is not None:
                self._bar.update(self._task, doing=activity, refresh=True)
            yield
            if self._bar is not None:
                self._bar.update(self._task, doing="training")

    def say(self, message: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(message, highlight=False, markup=False)
        elif not self._silent:
            terminal.say(message)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._opened.enter_context(terminal.bar_shown())
            self._opened.enter_context(self._bar)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._opened.close()


class _TimeLeft:
    """An estimate of the time until the last step."""

    def __init__(self, first_step: int, num_steps: int) -> None:
        self._first, self._total = first_step, num_steps
        self._recent: collections.deque[float] = collections.deque(maxlen=_RECENT_STEPS)
        self._shapes: set[Hashable] = set()
        self._num_shapes = 0
        self._compiling = self._pausing = 0.0
        self._began: float | None = None
        self._not_training = 0.0

    def begin_step(self, shape: Hashable, num_shapes: int) -> int:
        """Note the begin of a step; return the number of its program if it is a new one, else 0."""
        now = time.monotonic()
        if self._began is not None:
            self._recent.append(now - self._began - self._not_training)
        self._began, self._not_training, self._num_shapes = now, 0.0, num_shapes
        if shape in self._shapes:
            return 0
        self._shapes.add(shape)
        return len(self._shapes)

    def end_compilation(self) -> None:
        """Count the time since the last `begin_step` as compilation."""
        assert self._began is not None
        seconds = time.monotonic() - self._began
        self._compiling += seconds
        self._not_training += seconds

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - start
            self._pausing += seconds
            self._not_training += seconds

    def seconds(self, step: int) -> float | None:
        """Return the seconds that the steps after `step` take, with compilation and pauses; None if not known yet."""
        if not self._recent:
            return None
        per_step = sum(self._recent) / len(self._recent) + self._pausing / max(step - self._first, 1)
        to_compile = self._num_shapes - len(self._shapes)
        return per_step * (self._total - step) + to_compile * self._compiling / len(self._shapes)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _bar(first_step: int, num_steps: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.fields[doing]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    bar = Bar(*columns, console=Console(stderr=True), refresh_per_second=2)
    return bar, bar.add_task("", total=num_steps, completed=first_step, doing="training", loss="", speed="", left="")
