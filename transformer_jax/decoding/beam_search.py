"""Beam search (Graves 2012; Sutskever et al. 2014, section 3.2): keep the W most probable prefixes of every input.

Implementations differ in four rules, the fields of `Rules`. A hypothesis Y ends with end-of-sequence; |Y| counts it.

`length_penalty`: the score that ranks hypotheses.
- `none`: log P(Y).
- `gnmt`: log P(Y) / ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14, without coverage).
- `average`: log P(Y) / |Y|^alpha (fairseq, Hugging Face).

`end_among`: the rank at which end-of-sequence ends a hypothesis. Every step computes the 2W best continuations.
- `beam`: among the W best (fairseq). A beam of one is then greedy search.
- `candidates`: among the 2W best (tensor2tensor).

`early_stop`: the condition under which an input is done.
- `bound`: no live hypothesis can win. log P only falls, so a hypothesis cannot rank higher than its current log P at
  its maximum length (tensor2tensor).
- `first`: W hypotheses have ended (fairseq).
- `current`: W hypotheses have ended, and the best live one would rank below all of them if it ended with its current
  length (Hugging Face, `early_stopping=False`). A longer one could still win if the length penalty is `average`.

An input is also done when its hypotheses reach the length limit without an end.

`cut_hypotheses`: the rank of these hypotheses.
- `last`: below every ended one.
- `compete`: by their scores, as the ended ones (Hugging Face). The W best continuations of the last step count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.decoding.constraints import Allowed, Constraints, propose
from transformer_jax.decoding.hypotheses import Generated, Hypotheses, Reorder, Step, extend
from transformer_jax.decoding.top_k import top_k
from transformer_jax.typing import Array, ArrayLike


@dataclasses.dataclass(frozen=True)
class Rules:
    """The value of each rule, and the number of hypotheses to return; alpha is an argument of the search."""

    length_penalty: str = "gnmt"
    end_among: str = "beam"
    early_stop: str = "bound"
    num_best: int = 1
    cut_hypotheses: str = "last"


class Beam(NamedTuple):
    """State of a beam search.

    scores: [B, W] float32, log P of every live hypothesis, best first; -inf for one that does not exist.
    ended: the W best hypotheses that have ended, best first; with `compete` also those cut at the limit.
    num_ended: [B] int32, number of all such hypotheses, also those that are not among the W best.
    done: [B] bool.
    """

    hypotheses: Hypotheses
    scores: Array
    ended: Generated
    num_ended: Array
    done: Array


def _no_penalty(lengths: Array, alpha: ArrayLike) -> Array:
    return jnp.ones_like(lengths)


def _gnmt_penalty(lengths: Array, alpha: ArrayLike) -> Array:
    return ((5.0 + lengths) / 6.0) ** alpha


def _average_penalty(lengths: Array, alpha: ArrayLike) -> Array:
    return lengths**alpha


class LengthPenalty(NamedTuple):
    """A length penalty.

    function: (lengths [...] float32, alpha) -> the divisor of log P [...].
    default_alpha: `decode.length_penalty_alpha` if the config does not set it.
    """

    function: Callable[[Array, ArrayLike], Array]
    default_alpha: float = 1.0


LENGTH_PENALTIES = {
    "none": LengthPenalty(_no_penalty, default_alpha=0.0),
    "gnmt": LengthPenalty(_gnmt_penalty, default_alpha=0.6),
    "average": LengthPenalty(_average_penalty),
}
"""By the values of `decode.length_penalty`."""


def penalty(rules: Rules, lengths: ArrayLike, alpha: ArrayLike) -> Array:
    """Return the divisor of log P, float32, in the shape of lengths."""
    return LENGTH_PENALTIES[rules.length_penalty].function(jnp.asarray(lengths, jnp.float32), alpha)


def begin(hypotheses: Hypotheses, max_lengths: Int[Array, " B"]) -> Beam:
    """Return the state before the first step. All hypotheses of an input are equal then, so only the first is live.

    Args:
      max_lengths: maximum tokens of a hypothesis, including end-of-sequence; 0 for a row of padding.
    """
    rows, width, _ = hypotheses.ids.shape
    nothing = jnp.full((rows, width), -jnp.inf)
    return Beam(
        hypotheses=hypotheses,
        scores=nothing.at[:, 0].set(0.0),
        ended=Generated(
            ids=jnp.zeros_like(hypotheses.ids),
            lengths=jnp.zeros((rows, width), jnp.int32),
            log_probs=jnp.zeros_like(hypotheses.log_probs),
            scores=nothing,
            finished=jnp.zeros((rows, width), bool),
        ),
        num_ended=jnp.zeros(rows, jnp.int32),
        done=max_lengths <= 0,
    )


class Candidates(NamedTuple):
    """The best continuations of an input's hypotheses, best first: [B, 2W] each.

    scores: log P with the token. parents: the number of the hypothesis that each one continues. tokens: their ids.
    log_probs: log P of the token alone.
    """

    scores: Array
    parents: Array
    tokens: Array
    log_probs: Array


def candidates(logits: Float[Array, "B W V"], possible: Allowed, scores: Float[Array, "B W"]) -> Candidates:
    """Return the 2W best continuations; missing ones have the score -inf.

    The best continuations of an input are among the best of each of its hypotheses. Logits find these, so log
    probabilities are computed for a few tokens only.
    """
    width, size = logits.shape[1:]
    values, tokens = top_k(jnp.where(possible, logits, -jnp.inf), min(2 * width, size))
    log_probs = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    flat = (scores[..., None] + log_probs).reshape(len(logits), -1)
    best, places = jax.lax.top_k(flat, min(2 * width, flat.shape[-1]))

    def at_places(x: Array) -> Array:
        return jnp.take_along_axis(x.reshape(flat.shape), places, axis=-1)

    return Candidates(best, places // tokens.shape[-1], at_places(tokens), at_places(log_probs))


def search(
    step: Step,
    state: Beam,
    rules: Rules,
    constraints: Constraints,
    max_lengths: Int[Array, " B"],
    until: ArrayLike,
    alpha: ArrayLike = 1.0,
    reorder: Reorder | None = None,
) -> Beam:
    """Extend hypotheses until all inputs are done, or the hypotheses have `until` tokens.

    Args:
      until: number of tokens for which the cache has room, or fewer.
      alpha: exponent of the length penalty, at least 0.
      reorder: reorders the cache; None if the cache does not depend on the order of hypotheses.
    """

    def unfinished(state: Beam) -> Bool[Array, ""]:
        return (state.hypotheses.length < until) & ~state.done.all()

    def body(state: Beam) -> Beam:
        logits, possible, hypotheses = propose(step, state.hypotheses, constraints, max_lengths)
        found = candidates(logits, possible, state.scores)
        is_end = found.tokens == constraints.end_id
        at_limit = hypotheses.length + 1 >= max_lengths
        state = _end(state._replace(hypotheses=hypotheses), found, is_end, at_limit, rules, alpha)
        state = _continue(state, found, is_end, reorder)
        done = state.done | (state.hypotheses.length >= max_lengths) | jnp.isneginf(state.scores[:, 0])
        if rules.early_stop == "first":
            done = done | (state.num_ended >= state.scores.shape[1])
        elif rules.early_stop == "current":
            now = state.scores[:, 0] / penalty(rules, state.hypotheses.length, alpha)
            done = done | (state.ended.scores[:, -1] >= now)
        elif rules.early_stop == "bound":
            bound = state.scores[:, 0] / penalty(rules, max_lengths, alpha)
            done = done | (state.ended.scores[:, rules.num_best - 1] >= bound)
        else:
            raise ValueError(f"early_stop='{rules.early_stop}' is not implemented")
        return state._replace(done=done)

    return jax.lax.while_loop(unfinished, body, state)


def _end(
    state: Beam,
    found: Candidates,
    is_end: Bool[Array, "B E"],
    at_limit: Bool[Array, " B"],
    rules: Rules,
    alpha: ArrayLike,
) -> Beam:
    """Add the candidates that are end-of-sequence to the best ended hypotheses.

    Args:
      at_limit: whether the candidates have the maximum length; with `compete` all of them then end.
    """
    width, length = state.scores.shape[1], state.hypotheses.length
    cuts = {"last": jnp.zeros_like(at_limit), "compete": at_limit}[rules.cut_hypotheses][:, None]
    ends = (is_end | cuts) & ~jnp.isneginf(found.scores) & ~state.done[:, None]
    if rules.end_among == "beam":
        ends = ends & (jnp.arange(ends.shape[1]) < width)[None]
    elif rules.end_among != "candidates":
        raise ValueError(f"end_among='{rules.end_among}' is not implemented")
    if rules.early_stop == "first":
        ends = ends & (cuts | (state.num_ended[:, None] + jnp.cumsum(ends, axis=1) <= width))
    scores = jnp.where(ends, found.scores / penalty(rules, length + 1, alpha), -jnp.inf)
    # Write only the hypotheses that are kept: writing 2W new ones of `limit` tokens would cost more than the search.
    kept, places = jax.lax.top_k(jnp.concatenate([state.ended.scores, scores], axis=1), width)
    new = places >= width
    old = jnp.minimum(places, width - 1)

    def of_new(x: Array) -> Array:
        return jnp.take_along_axis(x, jnp.maximum(places - width, 0), axis=1)

    parents = of_new(found.parents)

    def chosen(ended: Array, live: Array, end: Array) -> Array:
        before = jnp.take_along_axis(ended, old[..., None], axis=1)
        after = jnp.take_along_axis(live, parents[..., None], axis=1)
        after = jax.lax.dynamic_update_slice_in_dim(after, end[..., None], length, axis=2)
        return jnp.where(new[..., None], after, before)

    ended = Generated(
        ids=chosen(state.ended.ids, state.hypotheses.ids, of_new(found.tokens)),
        lengths=jnp.where(new, length + 1, jnp.take_along_axis(state.ended.lengths, old, axis=1)),
        log_probs=chosen(state.ended.log_probs, state.hypotheses.log_probs, of_new(found.log_probs)),
        scores=kept,
        finished=jnp.where(new, of_new(is_end), jnp.take_along_axis(state.ended.finished, old, axis=1))
        & ~jnp.isneginf(kept),
    )
    return state._replace(ended=ended, num_ended=state.num_ended + ends.sum(1, dtype=jnp.int32))


def _continue(state: Beam, found: Candidates, is_end: Bool[Array, "B E"], reorder: Reorder | None) -> Beam:
    """Continue with the W best candidates other than end-of-sequence; inputs that are done keep their hypotheses."""
    width = state.scores.shape[1]
    continuing = jnp.where(is_end, -jnp.inf, found.scores)
    scores, places = jax.lax.top_k(continuing, width)

    def of_places(x: Array, frozen: ArrayLike) -> Array:
        return jnp.where(state.done[:, None], frozen, jnp.take_along_axis(x, places, axis=1))

    hypotheses = extend(
        state.hypotheses,
        of_places(found.tokens, 0),
        of_places(found.log_probs, 0),
        of_places(found.parents, jnp.arange(width)[None]),
        reorder,
    )
    return state._replace(hypotheses=hypotheses, scores=jnp.where(state.done[:, None], state.scores, scores))


def best_outputs(state: Beam, rules: Rules, max_lengths: Int[Array, " B"], alpha: ArrayLike = 1.0) -> Generated:
    """Return the `num_best` best hypotheses of every input, as `Rules.cut_hypotheses` ranks those cut at the limit."""
    if rules.cut_hypotheses == "compete":  # they are among the ended ones
        best = Generated(*(x[:, : rules.num_best] for x in state.ended))
        return _existing(best, ~jnp.isneginf(best.scores) & (max_lengths > 0)[:, None])
    live = state.hypotheses
    lengths = jnp.broadcast_to(jnp.minimum(live.length, max_lengths)[:, None], state.scores.shape)
    cut = Generated(
        ids=live.ids,
        lengths=lengths,
        log_probs=live.log_probs,
        scores=state.scores / penalty(rules, jnp.maximum(lengths, 1), alpha),
        finished=jnp.zeros_like(state.ended.finished),
    )
    both = Generated(*(jnp.concatenate(pair, axis=1) for pair in zip(state.ended, cut, strict=True)))
    exists = ~jnp.isneginf(both.scores) & (max_lengths > 0)[:, None]
    order = jnp.argsort(jnp.where(exists, ~both.finished, 2), axis=1, stable=True)[:, : rules.num_best]
    exists = jnp.take_along_axis(exists, order, axis=1)
    best = Generated(*(jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1) for x in both))
    return _existing(best, exists)


def _existing(best: Generated, exists: Bool[Array, "B N"]) -> Generated:
    """Return outputs with zeros, and a score of -inf, in place of those that do not exist."""
    return Generated(
        ids=jnp.where(exists[..., None], best.ids, 0),
        lengths=jnp.where(exists, best.lengths, 0),
        log_probs=jnp.where(exists[..., None], best.log_probs, 0.0),
        scores=jnp.where(exists, best.scores, -jnp.inf),
        finished=best.finished & exists,
    )
