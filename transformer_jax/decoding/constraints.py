"""Constraints on the next token, and the penalty on repeated tokens."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.decoding.hypotheses import Hypotheses, Runs, Step, feed
from transformer_jax.typing import Array, ArrayLike

Allowed = Bool[Array, "B #W V"]
"""The tokens that may come next; the middle axis is 1 if they are the same for all hypotheses of an input."""


class Constraints(NamedTuple):
    """Rules that hold for all outputs.

    - end_id: int32 scalar, the token that ends an output; -1 if there is none.
    - forbidden: [V] bool, tokens that no output may contain, such as padding.
    - prefix: [P] int32, the first tokens of every output.
    - min_length: int32 scalar, minimum number of tokens before end-of-sequence.
    - force_end: bool scalar, whether the last token of an output at its length limit is `end_id`.
    - repetition_penalty: scalar, or None. It needs `Hypotheses.seen`. It applies to the result of the step function:
      logits of one model, or averaged log probabilities of several.
    - no_repeat_ngram: int32 scalar n, or None: no n tokens in a row occur twice in prompt and output together. It needs
      `Hypotheses.runs`. The prefix and a forced end are exempt, and a position at which it would leave no token.
    - free_forced: bool scalar, or None for False: whether the prefix and a forced end have the log probability 0.
    """

    end_id: ArrayLike
    forbidden: Array
    prefix: Array
    min_length: ArrayLike
    force_end: ArrayLike
    repetition_penalty: ArrayLike | None = None
    no_repeat_ngram: ArrayLike | None = None
    free_forced: ArrayLike | None = None


class Proposal(NamedTuple):
    """The candidates for the next token.

    logits: [B, W, V] float32, with the repetition penalty and `free_forced`; their log softmax scores an output.
    allowed: see `Allowed`. hypotheses: their cache includes their last tokens.
    """

    logits: Array
    allowed: Allowed
    hypotheses: Hypotheses


def propose(step: Step, hypotheses: Hypotheses, constraints: Constraints, max_lengths: Int[Array, " B"]) -> Proposal:
    """Feed the last tokens of all hypotheses to the model, and return the candidates for the next token.

    Args:
      max_lengths: maximum tokens of an output, including end-of-sequence.
    """
    logits, hypotheses = feed(step, hypotheses)
    if constraints.repetition_penalty is not None:
        assert hypotheses.seen is not None, "a repetition penalty needs Hypotheses.seen"
        logits = penalise_repetition(logits, hypotheses.seen, constraints.repetition_penalty)
    possible = allowed(constraints, hypotheses.length, max_lengths)[:, None]  # [B, 1, V]
    if constraints.no_repeat_ngram is not None:
        assert hypotheses.runs is not None, "no_repeat_ngram needs Hypotheses.runs"
        fresh = possible & ~repeating(hypotheses.runs, constraints.no_repeat_ngram, logits.shape[-1])
        free = ~_is_forced(constraints, hypotheses.length, max_lengths)[:, None, None]
        possible = jnp.where(free & fresh.any(-1, keepdims=True), fresh, possible)
    if constraints.free_forced is not None:
        forced = constraints.free_forced & _is_forced(constraints, hypotheses.length, max_lengths)[:, None, None]
        # One token is possible, so its log softmax is 0.
        logits = jnp.where(forced, jnp.where(possible, 0.0, -jnp.inf), logits)
    return Proposal(logits, possible, hypotheses)


def repeating(runs: Runs, size: ArrayLike, vocab_size: int) -> Bool[Array, "B W V"]:
    """Return the tokens that would end an n-gram that the text already contains.

    Source: Paulus et al. 2018, section 2.5. As in transformers, the whole prompt counts, its first token included.

    Args:
      size: n, at least 1.
    """

    def of_one(text: Int[Array, " T"], lengths: Int[Array, " T"]) -> Bool[Array, " V"]:
        ends = (lengths >= size - 1) & (text >= 0)
        return jnp.zeros(vocab_size, bool).at[jnp.where(ends, text, vocab_size)].set(True, mode="drop")

    return jax.vmap(jax.vmap(of_one))(*runs)


def _is_forced(constraints: Constraints, length: Int[Array, ""], max_lengths: Int[Array, " B"]) -> Bool[Array, " B"]:
    """Return whether a rule names the token at position `length`, by row: the prefix, or the end at the limit."""
    at_end = constraints.force_end & (length + 1 >= max_lengths)
    return at_end | (length < constraints.prefix.shape[0])


def allowed(constraints: Constraints, length: Int[Array, ""], max_lengths: Int[Array, " B"]) -> Bool[Array, "B V"]:
    """Return the tokens that may stand at position `length` of the outputs; tokens of the prefix are always allowed.

    Args:
      length: current number of tokens of the outputs; max_lengths: the maximum, including end-of-sequence.
    """
    tokens = jnp.arange(constraints.forbidden.shape[0])[None]
    is_end = tokens == constraints.end_id
    free = ~constraints.forbidden[None] & (~is_end | (length >= constraints.min_length))
    at_end = constraints.force_end & (length + 1 >= max_lengths)
    result = jnp.where(at_end[:, None], is_end, free)
    size = constraints.prefix.shape[0]
    if not size:
        return result
    forced = tokens == constraints.prefix[jnp.minimum(length, size - 1)]
    return jnp.where(length < size, forced, result)


def penalise_repetition(
    logits: Float[Array, "*batch V"], seen: Bool[Array, "*batch V"], penalty: ArrayLike
) -> Float[Array, "*batch V"]:
    """Divide positive logits of repeated tokens by `penalty`, and multiply negative ones by it.

    Source: Keskar et al. 2019, section 4.1, with the sign rule of all implementations: dividing a negative logit would
    favour the token.
    """
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)
