"""Streams out of gzip and zip files, whose expanded size is bounded and whose damage is named."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Generator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from transformer_jax.readers.files import open_file

MAX_EXPANDED_BYTES = 1 << 30
"""Expanded bytes that are always allowed. More must stay below `MAX_EXPANSION` times the compressed size."""
MAX_EXPANSION = 200
"""Text shrinks to a third or a tenth, drawn images to a hundredth; zeros to a thousandth."""
MAX_MEMBERS = 100_000
"""Largest number of files in a zip archive."""

_DAMAGES = (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error)
_READ_AT_ONCE = 1 << 25
"""Largest directory of a zip archive in bytes; the library reads it whole."""
_BLOCK_BYTES = 1 << 16
_UNIX = 3  # `create_system` of zip members whose external attributes hold a Unix file mode
_ENCRYPTED = 1  # bit of `flag_bits`
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the library expands a block of the others without a bound


class CompressedError(ValueError):
    """Compressed content is damaged, or expands too far."""


def expansion_bound(compressed: int) -> int:
    """Return how many bytes a file of `compressed` bytes may expand to."""
    return max(MAX_EXPANDED_BYTES, MAX_EXPANSION * compressed)


class _Guarded(io.RawIOBase):
    """A stream that raises ValueError for damage, and for more than `most` bytes; `is_exact`: also for fewer."""

    def __init__(self, stream: gzip.GzipFile | io.BufferedIOBase, most: int, is_exact: bool = False) -> None:
        super().__init__()
        self._stream, self._most, self._left, self._is_exact = stream, most, most, is_exact

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            count = self._stream.readinto(buffer)
        except _DAMAGES as error:
            raise CompressedError(f"it is damaged or incomplete: {error}") from error
        self._left -= count
        if self._left < 0:
            raise CompressedError(_too_much(self._most))
        if self._is_exact and self._left and not count and len(buffer):
            raise CompressedError(f"it is damaged or incomplete: it ends {self._left:,} bytes early")
        return count


def _too_much(most: int) -> str:
    return f"it expands to more than {most:,} bytes, too many for its size; if it is right, expand it first"


@contextlib.contextmanager
def open_gzip(path: Path | str, most: int | None = None) -> Generator[io.BufferedIOBase]:
    """Yield the expanded content of a .gz file as a stream.

    Args:
      most: the largest expanded size; default: `expansion_bound` of the file's size.
    Raises: OSError if the file cannot be opened; ValueError, also while the stream is read, if it is not gzip, is
      damaged or cut short, or expands to more.
    """
    with open_file(path) as file, gzip.GzipFile(fileobj=file) as stream:
        if most is None:
            most = expansion_bound(os.fstat(file.fileno()).st_size)
        with io.BufferedReader(_Guarded(stream, most), _BLOCK_BYTES) as guarded:
            yield guarded


def read_gzip(path: Path | str, most: int = MAX_EXPANDED_BYTES) -> bytes:
    """Return the expanded content of a .gz file; raises as `open_gzip`."""
    with open_gzip(path, most) as stream:
        return stream.read()


class Archive:
    """The files in an open zip archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {info.filename: info for info in archive.infolist()}

    @property
    def names(self) -> list[str]:
        """Names of the files, in the archive's order."""
        return [*self._members]

    def size(self, name: str) -> int:
        """Return the expanded size of a file as the archive declares it.

        Raises: KeyError if there is no such file; ValueError if it is larger than `expansion_bound`, encrypted, or
        compressed by another method than deflate.
        """
        info = self._members[name]
        if info.flag_bits & _ENCRYPTED:
            raise CompressedError(f"its file '{name}' is encrypted")
        if info.compress_type not in _METHODS:
            raise CompressedError(f"its file '{name}' is compressed by another method than deflate")
        if info.file_size > expansion_bound(info.compress_size):
            raise CompressedError(f"its file '{name}': {_too_much(expansion_bound(info.compress_size))}")
        return info.file_size

    @contextlib.contextmanager
    def open(self, name: str) -> Generator[io.BufferedIOBase]:
        """Yield the content of a file as a stream; raises as `size`, and ValueError also while it is read."""
        size = self.size(name)
        try:
            member = self._archive.open(self._members[name])
        except (*_DAMAGES, OSError) as error:  # a place before the file's beginning is an OSError
            raise CompressedError(f"its file '{name}' is damaged: {error}") from error
        with member, io.BufferedReader(_Guarded(cast(io.BufferedIOBase, member), size, True), _BLOCK_BYTES) as stream:
            yield stream


class _BoundedReads(io.BufferedReader):
    """A file that refuses to read much at once, as a damaged zip archive asks for."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0 or size > _READ_AT_ONCE:
            data = super().read(_READ_AT_ONCE + 1)
            if len(data) > _READ_AT_ONCE:
                raise CompressedError(f"it is damaged, or its directory has more than {_READ_AT_ONCE:,} bytes")
            return data
        return super().read(size)


@contextlib.contextmanager
def open_zip(path: Path | str, are_paths: bool = True) -> Generator[Archive]:
    """Yield the files of a zip archive.

    Args:
      are_paths: the names of its files are paths, none of which may lead out of a folder; False: they name arrays.
    Raises: OSError if the file cannot be opened; ValueError if it is not a zip archive, is damaged, has a link, a path
      that leads out, two files of a name, or more than `MAX_MEMBERS` files.
    """
    with _BoundedReads(open_file(path).detach()) as bounded:
        try:
            archive = zipfile.ZipFile(bounded)
        except (*_DAMAGES, OverflowError, OSError) as error:
            raise CompressedError(f"it is not a zip archive, or is damaged: {error}") from error
        with archive:
            infos = archive.infolist()
            if len(infos) > MAX_MEMBERS:
                raise CompressedError(f"it holds {len(infos):,} files, more than {MAX_MEMBERS:,}")
            if len({info.filename for info in infos}) < len(infos):
                raise CompressedError("it holds two files of the same name")
            for info in infos:
                _check_member(info, are_paths)
            yield Archive(archive)


def _check_member(info: zipfile.ZipInfo, is_path: bool) -> None:
    """Raise ValueError for a link, an absolute path or a path with `..`."""
    name = info.filename.replace("\\", "/")
    if info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16):
        raise CompressedError(f"its file {info.filename!r} is a link")
    if is_path and (name.startswith("/") or ".." in PurePosixPath(name).parts or re.match("[A-Za-z]:", name)):
        raise CompressedError(f"its file {info.filename!r} is a path that leaves the folder")
