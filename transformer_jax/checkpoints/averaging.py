"""The mean of the parameters of several checkpoints (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import CheckpointError


def average_params(read: Callable[[int], Any], steps: Sequence[int]) -> Any:
    """Return the elementwise mean of the parameters of several checkpoints.

    The part of each device is summed in float64 on its host, one checkpoint at a time, and rounded once at the end. So
    the order of the steps matters only in the last bit of float64, and the mean of one checkpoint is that checkpoint.

    Args:
      read: returns the parameters of a step, arrays of floating types; all with the same shapes and shardings, which
        are those of the result.
      steps: at least one; repeated steps count once.

    Raises CheckpointError as `read` does, and if `steps` is empty.
    """
    steps = sorted(set(steps))
    if not steps:
        raise CheckpointError("no checkpoints to average")
    params = read(steps[0])
    sums = jax.tree.map(_host_shards, params)
    for step in steps[1:]:
        params = read(step)
        sums = jax.tree.map(
            lambda total, x: [t + s for t, s in zip(total, _host_shards(x), strict=True)],
            sums,
            params,
            is_leaf=lambda node: isinstance(node, list),
        )
    return jax.tree.map(lambda x, total: _from_shards(x, [t / len(steps) for t in total]), params, sums)


def _host_shards(x: jax.Array) -> list[np.ndarray]:
    with jax.transfer_guard("allow"):
        return [np.asarray(shard.data, np.float64) for shard in x.addressable_shards]


def _from_shards(like: jax.Array, shards: list[np.ndarray]) -> jax.Array:
    """Return the array with these shards and with the shape, dtype and sharding of `like`."""
    with jax.transfer_guard("allow"):
        parts = [
            jax.device_put(part.astype(like.dtype), shard.device)
            for part, shard in zip(shards, like.addressable_shards, strict=True)
        ]
        return jax.make_array_from_single_device_arrays(like.shape, like.sharding, parts)
