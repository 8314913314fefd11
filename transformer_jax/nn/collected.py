"""Sums over the tokens of a batch that blocks collect in a training pass: statistics of norms, and losses of blocks.

A block writes its sums with `collect`, under a name. They are float32, over the places that are tokens, and never
means, so that those of passes, of parts of a batch and of devices can be added. They leave the pass in one Flax
collection. A pass outside of training collects nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict

from transformer_jax.typing import Array, Params

COLLECTED = "collected"
"""Name of the collection; it is mutable in a training pass, and while a module is initialised."""
ROWS_AXIS = "data"
"""Name of the axis by which a launcher gives every device its own rows, and its own program."""

Sums = TypeVar("Sums")


def is_collecting(block: nn.Module) -> bool:
    """Return whether the pass is one of training, to which `collect` may add."""
    return block.is_mutable_collection(COLLECTED)


def collect(block: nn.Module, name: str, sums: Mapping[str, Array]) -> None:
    """Store sums of a block, by name, float32 of any shapes; only if `is_collecting`, and once in a pass."""
    block.put_variable(COLLECTED, name, dict(sums))


def by_block(collected: Params, name: str) -> dict[tuple[str, ...], Mapping[str, Array]]:
    """Return the sums that blocks stored under a name, by the path of the block; those of L layers are [L, ...].

    Args:
      collected: the sums of a pass, as `models.architecture.training_pass` returns them.
    """
    flat = flatten_dict(dict(collected), is_leaf=lambda path, _: path[-1:] == (name,))
    return {path[:-1]: sums for path, sums in flat.items() if path[-1] == name}


def added(one: Params, other: Params) -> Params:
    """Return the sum of two trees of sums, either of which may lack blocks of the other."""
    result = dict(one)
    for name, value in other.items():
        if name not in result:
            result[name] = value
        else:
            result[name] = added(result[name], value) if isinstance(value, Mapping) else result[name] + value
    return result


def over_devices(sums: Sums) -> Sums:
    """Return a tree of sums, added over the devices of ROWS_AXIS; unchanged in a program that sees all rows."""
    return jax.lax.psum(sums, ROWS_AXIS) if _divides_rows() else sums


def largest_of_devices(x: Array) -> Array:
    """Return the maximum over the devices of ROWS_AXIS; unchanged in a program that sees all rows."""
    return jax.lax.pmax(x, ROWS_AXIS) if _divides_rows() else x


def _divides_rows() -> bool:
    try:
        jax.lax.axis_size(ROWS_AXIS)
    except NameError:  # JAX: unbound axis name
        return False
    return True
