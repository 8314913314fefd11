"""Placement of arrays on a mesh: rows of batches, and whole trees gathered on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import ConfigError
from transformer_jax.nn.collected import ROWS_AXIS

DATA, FSDP, TENSOR = ROWS_AXIS, "fsdp", "tensor"
"""The axes of a mesh. The first two together divide the rows of a batch, the last two divide parameters."""


class RowPlacement:
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
                f"process {jax.process_index()} holds the parts {numbers} of a batch, which are not adjacent"
            )

    def local(self, num_rows: int) -> slice:
        """Return the rows of this process in a batch of `num_rows` rows."""
        size = num_rows // self._parts
        return slice(self._first * size, (self._first + self._held) * size)

    def placed(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Return the whole batch as arrays on the mesh, from the rows of this process."""
        if jax.process_count() == 1:  # with several, device_put would compare its input between the processes
            return jax.device_put(dict(batch), self.sharding)
        return {
            name: jax.make_array_from_process_local_data(
                self.sharding, x, (len(x) // self._held * self._parts, *x.shape[1:])
            )
            for name, x in batch.items()
        }

    def template(self, batch: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
        """Return shapes, types and sharding of a whole batch; only the shapes and types of `batch` are used."""
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self.sharding) for name, x in batch.items()}


def mesh_of(tree: Any) -> Mesh | None:
    """Return the mesh of the arrays of a tree; None if they are on one device."""
    sharding = getattr(jax.tree.leaves(tree)[0], "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1 else None


def on_one_device(tree: Any) -> Any:
    """Return the whole arrays of a tree on this process's first device; unchanged if they are not on a mesh."""
    mesh = mesh_of(tree)
    if mesh is None:
        return tree
    everywhere = NamedSharding(mesh, PartitionSpec())
    whole = jax.jit(lambda x: x, out_shardings=everywhere)(tree)
    return jax.tree.map(lambda x: x.addressable_data(0), whole)
