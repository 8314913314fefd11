"""Download of a file over HTTP(S), which resumes after an interruption. Proxies of the environment are used."""

from __future__ import annotations

import contextlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

from transformer_jax.data.downloads.table import RemoteFile
from transformer_jax.errors import DataError
from transformer_jax.host.files import sha256_of
from transformer_jax.host.progress_bars import ByteProgress
from transformer_jax.host.terminal import say
from transformer_jax.readers import check_regular, read_bytes

TIMEOUT_SECONDS = 30.0
"""Longest wait for a connection, or for the next bytes."""

MAX_BYTES = 1 << 30
"""Largest download of a file whose size is not known."""

_ATTEMPTS = 5  # requests for one file, because a connection may end early
_BLOCK_BYTES = 1 << 16
_CONTENT_RANGE = re.compile(r"bytes (\d+)-")


class UnreachableError(DataError):
    """A file that could not be downloaded: no network, no answer in time, or an error from the server."""


def fetch(file: RemoteFile, folder: Path, progress: ByteProgress) -> None:
    """Download a file into a folder, or continue an earlier download.

    The bytes go to NAME.part, which is renamed to NAME once the file is complete and its size and sha256 are right.

    Args:
      progress: gets the number of bytes that have arrived, those of the earlier download included.
    Raises: UnreachableError if the server cannot be reached; the part file is kept. DataError if the file is not the
      expected one (the part file is deleted), or cannot be written (it is kept).
    """
    part = folder / f"{file.name}.part"
    with local_errors(part):
        if part.exists():
            check_regular(part)  # writing into a pipe would wait for its reader
        progress.start_at(_size(part))
        try:
            for _ in range(_ATTEMPTS):
                if _size(part) == file.size or _transfer(file, part, progress):
                    break
            else:
                raise UnreachableError(f"{file.url}: the connection ended {_ATTEMPTS} times; the part file is kept")
        except KeyboardInterrupt:
            say(f"{part}: {_size(part):,} bytes are kept; the same command continues the download")
            raise
        try:
            check_download(file, part)
        except DataError as error:
            _forget(part)
            raise DataError(f"{file.url}: {error}\nThe download is deleted; run the same command again.") from error
        part.replace(folder / file.name)
        _validator_file(part).unlink(missing_ok=True)


def check_download(file: RemoteFile, path: Path) -> None:
    """Raise DataError if a local file differs from the table in size or sha256, OSError if it cannot be read.

    If the table has no sha256, print that of the local file.
    """
    size, found = _size(path), sha256_of(path)
    if file.sha256 is None:
        say(f"{file.name} is not verified, because {file.url} changes from time to time; it has sha256 {found}")
    elif (size, found) != (file.size, file.sha256):
        raise DataError(
            f"{path} is not the expected file\n"
            f"  expected {file.size:,} bytes, sha256 {file.sha256}\n"
            f"  found    {size:,} bytes, sha256 {found}"
        )


@contextlib.contextmanager
def local_errors(path: Path) -> Generator[None]:
    """Turn an OSError of the file system, such as a full disk, into a DataError with the path and the remedy."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or path}: {error.strerror or error}. The partial file is kept. "
            "Fix the problem or pass another --data_dir, and run the same command again"
        ) from error


def _transfer(file: RemoteFile, part: Path, progress: ByteProgress) -> bool:
    """Request what the part file lacks, append it, and return whether the answer was complete."""
    start = _size(part)
    headers = {"User-Agent": "transformer-jax"}
    validator = _validator_file(part)
    known = read_bytes(validator).decode("latin-1") if validator.exists() else ""
    if start and (known or file.sha256):
        headers["Range"] = f"bytes={start}-"
        if known:
            headers["If-Range"] = known
    try:
        response = urllib.request.urlopen(urllib.request.Request(file.url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise UnreachableError(f"{file.url}: HTTP {error.code} {error.reason}") from error
        _forget(part)
        progress.start_at(-start)
        return False
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"{file.url}: {getattr(error, 'reason', None) or error}") from error
    with response:
        if response.status == http.client.PARTIAL_CONTENT:
            first = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
            if first is None or int(first[1]) != start:
                _forget(part)
                progress.start_at(-start)
                return False
        else:
            progress.start_at(-start)
            start = 0
            _remember(part, response)
        return _append(file, response, part, start, progress)


def _append(file: RemoteFile, response: Any, part: Path, start: int, progress: ByteProgress) -> bool:
    """Write an answer from byte `start` of the part file on, and return whether the answer was complete."""
    left, size = response.length, start
    if file.size is None and left is not None:
        progress.expect(file, start + left)
    with part.open("r+b" if start else "wb", buffering=0) as stream:
        stream.seek(start)
        while True:
            try:
                block = response.read(_BLOCK_BYTES)
            except (OSError, http.client.HTTPException):
                return False
            if not block:
                return left is None or size == start + left
            size += len(block)
            if size > (file.size or MAX_BYTES):
                _forget(part)
                raise DataError(f"{file.url} is larger than {file.size or MAX_BYTES:,} bytes: not the expected file")
            rest = memoryview(block)
            while rest:
                rest = rest[stream.write(rest) :]
            progress.advance(len(block))


def _validator_file(part: Path) -> Path:
    """Return the file with the entity tag or the date of a part file's origin, for If-Range."""
    return part.with_name(f"{part.name}.validator")


def _remember(part: Path, response: Any) -> None:
    tag = response.headers.get("ETag", "")
    validator = tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")
    part.unlink(missing_ok=True)  # first, because the old part has another validator
    _validator_file(part).write_text(validator, encoding="latin-1")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _validator_file(part).unlink(missing_ok=True)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
