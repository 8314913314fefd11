"""Progress: a bar on a terminal; of downloads also lines where there is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator, Hashable

from transformer_jax.host.terminal import bar_shown, doing, is_silent, say


@contextlib.contextmanager
def progress_bar(what: str, total: int | None, done: int = 0) -> Generator[Callable[[int], None]]:
    """Yield a function that advances a progress bar by a given amount.

    Args:
      total: amount of work; None if it is unknown.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with bar_shown(), Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task("", total=total, completed=done)
        yield lambda more: bar.advance(task, more)


class ByteProgress:
    """The progress of downloads in bytes, shown by `byte_progress`."""

    def __init__(self, total: int, show: Callable[[int, int | None, float], None]) -> None:
        """Start at 0 bytes.

        Args:
          total: bytes of all downloads whose size is known.
          show: called after each change with the bytes so far, the total (None if unknown) and bytes per second.
        """
        self._total, self._show = total, show
        self._expected: dict[Hashable, int] = {}
        self._done, self._received, self._start = 0, 0, time.monotonic()

    def expect(self, download: Hashable, size: int) -> None:
        """Set the size of a download that `total` does not include, once a server has named it."""
        self._expected[download] = size

    def start_at(self, count: int) -> None:
        """Add bytes that an earlier process downloaded; a negative number for bytes that are downloaded again."""
        self._done += count

    def advance(self, count: int) -> None:
        """Add bytes that have arrived."""
        self._done += count
        self._received += count
        total = self._total + sum(self._expected.values())
        self._show(self._done, total or None, self._received / max(time.monotonic() - self._start, 1e-3))


@contextlib.contextmanager
def byte_progress(what: str, total: int) -> Generator[ByteProgress]:
    """Yield the progress of downloads: a bar on a terminal, otherwise a line whenever stderr `is_silent`.

    Args:
      what: the activity, such as `downloading multi30k`.
      total: bytes of all downloads whose size is known.
    """

    def say_line(done: int, total: int | None, rate: float) -> None:
        if is_silent():
            of_total = f" of {total / 1e6:,.1f}" if total else ""
            say(f"{what}: {done / 1e6:,.1f}{of_total} MB, {rate / 1e6:,.2f} MB/s")

    if not sys.stderr.isatty():
        with doing(what):  # for a server that sends nothing
            yield ByteProgress(total, say_line)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TextColumn("{task.fields[rate]:.2f} MB/s"))
    with bar_shown(), Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task("", total=total or None, rate=0.0)
        yield ByteProgress(
            total, lambda done, total, rate: bar.update(task, completed=done, total=total, rate=rate / 1e6)
        )
