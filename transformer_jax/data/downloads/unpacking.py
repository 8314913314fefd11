"""Functions that turn downloaded files into the text files of a corpus, without loading them into memory.

Each yields (name, content), the content in blocks of bytes. Compressed files may not expand beyond `MAX_BYTES`, and
nothing is written to a path that an archive chooses.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, cast

from transformer_jax.errors import DataError

Unpack = Callable[[Mapping[str, Path]], Iterator[tuple[str, Iterator[bytes]]]]
"""A function from downloaded files by name to (name in `data.dir`, content); it raises DataError for a bad file."""

MAX_BYTES = 1 << 30
"""Largest size of a decompressed file, in bytes."""

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20
_IN_AND_OUT = re.compile(rb"IN: (\S.*) OUT: (\S.*)")
_UNIX = 3  # `create_system` of zip members whose external attributes hold a Unix file mode


def unchanged(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the files as they are."""
    for name, path in files.items():
        yield name, _content(path, lambda path: path.open("rb"))


def renamed(names: Mapping[str, str]) -> Unpack:
    """Return a function that yields the files as they are, under other names. names: downloaded name -> new name."""

    def unpack(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
        for name, content in unchanged(files):
            yield names[name], content

    return unpack


def gunzipped(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the .gz files decompressed, without their suffix; DataError for a damaged or too large one."""
    for name, path in files.items():
        yield name.removesuffix(".gz"), _content(path, gzip.GzipFile)


def members(archive: str, names: Mapping[str, str]) -> Unpack:
    """Return a function that yields members of a zip archive. names: path in the archive -> name in `data.dir`."""

    def unpack(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
        for member, name in names.items():
            yield name, _content_of_member(files[archive], member)

    return unpack


def _content_of_member(archive: Path, member: str) -> Iterator[bytes]:
    with _member(archive, member) as stream:
        yield from _lines(archive, stream)


def split_by_hash(archive: str, member: str) -> Unpack:
    """Return a function that divides the pairs of a zip archive's member into train, valid and test.

    The member is a TSV file with English in column 1 and German in column 2. The sha256 of the English side modulo 100
    decides: 0 is valid, 1 is test, and the others are train. No English sentence is therefore in two splits, and a pair
    stays in its split when the file grows. Pairs with an empty side are left out.
    """

    def unpack(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
        for split, column in itertools.product(("train", "valid", "test"), (0, 1)):
            yield f"{split}.{('en', 'de')[column]}", _column_of_split(files[archive], member, split, column)

    return unpack


def _column_of_split(archive: Path, member: str, split: str, column: int) -> Iterator[bytes]:
    """Yield the lines of one output; the archive is read once per output, so that memory stays small."""
    with _member(archive, member) as stream:
        for number, line in enumerate(_lines(archive, stream), 1):
            cells = line.rstrip(b"\r\n").split(b"\t")
            if len(cells) < 2:
                raise DataError(
                    f"{archive}, {member}, line {number}: expected 2 columns between tabs, got {len(cells)}"
                )
            if cells[0].strip() and cells[1].strip() and _split_of(cells[0]) == split:
                yield cells[column] + b"\n"


def _split_of(text: bytes) -> str:
    number = int(hashlib.sha256(text).hexdigest(), 16) % 100
    return {0: "valid", 1: "test"}.get(number, "train")


def in_and_out(names: Mapping[str, str]) -> Unpack:
    """Return a function that divides lines `IN: command OUT: actions` into PREFIX.in and PREFIX.out.

    Args:
      names: downloaded name -> prefix.
    """

    def unpack(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
        for (name, prefix), side in itertools.product(names.items(), (0, 1)):
            yield f"{prefix}.{('in', 'out')[side]}", _side_of_lines(files[name], side)

    return unpack


def _side_of_lines(path: Path, side: int) -> Iterator[bytes]:
    with path.open("rb") as stream:
        for number, line in enumerate(_lines(path, stream), 1):
            match = _IN_AND_OUT.fullmatch(line.strip())
            if match is None:
                raise DataError(f"{path}, line {number}: expected 'IN: command OUT: actions'")
            yield match[side + 1] + b"\n"


@contextlib.contextmanager
def _member(path: Path, name: str) -> Generator[zipfile.ZipExtFile]:
    """Open one file of a zip archive; raise DataError for an archive with unsafe members, or without this one."""
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _check_safe(path, info)
            if name not in archive.namelist():
                raise DataError(f"{path} has no file {name}; it has {', '.join(archive.namelist()[:5]) or 'none'}")
            with archive.open(name) as stream:
                yield cast(zipfile.ZipExtFile, stream)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a zip archive, or is damaged: {error}; delete it and run again") from error


def _check_safe(path: Path, info: zipfile.ZipInfo) -> None:
    """Raise DataError for a member with an absolute path, a `..` or a link."""
    name = info.filename.replace("\\", "/")
    parts = PurePosixPath(name).parts
    is_link = info.create_system == _UNIX and stat.S_ISLNK(info.external_attr >> 16)
    if name.startswith("/") or ".." in parts or ":" in name or is_link:
        kind = "a link" if is_link else "a path that leaves the folder"
        raise DataError(f"{path}: the member {info.filename!r} is {kind}; the archive is not used, delete it")


def _lines(path: Path, stream: io.BufferedIOBase) -> Iterator[bytes]:
    size = 0
    while line := stream.readline(_MAX_LINE_BYTES):
        size += len(line)
        if size > MAX_BYTES or len(line) == _MAX_LINE_BYTES:
            raise _too_large(path)
        yield line


def _content(path: Path, open_file: Callable[[Path], IO[bytes] | gzip.GzipFile]) -> Iterator[bytes]:
    size = 0
    with open_file(path) as stream:
        try:
            while block := stream.read(_BLOCK_BYTES):
                size += len(block)
                if size > MAX_BYTES:
                    raise _too_large(path)
                yield block
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path} is not gzip, or is damaged: {error}; delete it and run again") from error


def _too_large(path: Path) -> DataError:
    return DataError(f"{path} has more than {MAX_BYTES:,} bytes decompressed, or no lines: not this corpus; delete it")
