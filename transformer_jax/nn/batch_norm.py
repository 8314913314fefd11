"""Batch normalisation (Ioffe and Szegedy 2015): statistics of every feature over the tokens of a batch.

A training pass normalises with the mean and variance of its own batch, over all tokens of all rows on all devices, and
collects their sums under the name STATISTICS (nn/collected.py). Every other pass normalises with running averages of
these, so that an output depends on its own row alone. The averages are not parameters: no gradient reaches them. The
training state holds them in `TrainState.extra[STATISTICS]`, and a pass that reads them gets them beside the scale and
bias of their norm (`with_running`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.traverse_util import unflatten_dict
from jaxtyping import Bool, Float

from transformer_jax.nn.collected import by_block, over_devices
from transformer_jax.typing import Array, Params

STATISTICS = "statistics"
"""Name of the sums that a training pass collects, and of the running averages in `TrainState.extra`."""
MOMENTUM = 0.9
"""Share of the running averages that a step keeps; that of `torch.nn.BatchNorm1d`, which calls 1 - 0.9 momentum."""
RUNNING = ("running_mean", "running_variance")
"""Names of the running averages of a norm."""
_SUMS = {"weight", "mean", "variance"}


def batch_norm(
    x: Float[Array, "*batch D"],
    mean: Float[Array, " D"],
    variance: Float[Array, " D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    epsilon: float,
) -> Float[Array, "*batch D"]:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + bias (Ioffe and Szegedy 2015, algorithm 1).

    Args:
      x: [..., D]; all others: [D].
    Returns: [..., D] in the type of x.
    """
    mean, factor = as_row(mean, x), as_row(jax.lax.rsqrt(variance + epsilon) * scale, x)
    y = (x.astype(jnp.float32) - mean) * factor
    return (y if bias is None else y + as_row(bias, x)).astype(x.dtype)


class BatchStatistics(NamedTuple):
    """Number of tokens [], and mean and biased variance [D] of every feature over them; float32."""

    count: Array
    mean: Array
    variance: Array

    def sums(self) -> dict[str, Array]:
        """Return values that can be added: `weight` [], and `mean` and `variance` [D] times the weight.

        The variance is the unbiased one, count / (count - 1) times the other (algorithm 2, step 10). The weight is the
        count; 0 of fewer than two tokens, which have no variance.
        """
        weight = jnp.where(self.count > 1, self.count, 0.0)
        unbiased = self.variance * (self.count / jnp.maximum(self.count - 1.0, 1.0))
        return {"weight": weight, "mean": weight * self.mean, "variance": weight * unbiased}


def batch_statistics(x: Float[Array, "*batch D"], is_token: Bool[Array, "*batch"] | None) -> BatchStatistics:
    """Return the statistics of x [..., D] over all places that are tokens, on all devices.

    Args:
      is_token: [...]; None: all are. Without any token, mean and variance are 0.
    """
    x32 = x.astype(jnp.float32)
    is_token = jnp.ones(x.shape[:-1], bool) if is_token is None else is_token

    def total(values: Float[Array, "*batch n"]) -> Float[Array, " n"]:
        return over_devices(jnp.where(is_token[..., None], values, 0.0).sum(tuple(range(x.ndim - 1))))

    count = total(jnp.ones((*x.shape[:-1], 1)))  # [1]
    divisor = jnp.maximum(count, 1.0)
    mean = total(x32) / divisor
    variance = total(jnp.square(x32 - as_row(mean, x))) / divisor
    return BatchStatistics(count[0], mean, variance)


def as_row(vector: Array, x: Array) -> Array:
    """Return a vector over the last axis of x, with all other axes of x of size 1."""
    return vector.reshape((1,) * (x.ndim - 1) + (-1,))


# Trees of the statistics of all norms of a model. Where a model has a norm, a tree of sums has `BatchStatistics.sums`,
# and a tree of running averages has the names of RUNNING. Those of a stack's layers have one more axis in front.


def statistics_of(collected: Params) -> Params:
    """Return the sums of all norms of a model, from what a training pass collected; empty without such norms."""
    return unflatten_dict(by_block(collected, STATISTICS))


def initial_running(sums: Params) -> Params:
    """Return the averages before the first step, means 0 and variances 1, for a tree of sums or of their shapes."""
    if sums.keys() == _SUMS:
        return {
            RUNNING[0]: jnp.zeros(sums["mean"].shape, jnp.float32),
            RUNNING[1]: jnp.ones(sums["variance"].shape, jnp.float32),
        }
    return {name: initial_running(part) for name, part in sums.items()}


def updated_running(running: Params, sums: Params) -> Params:
    """Return MOMENTUM * running + (1 - MOMENTUM) * (the averages of sums); unchanged where the weight is 0."""
    if sums.keys() != _SUMS:
        return {name: updated_running(running[name], sums[name]) for name in sums}
    weight = sums["weight"][..., None]

    def updated(old: Array, total: Array) -> Array:
        new = MOMENTUM * old + (1.0 - MOMENTUM) * total / jnp.maximum(weight, 1.0)
        return jnp.where(weight > 0, new, old)

    return {name: updated(running[name], sums[of]) for name, of in zip(RUNNING, ("mean", "variance"), strict=True)}


def with_running(params: Params, running: Params) -> Params:
    """Return parameters with the running averages beside the scale and bias of their norms, as other passes read them.

    Args:
      running: a tree of averages; empty for a model without any, whose parameters are returned as they are.
    """
    if not running:
        return params
    return {
        **params,
        **{
            name: with_running(params.get(name, {}), part) if isinstance(part, Mapping) else part
            for name, part in running.items()
        },
    }


def num_parameters(params: Params) -> int:
    """Return the number of parameters, without running averages beside them."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return sum(leaf.size for path, leaf in leaves if _name(path[-1]) not in RUNNING)


def _name(key: Any) -> Any:
    return getattr(key, "key", None)
