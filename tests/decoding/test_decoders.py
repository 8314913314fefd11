"""Generation with decoders that read only prompts: a Transformer without an encoder, and a recurrent network.

They are compared to searches in plain Python, which read the whole prefix again for every token.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from decoding_support import ENDS, EOS_ID, PAD_ID, causal_batch, decoders_of, from_prompts, reference, scores_of
from support import forward, random_params, tiny

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding import generate, sampling
from transformer_jax.decoding.beam_search import Rules
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.decoder import Decoder, Started

GREEDY, BEAM = {}, {"beam_size": 3, "num_best": 3, "length_penalty": "gnmt", "length_penalty_alpha": 0.6}
SAMPLES = {"method": "sample", "num_samples": 4, "temperature": 1.5, "top_k": 9, "seed": 5}


@dataclasses.dataclass(frozen=True)
class Recurrent(Decoder):
    """h' = tanh(E[token] + R h), logits O h'; one h [H] per hypothesis; slots are not used."""

    vocab: int
    reorders: bool = True

    @property
    def vocab_size(self):
        return self.vocab

    def start(self, params, batch, slots, width):
        prompts, lengths = batch["prompts"][:, :-1], batch["prompt_lengths"] - 1
        rows = prompts.shape[0]
        state = jnp.zeros((rows, 1, params["recurrent"].shape[0]))
        for place in range(prompts.shape[1]):
            after = self.after(params, prompts[:, place, None], state)
            state = jnp.where((place < lengths)[:, None, None], after, state)
        return Started(jnp.repeat(state, width, axis=1), jnp.zeros((rows, slots), bool), prompts.shape[1])

    def after(self, params, ids, state):
        return jnp.tanh(params["embedding"][ids] + state @ params["recurrent"])

    def step(self, params, cache, ids, positions, visible):
        state = self.after(params, ids, cache)
        return state @ params["output"], state

    def reorder(self, cache, parents):
        return jnp.take_along_axis(cache, parents[..., None], axis=1) if self.reorders else cache


def recurrent_params(vocab, seed, size=4):
    rng = np.random.default_rng(seed)
    shapes = {"embedding": (vocab, size), "recurrent": (size, size), "output": (size, vocab)}
    return {name: rng.normal(0, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}


def recurrent_logits(params, tokens):
    """Return logits after each token, in float64."""
    state = np.zeros(len(params["recurrent"]))
    for token in tokens:
        state = np.tanh(params["embedding"][token].astype(np.float64) + state @ params["recurrent"])
    return state @ params["output"]


def transformer_logits(config, params, tokens):
    """Return logits after each token, by the full forward pass."""
    padded = np.zeros((1, config.max_length), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(forward(config, params, causal_batch(padded))[0, len(tokens) - 1], np.float64)


def may_come(length, limit, vocab, ends, min_length=0):
    free = [token for token in range(vocab) if token not in ends.never]
    return [token for token in free if token != ends.end_id or length >= min_length]


def naive_samples(logits_of, row, limit, ends, vocab, decode):
    """Return samples of one row: tokens, and the log probability of each."""
    outputs = []
    for key in sampling.row_keys(decode["seed"], jnp.array([row]), decode["num_samples"])[0]:
        ids, log_probs = [], []
        while len(ids) < limit and (not ids or ids[-1] != ends.end_id):
            logits = logits_of(tuple(ids))
            possible = np.full(vocab, -np.inf, np.float32)
            possible[may_come(len(ids), limit, vocab, ends)] = logits[may_come(len(ids), limit, vocab, ends)]
            shaped = sampling.shaped(jnp.asarray(possible), sampling.Sampling(key, 1.5, 9, None, None))
            ids.append(int(jax.random.categorical(jax.random.fold_in(key, len(ids)), shaped)))
            log_probs.append(scipy.special.log_softmax(logits)[ids[-1]])
        outputs.append((tuple(ids), tuple(log_probs), bool(ids) and ids[-1] == ends.end_id))
    return outputs


def check_naive(decoder, params, logits_of, prompts, max_lengths, fields, ends=ENDS):
    """Check outputs of `generate` against the search in plain Python; ids after the end have no meaning."""
    decode, vocab = DecodeConfig(**fields), decoder.vocab_size
    result = from_prompts([decoder], [params], decode, prompts, max_lengths, ends)
    for row, (prompt, limit) in enumerate(zip(prompts, max_lengths, strict=True)):

        def of_output(ids, prompt=prompt):
            return logits_of((*prompt, *ids))

        if not limit:
            expected = []
        elif fields.get("method") == "sample":
            expected = naive_samples(of_output, row, limit, ends, vocab, fields)
        else:
            penalty = fields.get("length_penalty", "none")
            rules = Rules(penalty, "beam", "bound", fields.get("num_best", 1))
            best, _ = reference(
                lambda ids, of_output=of_output: scipy.special.log_softmax(of_output(ids)),
                fields.get("beam_size", 1),
                limit,
                rules,
                fields.get("length_penalty_alpha", 0.0),
                functools.partial(may_come, limit=limit, vocab=vocab, ends=ends),
                end_id=ends.end_id,
            )
            expected = [(one.ids, one.log_probs, one.finished) for one in best]
            np.testing.assert_allclose(result.scores[row, : len(best)], [one.score for one in best], atol=1e-4)
        np.testing.assert_array_equal(np.isfinite(result.scores[row]), np.arange(result.ids.shape[1]) < len(expected))
        for rank, (ids, log_probs, finished) in enumerate(expected):
            length = result.lengths[row, rank]
            assert tuple(result.ids[row, rank, :length]) == ids
            np.testing.assert_allclose(result.log_probs[row, rank, :length], log_probs, atol=1e-4)
            assert result.finished[row, rank] == finished
    return result


PROMPTS = [(7,), (7, 5, 6), (7, 8, 4, 9, 5), (7, 4)]
any_search = pytest.mark.parametrize("fields", [GREEDY, BEAM, SAMPLES], ids=["greedy", "beam", "sample"])


@pytest.mark.slow
@any_search
@pytest.mark.parametrize("position_encoding", ["learned", pytest.param("relative", marks=pytest.mark.slow)])
def test_a_decoder_only_model_continues_prompts_like_the_full_forward_pass(fields, position_encoding):
    config = tiny(
        architecture="decoder_only", num_decoder_layers=1, tie_output=False, position_encoding=position_encoding
    )
    params = random_params(config, 3)
    (decoder,) = decoders_of([config])
    logits_of = functools.partial(transformer_logits, config, params)
    result = check_naive(decoder, decoder.prepare(params), logits_of, PROMPTS, [6, 0, 8, 5], fields)
    assert len(set(map(tuple, result.ids[:, 0]))) == 4


VOCAB = 6
ENDINGS = [ENDS, Ends(None, (PAD_ID,)), Ends(None, ()), Ends(0, ()), Ends(2, (5,))]


@pytest.mark.slow
@any_search
@pytest.mark.parametrize("ends", ENDINGS, ids=str)
def test_any_id_may_end_an_output_or_be_padding(fields, ends, monkeypatch):
    """With a recurrent state, and over two stages. Unless it is the end or forbidden, 0 is a token like others."""
    monkeypatch.setattr(generate, "FIRST_CAPACITY", 8)
    params = recurrent_params(VOCAB, 2979)  # with these parameters 0 occurs and outputs differ
    prompts = [(4,), (3, 0, 5), (1, 0, 2, 4, 3), (0,), (2, 2), (5, 3)]
    result = check_naive(
        Recurrent(VOCAB), params, functools.partial(recurrent_logits, params), prompts, [6, 7, 5, 0, 1, 6], fields, ends
    )
    is_token = np.arange(7) < result.lengths[..., None]
    assert (0 in result.ids[is_token]) == (0 not in ends.never)
    assert not np.isin(result.ids[is_token], ends.never).any()
    if ends.end_id is None:
        assert not result.finished.any()
        np.testing.assert_array_equal(result.lengths.max(1), [6, 7, 5, 0, 1, 6])
    else:
        assert result.finished.any()


def every_output(params, prompt, words, limit):
    """Return {ids: log probability of every token} of all outputs of words that end at their limit at the latest."""
    found = {}
    for length in range(limit):
        for ids in itertools.product(words, repeat=length):
            output = (*ids, EOS_ID)
            known = [
                scipy.special.log_softmax(recurrent_logits(params, (*prompt, *output[:n]))) for n in range(length + 1)
            ]
            found[output] = [log_probs[token] for log_probs, token in zip(known, output, strict=True)]
    return found


def test_states_follow_their_hypotheses():
    """A beam with room for every prefix finds the best of all outputs, and others if states are not reordered."""
    fields = {"beam_size": 9, "num_best": 9, "end_among": "candidates", "at_limit": "end", "length_penalty": "none"}
    prompts, params, decode = [(3,), (2, 4, 3), (4, 4)], recurrent_params(5, 22), DecodeConfig(**fields)
    result, unmoved = (
        from_prompts([Recurrent(5, reorders)], [params], decode, prompts, [3] * 3) for reorders in (True, False)
    )
    for row, prompt in enumerate(prompts):
        known = every_output(params, prompt, (2, 3, 4), 3)
        scores = {ids: float(scores_of(log_probs, len(ids), Rules("none"), 0.0)) for ids, log_probs in known.items()}
        best = sorted(scores, key=lambda ids: -scores[ids])[:9]
        found = [tuple(ids[:n].tolist()) for ids, n in zip(result.ids[row], result.lengths[row], strict=True)]
        assert found == best
        np.testing.assert_allclose(result.scores[row], [scores[ids] for ids in best], atol=1e-4)
        assert np.abs(unmoved.scores[row] - result.scores[row]).max() > 0.1


@pytest.mark.parametrize(
    ("prompts", "fields", "error", "message"),
    [
        ([(3,), ()], {}, DataError, r"^prompts: row 1 is empty; a prompt needs at least one token"),
        ([(3,), (4, 6)], {}, DataError, r"^prompts, row 1: id 6 is outside"),
        ([(3,)], {"at_limit": "end"}, ConfigError, r"^decode\.at_limit=end: there is no end-of-sequence id"),
    ],
)
def test_prompts_that_a_decoder_cannot_continue(prompts, fields, error, message):
    params, ends = recurrent_params(VOCAB, 0), Ends(None, ())
    with pytest.raises(error, match=message):
        from_prompts([Recurrent(VOCAB)], [params], DecodeConfig(**fields), prompts, [2] * len(prompts), ends)
