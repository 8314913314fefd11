"""Functions that turn downloaded files into the text files of a corpus, without loading them into memory.

Each yields (name, content), the content in blocks of bytes. Compressed files may not expand beyond `MAX_BYTES`, and
nothing is written to a path that an archive chooses.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path

from transformer_jax.errors import DataError
from transformer_jax.readers import open_file
from transformer_jax.readers.archives import CompressedError, open_gzip, open_zip

Unpack = Callable[[Mapping[str, Path]], Iterator[tuple[str, Iterator[bytes]]]]
"""A function from downloaded files by name to (name in `data.dir`, content); it raises DataError for a bad file."""

MAX_BYTES = 1 << 30
"""Largest size of a decompressed file, in bytes."""

_BLOCK_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 20
_IN_AND_OUT = re.compile(rb"IN: (\S.*) OUT: (\S.*)")


def unchanged(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the files as they are."""
    for name, path in files.items():
        yield name, _content(path, open_file)


def renamed(names: Mapping[str, str]) -> Unpack:
    """Return a function that yields the files as they are, under other names. names: downloaded name -> new name."""

    def unpack(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
        for name, content in unchanged(files):
            yield names[name], content

    return unpack


def gunzipped(files: Mapping[str, Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the .gz files decompressed, without their suffix; DataError for a damaged or too large one."""
    for name, path in files.items():
        yield name.removesuffix(".gz"), _content(path, open_gzip)


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
    with open_file(path) as stream:
        for number, line in enumerate(_lines(path, stream), 1):
            match = _IN_AND_OUT.fullmatch(line.strip())
            if match is None:
                raise DataError(f"{path}, line {number}: expected 'IN: command OUT: actions'")
            yield match[side + 1] + b"\n"


@contextlib.contextmanager
def _member(path: Path, name: str) -> Generator[io.BufferedIOBase]:
    """Open one file of a zip archive; raise DataError for an archive with unsafe members, or without this one."""
    try:
        with open_zip(path) as archive:
            if name not in archive.names:
                raise DataError(f"{path} has no file {name}; it has {', '.join(archive.names[:5]) or 'none'}")
            with archive.open(name) as stream:
                yield stream
    except CompressedError as error:
        raise _damaged(path, error) from error


def _lines(path: Path, stream: io.BufferedIOBase) -> Iterator[bytes]:
    size = 0
    while line := stream.readline(_MAX_LINE_BYTES):
        size += len(line)
        if size > MAX_BYTES or len(line) == _MAX_LINE_BYTES:
            raise _too_large(path)
        yield line


def _content(
    path: Path, opened: Callable[[Path], contextlib.AbstractContextManager[io.BufferedIOBase]]
) -> Iterator[bytes]:
    size = 0
    try:
        with opened(path) as stream:
            while block := stream.read(_BLOCK_BYTES):
                size += len(block)
                if size > MAX_BYTES:
                    raise _too_large(path)
                yield block
    except CompressedError as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: CompressedError) -> DataError:
    return DataError(f"{path} cannot be used: {error}; delete it and run again")


def _too_large(path: Path) -> DataError:
    return DataError(
        f"{path} has more than {MAX_BYTES:,} bytes decompressed, or no line breaks, so it is not the corpus. Delete it"
    )
