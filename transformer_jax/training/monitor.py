"""The monitor: values of single layers, at every `training.monitor_every_steps`-th update.

Such an update runs a second program of the same step, which also returns what its blocks have stored
(nn/monitored.py), and how large the update is. They are metrics of the step with names `monitor/NAME`, and get a line
of their own in the log, of the split `monitor`. NAME is VALUE_STACK_LAYER, as in `stream_rms_decoder_0`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from transformer_jax.nn.monitored import by_path
from transformer_jax.typing import Array, Params

SPLIT = "monitor"
"""The split of the lines of the log, and the beginning of the names of the metrics."""
UPDATE_RATIO = "update_ratio"

Numbers = Mapping[str, tuple[int, ...]]
"""The numbers of the layers in a folder of parameters, from `config.layer_numbers`."""


def is_monitored(step: int, every: int | None) -> bool:
    """Return whether update number `step` is monitored; every: `training.monitor_every_steps`."""
    return bool(every) and step % every == 0


def monitored_metrics(monitored: Params, before: Params, after: Params, numbers: Numbers) -> dict[str, Array]:
    """Return the values of a step, [] float32 each, by `monitor/NAME`.

    Args:
      monitored: of the whole batch. before, after: the parameters; `after` without the reset of a step that is not
        finite.
    """
    found: dict[str, Array] = {}
    for path, value in by_path(monitored).items():
        found |= _named(path, value, numbers)
    for path, value in update_ratios(before, after, numbers).items():
        found |= _named((*path, UPDATE_RATIO), value, numbers)
    return {f"{SPLIT}/{name}": value for name, value in found.items()}


def update_ratios(before: Params, after: Params, numbers: Numbers) -> dict[tuple[str, ...], Array]:
    """Return |after - before| / |before|, norms over all parameters of a layer, by the folder of the layers [L].

    All other parameters are in groups by the beginnings of their paths, with [] each.
    """
    old, new = flatten_dict(dict(before)), flatten_dict(dict(after))
    changes: dict[tuple[str, ...], Any] = {}
    sizes: dict[tuple[str, ...], Any] = {}
    for path, x in old.items():
        folder = path[:2]
        axes = tuple(range(1, x.ndim)) if "/".join(folder) in numbers else None
        group = folder if axes is not None else _group(path)
        x32 = x.astype(jnp.float32)
        changes[group] = changes.get(group, 0.0) + jnp.square(new[path].astype(jnp.float32) - x32).sum(axes)
        sizes[group] = sizes.get(group, 0.0) + jnp.square(x32).sum(axes)
    # Parameters that are all zero have no ratio.
    return {group: jnp.where(sizes[group] > 0, jnp.sqrt(changes[group] / sizes[group]), jnp.nan) for group in changes}


def _group(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the group of a parameter that is not in a folder of layers: its module, or the module in a stack."""
    return path[:2] if path[0] in ("encoder", "decoder") else path[:1]


def _named(path: tuple[str, ...], value: Array, numbers: Numbers) -> dict[str, Array]:
    """Return the numbers of an array by name: VALUE_STACK_LAYER, with the number of an expert behind it."""
    folder = "/".join(path[:2])
    if folder not in numbers:
        *block, name = path
        return _flat("_".join((name, *block)), value)
    name = "_".join(path[2:])
    found: dict[str, Array] = {}
    for row, layer in enumerate(numbers[folder]):
        found |= _flat(f"{name}_{path[0]}_{layer}", value[row])
    return found


def _flat(name: str, value: Array) -> dict[str, Array]:
    if value.ndim == 0:
        return {name: value}
    return {of: x for at in range(len(value)) for of, x in _flat(f"{name}_{at}", value[at]).items()}


class Parted(NamedTuple):
    """The metrics of a step, and the values of its monitor by NAME; empty if the step was not monitored."""

    metrics: dict[str, Any]
    monitored: dict[str, Any]


def parted(metrics: Mapping[str, Any]) -> Parted:
    """Return the metrics of a step without the values of the monitor, and these."""
    beginning = f"{SPLIT}/"
    own = {name: value for name, value in metrics.items() if not name.startswith(beginning)}
    values = {name.removeprefix(beginning): value for name, value in metrics.items() if name not in own}
    return Parted(own, values)
