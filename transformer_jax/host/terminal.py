"""Text for a terminal: messages on stderr, tables for stdout, and a sign of life while a long activity is silent."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import threading
import time
from collections.abc import Generator
from typing import Any, cast

SILENCE_SECONDS = 12.0
"""Longest time without a line on stderr while something is being done."""


class _Stderr:
    """The state of stderr: when a line was last printed, what is being done, and whether a bar is shown."""

    def __init__(self) -> None:
        self.last_line = time.monotonic()
        self.activities: list[tuple[str, float]] = []
        self.bars = 0


_stderr = _Stderr()


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return a text with escapes for control characters except tab and line feed.

    Texts from files could otherwise move the cursor, change colours or reverse the direction of writing.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(message: str) -> None:
    """Print a message on stderr and flush it, so that it is in order with the output of other processes."""
    print(printable(message), file=sys.stderr, flush=True)
    _stderr.last_line = time.monotonic()


def is_silent() -> bool:
    """Return whether nothing was printed for `SILENCE_SECONDS` and no bar is shown."""
    return not _stderr.bars and time.monotonic() - _stderr.last_line >= SILENCE_SECONDS


@contextlib.contextmanager
def doing(activity: str) -> Generator[None]:
    """Name an activity that may take long, for `signs_of_life`: `scoring test`."""
    _stderr.activities.append((activity, time.monotonic()))
    try:
        yield
    finally:
        _stderr.activities.pop()


def be_silent() -> None:
    """Suppress `signs_of_life` from now on, for a process whose work another one reports."""
    _stderr.bars += 1


@contextlib.contextmanager
def bar_shown() -> Generator[None]:
    """Suppress `signs_of_life` while a progress bar is shown."""
    _stderr.bars += 1
    try:
        yield
    finally:
        _stderr.bars -= 1
        _stderr.last_line = time.monotonic()


@contextlib.contextmanager
def signs_of_life() -> Generator[None]:
    """Print the current activity and its time so far, from a thread, whenever stderr `is_silent`."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(min(1.0, SILENCE_SECONDS)):
            if is_silent() and (current := _stderr.activities[-1:]):
                activity, start = current[0]
                with contextlib.suppress(OSError, ValueError):  # stderr is closed
                    say(f"{activity}: {time.monotonic() - start:.0f} s so far")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


_WIDEST = 1 << 16


def render_table(table: Any) -> str:
    """Return a Rich table as text, as wide as its cells: nothing is cut or broken, in a terminal, a pipe or a file.

    A terminal breaks longer lines by itself. The table is not printed by Rich, which would end the process if the
    reader of stdout has closed the pipe.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=io.StringIO(), width=_WIDEST)
    width = Measurement.get(console, console.options, table).maximum
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return cast(io.StringIO, console.file).getvalue().removesuffix("\n")
