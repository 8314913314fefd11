"""A progress bar, shown only on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator

from transformer_jax.terminal import bar_shown


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
