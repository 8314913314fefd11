"""The state of every search: W outputs of each input, which grow by one token per step.

A search sees a model only as a function `step` and a cache. All W hypotheses of an input share one row of the cache: a
step appends W tokens to it, one per hypothesis. `visible` says which slots a hypothesis attends to: those of its own
ancestors. A beam search reorders only these bits; keys and values never move. A model whose state does not consist of
slots gathers its state by the hypotheses' parents (`Reorder`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.typing import Array, ArrayLike


@runtime_checkable
class Step(Protocol):
    """A function that feeds W tokens per row to a decoder."""

    def __call__(
        self,
        ids: Int[Array, "B W"],
        positions: Int[Array, "B W"],
        visible: Bool[Array, "B W C"],
        cache: Any,
    ) -> tuple[Float[Array, "B W V"], Any]:
        """Write ids into the first W free slots, and attend to the visible slots, which include the ones written.

        Returns: float32 logits of the token after each id, and the new cache.
        """
        ...


class Runs(NamedTuple):
    """The text of every hypothesis, and how many tokens before each slot repeat its end.

    text: [B, W, P + limit] int32: the prompt, which ends at slot P, and the tokens of the hypothesis; -1 elsewhere.
    lengths: [B, W, P + limit] int32: number of tokens before a slot that equal the last tokens of the text.
    """

    text: Array
    lengths: Array


Reorder = Callable[[Any, Int[Array, "B W"]], Any]
"""reorder(cache, parents) -> the cache in which hypothesis w continues parents[w]; `models.decoder.Decoder.reorder`."""


class Hypotheses(NamedTuple):
    """B inputs with W hypotheses each, of `length` tokens so far.

    length: int32 scalar. index: int32 scalar, the first free slot of the cache.
    last: [B, W] int32, the token to feed next; positions: [B, W] int32, its position.
    ids: [B, W, limit] int32, undefined from `length` on; log_probs: [B, W, limit] float32, of every token under
    the model.
    visible: [B, W, C] bool, the slots that hold a hypothesis' tokens and its prompt.
    seen: [B, W, V] bool, the tokens of a hypothesis, for a repetition penalty; None without it.
    runs: repetitions of a hypothesis, for `decode.no_repeat_ngram`; None without it.
    """

    length: Array
    index: Array
    last: Array
    positions: Array
    ids: Array
    log_probs: Array
    visible: Array
    seen: Array | None
    runs: Runs | None
    cache: Any


class Generated(NamedTuple):
    """n outputs for each of B inputs: from a search best first, samples in the order of their numbers.

    - ids: [B, n, limit] int32, including end-of-sequence.
    - lengths: [B, n] int32, number of tokens; later ids are undefined.
    - log_probs: [B, n, limit] float32, of every token, after the repetition penalty if there is one.
    - scores: [B, n] float32, which rank the outputs of a search; -inf for an output that does not exist.
    - finished: [B, n] bool, False for an output cut off at the length limit.
    """

    ids: Array
    lengths: Array
    log_probs: Array
    scores: Array
    finished: Array


def start_hypotheses(
    cache: Any,
    last: Int[Array, " B"],
    prompt_lengths: Int[Array, " B"],
    visible: Bool[Array, "B C"],
    index: Int[Array, ""] | int,
    width: int,
    limit: int,
) -> Hypotheses:
    """Return hypotheses without tokens, after a prompt.

    Args:
      cache: holds every prompt without its last token.
      last: the last token of every prompt.
      prompt_lengths: number of tokens of every prompt, including the last.
      visible: the slots of the prompt.
      index: the first free slot.
      width: hypotheses per input, W; limit: maximum tokens of a hypothesis.
    """
    rows = last.shape[0]

    def repeated(x: Array) -> Array:
        return jnp.repeat(x[:, None], width, axis=1)

    return Hypotheses(
        length=jnp.zeros((), jnp.int32),
        index=jnp.asarray(index, jnp.int32),
        last=repeated(last),
        positions=repeated(prompt_lengths - 1),
        ids=jnp.zeros((rows, width, limit), jnp.int32),
        log_probs=jnp.zeros((rows, width, limit), jnp.float32),
        visible=repeated(visible),
        seen=None,
        runs=None,
        cache=cache,
    )


def runs_of_prompts(prompts: Int[Array, "B P"], lengths: Int[Array, " B"], width: int, limit: int) -> Runs:
    """Return the repetitions of hypotheses without tokens.

    Args:
      prompts: padded at the end; lengths: their numbers of tokens. width, limit: see `start_hypotheses`.
    """
    size = prompts.shape[1]
    places = jnp.arange(size)[None] - (size - lengths)[:, None]  # [B, P], negative before the first token
    ended = jnp.where(places >= 0, jnp.take_along_axis(prompts, jnp.maximum(places, 0), axis=1), -1)
    text = jnp.full((len(prompts), width, size + limit), -1, jnp.int32)

    def appended(slot: Array, runs: Runs) -> Runs:
        tokens = jax.lax.dynamic_slice_in_dim(ended, slot, 1, axis=1)
        return _append(runs, jnp.broadcast_to(tokens, (len(prompts), width)), slot)

    return jax.lax.fori_loop(0, size, appended, Runs(text, jnp.zeros_like(text)))


def _append(runs: Runs, tokens: Int[Array, "B W"], slot: ArrayLike) -> Runs:
    """Write a token into the next slot of every text; a token of -1 is none."""
    repeats = (runs.text == tokens[..., None]) & ~(tokens < 0)[..., None]
    lengths = jnp.pad(jnp.where(repeats, runs.lengths + 1, 0)[..., :-1], ((0, 0), (0, 0), (1, 0)))
    return Runs(jax.lax.dynamic_update_slice_in_dim(runs.text, tokens[..., None], slot, axis=2), lengths)


def feed(step: Step, hypotheses: Hypotheses) -> tuple[Float[Array, "B W V"], Hypotheses]:
    """Feed the last tokens to the model; return the logits of the next tokens."""
    width, capacity = hypotheses.visible.shape[1:]
    own = (hypotheses.index + jnp.arange(width))[:, None] == jnp.arange(capacity)[None]
    visible = hypotheses.visible | own[None]
    logits, cache = step(hypotheses.last, hypotheses.positions, visible, hypotheses.cache)
    return logits, hypotheses._replace(visible=visible, cache=cache, index=hypotheses.index + width)


def extend(
    hypotheses: Hypotheses,
    tokens: Int[Array, "B W"],
    log_probs: Float[Array, "B W"],
    parents: Int[Array, "B W"] | None = None,
    reorder: Reorder | None = None,
) -> Hypotheses:
    """Append a token to every hypothesis.

    Args:
      parents: number of the hypothesis that each one continues; None if each continues itself.
      reorder: gathers the cache by parents; None if the cache does not depend on the order of hypotheses.
    """
    ids, known, visible, seen = hypotheses.ids, hypotheses.log_probs, hypotheses.visible, hypotheses.seen
    cache, runs, at = hypotheses.cache, hypotheses.runs, hypotheses.length
    if parents is not None:
        cache = cache if reorder is None else reorder(cache, parents)
        chosen = parents[..., None]
        ids, known, visible = (jnp.take_along_axis(x, chosen, axis=1) for x in (ids, known, visible))
        seen = None if seen is None else jnp.take_along_axis(seen, chosen, axis=1)
        runs = None if runs is None else Runs(*(jnp.take_along_axis(x, chosen, axis=1) for x in runs))
    if seen is not None:
        seen = seen | (tokens[..., None] == jnp.arange(seen.shape[-1])[None, None])
    if runs is not None:
        runs = _append(runs, tokens, runs.text.shape[-1] - ids.shape[-1] + at)
    return hypotheses._replace(
        length=at + 1,
        last=tokens,
        positions=hypotheses.positions + 1,
        ids=jax.lax.dynamic_update_slice_in_dim(ids, tokens[..., None], at, axis=2),
        log_probs=jax.lax.dynamic_update_slice_in_dim(known, log_probs[..., None], at, axis=2),
        visible=visible,
        seen=seen,
        runs=runs,
        cache=cache,
    )
