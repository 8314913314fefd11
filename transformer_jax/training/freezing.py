"""Fine-tuning of a part of the parameters: frozen ones, and learning rates by depth.

Frozen parameters (`optimizer.freeze`) are not differentiated and have no optimizer state. So they have no gradients,
moments, updates or weight decay, and the norm for clipping is that of the trained parameters. Adam stores two numbers
fewer for every frozen parameter. Of a partly frozen stack, XLA removes the gradients of the frozen layers, unless the
layers are a loop (`model.scan_layers`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.config import FreezeRule, parse_freeze
from transformer_jax.errors import ConfigError
from transformer_jax.typing import Array, ArrayLike, Params

_LAYERS = "layers"  # the folder of parameters with a leading axis of layers, in nn/stack.py


def trained_part(freeze: str, params: Params) -> Params:
    """Return the parameters without frozen arrays, and of stacked arrays [L, ...] only the trained layers.

    Args:
      freeze: value of `optimizer.freeze`; if it is empty, the result is `params` itself. params: parameters, or a tree
        with the same paths and leading axes.
    Raises: ConfigError if a rule of `freeze` matches nothing, or nothing is left.
    """
    frozen = _frozen_layers(freeze, params)
    if not frozen:
        return params

    def trained(path: str, x: Any) -> Any:
        layers = frozen.get(path, 0)
        return None if layers is None else x[layers:] if layers else x

    return _selected(params, trained)


def with_trained(freeze: str, params: Params, trained: Params) -> Params:
    """Return the parameters with new values of `trained_part`; frozen values are those of `params`, bit for bit."""
    frozen = _frozen_layers(freeze, params)
    if not frozen:
        return trained
    new = {_path(path): x for path, x in jax.tree_util.tree_leaves_with_path(trained)}

    def joined(path: jax.tree_util.KeyPath, x: Any) -> Any:
        name = _path(path)
        layers = frozen.get(name, 0)
        if layers is None:
            return x
        return jnp.concatenate([x[:layers], new[name]]) if layers else new[name]

    return jax.tree_util.tree_map_with_path(joined, params)


def multipliers(params: Params, decay: ArrayLike) -> Params:
    """Return the multipliers of the learning rate by depth, as a tree of arrays that broadcast against parameters.

    With L layers in a stack:
    - layer l = 0, ..., L - 1: decay^(L - l); for stacked arrays [L, ...] the result is [L, 1, ...];
    - token, position and type embeddings and their norm: decay^(L + 1);
    - all others, which are heads, output projections, final norms and relative biases: 1.

    Source: Clark et al. 2020, appendix B, with the exponents of the code of BEiT (Bao et al. 2022). The code of ELECTRA
    has one exponent more below the head. The two stacks of an encoder-decoder count separately, each from its own top,
    because every decoder layer, the last one included, reads the output of the encoder directly. Embeddings outside of
    the stacks count from the top of the deeper stack.

    Raises: ConfigError if there are no stacked layers.
    """
    heights = _heights(params)

    def of_leaf(path: jax.tree_util.KeyPath, x: Any) -> Array:
        if (stack := _stack_of(_path(path))) is not None:
            exponents = jnp.arange(heights[stack], 0, -1, dtype=jnp.float32).reshape(-1, *(1,) * (x.ndim - 1))
            return jnp.power(decay, exponents)
        parts = _path(path).split("/")
        if parts[0] == "head" or not any("embedding" in part for part in parts[:-1]):
            return jnp.ones(())
        own = heights.get(parts[0], max(heights.values()))
        return jnp.power(decay, jnp.float32(own + 1))

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def _heights(params: Params) -> dict[str, int]:
    """Return the number of layers of every stack, by the path of the stack; raises ConfigError if there is none."""
    stacks = {path: stack for path in _leaves(params) if (stack := _stack_of(path)) is not None}
    heights = {stacks[path]: x.shape[0] for path, x in _leaves(params).items() if path in stacks}
    if not heights:
        raise ConfigError(
            "optimizer.layer_decay: the model has no parameters in a folder 'layers', whose first axis is the layer; "
            "set it to 1"
        )
    return heights


def _frozen_layers(freeze: str, params: Params) -> Mapping[str, int | None]:
    """Return the number of frozen layers of an array by its path; None if the array is frozen as a whole.

    Raises: ConfigError, see `trained_part`.
    """
    leaves, frozen = _leaves(params) if freeze else {}, {}
    for rule in parse_freeze(freeze):
        matching = [path for path in leaves if re.match(rf"(?:{rule.pattern})(?:/|$)", path)]
        if not matching:
            raise ConfigError(
                f"optimizer.freeze: '{rule.pattern}' matches no parameter; the beginning of a path, up to a slash or "
                f"its end, must match. Paths begin with {', '.join(_beginnings(leaves))}"
            )
        for path, layers in _layers_of(rule, {path: leaves[path] for path in matching}).items():
            before = frozen.get(path, 0)
            frozen[path] = None if layers is None or before is None else max(layers, before)
    if leaves and all(frozen.get(path, 0) is None for path in leaves):
        raise ConfigError(f"optimizer.freeze={freeze!r} freezes all parameters; leave some to train")
    return frozen


def _layers_of(rule: FreezeRule, matching: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the frozen layers of the arrays that a rule matches; with a number, of the stacked ones among them."""
    if rule.layers is None:
        return dict.fromkeys(matching)
    stacked = {path: x.shape[0] for path, x in matching.items() if _stack_of(path) is not None}
    if not stacked:
        raise ConfigError(
            f"optimizer.freeze: '{rule.pattern}:{rule.layers}' matches no parameter of a stack of layers, such as "
            f"{next(iter(matching))}; leave out ':{rule.layers}'"
        )
    if (fewest := min(stacked.values())) < rule.layers:
        raise ConfigError(
            f"optimizer.freeze: '{rule.pattern}:{rule.layers}' needs {rule.layers} layers, but "
            f"{min(stacked, key=stacked.__getitem__)} has {fewest}"
        )
    return {path: None if size == rule.layers else rule.layers for path, size in stacked.items()}


def _selected(tree: Params, select: Callable[[str, Any], Any], prefix: str = "") -> Params:
    """Return the tree with every array replaced by select(path, array); leave out an array where this is None."""
    result = {}
    for name, value in tree.items():
        new = (
            _selected(value, select, f"{prefix}{name}/") if isinstance(value, Mapping) else select(prefix + name, value)
        )
        if new is not None and not (isinstance(new, Mapping) and not new):
            result[name] = new
    return result


def _stack_of(path: str) -> str | None:
    """Return the path of the stack to which an array [L, ...] belongs; None for an array outside of all layers."""
    parts = path.split("/")
    return "/".join(parts[: parts.index(_LAYERS)]) if _LAYERS in parts[:-1] else None


def _beginnings(paths: Mapping[str, Any]) -> list[str]:
    """Return the first two parts of every path, in order."""
    return list(dict.fromkeys("/".join(path.split("/")[:2]) for path in paths))


def _leaves(params: Params) -> dict[str, Any]:
    return {_path(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def _path(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
