"""Constraints on the next token, and the penalty on repeated tokens."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.decoding.hypotheses import Hypotheses, Step, feed
from transformer_jax.typing import Array, ArrayLike


class Constraints(NamedTuple):
    """Rules that hold for all outputs.

    - end_id: int32 scalar, the token that ends an output; -1 if there is none.
    - forbidden: [V] bool, tokens that no output may contain, such as padding.
    - prefix: [P] int32, the first tokens of every output.
    - min_length: int32 scalar, minimum number of tokens before end-of-sequence.
    - force_end: bool scalar, whether the last token of an output at its length limit is `end_id`.
    - repetition_penalty: scalar, or None. It needs `Hypotheses.seen`. It applies to the result of the step function:
      logits of one model, or averaged log probabilities of several.
    """

    end_id: ArrayLike
    forbidden: Array
    prefix: Array
    min_length: ArrayLike
    force_end: ArrayLike
    repetition_penalty: ArrayLike | None = None


class Proposal(NamedTuple):
    """The candidates for the next token.

    logits: [B, W, V] float32, with the repetition penalty; their log softmax scores an output. allowed: [B, 1, V] bool.
    hypotheses: their cache includes their last tokens.
    """

    logits: Array
    allowed: Array
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
    return Proposal(logits, allowed(constraints, hypotheses.length, max_lengths)[:, None], hypotheses)


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
