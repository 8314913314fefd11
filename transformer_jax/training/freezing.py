"""Parameters that are trained in different ways: frozen ones, and learning rates by depth and by path.

Frozen parameters (`optimizer.freeze`) are not differentiated and have no optimizer state. So they have no gradients,
moments, updates or weight decay, and the norm for clipping is that of the trained parameters. Adam stores two numbers
fewer for every frozen parameter. Of a partly frozen stack, XLA removes the gradients of the frozen layers, unless the
layers are a loop (`model.scan_layers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.config import (
    LAYERS,
    FreezeRule,
    MultiplierRule,
    OptimizerConfig,
    parse_freeze,
    parse_multipliers,
)
from transformer_jax.errors import ConfigError
from transformer_jax.nn.stack import LAMBDAS
from transformer_jax.typing import Array, ArrayLike, Params

LayerNumbers = Mapping[str, tuple[int, ...]]
"""The numbers of the layers in every folder of stacked parameters, by its path: `config.layer_numbers`.

A folder `layers` that is not named has the layers 0, 1, 2, ...
"""


def trained_part(freeze: str, params: Params, numbers: LayerNumbers | None = None) -> Params:
    """Return the parameters without frozen arrays, and of stacked arrays [L, ...] only the trained layers.

    Args:
      freeze: value of `optimizer.freeze`; if it is empty, the result is `params` itself. params: parameters, or a tree
        with the same paths and leading axes. numbers: needed if the layers of a stack have several folders.
    Raises: ConfigError if a rule of `freeze` matches nothing, or nothing is left.
    """
    frozen = _frozen_layers(freeze, params, numbers or {})
    if not frozen:
        return params

    def trained(path: str, x: Any) -> Any:
        layers = frozen.get(path, 0)
        return None if layers is None else x[layers:] if layers else x

    return _selected(params, trained)


def with_trained(freeze: str, params: Params, trained: Params, numbers: LayerNumbers | None = None) -> Params:
    """Return the parameters with new values of `trained_part`; frozen values are those of `params`, bit for bit."""
    frozen = _frozen_layers(freeze, params, numbers or {})
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


def multipliers(params: Params, decay: ArrayLike, numbers: LayerNumbers | None = None) -> Params:
    """Return the multipliers of the learning rate by depth, as a tree of arrays that broadcast against parameters.

    With L layers in a stack:
    - layer l = 0, ..., L - 1, and its numbers of `LAMBDAS`: decay^(L - l); for stacked arrays [L, ...] the result is
      [L, 1, ...];
    - token, position and type embeddings and their norm: decay^(L + 1);
    - all others, which are heads, output projections, final norms and relative biases: 1.

    Source: Clark et al. 2020, appendix B, with the exponents of the code of BEiT (Bao et al. 2022). The code of ELECTRA
    has one exponent more below the head. The two stacks of an encoder-decoder count separately, each from its own top,
    because every decoder layer, the last one included, reads the output of the encoder directly. Embeddings outside of
    the stacks count from the top of the deeper stack.

    Args: numbers: needed if the layers of a stack have several folders.
    Raises: ConfigError if there are no stacked layers.
    """
    numbers = numbers or {}
    heights = _heights(params, numbers)

    def of_leaf(path: jax.tree_util.KeyPath, x: Any) -> Array:
        if (of := _layers(_path(path), x, numbers)) is not None:
            exponents = jnp.array([heights[of.stack] - layer for layer in of.layers], jnp.float32)
            return jnp.power(decay, exponents.reshape(-1, *(1,) * (x.ndim - 1)))
        parts = _path(path).split("/")
        if parts[0] == "head" or not any("embedding" in part for part in parts[:-1]):
            return jnp.ones(())
        own = heights.get(parts[0], max(heights.values()))
        return jnp.power(decay, jnp.float32(own + 1))

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def multiplied(
    static: OptimizerConfig, params: Params, numbers: LayerNumbers | None = None
) -> dict[str, MultiplierRule]:
    """Return the rule of `optimizer.lr_multipliers` that matches a parameter, by the paths of those that one matches.

    As in `optimizer.freeze`, `decoder/layers` are all layers, whatever the folder of their kind. Unlike there, it does
    not match `LAMBDAS`, so that these can have rates of their own.

    Args:
      params: parameters, or a tree with the same paths. numbers: needed if the layers of a stack have several folders.
    Raises: ConfigError if a pattern matches no parameter or only frozen ones, or two match the same parameter.
    """
    rules = parse_multipliers(static.lr_multipliers)
    return {path: rules[index] for path, index in _claimed(static, params, numbers or {}).items()}


def with_multipliers(
    static: OptimizerConfig,
    updates: Any,
    params: Any,
    factors: Sequence[ArrayLike],
    numbers: LayerNumbers | None = None,
) -> Any:
    """Return the updates times the factors of `optimizer.lr_multipliers`, where a pattern matches the parameter.

    Args:
      static: its patterns are read, and not its numbers. updates: of the trained part of the parameters. params: all.
      factors: one for every pattern. numbers: as in `multiplied`.
    Raises: ConfigError, see `multiplied`.
    """
    claimed = _claimed(static, params, numbers or {})

    def of_leaf(path: jax.tree_util.KeyPath, update: Any) -> Any:
        index = claimed.get(_path(path))
        return update if index is None else jnp.multiply(update, factors[index])

    return jax.tree_util.tree_map_with_path(of_leaf, updates)


def _claimed(static: OptimizerConfig, params: Params, numbers: LayerNumbers) -> dict[str, int]:
    """Return the number of the pattern of `optimizer.lr_multipliers` that matches a parameter, by its path."""
    rules = parse_multipliers(static.lr_multipliers)
    paths = list(_leaves(params)) if rules else []
    frozen = _frozen_layers(static.freeze, params, numbers) if rules else {}
    claimed: dict[str, int] = {}
    for index, rule in enumerate(rules):
        matching = [path for path in paths if any(rule.matches(name) for name in (path, _plain(path, numbers)))]
        if not matching:
            raise ConfigError(
                f"optimizer.lr_multipliers: '{rule.pattern}' matches no parameter; the beginning of a path, up to a "
                f"slash or its end, must match. Paths begin with {', '.join(_beginnings(dict.fromkeys(paths)))}"
            )
        if all(frozen.get(path, 0) is None for path in matching):
            raise ConfigError(
                f"optimizer.lr_multipliers: '{rule.pattern}' matches only parameters that optimizer.freeze="
                f"{static.freeze!r} keeps as they are"
            )
        for path in matching:
            if path in claimed:
                raise ConfigError(
                    f"optimizer.lr_multipliers: '{rules[claimed[path]].pattern}' and '{rule.pattern}' both match "
                    f"{path}; a parameter can have one multiplier"
                )
            claimed[path] = index
    return claimed


class _Layers(NamedTuple):
    """The path of a stack, and the numbers of its layers along the first axis of an array."""

    stack: str
    layers: Sequence[int]


def _layers(path: str, x: Any, numbers: LayerNumbers) -> _Layers | None:
    """Return the layers of an array [L, ...]; None for an array outside of all layers."""
    parts = path.split("/")
    for depth, part in enumerate(parts[:-1]):
        stack, of_folder = "/".join(parts[:depth]), numbers.get("/".join(parts[: depth + 1]))
        if of_folder is not None or part == LAYERS:
            return _Layers(stack, range(x.shape[0]) if of_folder is None else of_folder)
        if part in LAMBDAS:
            return _Layers(stack, range(x.shape[0]))
    return None


def _heights(params: Params, numbers: LayerNumbers) -> dict[str, int]:
    """Return the number of layers of every stack, by the path of the stack; raises ConfigError if there is none."""
    heights: dict[str, int] = {}
    for path, x in _leaves(params).items():
        if (of := _layers(path, x, numbers)) is not None:
            heights[of.stack] = max(heights.get(of.stack, 0), *(layer + 1 for layer in of.layers))
    if not heights:
        raise ConfigError(
            "optimizer.layer_decay: the model has no parameters in a folder 'layers', whose first axis is the layer; "
            "set it to 1"
        )
    return heights


def _frozen_layers(freeze: str, params: Params, numbers: LayerNumbers) -> Mapping[str, int | None]:
    """Return the number of frozen rows of an array by its path; None if the array is frozen as a whole.

    Raises: ConfigError, see `trained_part`.
    """
    leaves, frozen = _leaves(params) if freeze else {}, {}
    for rule in parse_freeze(freeze):
        # `decoder/layers` are all layers, whatever the folder of their kind, with what they have outside of it.
        names = {path: {path, _plain(path, numbers), _within_layers(path)} for path in leaves}
        matching = [path for path in leaves if any(map(rule.matches, names[path]))]
        if not matching:
            raise ConfigError(
                f"optimizer.freeze: '{rule.pattern}' matches no parameter; the beginning of a path, up to a slash or "
                f"its end, must match. Paths begin with {', '.join(_beginnings(leaves))}"
            )
        for path, layers in _layers_of(rule, {path: leaves[path] for path in matching}, numbers).items():
            before = frozen.get(path, 0)
            frozen[path] = None if layers is None or before is None else max(layers, before)
    if leaves and all(frozen.get(path, 0) is None for path in leaves):
        raise ConfigError(f"optimizer.freeze={freeze!r} freezes all parameters; leave some to train")
    return {path: rows for path, rows in frozen.items() if rows != 0}


def _plain(path: str, numbers: LayerNumbers) -> str:
    """Return the path with `layers` in place of the folder of a kind of layers."""
    for folder in numbers:
        if path.startswith(f"{folder}/"):
            return "/".join([*folder.split("/")[:-1], LAYERS, path.removeprefix(f"{folder}/")])
    return path


def _within_layers(path: str) -> str:
    """Return the path of an array of `LAMBDAS` as if its folder were in `layers`; any other path as it is."""
    parts = path.split("/")
    return "/".join(name for part in parts for name in ((LAYERS, part) if part in LAMBDAS else (part,)))


def _layers_of(rule: FreezeRule, matching: Mapping[str, Any], numbers: LayerNumbers) -> dict[str, int | None]:
    """Return the frozen rows of the arrays that a rule matches; with a number, of the stacked ones among them."""
    if rule.layers is None:
        return dict.fromkeys(matching)
    stacked = {path: of for path, x in matching.items() if (of := _layers(path, x, numbers)) is not None}
    if not stacked:
        raise ConfigError(
            f"optimizer.freeze: '{rule.pattern}:{rule.layers}' matches no parameter of a stack of layers, such as "
            f"{next(iter(matching))}; leave out ':{rule.layers}'"
        )
    heights = {of.stack: 0 for of in stacked.values()}
    for of in (*stacked.values(), *(_Layers(f.rpartition("/")[0], layers) for f, layers in numbers.items())):
        if of.stack in heights:
            heights[of.stack] = max(heights[of.stack], *(layer + 1 for layer in of.layers))
    stack = min(heights, key=heights.__getitem__)
    if heights[stack] < rule.layers:
        raise ConfigError(
            f"optimizer.freeze: '{rule.pattern}:{rule.layers}' needs {rule.layers} layers, but "
            f"{next(path for path, of in stacked.items() if of.stack == stack)} has {heights[stack]}"
        )
    rows = {path: sum(layer < rule.layers for layer in of.layers) for path, of in stacked.items()}
    if not any(rows.values()):
        raise ConfigError(
            f"optimizer.freeze: '{rule.pattern}:{rule.layers}' freezes nothing: {next(iter(stacked))} has the layers "
            f"{', '.join(map(str, next(iter(stacked.values())).layers))} of the stack, from 0"
        )
    return {path: None if count == len(stacked[path].layers) else count for path, count in rows.items()}


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


def _beginnings(paths: Mapping[str, Any]) -> list[str]:
    """Return the first two parts of every path, in order."""
    return list(dict.fromkeys("/".join(path.split("/")[:2]) for path in paths))


def _leaves(params: Params) -> dict[str, Any]:
    return {_path(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def _path(path: jax.tree_util.KeyPath) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
