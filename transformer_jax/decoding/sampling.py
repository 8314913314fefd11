"""Greedy search and sampling: the next token is the likeliest, or drawn after temperature, top-k, top-p and min-p."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.decoding.constraints import Constraints, propose
from transformer_jax.decoding.hypotheses import Generated, Hypotheses, Step, extend
from transformer_jax.decoding.top_k import top_k
from transformer_jax.typing import Array, ArrayLike

# Bound on the rounding error of float32 sums of probabilities, so that a set of mass p counts as reaching p.
_ROUNDING = 1e-6


def keep_top_k(logits: Float[Array, "*batch V"], k: int) -> Float[Array, "*batch V"]:
    """Return -inf for all but the k largest logits; all that equal the k-th are kept (Fan et al. 2018, section 5.4).

    Args:
      logits: [..., V]; k: if V or more, all are kept.
    """
    if k >= logits.shape[-1]:
        return logits
    return jnp.where(logits < top_k(logits, k)[0][..., -1:], -jnp.inf, logits)


def keep_top_p(logits: Float[Array, "*batch V"], p: ArrayLike) -> Float[Array, "*batch V"]:
    """Return -inf for all but the smallest set of most probable tokens whose total probability is p or more.

    Tokens as likely as the last one of the set are kept too. Source: Holtzman et al. 2020, equation 3.

    Args:
      logits: [..., V]; p: in (0, 1].
    """
    descending = -jnp.sort(-logits, axis=-1)
    mass = jnp.cumsum(jax.nn.softmax(descending, axis=-1), axis=-1)
    last = jnp.sum(mass < p - _ROUNDING, axis=-1, keepdims=True)
    smallest = jnp.take_along_axis(descending, jnp.minimum(last, logits.shape[-1] - 1), axis=-1)
    return jnp.where(logits < smallest, -jnp.inf, logits)


def keep_min_p(logits: Float[Array, "*batch V"], min_p: ArrayLike) -> Float[Array, "*batch V"]:
    """Return -inf for tokens less likely than min_p times the likeliest (Nguyen et al. 2024, section 3).

    Args:
      logits: [..., V]; min_p: in (0, 1].
    """
    return jnp.where(logits < logits.max(-1, keepdims=True) + jnp.log(min_p), -jnp.inf, logits)


class Sampling(NamedTuple):
    """The settings of sampling; None turns one off. top_k is static, the others are scalars.

    keys: [B, W], one random key per output.
    """

    keys: Array
    temperature: ArrayLike
    top_k: int | None
    top_p: ArrayLike | None
    min_p: ArrayLike | None


def row_keys(seed: ArrayLike, rows: Int[Array, " B"], width: int, first_sample: ArrayLike = 0) -> Array:
    """Return random keys [B, W]. A key depends only on the seed, the row's number and the sample's number."""

    def key(row: Array, sample: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), row), sample)

    return jax.vmap(lambda row: jax.vmap(lambda sample: key(row, sample))(first_sample + jnp.arange(width)))(rows)


def shaped(logits: Float[Array, "*batch V"], sampling: Sampling) -> Float[Array, "*batch V"]:
    """Apply temperature, then top-k, top-p and min-p, each to the result of the one before (the usual order)."""
    logits = logits / sampling.temperature
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = keep_min_p(logits, sampling.min_p)
    return logits


def draw(logits: Float[Array, "B W V"], sampling: Sampling, length: Int[Array, ""]) -> Int[Array, "B W"]:
    """Draw one token per output from softmax(shaped(logits)); every position of an output has its own key."""

    def one(key: Array, logits: Array) -> Array:
        return jax.random.categorical(jax.random.fold_in(key, length), logits)

    return jax.vmap(jax.vmap(one))(sampling.keys, shaped(logits, sampling)).astype(jnp.int32)


class Growing(NamedTuple):
    """State of greedy search and of sampling.

    done: [B, W] bool. lengths: [B, W] int32, number of tokens so far. ended: [B, W] bool, whether the last token is
    end-of-sequence.
    """

    hypotheses: Hypotheses
    done: Array
    lengths: Array
    ended: Array


def begin(hypotheses: Hypotheses, max_lengths: Int[Array, " B"]) -> Growing:
    """Return the state before the first token.

    Args:
      max_lengths: maximum tokens of an output, including end-of-sequence; 0 for a row of padding.
    """
    shape = hypotheses.last.shape
    done = jnp.broadcast_to(max_lengths[:, None] <= 0, shape)
    return Growing(hypotheses, done, jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool))


def grow(
    step: Step,
    state: Growing,
    constraints: Constraints,
    max_lengths: Int[Array, " B"],
    until: ArrayLike,
    sampling: Sampling | None = None,
) -> Growing:
    """Append tokens until all outputs are done, or they have `until` tokens.

    Args:
      until: number of tokens for which the cache has room, or fewer.
      sampling: how to draw tokens; None to take the likeliest.
    """

    def unfinished(state: Growing) -> Bool[Array, ""]:
        return (state.hypotheses.length < until) & ~state.done.all()

    def body(state: Growing) -> Growing:
        logits, allowed, hypotheses = propose(step, state.hypotheses, constraints, max_lengths)
        length, possible = hypotheses.length, jnp.where(allowed, logits, -jnp.inf)
        tokens = top_k(possible, 1)[1][..., 0] if sampling is None else draw(possible, sampling, length)
        chosen = jnp.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
        log_probs = jnp.where(state.done, 0.0, chosen - jax.nn.logsumexp(logits, axis=-1))
        ended = state.ended | (~state.done & (tokens == constraints.end_id))
        done = state.done | ended | (length + 1 >= max_lengths)[:, None]
        tokens = jnp.where(state.done, 0, tokens)
        return Growing(extend(hypotheses, tokens, log_probs), done, state.lengths + ~state.done, ended)

    return jax.lax.while_loop(unfinished, body, state)


def outputs(state: Growing) -> Generated:
    """Return the outputs of each input in the order of their numbers; samples are not ranked."""
    ids, log_probs = state.hypotheses.ids, state.hypotheses.log_probs
    scores = jnp.where(state.lengths > 0, log_probs.sum(-1), -jnp.inf)
    return Generated(ids, state.lengths, log_probs, scores, state.ended)
