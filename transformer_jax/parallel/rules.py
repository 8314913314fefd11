"""Which axes of which parameters are divided among which devices of the mesh, by the parameter's path.

A rule is the end of a path, as a regular expression, and a mesh axis or None for each of the last axes of the array:
right-aligned, because the layers of a stack have one axis more, in front. Moments of the optimizer lie where their
parameter does, since their paths end like its path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError


class Rule(NamedTuple):
    """pattern: matched by whole components at the end of a path. axes: mesh axes of the array's last axes."""

    pattern: str
    axes: tuple[str | None, ...]


def rules(model: ModelConfig) -> tuple[Rule, ...]:
    """The rules of an encoder-decoder, one for each kind of parameter that it has; `model` is resolved.

    `tensor` divides heads, feed-forward units and vocabulary (Shoeybi et al. 2019, section 3); `fsdp` the other axis of
    every matrix (Rajbhandari et al. 2020, section 5.3; Xu et al. 2021). Vectors of the model's width stay whole.
    """
    hidden = "(hidden|gate)" if model.activation in ("swiglu", "geglu") else "hidden"
    attention = "(self|cross)_attention"
    norm = r"\w*_residual/norm" if model.norm_position == "post" else r"(\w*_residual/norm|final_norm)"
    result = [
        Rule("embedding/embedding" if model.share_embeddings else "(source_)?embedding/embedding", ("tensor", "fsdp")),
        Rule(f"{attention}/(query|key|value)/kernel", ("fsdp", "tensor", None)),
        Rule(f"{attention}/out/kernel", ("tensor", None, "fsdp")),
        Rule(f"feed_forward/{hidden}/kernel", ("fsdp", "tensor")),
        Rule("feed_forward/out/kernel", ("tensor", "fsdp")),
        Rule(f"{norm}/scale", (None,)),
    ]
    if model.use_bias:
        result += [
            Rule(f"{attention}/(query|key|value)/bias", ("tensor", None)),
            Rule(f"feed_forward/{hidden}/bias", ("tensor",)),
            Rule(f"({attention}|feed_forward)/out/bias", (None,)),
        ]
        if model.norm == "layernorm":
            result.append(Rule(f"{norm}/bias", (None,)))
    if model.position_encoding == "learned":
        result.append(Rule("position_embedding/learned/embedding", (None, "fsdp")))
    if model.position_encoding == "relative":
        result.append(Rule("relative_bias/embedding", (None, "tensor")))
    if not model.tie_output:
        result.append(Rule("output/kernel", ("fsdp", "tensor")))
    return tuple(result)


def shardings(tree: Any, rules: Sequence[Rule], mesh: Mesh | AbstractMesh) -> Any:
    """Where every array of a state belongs: a tree of NamedShardings.

    Args:
      tree: parameters, or a state that holds them and their moments, as arrays or jax.ShapeDtypeStructs. Scalars are on
        every device.
    Raises:
      ConfigError: a mesh axis does not divide an array's axis; every such path is named.
      ValueError: the rules do not belong to the tree: an array that no rule is for, a rule that is for no array.
    """
    unused, problems = set(rules), []
    sizes = dict(mesh.shape)

    def of_leaf(key_path: jax.tree_util.KeyPath, leaf: Any) -> NamedSharding:
        path = jax.tree_util.keystr(key_path, simple=True, separator="/")
        if not leaf.shape:
            return NamedSharding(mesh, PartitionSpec())
        matching = [rule for rule in rules if re.search(rf"(^|/){rule.pattern}$", path)]
        if len(matching) != 1:
            raise ValueError(f"{path}: {len(matching)} sharding rules are for it, {matching}")
        [rule] = matching
        unused.discard(rule)
        problems.extend(_indivisible(path, leaf.shape, rule, sizes))
        # An axis of one device is left out, so that a state which is nowhere divided is the same as a replicated one.
        axes = [axis if axis is not None and sizes[axis] > 1 else None for axis in rule.axes]
        while axes and axes[-1] is None:
            axes.pop()
        leading = [None] * (len(leaf.shape) - len(rule.axes)) if axes else []
        return NamedSharding(mesh, PartitionSpec(*leading, *axes))

    result = jax.tree_util.tree_map_with_path(of_leaf, tree)
    if unused:
        raise ValueError(f"sharding rules for nothing: {', '.join(sorted(rule.pattern for rule in unused))}")
    if problems:
        raise ConfigError("config: the mesh does not divide the model\n" + "\n".join(f"  - {p}" for p in problems))
    return result


def _indivisible(path: str, shape: Sequence[int], rule: Rule, sizes: Mapping[str, int]) -> list[str]:
    return [
        f"parallel.{axis}={sizes[axis]} does not divide {size}, axis {number} of {path} {tuple(shape)}"
        for number, (size, axis) in enumerate(
            zip(shape[-len(rule.axes) :], rule.axes, strict=True), len(shape) - len(rule.axes)
        )
        if axis is not None and size % sizes[axis]
    ]
