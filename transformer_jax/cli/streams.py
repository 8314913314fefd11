"""Output streams whose errors name the file."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

STDOUT = "stdout"
logger = logging.getLogger(__name__)
Opener = Callable[[str, int], int]


class LabelledFile(io.FileIO):
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


class _ClosedStdout(io.RawIOBase):
    """Replaces a stdout that was closed before this process started. It drops all output, and warns once."""

    _has_told = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if not self._has_told:
            self._has_told = True
            logger.warning("stdout is closed, so the output of this command is lost; direct it to a file")
        return len(data)


def open_closed_streams() -> None:
    """Replace standard streams that were closed before this process started.

    Their descriptors become those of the null device: otherwise a file that is opened later would get the number 1 or
    2, and a library's messages would be written into it. Writing to stdout is a warning; stdin stays None.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    if sys.stdout is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_ClosedStdout()), "utf-8", write_through=False)
    if sys.stderr is None:  # Python would print messages for it on stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def name_stdout() -> None:
    """Make write errors of stdout name it STDOUT, if it is a file, a pipe or a terminal."""
    stdout = sys.stdout
    if not isinstance(stdout, io.TextIOWrapper) or type(getattr(stdout.buffer, "raw", stdout.buffer)) is not io.FileIO:
        return
    stdout.flush()
    file = LabelledFile(stdout.fileno(), "wb", STDOUT, closefd=False)
    sys.stdout = io.TextIOWrapper(
        file if isinstance(stdout.buffer, io.FileIO) else io.BufferedWriter(file),  # unbuffered with `python -u`
        encoding=stdout.encoding,
        errors=stdout.errors,
        line_buffering=stdout.line_buffering,
        write_through=stdout.write_through,
    )


def release_stdout() -> None:
    """Drop the output that stdout could not write, which Python would try to write again at exit."""
    if sys.stdout.closed:
        return
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError), open(os.devnull, "wb") as devnull:
            os.dup2(devnull.fileno(), sys.stdout.fileno())
