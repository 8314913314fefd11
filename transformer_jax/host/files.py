"""Functions that write files atomically, lock files and hash files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import uuid
import zlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from transformer_jax.errors import CheckpointError
from transformer_jax.readers import check_regular, open_file, through_json
from transformer_jax.readers.files import check_regular_mode

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without locks."""

LockState = Literal["locked", "in use", "no locks"]


CHECKSUM = "checksum"
"""Key of the checksum in a JSON file that `with_checksum` has made."""


class OpenFile(Protocol):
    """A file object that has a descriptor."""

    def fileno(self) -> int: ...


def user_cache() -> Path | None:
    """Return ~/.cache/transformer_jax, or $XDG_CACHE_HOME/transformer_jax; None if the home folder is unknown."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "transformer_jax" if os.path.isabs(home) else None


def refuse_to_replace_device(file: Path) -> None:
    """Raise OSError for a path of a pipe, a device or a socket; a missing file passes."""
    with contextlib.suppress(FileNotFoundError):
        check_regular(file)


def replace_file(file: Path, data: bytes) -> None:
    """Replace a file atomically: at any moment it has either the complete old or the complete new content.

    Raises OSError if it cannot be written, or is a pipe or a device, which a file would replace. The file then keeps
    the old content, and no temporary file is left.
    """
    refuse_to_replace_device(file)
    # The name is unique, so that two processes that write at once do not move each other's incomplete file.
    temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming_errors(path: Path) -> Generator[None]:
    """Return a context that turns an OSError into a CheckpointError, which names the path."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written: {error.strerror}") from error


def write_atomically(file: Path, data: bytes) -> None:
    """Replace a file as `replace_file` does; raises CheckpointError, which names the file, if it cannot be written."""
    with naming_errors(file):
        replace_file(file, data)


def check_path_is_text(path: Path) -> None:
    """Raise CheckpointError for a path that is not UTF-8, which the library of checkpoints and JSON cannot hold."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{path.absolute()}: the path is not UTF-8; rename its folders, or use others") from error


def own_file_opener(path: str, flags: int) -> int:
    """Return the descriptor of a regular file; for the argument `opener` of `open`, to append to it or to lock it.

    A link is not followed: in a folder that somebody else has made, it may lead to any file. Opening a pipe does not
    wait for its reader.

    Raises: OSError if it cannot be opened, or is a link, a folder, a pipe, a device or a socket.
    """
    flags |= getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        problem = {errno.ELOOP: "it is a link, which is not followed", errno.ENXIO: "it is a pipe or a device"}
        raise OSError(error.errno, problem.get(error.errno or 0, error.strerror), path) from error
    try:
        check_regular_mode(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def append_line(path: Path, line: str) -> None:
    """Append a line to a file of this program; raises OSError as `own_file_opener`."""
    with open(path, "a", encoding="utf-8", opener=own_file_opener) as file:
        file.write(f"{line}\n")


def open_own_file(path: Path) -> io.BufferedWriter:
    """Return a file opened for appending; raises OSError as `own_file_opener`."""
    return open(path, "ab", opener=own_file_opener)


def try_lock(file: OpenFile | int) -> LockState:
    """Lock an open file for this process without waiting, and return the state of the lock.

    The lock is the kernel's (flock), on the descriptor: it ends when the descriptor is closed or the process dies, by
    SIGKILL too. A second descriptor of the same file does not get it, in this process either. Child processes do not
    inherit it, because Python's descriptors are closed on exec.

    Args:
      file: an open file or its descriptor; it stays open, and the caller closes it.

    Returns:
      "locked": this descriptor has the lock. "in use": another one has it. "no locks": the file system has none, so
      that other processes cannot be kept out.

    Raises OSError if locking fails for another reason.
    """
    import filelock  # here, because its import takes longer than the refusal of a wrong flag

    # Lock the descriptor instead of using filelock.FileLock: callers write into the file that they lock, rename it, or
    # name the process that has it. Without flock, FileLock makes lock files that outlive a killed process.
    try:
        acquired = filelock.lock_descriptor(file if isinstance(file, int) else file.fileno(), blocking=False)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "no locks"
        raise
    return "locked" if acquired else "in use"


def sha256_of(path: Path | str) -> str:
    """Return the sha256 of a file's content in hexadecimal; raises OSError if it cannot be read."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_text(values: Any, indent: int | None = None, ascii: bool = False) -> str:
    """Return JSON of values as `json_values` makes them.

    Args: ascii: write other characters as escapes, for a terminal or a pipe that may not be UTF-8.
    """
    return json.dumps(json_values(values), indent=indent, ensure_ascii=ascii, allow_nan=False)


def is_finite(values: Any) -> bool:
    """Return whether no number in values, however nested, is NaN or infinite."""
    if isinstance(values, float):
        return math.isfinite(values)
    if isinstance(values, Mapping):
        return all(map(is_finite, values.values()))
    return not isinstance(values, list | tuple) or all(map(is_finite, values))


def json_values(values: Any) -> Any:
    """Return values that JSON and UTF-8 can hold.

    A number that is not finite becomes null. Half of a surrogate pair, as in file names that are not UTF-8, becomes its
    escape `\\udcff`.
    """
    if isinstance(values, float):
        return values if math.isfinite(values) else None
    if isinstance(values, str):
        return values.encode("utf-8", "backslashreplace").decode()
    if isinstance(values, Mapping):
        return {
            json_values(name) if isinstance(name, str) else name: json_values(value) for name, value in values.items()
        }
    if isinstance(values, list | tuple):
        return [json_values(value) for value in values]
    return values


def json_sha256(values: Mapping[str, Any]) -> str:
    """Return the hex digest of JSON values; it does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(through_json(values), sort_keys=True).encode()).hexdigest()


def crc32_text(text: str) -> str:
    """Return the CRC-32 of a text in UTF-8, eight hex digits."""
    return f"{zlib.crc32(text.encode()):08x}"


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as `json_values` makes them, with their checksum."""
    values = json_values(values)
    return {**values, CHECKSUM: json_sha256(values)}


def without_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values without their checksum; raises ValueError if it is missing or does not match."""
    rest = {name: value for name, value in values.items() if name != CHECKSUM}
    if CHECKSUM not in values:
        raise ValueError("has no checksum")
    if values[CHECKSUM] != json_sha256(rest):
        raise ValueError("does not match its checksum")
    return rest
