"""A check that parameters are finite numbers, in one pass and without a copy of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from transformer_jax.errors import CheckpointError

_BLOCK = 1 << 18  # numbers per NumPy operation, so that they stay in the CPU cache
_EXPONENTS = {np.dtype(np.float16): 0x7C00, np.dtype(ml_dtypes.bfloat16): 0x7F80}
"""Bits of the exponent, which are all set in numbers that are not finite."""
_NAMED = 5
_REMEDY = "use another checkpoint, or train again with a lower learning rate"


def check_finite(arrays: Mapping[str, Any], name: str) -> None:
    """Check arrays of NumPy or JAX by path; integers are always finite.

    Of an array that several processes share, each checks its own part.

    Args:
      name: the checkpoint or the file, for messages.
    Raises: CheckpointError, which names the arrays with numbers that are not finite, their counts and first places.
    """
    problems = {path: problem for path, x in arrays.items() if (problem := _problem(x))}
    if problems:
        named = [f"{path}: {problem}" for path, problem in problems.items()][:_NAMED]
        more = [f"and {len(problems) - _NAMED} arrays more"] if len(problems) > _NAMED else []
        raise CheckpointError(f"{name}: parameters are not finite: {'; '.join([*named, *more])}; {_REMEDY}")


def _problem(x: Any) -> str:
    """Return how many numbers of an array are not finite, and the first; empty if all are."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return ""
    if not isinstance(x, jax.Array):
        return _described(np.asarray(x))
    if all(device.platform == "cpu" for device in x.sharding.device_set):
        parts = (_described(np.asarray(shard.data)) for shard in x.addressable_shards if shard.replica_id == 0)
        return next(filter(None, parts), "")
    # On an accelerator, a compiled function looks first; the numbers are copied only if there is something to say.
    if bool(_all_finite(x)):
        return ""
    return next(filter(None, (_described(np.asarray(shard.data)) for shard in x.addressable_shards)), "")


@jax.jit
def _all_finite(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


def _described(x: np.ndarray) -> str:
    count, first = 0, None
    for start, wrong in _blocks(x):
        if wrong.any():
            first = start + int(np.argmax(wrong)) if first is None else first
            count += int(np.count_nonzero(wrong))
    if first is None:
        return ""
    place = [int(index) for index in np.unravel_index(first, x.shape)]
    return f"{count:,} of {x.size:,} numbers, the first is {float(x[tuple(place)])} at {place}"


def _blocks(x: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, per block of an array, the index of its first number and a mask of its numbers that are not finite."""
    if not x.flags.c_contiguous:
        x = np.ascontiguousarray(x)
    flat = x.reshape(-1)
    bits = _EXPONENTS.get(flat.dtype)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        if bits is None:
            yield start, ~np.isfinite(block)
        else:
            yield start, (block.view(np.uint16) & bits) == bits
