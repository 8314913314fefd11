"""Reading and writing of `model.safetensors`, in one file or in shards, one tensor at a time.

The format: 8 bytes with the length of the header, the header in JSON with type, shape and place of every tensor, then
the numbers (https://github.com/huggingface/safetensors, README). `readers.tensors` checks the header: its length and
types, that no tensors overlap, and that they fill the file. The numbers are mapped from the file and written to it
directly, since the library `safetensors` would hold a copy of all of them.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from transformer_jax.checkpoints.finite import check_finite
from transformer_jax.errors import CheckpointError
from transformer_jax.readers import read_json_object
from transformer_jax.readers.arrays import map_numbers
from transformer_jax.readers.tensors import read_tensor_places

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "flax_model.msgpack", "tf_model.h5")

READ_TYPES = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
"""The types of tensors that we read; float32 holds each of their values exactly."""
WRITTEN_TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
SHARD_BYTES = 5 * 1000**3
"""Largest size of each file, if the tensors are written to several."""


class Stored(NamedTuple):
    """A tensor in a file: its type in the header, its shape, and the place of its first byte in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int


class TensorFiles:
    """The tensors of a folder by name; the numbers are read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        """Raises: CheckpointError if the folder has no safetensors file, or one is missing or damaged."""
        self.folder = folder
        self.tensors: dict[str, Stored] = {}
        for file, names in _files(folder).items():
            stored = _read_header(file)
            for name in stored if names is None else names:
                if name not in stored:
                    raise CheckpointError(f"{file}: lacks the tensor '{name}', which {INDEX} says is in it")
            for name, tensor in stored.items():
                if name in self.tensors:
                    raise CheckpointError(f"{file}: the tensor '{name}' is in {self.tensors[name].file.name} too")
                self.tensors[name] = tensor

    def read(self, name: str) -> np.ndarray:
        """Return a tensor as a read-only array that is mapped from the file; raises CheckpointError for other types."""
        tensor = self.tensors[name]
        if tensor.dtype not in READ_TYPES:
            raise CheckpointError(
                f"{tensor.file}: the tensor '{name}' has the type {tensor.dtype}; expected {', '.join(READ_TYPES)}"
            )
        dtype = READ_TYPES[tensor.dtype]
        try:
            return map_numbers(tensor.file, dtype, tensor.shape, tensor.start)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{tensor.file}: cannot be read: {error}") from error

    @property
    def nbytes(self) -> int:
        """Size of all files."""
        return sum(file.stat().st_size for file in {tensor.file for tensor in self.tensors.values()})


def _files(folder: Path) -> dict[Path, list[str] | None]:
    """Return the files of a folder, with the names of their tensors if an index lists them."""
    single, index = folder / SINGLE, folder / INDEX
    if single.is_file():
        return {single: None}
    if not index.is_file():
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: there is no such folder")
        found = [name for name in PICKLED if (folder / name).exists()]
        if found:
            raise CheckpointError(
                f"{folder}: has {found[0]} but no {SINGLE}. We do not read it, since unpickling runs code of the "
                "file's author. Convert it where you trust it, with transformers: "
                "AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            )
        raise CheckpointError(f"{folder}: has neither {SINGLE} nor {INDEX}")
    try:
        places = read_json_object(index).get("weight_map")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: is not an index of tensors: {error}") from error
    if not isinstance(places, dict) or not all(isinstance(file, str) and file for file in places.values()):
        raise CheckpointError(f"{index}: is not an index of tensors: expected 'weight_map', tensors with their files")
    files: dict[Path, list[str]] = {}
    for name, file in places.items():
        if Path(file).name != file or "\0" in file:
            raise CheckpointError(f"{index}: the file name {file!r} of '{name}' has a path in it")
        files.setdefault(folder / file, []).append(name)
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{folder}: {len(missing)} of {len(files)} files are missing: {', '.join(missing)}")
    return {file: list(names) for file, names in files.items()}


def _read_header(file: Path) -> dict[str, Stored]:
    """Return the tensors of a file by name, after its header has been checked."""
    try:
        return {name: Stored(file, *place) for name, place in read_tensor_places(file).items()}
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{file}: is damaged or cut short: {error}") from error


class Outgoing(NamedTuple):
    """A tensor to write: its name, its shape, and a function that returns its float32 numbers."""

    name: str
    shape: tuple[int, ...]
    numbers: Callable[[], np.ndarray]


def write_tensors(
    folder: Path,
    tensors: Iterable[Outgoing],
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Write tensors into a folder: `model.safetensors`, or shards of at most `shard_bytes` with their index.

    Args:
      dtype: a name of `WRITTEN_TYPES`. advance: is called with the number of bytes of every tensor written.
    Raises: OSError if a file cannot be written.
    """
    size = READ_TYPES[WRITTEN_TYPES[dtype]].itemsize
    shards = list(_shards(tensors, size, shard_bytes))
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    )
    for name, shard in zip(names, shards, strict=True):
        _write_file(folder / name, shard, dtype, advance)
    if len(shards) > 1:
        sizes = [math.prod(tensor.shape) for shard in shards for tensor in shard]
        index = {
            "metadata": {"total_size": sum(sizes) * size, "total_parameters": sum(sizes)},
            "weight_map": {tensor.name: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(tensors: Iterable[Outgoing], size: int, shard_bytes: int) -> Iterator[list[Outgoing]]:
    shard: list[Outgoing] = []
    used = 0
    for tensor in tensors:
        nbytes = math.prod(tensor.shape) * size
        if shard and used + nbytes > shard_bytes:
            yield shard
            shard, used = [], 0
        shard.append(tensor)
        used += nbytes
    yield shard


def _narrowed(tensor: Outgoing, numpy_type: np.dtype) -> np.ndarray:
    """Return the numbers of a tensor in another type; raise CheckpointError if one is or becomes infinite."""
    numbers = np.asarray(tensor.numbers())
    check_finite({tensor.name: numbers}, "the tensors to write")
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(numbers, numpy_type)
    if narrow.dtype != numbers.dtype and not np.isfinite(narrow).all():
        raise CheckpointError(f"{tensor.name}: has numbers too large for {numpy_type}; use bfloat16 or float32")
    return narrow


def _write_file(file: Path, tensors: list[Outgoing], dtype: str, advance: Callable[[int], None]) -> None:
    kind, header, start = WRITTEN_TYPES[dtype], {"__metadata__": {"format": "pt"}}, 0
    numpy_type = READ_TYPES[kind]
    entries: dict[str, Mapping[str, object]] = {**header}
    for tensor in tensors:
        end = start + math.prod(tensor.shape) * numpy_type.itemsize
        entries[tensor.name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers are aligned
    with file.open("xb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            numbers = _narrowed(tensor, numpy_type)
            assert numbers.shape == tensor.shape, (tensor.name, numbers.shape, tensor.shape)
            stream.write(numbers.view(np.uint8).data)
            advance(numbers.nbytes)
        stream.flush()
        os.fsync(stream.fileno())
