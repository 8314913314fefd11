"""Rules for the division of parameters among the devices of a mesh, by logical axes.

Tables give names to the axes of parameters (nn/axes.py). This module maps each name to the mesh axis that divides it.
Names are right-aligned, because the layers of a stack have one more axis in front. Moments of the optimizer are divided
like their parameter, since their paths have the same end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import ConfigError
from transformer_jax.nn.axes import ParameterAxes, axes_of
from transformer_jax.parallel.placement import FSDP, TENSOR

MESH_AXES: Mapping[str, str] = {"vocab": TENSOR, "heads": TENSOR, "mlp": TENSOR, "emb": FSDP}
"""`tensor` divides heads, feed-forward units and vocabulary (Shoeybi et al. 2019, section 3); `fsdp` the other axis of
every matrix (Rajbhandari et al. 2020, section 5.3; Xu et al. 2021). Vectors of the model's width stay whole."""

_OPTIMIZER = "opt_state/"
"""The beginning of the paths of the optimizer's arrays in a training state."""


def shardings(tree: Any, parameter_axes: ParameterAxes | None, mesh: Mesh | AbstractMesh) -> Any:
    """Return the sharding of every array of a state, as a tree of NamedShardings.

    Args:
      tree: parameters, or a `TrainState`, as arrays or jax.ShapeDtypeStructs. Of the optimizer's arrays, those with the
        shape of their parameter are divided like it. All others, scalars and the parameters of a task's `head` are on
        every device.
      parameter_axes: axes of all other parameters; None if the architecture names none: all are on every device.
    Raises:
      ConfigError: a mesh axis does not divide an array's axis (the message lists every such path), or the mesh divides
        parameters and the architecture has no parameter_axes.
      ValueError: no entry of parameter_axes, or more than one, matches a path, or it does not fit the array.
    """
    sizes, problems = dict(mesh.shape), []
    params = jax.tree_util.tree_leaves_with_path(getattr(tree, "params", {}))
    shapes = {_text(key_path): leaf.shape for key_path, leaf in params}
    if parameter_axes is None and any(sizes.get(axis, 1) > 1 for axis in (FSDP, TENSOR)):
        raise ConfigError(
            "config: parallel.fsdp and parallel.tensor divide parameters, but this architecture does not define "
            "Architecture.parameter_axes; set both to 1"
        )

    def of_leaf(key_path: jax.tree_util.KeyPath, leaf: Any) -> NamedSharding:
        path = _text(key_path)
        whole = NamedSharding(mesh, PartitionSpec())
        if math.prod(leaf.shape) == 1 or parameter_axes is None:
            return whole
        if path.startswith(_OPTIMIZER) and leaf.shape != shapes.get(_end_among(path, shapes)):
            return whole
        if (named := axes_of(path, parameter_axes)) is None:
            return whole
        if len(named.names) > len(leaf.shape):
            raise ValueError(f"{path} {tuple(leaf.shape)}: its entry in the axes of its block has more axes, {named}")
        axes = tuple(None if name is None else MESH_AXES[name] for name in named.names)
        problems.extend(_indivisible(path, leaf.shape, axes, sizes))
        # An axis of one device is left out, so that an undivided state has the same shardings as a replicated one.
        used = [axis if axis is not None and sizes[axis] > 1 else None for axis in axes]
        while used and used[-1] is None:
            used.pop()
        leading = [None] * (len(leaf.shape) - len(axes)) if used else []
        return NamedSharding(mesh, PartitionSpec(*leading, *used))

    result = jax.tree_util.tree_map_with_path(of_leaf, tree)
    if problems:
        raise ConfigError("config: the mesh does not divide the model\n" + "\n".join(f"  - {p}" for p in problems))
    return result


def _text(key_path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(key_path, simple=True, separator="/")


def _end_among(path: str, ends: Mapping[str, Any]) -> str:
    """Return the longest end of a path, from a slash on, that is a key of `ends`; empty if there is none."""
    parts = path.split("/")
    return next((end for i in range(len(parts)) if (end := "/".join(parts[i:])) in ends), "")


def _indivisible(path: str, shape: Sequence[int], axes: Sequence[str | None], sizes: Mapping[str, int]) -> list[str]:
    return [
        f"parallel.{axis}={sizes[axis]} does not divide {size}, axis {number} of {path} {tuple(shape)}"
        for number, (size, axis) in enumerate(
            zip(shape[len(shape) - len(axes) :], axes, strict=True), len(shape) - len(axes)
        )
        if axis is not None and size % sizes[axis]
    ]
