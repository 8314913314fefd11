"""Generation of outputs from prompts, with any decoder.

The search runs in stages. The KV cache has room for 64 positions in the first stage, then for 128, 256, ... So the cost
of a token depends on the length of the text, not on the length limit. A stage is one compiled program per shape; a
stage that no output reaches is never compiled.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding import beam_search, sampling
from transformer_jax.decoding.hypotheses import Generated, Hypotheses, Reorder, Step, runs_of_prompts, start_hypotheses
from transformer_jax.decoding.settings import Ends, Settings, Values, split_settings
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.decoder import Decoder, slots_of_prompts
from transformer_jax.typing import Array, ArrayLike, Batch, Params

FIRST_CAPACITY = 64
"""Positions of the first stage."""

State = sampling.Growing | beam_search.Beam
Decoders = tuple[Decoder, ...]


class Inputs(NamedTuple):
    """A request on the device.

    batch: other arrays that the models read, such as `inputs` [B, S] and `inputs_mask`; may be empty. row_ids: [B]
    int32, seeds of the random draws of a row. prompts: [B, P] int32, padded. prompt_lengths: [B] int32. max_lengths:
    [B] int32.
    """

    batch: Batch
    row_ids: Array
    prompts: Array
    prompt_lengths: Array
    max_lengths: Array


class Request(NamedTuple):
    """A batch to generate outputs for, on the host.

    - batch: other arrays [B, ...] that the models read.
    - prompts: one per row, of at least one token; for an encoder-decoder the first is the start id. Outputs do not
      include the prompt.
    - max_lengths: int [B], maximum tokens of an output, including end-of-sequence; 0 for a row without output; see
      `output_limits`.
    - limit: width of the outputs, at least the largest of max_lengths.
    """

    batch: Mapping[str, np.ndarray]
    prompts: Sequence[Sequence[int]]
    max_lengths: np.ndarray
    limit: int


def generate(
    decoders: Decoders,
    params: Sequence[Params],
    decode: DecodeConfig,
    ends: Ends,
    request: Request,
    row_ids: np.ndarray | None = None,
) -> Generated:
    """Generate outputs that continue prompts.

    Args:
      decoders: one decoder, or one per member of an ensemble. An ensemble averages log probabilities, and normalises
        the average.
      params: one tree per decoder, from its method `prepare`.
      row_ids: [B] int32, seeds of sampling; default 0, 1, 2, ...
    Raises: ConfigError if vocabularies differ, and where `split_settings` raises it; DataError, which names the row, if
      the models cannot read a prompt.
    """
    search = prepare(decoders, params, decode, ends, request, row_ids)
    if not search.settings.sample:
        return search.outputs()
    wanted, together = decode.num_samples, search.settings.width
    parts = []
    for first in range(0, wanted, together):
        values = search.values._replace(first_sample=np.int32(first))
        parts.append(search._replace(values=values).outputs())
    return Generated(*(jnp.concatenate(x, axis=1)[:, :wanted] for x in zip(*parts, strict=True)))


class BatchSearch(NamedTuple):
    """The data for decoding one batch."""

    decoders: Decoders
    params: tuple[Params, ...]
    settings: Settings
    values: Values
    inputs: Inputs
    limit: int

    def outputs(self) -> Generated:
        """Decode to the end."""
        ((_, state),) = collections.deque(self.stages(), maxlen=1)  # do not keep states of earlier stages
        return self.outputs_of(state)

    def outputs_of(self, state: State) -> Generated:
        """Return the outputs that a state of this search has found so far."""
        return _outputs(self.settings, self.values, self.inputs, state)

    def steps(self) -> Iterator[State]:
        """Decode one token at a time; yield the state before the first token, and the state after each.

        The states are those of `stages`, but the cache has room for all tokens from the beginning. So there is one
        program for any number of tokens up to `limit`.
        """
        capacity = slots_of_prompts(self.inputs.batch, self.inputs.prompts.shape[1]) + self.limit
        state = _begin(self.decoders, self.settings, self.limit, capacity, self.params, self.values, self.inputs)
        yield state
        while not bool(state.done.all()):
            state = _one_step(self.decoders, self.settings, self.params, self.values, self.inputs, state)
            yield state

    def stages(self) -> Iterator[tuple[int, State]]:
        """Decode stage by stage until all outputs are done; yield each stage's capacity and its final state."""
        prefix = slots_of_prompts(self.inputs.batch, self.inputs.prompts.shape[1])
        capacity, *larger = capacities(prefix, self.limit)
        state = _begin(self.decoders, self.settings, self.limit, capacity, self.params, self.values, self.inputs)
        while True:
            until = capacity - prefix
            state = _stage(self.decoders, self.settings, until, self.params, self.values, self.inputs, state)
            yield capacity, state
            if not larger or bool(state.done.all()):
                return
            slots = prefix + self.settings.width * (larger[0] - prefix)
            state = _enlarged(self.decoders, slots, state)
            capacity, *larger = larger


def prepare(
    decoders: Decoders,
    params: Sequence[Params],
    decode: DecodeConfig,
    ends: Ends,
    request: Request,
    row_ids: np.ndarray | None = None,
) -> BatchSearch:
    """Check the arguments of `generate`, and return the search; arguments and errors are the same."""
    check_vocabularies(decoders)
    capacity, prompts = position_capacity(decoders), request.prompts
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise DataError(f"prompts: row {row} is empty; a prompt needs at least one token")
        if capacity is not None and len(prompt) > capacity:
            raise DataError(
                f"prompts: row {row} has {len(prompt) - 1} tokens, which leaves no room for an output in "
                f"model.max_length={capacity}"
            )
        check_ids(f"prompts, row {row}", np.asarray(prompt), decoders[0].vocab_size)
    prompt_lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    # All tokens but the last go into the cache at once, padded to 0, 1, 2, 4, 8, ... so that there are few shapes.
    longest = int(prompt_lengths.max()) - 1
    rounded = 1 << (longest - 1).bit_length() if longest else 0
    padded = np.zeros((len(prompts), 1 + (rounded if capacity is None else min(rounded, capacity))), np.int32)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    rows = np.arange(len(prompts)) if row_ids is None else row_ids
    batch = {name: jnp.asarray(array) for name, array in request.batch.items()}
    of_rows = (jnp.asarray(x, jnp.int32) for x in (rows, padded, prompt_lengths, request.max_lengths))
    settings, values = split_settings(decode, decoders[0].vocab_size, ends)
    return BatchSearch(decoders, tuple(params), settings, values, Inputs(batch, *of_rows), request.limit)


def output_limits(
    decode: DecodeConfig,
    prompt_lengths: np.ndarray,
    capacity: int | None,
    source_lengths: np.ndarray,
    source_width: int,
) -> tuple[np.ndarray, int]:
    """Return the maximum number of tokens of every output, int [B], and the width of the outputs.

    The limit is the length of the source plus `decode.max_extra_length` (Vaswani et al. 2017, section 6.1), or
    `decode.max_new_tokens`; end-of-sequence counts. Prompt and output together fit into the model's positions.

    Args:
      prompt_lengths: int [B], with the start id.
      capacity: number of the model's positions; None if there is no bound.
      source_lengths: int [B], 0 for a row without output; source_width: width of the padded batch.
    """
    if decode.max_new_tokens is None:
        wanted, limit = source_lengths + decode.max_extra_length, source_width + decode.max_extra_length
    else:
        wanted, limit = np.full(len(source_lengths), decode.max_new_tokens), decode.max_new_tokens
    if capacity is not None:
        wanted, limit = np.minimum(wanted, capacity - (prompt_lengths - 1)), min(limit, capacity)
    return np.where(source_lengths > 0, wanted, 0), limit


def position_capacity(decoders: Decoders) -> int | None:
    """Return the number of positions that all decoders have; None if there is no bound."""
    return min((decoder.max_length for decoder in decoders if decoder.max_length is not None), default=None)


def check_vocabularies(decoders: Decoders) -> None:
    """Raise ConfigError if members of an ensemble have vocabularies of different sizes."""
    for name in ("vocab_size", "source_vocab_size"):
        if len(sizes := {getattr(decoder, name) for decoder in decoders}) > 1:
            raise ConfigError(
                f"members of an ensemble must share their vocabulary: model.{name} is "
                f"{' and '.join(map(str, sorted(sizes)))}"
            )


def check_ids(name: str, ids: np.ndarray, vocab_size: int, field: str = "vocab_size") -> None:
    """Raise DataError for an id outside the vocabulary, whose size is a field of `model`."""
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise DataError(f"{name}: id {outside.flat[0]} is outside the vocabulary, model.{field}={vocab_size}")


def capacities(prefix: int, limit: int) -> list[int]:
    """Return the capacity of the cache in every stage of decoding `limit` tokens after a prefix."""
    result = [FIRST_CAPACITY]
    while result[-1] <= prefix:
        result[-1] *= 2
    while result[-1] < prefix + limit:
        result.append(2 * result[-1])
    return [*result[:-1], min(result[-1], prefix + limit)]


@functools.partial(jax.jit, static_argnames=("decoders", "settings", "limit", "capacity"))
def _begin(
    decoders: Decoders,
    settings: Settings,
    limit: int,
    capacity: int,
    params: tuple[Params, ...],
    values: Values,
    inputs: Inputs,
) -> State:
    """Encode the inputs and read all but the last token of every prompt."""
    prefix = slots_of_prompts(inputs.batch, inputs.prompts.shape[1])
    slots = prefix + settings.width * (capacity - prefix)
    batch = {**inputs.batch, "prompts": inputs.prompts, "prompt_lengths": inputs.prompt_lengths}
    started = [decoder.start(p, batch, slots, settings.width) for decoder, p in zip(decoders, params, strict=True)]
    rows = jnp.arange(len(inputs.prompts))
    last = jnp.take_along_axis(inputs.prompts, inputs.prompt_lengths[:, None] - 1, axis=1)[:, 0]
    caches = tuple(one.cache for one in started)
    hypotheses = start_hypotheses(
        caches, last, inputs.prompt_lengths, started[0].visible, started[0].index, settings.width, limit
    )
    if values.constraints.repetition_penalty is not None:
        # The first token of a prompt is not text.
        is_token = jnp.arange(1, inputs.prompts.shape[1])[None] < inputs.prompt_lengths[:, None]  # [B, P - 1]
        known = jnp.zeros((*last.shape, decoders[0].vocab_size), bool)
        known = known.at[rows[:, None], inputs.prompts[:, 1:]].max(is_token)
        hypotheses = hypotheses._replace(seen=jnp.repeat(known[:, None], settings.width, axis=1))
    if values.constraints.no_repeat_ngram is not None:
        runs = runs_of_prompts(inputs.prompts, inputs.prompt_lengths, settings.width, limit)
        hypotheses = hypotheses._replace(runs=runs)
    begin = beam_search.begin if settings.rules else sampling.begin
    return begin(hypotheses, inputs.max_lengths)


@functools.partial(jax.jit, static_argnames=("decoders", "settings", "until"), donate_argnames="state")
def _stage(
    decoders: Decoders,
    settings: Settings,
    until: int,
    params: tuple[Params, ...],
    values: Values,
    inputs: Inputs,
    state: State,
) -> State:
    """Decode until all outputs are done, or they have `until` tokens."""
    return _decoded(decoders, settings, until, params, values, inputs, state)


@functools.partial(jax.jit, static_argnames=("decoders", "settings"))
def _one_step(
    decoders: Decoders,
    settings: Settings,
    params: tuple[Params, ...],
    values: Values,
    inputs: Inputs,
    state: State,
) -> State:
    """Decode one token of every output that is not done."""
    return _decoded(decoders, settings, state.hypotheses.length + 1, params, values, inputs, state)


def _decoded(
    decoders: Decoders,
    settings: Settings,
    until: ArrayLike,
    params: tuple[Params, ...],
    values: Values,
    inputs: Inputs,
    state: State,
) -> State:
    step = ensemble_step(decoders, params)
    if isinstance(state, beam_search.Beam):
        assert settings.rules is not None
        return beam_search.search(
            step,
            state,
            settings.rules,
            values.constraints,
            inputs.max_lengths,
            until,
            values.alpha,
            ensemble_reorder(decoders),
        )
    drawn = None
    if settings.sample:
        keys = sampling.row_keys(values.seed, inputs.row_ids, settings.width, values.first_sample)
        drawn = sampling.Sampling(keys, values.temperature, settings.top_k, values.top_p, values.min_p)
    return sampling.grow(step, state, values.constraints, inputs.max_lengths, until, drawn)


def ensemble_step(decoders: Decoders, params: Sequence[Params]) -> Step:
    """Return the decoding step of all models over a tuple of their caches.

    For one model it returns its logits. For several it returns the average of their log probabilities: the logits of
    the normalised geometric mean of their distributions.
    """

    def step(ids: Array, positions: Array, visible: Array, cache: tuple[Any, ...]) -> tuple[Array, Any]:
        results = [
            decoder.step(p, own, ids, positions, visible)
            for decoder, p, own in zip(decoders, params, cache, strict=True)
        ]
        logits = [y for y, _ in results]
        mean = logits[0] if len(logits) == 1 else jnp.mean(jnp.stack([jax.nn.log_softmax(y) for y in logits]), axis=0)
        return mean, tuple(own for _, own in results)

    return step


def ensemble_reorder(decoders: Decoders) -> Reorder:
    """Return the function that reorders the caches of an ensemble, one per model."""

    def reorder(cache: tuple[Any, ...], parents: Array) -> tuple[Any, ...]:
        return tuple(decoder.reorder(own, parents) for decoder, own in zip(decoders, cache, strict=True))

    return reorder


@functools.partial(jax.jit, static_argnames=("decoders", "slots"))
def _enlarged(decoders: Decoders, slots: int, state: State) -> State:
    """Return the same state with more slots in the caches."""
    hypotheses: Hypotheses = state.hypotheses
    more = slots - hypotheses.visible.shape[-1]
    return state._replace(
        hypotheses=hypotheses._replace(
            cache=tuple(decoder.grow(own, slots) for decoder, own in zip(decoders, hypotheses.cache, strict=True)),
            visible=jnp.pad(hypotheses.visible, ((0, 0), (0, 0), (0, more))),
        )
    )


@functools.partial(jax.jit, static_argnames=("settings",))
def _outputs(settings: Settings, values: Values, inputs: Inputs, state: State) -> Generated:
    if isinstance(state, beam_search.Beam):
        assert settings.rules is not None
        return beam_search.best_outputs(state, settings.rules, inputs.max_lengths, values.alpha)
    return sampling.outputs(state)
