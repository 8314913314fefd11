"""Output streams whose errors name the file."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

STDOUT = "stdout"
Opener = Callable[[str, int], int]


class NamedFile(io.FileIO):
    """A file whose write errors contain its name; Python itself names only files that it cannot open."""

    def __init__(
        self, file: Path | int, mode: str, label: str, closefd: bool = True, opener: Opener | None = None
    ) -> None:
        """label: name of the file in errors. The other arguments are those of `open`."""
        super().__init__(file, mode, closefd, opener)
        self._label = label

    def write(self, data) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = self._label
            raise


def name_stdout() -> None:
    """Make write errors of stdout name it STDOUT, if it is a file, a pipe or a terminal."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper) or type(getattr(stdout.buffer, "raw", stdout.buffer)) is not io.FileIO:
        return
    stdout.flush()
    file = NamedFile(stdout.fileno(), "wb", STDOUT, closefd=False)
    sys.stdout = io.TextIOWrapper(
        file if isinstance(stdout.buffer, io.FileIO) else io.BufferedWriter(file),  # unbuffered with `python -u`
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


def release_stdout() -> None:
    """Drop the output that stdout could not write, which Python would try to write again at exit."""
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError), open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), sys.stdout.fileno())
