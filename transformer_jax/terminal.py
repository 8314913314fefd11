"""Text for a terminal: messages on stderr, tables for stdout."""

from __future__ import annotations

import io
import sys
from typing import Any, cast


def say(message: str) -> None:
    """Print a message on stderr and flush it, so that it is in order with the output of other processes."""
    print(message, file=sys.stderr, flush=True)


def render_table(table: Any, minimum_width: int) -> str:
    """Return a Rich table as text, as wide as the terminal and at least `minimum_width` characters.

    The table is not printed by Rich, which would end the process if the reader of stdout has closed the pipe.
    """
    from rich.console import Console

    console = Console(file=io.StringIO(), width=max(Console().width, minimum_width))
    console.print(table)
    return cast(io.StringIO, console.file).getvalue().removesuffix("\n")
