"""Headers of .safetensors files.

The format (https://github.com/huggingface/safetensors, README): 8 bytes with the length of the header, the header in
JSON with type, shape and place of every tensor, then the numbers.
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.readers.files import open_file
from transformer_jax.readers.json_values import parse_json

MAX_HEADER_BYTES = 100_000_000
"""Longest header, as the library `safetensors` has it."""
MAX_SIZE = 1 << 48
"""Largest product of the sizes of a tensor other than 0."""

BITS = {
    **{"BOOL": 8, "U8": 8, "I8": 8, "I16": 16, "U16": 16, "I32": 32, "U32": 32, "I64": 64, "U64": 64},
    **{"F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}
"""Bits of a number by the name of its type."""


class TensorPlace(NamedTuple):
    """A tensor in a file: its type in the header, its shape, and the place of its first byte in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int


def read_tensor_places(path: Path | str) -> dict[str, TensorPlace]:
    """Return the tensors of a file by name.

    Raises: OSError if the file cannot be opened; ValueError if the header is damaged, longer than `MAX_HEADER_BYTES`,
    or has entries of other types; if tensors overlap, leave bytes out, or do not end where the file does.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 8:
            raise ValueError(f"it has {size} bytes, fewer than the length of a header")
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(
                f"its header would have {length:,} bytes; the file has {size:,}, and a header at most "
                f"{MAX_HEADER_BYTES:,}"
            )
        header = parse_json(file.read(length), MAX_HEADER_BYTES)
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    places, ends = {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        place, end = _place(name, entry)
        places[name] = place._replace(start=8 + length + place.start)
        ends.append((place.start, end, name))
    reached = 0
    for start, end, name in sorted(ends):
        if start != reached:
            raise ValueError(f"its tensor '{name}' begins at byte {start:,} of the numbers, expected {reached:,}")
        reached = end
    if 8 + length + reached != size:
        raise ValueError(f"its tensors end at byte {8 + length + reached:,}, but the file has {size:,} bytes")
    return places


def _place(name: str, entry: Any) -> tuple[TensorPlace, int]:
    """Return a tensor, and its end; both places count from the first number."""
    if not isinstance(entry, dict):
        raise ValueError(f"its tensor '{name}' has no object in the header")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise ValueError(f"its tensor '{name}' has the unknown type {dtype!r}; expected {', '.join(BITS)}")
    if not _are_sizes(shape) or math.prod(max(n, 1) for n in shape) > MAX_SIZE:
        raise ValueError(f"its tensor '{name}' has the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"its tensor '{name}' has the places {offsets!r}, expected a beginning and an end")
    bits = math.prod(shape) * BITS[dtype]
    if bits % 8 or offsets[1] - offsets[0] != bits // 8:
        raise ValueError(
            f"its tensor '{name}', {dtype} {shape}, needs {bits // 8:,} bytes, but has {offsets[1] - offsets[0]:,}"
        )
    return TensorPlace(dtype, tuple(shape), offsets[0]), offsets[1]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
