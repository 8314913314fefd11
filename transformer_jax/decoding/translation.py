"""Decoding with encoder-decoders: source ids in, outputs out.

The search runs in stages: while outputs are at most 64 tokens long the cache has room for 64, then for 128, 256, ...
so that the cost of a token follows the length of the text and not the greatest length allowed. A stage is one compiled
program per shape; a stage that no output reaches is never compiled.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import PAD_ID, DecodeConfig, ModelConfig
from transformer_jax.decoding import beam_search, sampling
from transformer_jax.decoding.hypotheses import Generated, Hypotheses, Step, start
from transformer_jax.decoding.settings import Settings, Values, split
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.encoder_decoder import decode_step, prefill, start_cache
from transformer_jax.nn.kv_cache import KVCache, grown
from transformer_jax.typing import Array, Params

FIRST_CAPACITY = 64
"""Positions of the first stage."""

State = sampling.Growing | beam_search.Beam
Models = tuple[ModelConfig, ...]


class Inputs(NamedTuple):
    """What one batch is decoded from.

    ids: [B, S] int32 sources; a row of padding gets no output. row_ids: [B] int32, what random draws of a row follow
    from. prompts: [B, P] int32 decoder inputs, the start id first; prompt_lengths: [B] int32. max_lengths: [B] int32.
    """

    ids: Array
    row_ids: Array
    prompts: Array
    prompt_lengths: Array
    max_lengths: Array


def translate(
    models: Models,
    params: Sequence[Params],
    decode: DecodeConfig,
    ids: np.ndarray,
    row_ids: np.ndarray | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
) -> Generated:
    """Outputs for source ids.

    An output has at most as many tokens as its source plus `decode.max_extra_length` (Vaswani et al. 2017, section 6.1)
    or `decode.max_length`, the end mark included, and with its prompt no more than the smallest `model.max_length`.

    Args:
      models: one config, or one per member of an ensemble, which averages their log probabilities and normalises the
        average.
      params: of each, as `decoding_params` returns them.
      ids: [B, S] int32; a row of padding gets no output.
      row_ids: [B] int32, numbers that sampling follows from; default 0, 1, 2, ...
      prompts: what every output begins with, without the start id; it is not part of the output. Default nothing.
    Raises:
      ConfigError: a model has no decoder, or vocabularies differ.
      DataError: sources or prompts that the models cannot take; of a prompt, it names the row.
    """
    search = prepare(models, params, decode, ids, row_ids, prompts)
    if not search.settings.sample:
        return search.outputs()
    wanted, together = decode.num_samples, search.settings.width
    parts = []
    for first in range(0, wanted, together):
        values = search.values._replace(first_sample=np.int32(first))
        parts.append(search._replace(values=values).outputs())
    return Generated(*(jnp.concatenate(x, axis=1)[:, :wanted] for x in zip(*parts, strict=True)))


class Search(NamedTuple):
    """Everything that one batch is decoded with."""

    models: Models
    params: tuple[Params, ...]
    settings: Settings
    values: Values
    inputs: Inputs
    limit: int

    def outputs(self) -> Generated:
        """Decodes to the end."""
        ((_, state),) = collections.deque(self.stages(), maxlen=1)  # the state of a stage is not kept beyond the next
        return _outputs(self.settings, self.values, self.inputs, state)

    def stages(self) -> Iterator[tuple[int, State]]:
        """Decodes stage by stage until all outputs are done: the capacity of each, and the state at its end."""
        prefix = self.inputs.prompts.shape[1] - 1  # slots that prompts take; their last token is fed by the search
        capacity, *larger = capacities(prefix, self.limit)
        state = _begin(self.models, self.settings, self.limit, capacity, self.params, self.values, self.inputs)
        while True:
            until = capacity - prefix
            state = _stage(self.models, self.settings, until, self.params, self.values, self.inputs, state)
            yield capacity, state
            if not larger or bool(state.done.all()):
                return
            state = _enlarged(self.settings.width * (larger[0] - capacity), state)
            capacity, *larger = larger


def prepare(
    models: Models,
    params: Sequence[Params],
    decode: DecodeConfig,
    ids: np.ndarray,
    row_ids: np.ndarray | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
) -> Search:
    """Checks what `translate` is given; arguments and errors are the same."""
    _check(models, ids, prompts)
    inputs, limit = _inputs(models, decode, ids, row_ids, prompts)
    return Search(models, tuple(params), *split(decode, models[0].vocab_size), inputs, limit)


def capacities(prefix: int, limit: int) -> list[int]:
    """Positions that the cache has room for in every stage of decoding `limit` tokens behind a prefix."""
    result = [FIRST_CAPACITY]
    while result[-1] <= prefix:
        result[-1] *= 2
    while result[-1] < prefix + limit:
        result.append(2 * result[-1])
    return [*result[:-1], min(result[-1], prefix + limit)]


def _check(models: Models, ids: np.ndarray, prompts: Sequence[Sequence[int]] | None) -> None:
    """Raises for what no compiled program could tell."""
    first = models[0]
    for model in models[1:]:
        if (model.vocab_size, model.decoder_start_id) != (first.vocab_size, first.decoder_start_id):
            raise ConfigError(
                "members of an ensemble must share their vocabulary: model.vocab_size and model.decoder_start_id are "
                f"{first.vocab_size} and {first.decoder_start_id}, {model.vocab_size} and {model.decoder_start_id}"
            )
    if not len(ids):
        raise DataError("inputs: there are none")
    _check_ids("inputs", ids, first.vocab_size)
    for model in models:
        if model.position_encoding == "learned" and ids.shape[1] > model.max_length:
            raise DataError(
                f"inputs: {ids.shape[1]} positions exceed the learned position table, "
                f"model.max_length={model.max_length}"
            )
    if prompts is None:
        return
    if len(prompts) != len(ids):
        raise DataError(f"prompts: {len(prompts)} for {len(ids)} inputs")
    capacity = min(model.max_length for model in models)
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise DataError(f"prompts: the one of row {row} is empty; without prompts, outputs are free")
        if len(prompt) >= capacity:
            raise DataError(
                f"prompts: the {len(prompt)} tokens of row {row} leave no room for an output in "
                f"model.max_length={capacity}"
            )
        _check_ids(f"prompts, row {row}", np.asarray(prompt), first.vocab_size)


def _check_ids(name: str, ids: np.ndarray, vocab_size: int) -> None:
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise DataError(f"{name}: id {outside.flat[0]} is outside the vocabulary, model.vocab_size={vocab_size}")


def _inputs(
    models: Models,
    decode: DecodeConfig,
    ids: np.ndarray,
    row_ids: np.ndarray | None,
    prompts: Sequence[Sequence[int]] | None,
) -> tuple[Inputs, int]:
    """What the programs are handed, and the width of their outputs."""
    rows, width = ids.shape
    given = [[models[0].decoder_start_id, *prompt] for prompt in prompts or [()] * rows]
    prompt_lengths = np.array([len(prompt) for prompt in given], np.int32)
    # All but the last token go into the cache at once: 0, 1, 2, 4, 8, ... of them, so that there are few shapes.
    longest = max(map(len, given), default=1) - 1
    rounded = 1 << (longest - 1).bit_length() if longest else 0
    capacity = min(model.max_length for model in models)
    padded = np.zeros((rows, 1 + min(rounded, capacity)), np.int32)
    for row, prompt in enumerate(given):
        padded[row, : len(prompt)] = prompt
    # The first decoder input is no part of a text: a model that can number N positions generates N tokens.
    lengths = (ids != PAD_ID).sum(-1)
    wanted = lengths + decode.max_extra_length if decode.max_length is None else np.full(rows, decode.max_length)
    max_lengths = np.where(lengths > 0, np.minimum(wanted, capacity - (prompt_lengths - 1)), 0)
    limit = width + decode.max_extra_length if decode.max_length is None else decode.max_length
    inputs = Inputs(
        jnp.asarray(ids, jnp.int32),
        jnp.arange(rows, dtype=jnp.int32) if row_ids is None else jnp.asarray(row_ids, jnp.int32),
        jnp.asarray(padded),
        jnp.asarray(prompt_lengths),
        jnp.asarray(max_lengths, jnp.int32),
    )
    return inputs, min(limit, capacity)


@functools.partial(jax.jit, static_argnames=("models", "settings", "limit", "capacity"))
def _begin(
    models: Models,
    settings: Settings,
    limit: int,
    capacity: int,
    params: tuple[Params, ...],
    values: Values,
    inputs: Inputs,
) -> State:
    """Encodes the sources and feeds all but the last token of every prompt."""
    prefix = inputs.prompts.shape[1] - 1
    slots = prefix + settings.width * (capacity - prefix)
    caches = []
    for model, p in zip(models, params, strict=True):
        # `Inputs.max_lengths` keep every row within what the model can number.
        cache = start_cache(model, p, inputs.ids, slots, num_positions=min(capacity, model.max_length))
        if prefix:
            cache = prefill(model, p, cache, inputs.prompts[:, :-1], inputs.prompt_lengths - 1)[1]
        caches.append(cache)
    last = jnp.take_along_axis(inputs.prompts, inputs.prompt_lengths[:, None] - 1, axis=1)[:, 0]
    hypotheses = start(
        tuple(caches), last, inputs.prompt_lengths, caches[0].positions >= 0, prefix, settings.width, limit
    )
    if values.constraints.repetition_penalty is not None:
        known = jnp.zeros((*last.shape, models[0].vocab_size), bool)
        known = known.at[jnp.arange(len(last))[:, None], inputs.prompts[:, 1:]].set(True)
        known = known.at[:, PAD_ID].set(False)
        hypotheses = hypotheses._replace(seen=jnp.repeat(known[:, None], settings.width, axis=1))
    begin = beam_search.begin if settings.rules else sampling.begin
    return begin(hypotheses, inputs.max_lengths)


@functools.partial(jax.jit, static_argnames=("models", "settings", "until"), donate_argnames="state")
def _stage(
    models: Models,
    settings: Settings,
    until: int,
    params: tuple[Params, ...],
    values: Values,
    inputs: Inputs,
    state: State,
) -> State:
    """Decodes until all outputs are done, or have `until` tokens."""
    step = ensemble_step(models, params)
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
        )
    drawn = None
    if settings.sample:
        keys = sampling.row_keys(values.seed, inputs.row_ids, settings.width, values.first_sample)
        drawn = sampling.Sampling(keys, values.temperature, settings.top_k, values.top_p, values.min_p)
    return sampling.grow(step, state, values.constraints, inputs.max_lengths, until, drawn)


def ensemble_step(models: Models, params: Sequence[Params]) -> Step:
    """One decoding step of all models over a tuple of their caches: the logits of one, or for several the average of
    their log probabilities, which are logits of the normalised geometric mean of their distributions."""

    def step(ids: Array, positions: Array, visible: Array, cache: tuple[KVCache, ...]) -> tuple[Array, Any]:
        results = [
            decode_step(model, p, own, ids, positions, visible)
            for model, p, own in zip(models, params, cache, strict=True)
        ]
        logits = [y for y, _ in results]
        mean = logits[0] if len(logits) == 1 else jnp.mean(jnp.stack([jax.nn.log_softmax(y) for y in logits]), axis=0)
        return mean, tuple(own for _, own in results)

    return step


@functools.partial(jax.jit, static_argnames=("more",))
def _enlarged(more: int, state: State) -> State:
    """The same state with more slots in the cache."""
    hypotheses: Hypotheses = state.hypotheses
    return state._replace(
        hypotheses=hypotheses._replace(
            cache=tuple(grown(cache, cache.capacity + more) for cache in hypotheses.cache),
            visible=jnp.pad(hypotheses.visible, ((0, 0), (0, 0), (0, more))),
        )
    )


@functools.partial(jax.jit, static_argnames=("settings",))
def _outputs(settings: Settings, values: Values, inputs: Inputs, state: State) -> Generated:
    if isinstance(state, beam_search.Beam):
        assert settings.rules is not None
        return beam_search.outputs(state, settings.rules, inputs.max_lengths, values.alpha)
    return sampling.outputs(state)
