"""The named places of residual streams, heads and parts, and functions that put values there.

The functions are `jax.tree_util.Partial`s: with other arrays they are the same program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import STACKS, ModelConfig, nearest
from transformer_jax.errors import ConfigError
from transformer_jax.inspection.places import places
from transformer_jax.typing import Array, Batch

Put = jax.tree_util.Partial
"""A function of a value, with the arrays that it reads."""


def known_places(model: ModelConfig, batch: Batch, head: nn.Module | None) -> dict[str, tuple[int, ...]]:
    """Return `places` of a model with a residual stream; raise ConfigError for another, such as a recurrent one."""
    known = places(model, batch, head)
    if not any(f"{stack}/0/input" in known for stack in STACKS):
        raise ConfigError(f"model.architecture={model.architecture} has no residual stream; expected a Transformer")
    return known


def stream_places(model: ModelConfig, batch: Batch, head: nn.Module | None = None) -> dict[str, list[str]]:
    """Return by stack the places of its residual stream: `STACK/embedding`, and the last one of each layer."""
    streams: dict[str, dict[int, str]] = {}
    for name in known_places(model, batch, head):
        stack, *rest = name.split("/")
        if rest == ["embedding"]:
            streams.setdefault(stack, {})[-1] = name
        elif rest[-1:] == ["stream"]:
            streams.setdefault(stack, {})[int(rest[0])] = name  # a later part of the layer replaces an earlier one
    return {stack: [of_layer[layer] for layer in sorted(of_layer)] for stack, of_layer in streams.items()}


def places_of(model: ModelConfig, batch: Batch, kind: str, head: nn.Module | None = None) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the places of a kind.

    Args: kind: `heads`, of layers; `parts`, which are outputs of parts of layers; `streams`, those of `stream_places`.
    Raises: ConfigError for another kind, and for a model without such places.
    """
    known = known_places(model, batch, head)
    if kind == "streams":
        names = [name for streams in stream_places(model, batch, head).values() for name in streams]
    elif kind in _ENDS:
        names = [name for name in known if name.count("/") == 3 and name.endswith(_ENDS[kind])]
    else:
        known_kinds = ("streams", *_ENDS)
        raise ConfigError(
            f"kind of places '{kind}': expected one of {', '.join(known_kinds)}{nearest(kind, known_kinds)}"
        )
    if not names:
        raise ConfigError(f"the model has no places of the kind '{kind}'")
    return {name: known[name] for name in names}


_ENDS = {"heads": "/heads", "parts": "/output"}


def put(new: Array) -> Put:
    """Return a function that returns `new` whatever the value."""
    return Put(_put, new=new)


def mixed(keep: Array, new: Array) -> Put:
    """Return a function from x to x where `keep`, which is broadcast to its shape, and `new` elsewhere."""
    return Put(_mixed, keep=keep, new=new)


def without_heads(
    model: ModelConfig, batch: Batch, heads: Mapping[str, Sequence[int]], head: nn.Module | None = None
) -> dict[str, Put]:
    """Return functions for `replace` of `run_with` and `logit_lens` that set the outputs of heads to zero.

    Args:
      heads: numbers of heads, from 0, by place: `{"decoder/0/self_attention": [1, 3]}`.
      head: of the task.
    Raises: ConfigError for a part without heads, or a head that it does not have.
    """
    known = places_of(model, batch, "heads", head)
    functions = {}
    for part, numbers in heads.items():
        name = f"{part.removesuffix('/heads')}/heads"
        if name not in known:
            parts = [place.removesuffix("/heads") for place in known]
            raise ConfigError(f"'{part}' has no heads{nearest(part, parts)}; these have: {', '.join(parts)}")
        count = known[name][2]
        if wrong := [number for number in numbers if not 0 <= number < count]:
            raise ConfigError(f"'{part}' has no head {wrong[0]}; expected 0 to {count - 1}")
        keep = jnp.ones((count, 1), bool).at[jnp.asarray(list(numbers), jnp.int32)].set(False)
        functions[name] = mixed(keep, jnp.zeros(()))
    return functions


def _put(value: Array, new: Array) -> Array:
    return jnp.broadcast_to(new, value.shape).astype(value.dtype)


def _mixed(value: Array, keep: Array, new: Array) -> Array:
    return jnp.where(keep, value, new.astype(value.dtype))
