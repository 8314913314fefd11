"""Checksums: one 32-bit number per array, the same for every sharding, device count and memory layout.

    checksum(x) = sum over elements i of mix(bits(x_i) XOR mix(i))    modulo 2^32

with i the row-major index and `mix` a bijection of 32-bit words that spreads every input bit over all output bits. The
sum has no order, so each device adds up its own part. Any change of one element changes the sum, because `mix` is a
bijection. Any other change is missed with probability 2^-32; exchanged elements change the sum because of the index.
The checksum guards against broken disks and broken software, not against an adversary.

The checksum is computed where the array lives, before Orbax gets it and after Orbax returns it, so that nothing in
between is trusted. On accelerators a compiled function computes it. For arrays in host memory NumPy does: it is as
fast, and compilation for the shapes of a model would take a second. In addition, CPU devices cannot add up their parts
safely: several programs that exchange numbers between processes at once may deadlock there.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.errors import CheckpointError
from transformer_jax.hashing import mix

# Other types (complex, 4-bit, PRNG keys) are refused: no training state needs them.
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64"),
)
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by bytes; larger elements are several words
_BLOCK = 2**16  # words per NumPy operation, so that they stay in the CPU cache


def path_of(key_path: jax.tree_util.KeyPath) -> str:
    """Return a key path of jax.tree_util as text, such as `params/decoder/kernel`."""
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def by_path(tree: Any) -> dict[str, Any]:
    """Return the leaves of a pytree by their path.

    Raises CheckpointError if two leaves have the same path, which is possible if a dictionary key contains a slash.
    """
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    leaves = {path_of(key_path): leaf for key_path, leaf in flat}
    if len(leaves) != len(flat):
        raise CheckpointError(
            f"state: two leaves share a path: {len(flat)} leaves, {len(leaves)} paths; use no slash in dictionary keys"
        )
    return leaves


def tree_of(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of dictionaries whose leaves `by_path` names."""
    result: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
        place[name] = leaf
    return result


def as_arrays(tree: Any) -> Any:
    """Return the tree with every leaf as a jax.Array; raises CheckpointError naming all leaves of other types."""
    problems: list[str] = []

    def convert(key_path: jax.tree_util.KeyPath, leaf: Any) -> Any:
        if problem := _problem(leaf):
            problems.append(f"{path_of(key_path)}: {problem}")
            return leaf
        return leaf if isinstance(leaf, jax.Array) else jnp.array(leaf)  # a copy: NumPy arrays are mutable

    arrays = jax.tree_util.tree_map_with_path(convert, tree)
    if problems:
        raise CheckpointError("state cannot be stored\n" + "\n".join(f"  - {p}" for p in problems))
    return arrays


def _problem(leaf: Any) -> str | None:
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return f"expected an array, got {type(leaf).__name__}"
    if leaf.dtype.name not in DTYPES:
        return f"dtype {leaf.dtype.name} is none of {', '.join(DTYPES)}"
    if not isinstance(leaf, jax.Array) and jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
        return f"dtype {leaf.dtype} needs jax_enable_x64"
    if leaf.size == 0:
        return f"shape {leaf.shape} has no elements"
    return None


@jax.jit
def checksum(x: jax.Array) -> jax.Array:
    """Return the checksum of an array of any shape; uint32 []."""
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    # 64-bit elements become a trailing axis of two words, which the index below counts like any other axis.
    words = jax.lax.bitcast_convert_type(x, _WORDS[min(x.dtype.itemsize, 4)]).astype(jnp.uint32)
    index = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = math.prod(words.shape[axis + 1 :]) % 2**32
        index += jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride)
    return jnp.sum(mix(words ^ mix(index)), dtype=jnp.uint32)


def checksum_on_host(x: np.ndarray, place: Sequence[slice] = (), shape: Sequence[int] = ()) -> int:
    """Return the checksum of an array with NumPy; or, for a part of a larger array, its contribution to the checksum.

    Args:
      place: position of the part in an array of `shape`, one slice per axis; by default x is the whole array.
    """
    words = np.ascontiguousarray(x).reshape(-1).view(_WORDS[min(x.dtype.itemsize, 4)])
    numbers = _indices(x, place, shape) if x.size < math.prod(shape) else None
    total = 0
    index, spare = np.empty((2, min(_BLOCK, len(words))), np.uint32)
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        size = len(block)
        # modulo 2^32
        index[:size] = (
            np.arange(start, start + size, dtype=np.uint64) if numbers is None else numbers[start : start + size]
        )
        _mix_in_place(index[:size], spare[:size])
        index[:size] ^= block
        _mix_in_place(index[:size], spare[:size])
        total += int(index[:size].sum(dtype=np.uint64))
    return total % 2**32


def _indices(x: np.ndarray, place: Sequence[slice], shape: Sequence[int]) -> np.ndarray:
    """Return the index of every word of a part in the whole array, uint32 [words]."""
    words_each = max(x.dtype.itemsize // 4, 1)
    result = np.arange(words_each, dtype=np.uint64)
    stride = words_each
    for part, size in zip(reversed(place), reversed(shape), strict=True):
        positions = np.arange(size, dtype=np.uint64)[part] * np.uint64(stride)
        result = (positions[:, None] + result).reshape(-1)
        stride *= size
    return result.astype(np.uint32)


def _mix_in_place(x: np.ndarray, spare: np.ndarray) -> None:
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        np.right_shift(x, shift, out=spare)
        np.bitwise_xor(x, spare, out=x)
        np.multiply(x, np.uint32(factor), out=x)


def checksums(leaves: Mapping[str, jax.Array]) -> dict[str, int]:
    """Return the checksum of every array; waits until the arrays are computed.

    With several processes, all must call it with the same arrays; all get the checksums of the whole arrays.
    """
    # One compiled function per shape, not one for all arrays: this compiles and runs three times faster.
    on_devices = {path: checksum(x) for path, x in leaves.items() if not _on_host(x)}
    sums = {path: _sum_of_parts(x) for path, x in leaves.items() if _on_host(x)}
    if not all(x.is_fully_addressable for x in leaves.values()):
        mine = np.array(list(sums.values()), np.uint32)
        total = multihost_utils.process_allgather(mine).astype(np.uint64).sum(0) % 2**32
        sums = dict(zip(sums, map(int, total), strict=True))
    return sums | {path: int(value) for path, value in jax.device_get(on_devices).items()}


def _sum_of_parts(x: jax.Array) -> int:
    """Return the contribution of this process's parts to the checksum of an array; replicas of a part count once."""
    parts = (shard for shard in x.addressable_shards if shard.replica_id == 0)
    return sum(checksum_on_host(np.asarray(part.data), part.index, x.shape) for part in parts) % 2**32


def _on_host(x: jax.Array) -> bool:
    """Return whether NumPy can read the array without copying it from a device."""
    return all(device.platform == "cpu" for device in x.sharding.device_set)
