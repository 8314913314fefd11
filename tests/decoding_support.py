"""Shared by the tests of searches: their special ids, and generation from arrays of sources or prompts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding.constraints import Constraints
from transformer_jax.decoding.generate import Request, generate
from transformer_jax.decoding.hypotheses import Generated
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.tasks.trained.decode_requests import source_request

PAD_ID, EOS_ID, START = 0, 1, 3
ENDS = Ends(EOS_ID, (PAD_ID,))


def constraints(
    vocab_size: int,
    forbidden: Any = (),
    prefix: Any = (),
    min_length: int = 0,
    force_end: bool = False,
    repetition_penalty: float | None = None,
    ends: Ends = ENDS,
    no_repeat_ngram: int | None = None,
    free_forced: bool | None = None,
) -> Constraints:
    """Return the rules of a search without a config."""
    return Constraints(
        np.int32(-1 if ends.end_id is None else ends.end_id),
        jnp.asarray(np.isin(np.arange(vocab_size), [*forbidden, *ends.never])),
        jnp.array(prefix, jnp.int32),
        np.int32(min_length),
        np.bool_(force_end),
        repetition_penalty,
        None if no_repeat_ngram is None else np.int32(no_repeat_ngram),
        None if free_forced is None else np.bool_(free_forced),
    )


def ends_of_ngrams(text: Sequence[int], size: int) -> set[int]:
    """Return the tokens that would repeat an n-gram of a text; written as a loop over all its n-grams."""
    last = tuple(text[len(text) + 1 - size :])
    ngrams = [tuple(text[i : i + size]) for i in range(len(text) + 1 - size)]
    return {ngram[-1] for ngram in ngrams if ngram[:-1] == last}


def masked(result: Generated) -> Generated:
    """Return outputs as NumPy arrays with zeros after the length of each, where ids have no meaning."""
    result = jax.device_get(result)
    is_token = np.arange(result.ids.shape[-1]) < result.lengths[..., None]
    return result._replace(ids=np.where(is_token, result.ids, 0), log_probs=np.where(is_token, result.log_probs, 0))


def decoders_of(configs: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(ARCHITECTURES[config.architecture].decoder(config) for config in configs)


def from_sources(
    configs: Sequence[Any],
    params: Sequence[Any],
    decode: DecodeConfig,
    inputs: np.ndarray,
    row_ids: Any = None,
    prompts: Any = None,
) -> Generated:
    """Return `masked` outputs of sources [B, S] in which 0 is padding."""
    decoders, lengths = decoders_of(configs), (inputs != PAD_ID).sum(1)
    request = source_request(decoders, decode, configs[0].decoder_start_id, inputs, lengths, prompts)
    prepared = [decoder.prepare(p) for decoder, p in zip(decoders, params, strict=True)]
    return masked(generate(decoders, prepared, decode, ENDS, request, row_ids))


def from_prompts(
    decoders: Sequence[Any],
    params: Sequence[Any],
    decode: DecodeConfig,
    prompts: Sequence[Sequence[int]],
    max_lengths: Any,
    ends: Ends = ENDS,
) -> Generated:
    """Return `masked` outputs of models that read only prompts."""
    request = Request({}, prompts, np.asarray(max_lengths), int(np.max(max_lengths)))
    return masked(generate(tuple(decoders), params, decode, ends, request))


def causal_batch(tokens: Any) -> dict[str, jax.Array]:
    """Return the batch with which a model without an encoder scores the token after each of tokens [B, T]."""
    return {"decoder_inputs": jnp.asarray(tokens, jnp.int32)}


def scores_of(log_probs, lengths, rules, alpha):
    """Return sums of log probabilities divided by the penalty, in float64."""
    lengths = np.maximum(np.asarray(lengths, np.float64), 1)
    penalty = {"none": lengths**0, "gnmt": ((5 + lengths) / 6) ** alpha, "average": lengths**alpha}
    return np.asarray(log_probs, np.float64).sum(-1) / penalty[rules.length_penalty]


class Hypothesis(NamedTuple):
    score: float
    ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finished: bool


def reference(log_probs_of, width, limit, rules, alpha, may_come, stops=True, end_id=EOS_ID):
    """Return the outputs of a beam search in plain Python, best first, and the number of steps.

    Args:
      log_probs_of: ids so far -> log probabilities of the next; may_come: number of tokens so far -> the next ones.
      stops: whether `rules.early_stop` applies; if False the search always runs to the limit.
    """

    def ranked(hypothesis):
        return float(scores_of(hypothesis.log_probs, len(hypothesis.ids), rules, alpha))

    live, ended, num_ended = [Hypothesis(0.0, (), (), False)], [], 0
    steps = 0
    while steps < limit and live:
        found = []
        for hypothesis in live:
            log_probs = log_probs_of(hypothesis.ids)
            for token in may_come(steps):
                if log_probs[token] == -np.inf:
                    continue
                new = hypothesis.score + log_probs[token]
                ids, known = (*hypothesis.ids, token), (*hypothesis.log_probs, log_probs[token])
                found.append(Hypothesis(new, ids, known, token == end_id))
        found = sorted(found, key=lambda h: -h.score)[: 2 * width]
        for hypothesis in found[: width if rules.end_among == "beam" else None]:
            at_limit = rules.cut_hypotheses == "compete" and steps + 1 == limit
            if hypothesis.finished and (rules.early_stop != "first" or num_ended < width or at_limit):
                ended.append(hypothesis)
                num_ended += 1
        ended = sorted(ended, key=lambda h: -ranked(h))[:width]
        live = [h for h in found if not h.finished][:width]
        steps += 1
        if not stops:
            continue
        if rules.early_stop == "first" and num_ended >= width:
            break
        if rules.early_stop == "bound" and live and len(ended) >= rules.num_best:
            bound = scores_of([live[0].score], limit, rules, alpha)
            if ranked(ended[rules.num_best - 1]) >= bound:
                break
        if rules.early_stop == "current" and live and len(ended) == width and ranked(ended[-1]) >= ranked(live[0]):
            break
    found = ended + live
    if rules.cut_hypotheses == "compete":
        found = sorted(ended + (live if steps == limit else []), key=lambda h: -ranked(h))
    return [h._replace(score=ranked(h)) for h in found[: rules.num_best]], steps
