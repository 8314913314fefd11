"""Read and replace named places of a forward pass.

    tj.places(model, batch)                                            names and shapes
    tj.run_with(model, params, batch, read=["decoder/0/feed_forward/stream"])
    tj.run_with(model, params, batch, replace={"decoder/0/self_attention/output": jnp.zeros_like})

The places of a Transformer, in the order of the pass, for each stack (`encoder`, `decoder`) and layer from 0:

    STACK/embedding                   [B, T, D]       the input of the first layer
    STACK/LAYER/input                 [B, T, D]       the residual stream before the layer
    STACK/LAYER/PART/input            [B, T, D]       what the part reads, after its norm if it has one there
    STACK/LAYER/PART/weights          [B, N, T, S]    attention weights, after the softmax
    STACK/LAYER/PART/heads            [B, T, N, Hv]   the outputs of heads, before they are joined
    STACK/LAYER/feed_forward/hidden   [B, T, F]       after the activation
    STACK/LAYER/PART/output           [B, T, D]       what the part computes, before a norm of it and its factors
    STACK/LAYER/PART/stream           [B, T, D]       the residual stream after the part, and after a norm there
    STACK/output                      [B, T, D]       the output of the stack, after its final norm
    logits                            [B, T, V]       or `outputs` of the task's head

PART is `self_attention`, `cross_attention`, `feed_forward` or the name of another part of the layer. A recurrent model
has `embedding`, `LAYER/output` and `output` of its stacks, and `decoder/cross_attention/weights` [B, T, S].
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from transformer_jax.config import ModelConfig, nearest
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.collected import COLLECTED
from transformer_jax.nn.places import Replace, Visit, visit
from transformer_jax.typing import Array, Batch, Params


class Ran(NamedTuple):
    """The outputs of a pass, [B, T, V] logits or those of the head, and the values that were read, by place."""

    outputs: Array
    places: dict[str, Array]


def places(
    model: ModelConfig, batch: Mapping[str, Any] | None = None, head: nn.Module | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all places of a model by name, in the order of the pass. Nothing is computed.

    Args:
      model: a resolved config.
      batch: as the model reads it, arrays or their shapes; default: the smallest that it can read.
      head: of the task.
    """
    found: dict[str, tuple[int, ...]] = {}

    def traced(batch: Batch) -> None:
        params = _module(model, head).init(jax.random.key(0), batch)["params"]
        with visit(Visit(None)) as visited:
            # Collecting, norms over the batch need no running averages, which new parameters do not have.
            _module(model, head).apply({"params": params}, batch, mutable=[COLLECTED])
        found.update((name, value.shape) for name, value in visited.found.items())

    jax.eval_shape(traced, ARCHITECTURES[model.architecture].example_batch(model) if batch is None else batch)
    return found


def run_with(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    read: Iterable[str] = (),
    replace: Mapping[str, Replace] | None = None,
    head: nn.Module | None = None,
) -> Ran:
    """Run a model without dropout, and read and replace places of the pass.

    The program is compiled once for a model, the places and the functions, and the shapes of the batch. A
    `jax.tree_util.Partial` of a function and arrays is the same function with other arrays: these compile nothing.

    Args:
      model: a resolved config, such as `load_language_model(...).config.model`. Scanned layers are unrolled.
      batch: as the model reads it, such as `{"decoder_inputs": ids}`.
      read: names of places, in which `*` stands for any text: `decoder/*/self_attention/weights`.
      replace: by place, a function from its value to one of the same shape and type. It acts before the place is read.
      head: of the task.
    Raises: ConfigError for a place that the model does not have; ValueError for a function that returns another shape.
    """
    known = _known(model, _shapes(batch), head)  # ty: ignore[invalid-argument-type]
    read = tuple(dict.fromkeys(name for wanted in read for name in _matching(wanted, known)))
    functions = {name: _as_tree(function) for name, function in (replace or {}).items()}
    for name in functions:
        _matching(name, known)
    outputs, found = _run(dataclasses.replace(model, scan_layers=False), head, read, params, batch, functions)
    return Ran(outputs, {name: found[name] for name in known if name in found})


@functools.partial(jax.jit, static_argnames=("model", "head", "read"))
def _run(
    model: ModelConfig,
    head: nn.Module | None,
    read: tuple[str, ...],
    params: Params,
    batch: Batch,
    replace: Mapping[str, Any],
) -> tuple[Array, dict[str, Array]]:
    with visit(Visit(frozenset(read), replace)) as visited:
        outputs: Any = _module(model, head).apply({"params": params}, batch)
    return outputs, visited.found


def _module(model: ModelConfig, head: nn.Module | None) -> nn.Module:
    return ARCHITECTURES[model.architecture].module(model, head)


def _as_tree(function: Replace) -> jax.tree_util.Partial:
    return function if isinstance(function, jax.tree_util.Partial) else jax.tree_util.Partial(function)


def _shapes(batch: Batch) -> tuple[tuple[str, tuple[int, ...], Any], ...]:
    return tuple((name, array.shape, array.dtype) for name, array in batch.items())


@functools.lru_cache(maxsize=64)
def _known(model: ModelConfig, batch: tuple[tuple[str, tuple[int, ...], Any], ...], head: nn.Module | None) -> Any:
    return places(model, {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in batch}, head)


def _matching(wanted: str, known: Iterable[str]) -> list[str]:
    """Return the places that a name or pattern stands for; raise ConfigError if there are none."""
    if found := [name for name in known if fnmatchcase(name, wanted)]:
        return found
    raise ConfigError(f"the model has no place '{wanted}'{nearest(wanted, known)}")
