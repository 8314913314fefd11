"""Placement of arrays on a mesh: rows of batches, and whole trees gathered on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import ConfigError

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
"""The axes of a mesh. Rows of a batch are divided over the first two together, parameters over the last two."""


class Rows:
    """The division of a batch's rows among the devices of a mesh, and the rows of this process."""

    def __init__(self, mesh: Mesh) -> None:
        axes = tuple(axis for axis in (DATA, FSDP) if axis in mesh.axis_names)
        self.sharding = NamedSharding(mesh, PartitionSpec(axes))
        self._parts = math.prod(mesh.shape[axis] for axis in axes)
        held = self.sharding.addressable_devices_indices_map((self._parts,)).values()
        numbers = sorted({index[0].indices(self._parts)[0] for index in held if index is not None})
        self._first, self._held = numbers[0], len(numbers)
        if numbers != list(range(self._first, self._first + self._held)):
            raise ConfigError(
                f"process {jax.process_index()} holds the parts {numbers} of a batch, which do not adjoin"
            )

    def local(self, num_rows: int) -> slice:
        """The rows of this process, of so many."""
        size = num_rows // self._parts
        return slice(self._first * size, (self._first + self._held) * size)

    def placed(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """The rows of this process, on its devices, as its part of the whole batch."""
        if jax.process_count() == 1:  # of several, it would compare with the others what it is given
            return jax.device_put(dict(batch), self.sharding)
        return {
            name: jax.make_array_from_process_local_data(
                self.sharding, x, (len(x) // self._held * self._parts, *x.shape[1:])
            )
            for name, x in batch.items()
        }

    def template(self, batch: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes, types and sharding of a whole batch of these shapes."""
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding) for name, x in batch.items()}


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh that the arrays of a tree lie on; None if they lie on one device."""
    sharding = getattr(jax.tree.leaves(tree)[0], "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1 else None


def on_one_device(tree: Any) -> Any:
    """The same arrays in full on this process's first device; as they are if they do not lie on a mesh."""
    mesh = mesh_of(tree)
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    whole = jax.jit(lambda x: x, out_shardings=everywhere)(tree)
    return jax.tree.map(lambda x: x.addressable_data(0), whole)
