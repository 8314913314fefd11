"""The metrics of a run: metrics.jsonl, TensorBoard events, and a progress bar."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from transformer_jax.errors import CheckpointError
from transformer_jax.metrics_file import NAME, cut_back, format_line


class NoLog:
    """Replacement of MetricLog in a process that writes nothing."""

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Do nothing."""

    def __enter__(self) -> NoLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        pass


class MetricLog:
    """Writer of metrics: lines in WORKDIR/metrics.jsonl and scalars in WORKDIR/tensorboard."""

    def __init__(self, workdir: Path, step: int) -> None:
        """Open the log of a run that resumes after `step`: lines of later steps are cut off.

        Raises: CheckpointError if the files cannot be read or written.
        """
        self._path, events = workdir / NAME, workdir / "tensorboard"
        with contextlib.ExitStack() as opened:
            with _named_errors(self._path):
                cut_back(self._path, step)
                self._file = opened.enter_context(self._path.open("a", encoding="utf-8"))
            with _named_errors(events):
                self._events = opened.enter_context(contextlib.closing(_Events(events, step)))
            self._opened = opened.pop_all()

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Write one line {"step", "split", **metrics}, and each number as a TensorBoard scalar SPLIT/NAME.

        A number that is not finite is null in the line and has no scalar.

        Raises: CheckpointError if the disk is full or a file cannot be written.
        """
        with _named_errors(self._path):
            self._file.write(format_line(step, split, metrics))
            self._file.flush()
        numbers = {
            f"{split}/{name}": value
            for name, value in metrics.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        with _named_errors(self._events.path):
            self._events.write(step, numbers)

    def __enter__(self) -> MetricLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        # Every line has been flushed. Do not flush again: after ENOSPC it would fail again.
        with contextlib.suppress(OSError):
            self._opened.close()


class _Events:
    """Writer of a TensorBoard file of scalars.

    It does not use tensorboardX's writers. SummaryWriter writes in a thread; a full disk kills the thread, and the
    writer then waits for it forever. EventsWriter waits for the disk at every flush.
    """

    def __init__(self, folder: Path, step: int) -> None:
        """Open a new file; it makes TensorBoard hide values of other files in the folder for steps after `step`."""
        from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names. The time in the name has microseconds, since a run may be
        # resumed within a second.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        self.path = folder / name
        self._file = self.path.open("xb")
        self._add(file_version="brain.Event:2")
        self._add(step=step + 1, session_log=self._proto.SessionLog(status=self._proto.SessionLog.START))
        self._file.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in scalars.items():
            self._add(step=step, summary=scalar(name, value))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _add(self, **content: Any) -> None:
        """Append a TFRecord of an event: length, checksum of the length, bytes, checksum of the bytes."""
        from tensorboardX.record_writer import masked_crc32c

        data = self._proto.Event(wall_time=time.time(), **content).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(data))
        self._file.write(length + checksums[0] + data + checksums[1])


@contextlib.contextmanager
def _named_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written: {error.strerror}") from error


class Progress:
    """Progress of training on stderr: a bar on a terminal, elsewhere a line per log interval.

    Times are counted from the first step of this process.
    """

    def __init__(self, first_step: int, num_steps: int, shown: bool = True) -> None:
        self._silent = not shown
        self._first, self._total = first_step, num_steps
        self._start = time.monotonic()
        self._shown = 0.0
        self._bar: Any = None
        if shown and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bar, self._task = _bar(first_step, num_steps)

    def due(self) -> bool:
        """Return whether to update the bar; at most once a second."""
        return self._bar is not None and time.monotonic() - self._shown > 1.0

    def update(self, step: int, loss: float, tokens_per_s: float | None) -> None:
        """Move the bar to `step`."""
        if self._bar is not None:
            speed = "" if tokens_per_s is None else f"{tokens_per_s:,.0f} tokens/s"
            self._bar.update(self._task, completed=step, loss=f"loss {loss:.3f}", speed=speed)
        self._shown = time.monotonic()

    def line(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Update at a log interval: print a line if there is no bar."""
        self.update(step, loss, tokens_per_s)
        if self._bar is None:
            spent = time.monotonic() - self._start
            left = spent / max(step - self._first, 1) * (self._total - step)
            self.say(
                f"step {step}/{self._total}  loss {loss:.3f}  {tokens_per_s:,.0f} tokens/s  "
                f"{_minutes(spent)} spent, {_minutes(left)} left"
            )

    def say(self, message: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(message, highlight=False, markup=False)
        elif not self._silent:
            print(message, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _bar(first_step: int, num_steps: int) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=Console(stderr=True), refresh_per_second=2)
    return bar, bar.add_task("", total=num_steps, completed=first_step, loss="", speed="")
