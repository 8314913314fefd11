"""Bytes and text of regular files."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

MAX_BYTES = 1 << 30
"""Largest file that is read into memory at once, in bytes."""
MAX_LINE_BYTES = 1 << 26
"""Longest line of a stream, in bytes."""


def check_regular(path: Path | str) -> None:
    """Raise OSError for a pipe, a device or a socket, whose content may never end; also if there is no such file.

    A folder passes: opening it raises an OSError that says what it is.
    """
    check_regular_mode(os.stat(path).st_mode, path)


def check_regular_mode(mode: int, path: Path | str) -> None:
    """Raise OSError as `check_regular`; mode: `st_mode` of the path or of an open descriptor."""
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.ENXIO, "it is a pipe or a device, not a file", str(path))


def open_file(path: Path | str) -> io.BufferedReader:
    """Return a regular file, opened for reading bytes.

    The kind of file is that of the open descriptor: a path that is replaced meanwhile cannot pass as something else.

    Raises: OSError if it cannot be opened, or is a folder, a pipe, a device or a socket.
    """
    # Without O_NONBLOCK, opening a pipe waits until somebody writes into it.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        check_regular_mode(mode, path)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_stream(path: Path | str) -> io.BufferedReader:
    """Return a file or a pipe that the user has named, opened for reading bytes; it waits for a pipe's writer.

    For inputs that are read line by line, such as `--input=<(zcat FILE)`; never for a file that something else names.

    Raises: OSError if it cannot be opened or is a folder.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    try:
        return os.fdopen(descriptor, "rb")  # refuses a folder
    except BaseException:
        with contextlib.suppress(OSError):  # closed already
            os.close(descriptor)
        raise


def read_stream(path: Path | str, most: int) -> bytes:
    """Return the content of a file or a pipe that the user has named.

    Raises: OSError as `open_stream`, and for a content of more than `most` bytes.
    """
    with open_stream(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, _too_large(most), str(path))
    return data


def lines_of(stream: io.BufferedIOBase | IO[bytes], most: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines of a stream with their ends.

    Raises: ValueError, which names the line, for a line of more than `most` bytes, since an endless one would fill the
    memory.
    """
    for number in itertools.count(1):
        line = stream.readline(most + 1)
        if len(line) > most:
            raise ValueError(f"line {number} has more than {most:,} bytes")
        if not line:
            return
        yield line


def open_text(path: Path | str, errors: str = "strict") -> io.TextIOWrapper:
    """Return a regular file, opened for reading UTF-8; raises OSError as `open_file`."""
    return io.TextIOWrapper(open_file(path), encoding="utf-8", errors=errors)


def read_bytes(path: Path | str, most: int = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Raises: OSError as `open_file`, and for a file of more than `most` bytes, before it is read.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        # The size of some files, such as those of /proc, is said to be 0: one more byte than that shows the rest. A
        # buffer as large as `most` would be allocated before anything is read.
        data = b"" if size > most else file.read(size + 1)
        if len(data) > size:
            data += file.read(most + 1 - size)
    if size > most or len(data) > most:
        raise OSError(errno.EFBIG, _too_large(most), str(path))
    return data


def read_text(path: Path | str, most: int = MAX_BYTES, errors: str = "strict") -> str:
    """Return the content of a UTF-8 file; raises OSError as `read_bytes`, and ValueError if it is not UTF-8."""
    return read_bytes(path, most).decode("utf-8", errors)


def _too_large(most: int) -> str:
    return f"it has more than {most:,} bytes, too many for such a file"
