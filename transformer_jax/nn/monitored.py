"""Values that blocks collect in a monitored step, beside the sums of every training pass (nn/collected.py).

A block stores a value with `monitor`, as a `Mean`, `RootMean`, `Largest` or `Shares`: sums and maxima over the places
that are tokens, so that parts of a batch and devices can be joined (`joined`, `over_devices`). They leave the pass in a
Flax collection of their own. A pass that is not monitored computes none of them. No gradient passes through them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.nn import collected
from transformer_jax.typing import Array, Params

MONITORED = "monitored"
"""Name of the collection; it is mutable in the passes of a monitored step."""


class Mean(NamedTuple):
    """total / count; both [], or [L] of L layers."""

    total: Array
    count: Array

    def value(self) -> Array:
        """Return the mean; NaN over nothing."""
        return self.total / self.count


class RootMean(NamedTuple):
    """sqrt(squares / count); both [], or [L] of L layers."""

    squares: Array
    count: Array

    def value(self) -> Array:
        """Return the root of the mean square; NaN over nothing."""
        return jnp.sqrt(self.squares / self.count)


class Largest(NamedTuple):
    """The largest of some numbers, [] or [L]; -inf of none. Two are joined by the maximum, all others by the sum."""

    largest: Array

    def value(self) -> Array:
        return self.largest


class Shares(NamedTuple):
    """Counts of E kinds, [E] or [L, E]."""

    counts: Array

    def value(self) -> Array:
        """Return the share of every kind, [E] or [L, E]."""
        return self.counts / self.counts.sum(-1, keepdims=True)


Monitored = Mean | RootMean | Largest | Shares


def is_monitored(block: nn.Module) -> bool:
    """Return whether the pass is one of a monitored step, to which `monitor` may add."""
    return block.is_mutable_collection(MONITORED) and not block.is_initializing()


def monitor(block: nn.Module, name: str, value: Monitored) -> None:
    """Store a value of a block by name; only if `is_monitored`, and once in a pass."""
    block.put_variable(MONITORED, name, jax.lax.stop_gradient(value))


def mean_over_tokens(values: Float[Array, "B T"], is_token: Bool[Array, "B T"] | None) -> Mean:
    """Return the mean of one number per token.

    Args:
      is_token: the tokens that count; None: all.
    """
    counted = jnp.ones(values.shape, bool) if is_token is None else is_token
    total = jnp.where(counted, values.astype(jnp.float32), 0.0).sum()
    return Mean(total, counted.sum(dtype=jnp.float32))


def rms(x: Float[Array, "B T D"], is_token: Bool[Array, "B T"] | None) -> RootMean:
    """Return the root mean square of vectors, over tokens and features; is_token as in `mean_over_tokens`."""
    squares = jnp.square(jax.lax.stop_gradient(x).astype(jnp.float32)).mean(-1)
    return RootMean(*mean_over_tokens(squares, is_token))


def joined(one: Params, other: Params) -> Params:
    """Return the values of two passes, or of two parts of a batch; either may lack blocks of the other."""
    result = dict(one)
    for name, value in other.items():
        if name not in result:
            result[name] = value
        elif isinstance(value, Mapping):
            result[name] = joined(result[name], value)
        else:
            result[name] = added(result[name], value)
    return result


def added(one: Any, other: Any) -> Any:
    """Return the sum of two trees of arrays of the same structure; of what is `Largest` in them, the maximum."""

    def add(x: Any, y: Any) -> Any:
        return Largest(jnp.maximum(x.largest, y.largest)) if isinstance(x, Largest) else jnp.add(x, y)

    return jax.tree.map(add, one, other, is_leaf=lambda tree: isinstance(tree, Largest))


def nothing(shapes: Any) -> Any:
    """Return what `added` leaves as it is, for a tree of shapes: zeros, and -inf for what is `Largest`."""

    def empty(x: Any) -> Any:
        if isinstance(x, Largest):
            return Largest(jnp.full(x.largest.shape, -jnp.inf, x.largest.dtype))
        return jnp.zeros(x.shape, x.dtype)

    return jax.tree.map(empty, shapes, is_leaf=lambda tree: isinstance(tree, Largest))


def over_devices(monitored: Params) -> Params:
    """Return values of all rows, from those of a device's rows; unchanged in a program that sees all rows."""

    def of_all(value: Any) -> Any:
        if isinstance(value, Largest):
            return Largest(collected.largest_of_devices(value.largest))
        return collected.over_devices(value)

    return jax.tree.map(of_all, monitored, is_leaf=_is_value)


def by_path(monitored: Params) -> dict[tuple[str, ...], Array]:
    """Return the values by the path of their block and their name."""
    flat, _ = jax.tree_util.tree_flatten_with_path(monitored, is_leaf=_is_value)
    return {tuple(key.key for key in path): value.value() for path, value in flat}


def _is_value(tree: Any) -> bool:
    return isinstance(tree, Monitored)
