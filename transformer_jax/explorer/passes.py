"""Compiled passes of a model over one text, in which heads can be left out; by one program for each padded length."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.inspection.places import places, run_with
from transformer_jax.inspection.streams import mixed, put, stream_places
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.places import Replace
from transformer_jax.typing import Array, Batch, Params

NUM_PREDICTIONS = 5
NUM_OF_LENS = 3


class Head(NamedTuple):
    """A head of an attention, such as `decoder/self_attention`; layer and head are counted from 0."""

    attention: str
    layer: int
    head: int


@dataclasses.dataclass(frozen=True)
class Names:
    """The places that a page reads.

    heads, weights: the places of every layer of an attention, in order, as (attention, layer, place). streams: the
    input of the first layer of the last stack, and the output of each of its layers. head: of the task; None: a model
    that predicts tokens.
    """

    heads: tuple[tuple[str, int, str], ...]
    weights: tuple[tuple[str, int, str], ...]
    streams: tuple[str, ...]
    head: nn.Module | None = None

    @property
    def attentions(self) -> dict[str, list[int]]:
        """The layers of every attention by its name."""
        found: dict[str, list[int]] = {}
        for attention, layer, _ in self.weights:
            found.setdefault(attention, []).append(layer)
        return found

    def keep(self, num_heads: int, ablated: Iterable[Head] = ()) -> np.ndarray:
        """Return True for every head, [places of heads, N], and False for those that are left out.

        Raises: DataError for a head that the model does not have.
        """
        keep = np.ones((len(self.heads), num_heads), bool)
        rows = {(attention, layer): row for row, (attention, layer, _) in enumerate(self.heads)}
        for attention, layer, head in ablated:
            if (attention, layer) not in rows or not 0 <= head < num_heads:
                raise DataError(f"the model has no head {head} in layer {layer} of '{attention}'")
            keep[rows[attention, layer], head] = False
        return keep


def names_of(model: ModelConfig, head: nn.Module | None = None) -> Names:
    """Return the names of a model's places; raise ConfigError for a model whose layers have no residual stream."""
    streams = stream_places(model, ARCHITECTURES[model.architecture].example_batch(model), head)[model.stacks[-1]]
    known = [name.split("/") for name in places(model, head=head)]

    def of_attention(end: str) -> tuple[tuple[str, int, str], ...]:
        found = [name for name in known if len(name) == 4 and name[2].endswith("attention") and name[3] == end]
        order = sorted(found, key=lambda name: (name[0] != "decoder", name[2] != "self_attention", int(name[1])))
        return tuple(
            (f"{stack}/{part}", int(layer), "/".join(name)) for name in order for stack, layer, part, _ in [name]
        )

    return Names(of_attention("heads"), of_attention("weights"), tuple(streams), head)


class Asked(NamedTuple):
    """The arrays of a pass over one text with padding.

    batch: as the model reads it. next_ids: [T], the token after each that the last stack reads; of a task with labels,
    a label for each place of its outputs, [T] or []. is_token: [S] or [T] by stack, False for padding. keep: as
    `Names.keep`. mean_share: 1 if heads that are left out are replaced by their mean over the tokens, 0 if by zeros.
    """

    batch: Batch
    next_ids: Any
    is_token: Mapping[str, Any]
    keep: Any
    mean_share: Any


class Seen(NamedTuple):
    """Results of a pass over T tokens.

    log_probs, ids: of the likeliest tokens after each, [T, `NUM_PREDICTIONS`]. of_next: of the next token of the text,
    [T]. lens_log_probs, lens_ids: the same of every stream, [P, T, `NUM_OF_LENS`]. weights: [L', N, T, S] by attention.
    Of a task with labels they are labels, fewer if it has fewer; without the axis T if its outputs have none.
    """

    log_probs: Array
    ids: Array
    of_next: Array
    lens_log_probs: Array
    lens_ids: Array
    weights: dict[str, Array]


@functools.partial(jax.jit, static_argnames=("model", "names", "most"))
def seen(model: ModelConfig, names: Names, params: Params, asked: Asked, most: int = NUM_PREDICTIONS) -> Seen:
    """Return what a page shows of a pass; `most`: the number of predictions."""
    read = [*names.streams, *(name for _, _, name in names.weights)]
    ran = run_with(model, params, asked.batch, read, _without(model, names, params, asked), names.head)

    def ended(stream: Array) -> tuple[Array, Array]:
        ran = run_with(model, params, asked.batch, (), {names.streams[-1]: put(stream)}, names.head)
        return _likeliest(ran.outputs[0], NUM_OF_LENS)

    lens_log_probs, lens_ids = jax.lax.map(ended, jnp.stack([ran.places[name] for name in names.streams]))
    log_probs, ids = _likeliest(ran.outputs[0], most)
    weights = {
        attention: jnp.stack([ran.places[name][0] for other, _, name in names.weights if other == attention])
        for attention in names.attentions
    }
    return Seen(log_probs, ids, _of_next(ran.outputs[0], asked), lens_log_probs, lens_ids, weights)


@functools.partial(jax.jit, static_argnames=("model", "names"))
def next_log_probs(model: ModelConfig, names: Names, params: Params, asked: Asked) -> Array:
    """Return the log-probability of the next token at every place, [T]; of labels, as `Asked.next_ids`."""
    replace = _without(model, names, params, asked)
    return _of_next(run_with(model, params, asked.batch, (), replace, names.head).outputs[0], asked)


@functools.partial(jax.jit, static_argnames=("model", "names"))
def streams_of(model: ModelConfig, names: Names, params: Params, batch: Batch) -> tuple[Array, ...]:
    """Return the residual streams [1, T, D] of a pass, in the order of `names.streams`."""
    found = run_with(model, params, batch, names.streams).places
    return tuple(found[name] for name in names.streams)


@functools.partial(jax.jit, static_argnames=("model", "names"))
def patched(
    model: ModelConfig,
    names: Names,
    params: Params,
    batch: Batch,
    streams: tuple[Array, ...],
    put_in: Any,
    position: Any,
) -> Array:
    """Return the log-probabilities [V] after a position of a pass that has some values of another one's streams.

    Args:
      streams: of the other pass, as `streams_of`. put_in: [P, T], True where the stream's value is replaced.
    """
    replace = {
        name: mixed(~put_in[row][None, :, None], new)
        for row, (name, new) in enumerate(zip(names.streams, streams, strict=True))
    }
    return jax.nn.log_softmax(run_with(model, params, batch, replace=replace).outputs[0, position])


def _without(model: ModelConfig, names: Names, params: Params, asked: Asked) -> dict[str, Replace]:
    """Return the functions that leave heads out, by place."""
    as_is = run_with(model, params, asked.batch, [name for _, _, name in names.heads], head=names.head).places
    replace = {}
    for row, (attention, _, name) in enumerate(names.heads):
        is_token = asked.is_token[attention.partition("/")[0]]
        heads = as_is[name][0].astype(jnp.float32)  # [T, N, H]
        mean = (heads * is_token[:, None, None]).sum(0) / is_token.sum() * asked.mean_share
        replace[name] = mixed(asked.keep[row][:, None], mean)
    return replace


def _likeliest(logits: Array, number: int) -> tuple[Array, Array]:
    """Return the log-probabilities and ids of the likeliest tokens, [..., number] each; fewer if there are fewer."""
    values, ids = jax.lax.top_k(jax.nn.log_softmax(logits), min(number, logits.shape[-1]))
    return values, ids


def _of_next(logits: Array, asked: Asked) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), asked.next_ids[..., None], axis=-1)[..., 0]


def check_finite(array: Any) -> None:
    """Raise DataError for outputs that are not finite."""
    if not np.isfinite(array).all():
        raise DataError("the model's outputs are not finite; its training has diverged")
