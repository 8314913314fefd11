"""Arrays of .npy and .npz files, without pickle, and arrays that are mapped from a file.

The format (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): a magic text, the version, the
length of the header, the header as a Python dict with type, order and shape, then the numbers. Here the header is
compared with the size of the file before memory for the numbers is asked for.
"""

from __future__ import annotations

import ast
import contextlib
import io
import math
import os
import struct
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.readers.archives import Archive, open_zip
from transformer_jax.readers.files import open_file

MAX_HEADER_BYTES = 10_000
"""Longest header of an array, as NumPy's own limit."""
MAX_DIMENSIONS = 32
MAX_SIZE = 1 << 48
"""Largest product of the sizes of an array other than 0."""

_MAGIC = b"\x93NUMPY"
_LENGTHS = {1: "<H", 2: "<I", 3: "<I"}
_KINDS = "biufcUS"
_BLOCK_BYTES = 1 << 20
_DAMAGED_HEADER = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(SyntaxError, RecursionError, MemoryError, OverflowError, struct.error),
)


class ArrayHeader(NamedTuple):
    """The header of an array. start: its own length in bytes; nbytes: the length of the numbers in bytes."""

    dtype: np.dtype
    shape: tuple[int, ...]
    is_fortran: bool
    start: int
    nbytes: int


def read_npy(path: Path | str) -> np.ndarray:
    """Return the array of an .npy file.

    Raises: OSError if the file cannot be opened; ValueError if it is no such file, is damaged, or has objects.
    """
    with open_file(path) as file:
        return _array(file, os.fstat(file.fileno()).st_size)


class ArrayFile:
    """The arrays of an open .npz file."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._members = {name.removesuffix(".npy"): name for name in archive.names if name.endswith(".npy")}

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [*self._members]

    def header(self, name: str) -> ArrayHeader:
        """Return type and shape of an array; raises as `read`."""
        member = self._members[name]
        with _named(name), self._archive.open(member) as stream:
            return _header(stream, self._archive.size(member))

    def read(self, name: str) -> np.ndarray:
        """Return an array.

        Raises: KeyError if there is none of this name; ValueError, which names the array, if it is damaged, larger than
        its file, or of a type that is not a number, text or truth value.
        """
        member = self._members[name]
        with _named(name), self._archive.open(member) as stream:
            return _array(stream, self._archive.size(member))


@contextlib.contextmanager
def open_npz(path: Path | str) -> Generator[ArrayFile]:
    """Yield the arrays of an .npz file.

    Raises: OSError if the file cannot be opened; ValueError if it is not a zip archive or is damaged.
    """
    with open_zip(path, are_paths=False) as archive:
        yield ArrayFile(archive)


def map_numbers(path: Path | str, dtype: np.dtype | type | str, shape: tuple[int, ...], start: int = 0) -> np.ndarray:
    """Return a read-only array that is mapped from a file.

    Args:
      start: the place of its first byte.
    Raises: OSError if the file cannot be opened; ValueError if it ends before the array does.
    """
    dtype = np.dtype(dtype)
    with open_file(path) as file:
        nbytes, size = math.prod(shape) * dtype.itemsize, os.fstat(file.fileno()).st_size
        if start < 0 or nbytes < 0 or start + nbytes > size:
            raise ValueError(f"it has {size:,} bytes, but an array of it ends at byte {start + nbytes:,}")
        return np.memmap(file, dtype, "r", start, shape) if nbytes else np.zeros(shape, dtype)


@contextlib.contextmanager
def _named(name: str) -> Generator[None]:
    """Name the array in a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"its array '{name}': {error}") from error


def _header(stream: io.BufferedIOBase, size: int) -> ArrayHeader:
    """Return the header of an array in a file of `size` bytes; raises ValueError if it is damaged or does not fit."""
    start = stream.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC or start[len(_MAGIC) :][:1] not in (b"\1", b"\2", b"\3"):
        raise ValueError("it does not begin as an .npy file of the versions 1 to 3")
    version = start[len(_MAGIC)]
    try:
        form = _LENGTHS[version]
        (length,) = struct.unpack(form, stream.read(struct.calcsize(form)))
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"{length:,} bytes long, more than {MAX_HEADER_BYTES:,}")
        text = stream.read(length).decode("utf-8" if version == 3 else "latin-1")
        values = ast.literal_eval(text.strip())
        descr, is_fortran, shape = values["descr"], values["fortran_order"], values["shape"]
        dtype, is_fortran = _type(descr), _truth(is_fortran)
        _check_shape(shape, dtype)
    except _DAMAGED_HEADER as error:
        raise ValueError(f"its header cannot be used: {error}") from error
    header = ArrayHeader(
        dtype,
        shape,
        is_fortran,
        len(start) + struct.calcsize(form) + length,
        math.prod(shape) * dtype.itemsize,
    )
    if header.start + header.nbytes != size:
        declared = f"{header.nbytes:,} bytes, {dtype.name} {list(shape)}"
        raise ValueError(f"its header declares {declared}, but {size - header.start:,} follow")
    return header


def _type(descr: Any) -> np.dtype:
    if not isinstance(descr, str):
        raise ValueError("it has a record of several types, not numbers")
    dtype = np.dtype(descr)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, as of images of unequal sizes; unpickling them could run any code")
    if dtype.kind not in _KINDS or not dtype.itemsize:
        raise ValueError(f"the type {descr!r} is neither of numbers nor of texts")
    return dtype


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"fortran_order is {value!r}")
    return value


def _check_shape(shape: Any, dtype: np.dtype) -> None:
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"the shape is {shape!r}")
    if len(shape) > MAX_DIMENSIONS or math.prod(max(size, 1) for size in shape) * dtype.itemsize > MAX_SIZE:
        raise ValueError(f"the shape {shape!r} is too large")


def _array(stream: io.BufferedIOBase, size: int) -> np.ndarray:
    """Return the array of a file of `size` bytes, which is at its beginning."""
    header = _header(stream, size)
    try:
        numbers = np.empty(math.prod(header.shape), header.dtype)
    except MemoryError as error:
        raise ValueError(f"it has {header.nbytes:,} bytes, more than there is memory for") from error
    data = numbers.view(np.uint8).data if numbers.nbytes else memoryview(b"")
    done = 0
    while done < len(data):
        # A view of a part, so that a zip archive expands a block at a time.
        count = stream.readinto(data[done : done + _BLOCK_BYTES])
        if not count:
            raise ValueError(f"it ends after {done:,} of {header.nbytes:,} bytes")
        done += count
    stream.read(1)  # the end of the file, where a zip archive compares the checksum
    if header.dtype.kind == "U" and numbers.size and int(_code_points(numbers).max()) > 0x10FFFF:
        raise ValueError("it has a text with a character that does not exist")
    if not header.dtype.isnative:
        numbers = numbers.astype(header.dtype.newbyteorder("="))
    return numbers.reshape(header.shape, order="F" if header.is_fortran else "C")


def _code_points(texts: np.ndarray) -> np.ndarray:
    return texts.view(np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
