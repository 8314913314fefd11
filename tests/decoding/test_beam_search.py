"""Beam search over hand-written step functions, against published results and against a search in plain Python.

With real models, it is compared to an enumeration of all sequences.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from decoding_support import (
    EOS_ID,
    PAD_ID,
    START,
    constraints,
    ends_of_ngrams,
    from_sources,
    masked,
    reference,
    scores_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import as_batch, forward, random_params, slow_but, tiny

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding import beam_search
from transformer_jax.decoding.beam_search import Rules
from transformer_jax.decoding.hypotheses import runs_of_prompts, start_hypotheses


def begin(cache, max_lengths, width, limit):
    rows = len(max_lengths)
    last, ones = jnp.full(rows, START, jnp.int32), jnp.ones(rows, jnp.int32)
    hypotheses = start_hypotheses(cache, last, ones, jnp.zeros((rows, width * limit), bool), 0, width, limit)
    return beam_search.begin(hypotheses, max_lengths)


@pytest.mark.parametrize(
    ("name", "alpha", "expected"),
    [
        ("none", 3.0, [1, 1, 1]),
        ("gnmt", 0.0, [1, 1, 1]),
        ("gnmt", 1.0, [1, 7 / 6, 2]),
        ("gnmt", 2.0, [1, 49 / 36, 4]),
        ("average", 0.0, [1, 1, 1]),
        ("average", 1.0, [1, 2, 7]),
        ("average", 0.5, [1, 2**0.5, 7**0.5]),
    ],
)
def test_the_length_penalty(name, alpha, expected):
    np.testing.assert_allclose(beam_search.penalty(Rules(name), jnp.array([1, 2, 7]), alpha), expected, rtol=1e-6)


def test_a_new_length_penalty_is_one_entry(monkeypatch):
    entry = beam_search.LengthPenalty(lambda lengths, alpha: alpha * lengths, default_alpha=3.0)
    monkeypatch.setitem(beam_search.LENGTH_PENALTIES, "linear", entry)
    assert DecodeConfig(length_penalty="linear").resolved().length_penalty_alpha == 3.0
    assert beam_search.penalty(Rules("linear"), 2.0, 3.0) == 6.0


# Published results. At every step the tables give a probability to every token after each hypothesis, best first.

A, B = 2, 3  # the words of both libraries' tests


@functools.partial(jax.jit, static_argnames=("rules", "limit"))
def by_table(table, max_lengths, rules, limit, alpha, allowed):
    """Search with logits [steps, B, W, V]; the cache is the number of the step."""

    def step(ids, positions, visible, number):
        return table[number], number + 1

    state = begin(jnp.int32(0), max_lengths, table.shape[2], limit)
    state = beam_search.search(step, state, rules, allowed, max_lengths, limit, alpha)
    return beam_search.best_outputs(state, rules, max_lengths, alpha)


def published(probs, rules, limit, alpha, force_end=False):
    """Return the outputs for a table of probabilities of all tokens except padding."""
    probs = np.pad(np.array(probs, np.float32), ((0, 0), (0, 0), (0, 0), (1, 0)))
    with np.errstate(divide="ignore"):
        table = np.log(probs)
    max_lengths = np.full(probs.shape[1], limit, np.int32)
    allowed = constraints(probs.shape[3], force_end=force_end)
    return masked(by_table(table, max_lengths, rules, 5, alpha, allowed))


def check_outputs(result, expected, rules, alpha):
    """expected: per row and rank, ids and their probabilities."""
    for row, outputs in enumerate(expected):
        for rank, (ids, probs) in enumerate(outputs):
            length = result.lengths[row, rank]
            assert length == len(ids)
            np.testing.assert_array_equal(result.ids[row, rank, :length], ids)
            np.testing.assert_allclose(result.log_probs[row, rank, :length], np.log(probs), atol=1e-6)
            np.testing.assert_allclose(
                result.scores[row, rank], scores_of(np.log(probs), len(ids), rules, alpha), rtol=1e-5
            )
            assert result.finished[row, rank] == (ids[-1] == EOS_ID)


FIRST = [[0.1, 0.1, 0.8]] * 2
SECOND = [[0.4, 0.5, 0.1], [0.2, 0.4, 0.4]]
OTHER_SECOND = [[0.3, 0.6, 0.1], [0.2, 0.4, 0.4]]
LAST = [[0.05, 0.9, 0.05], [0.4, 0.4, 0.2]]
SHORT, LONG = ([B, EOS_ID], [0.8, 0.5]), ([B, A, EOS_ID], [0.8, 0.4, 0.9])
OTHER_SHORT, OTHER_LONG = ([B, EOS_ID], [0.8, 0.6]), ([B, A, EOS_ID], [0.8, 0.3, 0.9])


@pytest.mark.parametrize(
    ("probs", "alpha", "expected"),
    [
        # testGreedyBatchOne, with a third token of probability 0
        ([[[[0.7, 0.3, 0]]], [[[0.4, 0.6, 0]]], [[[0.5, 0.5, 0]]]], 0.0, [[([A, EOS_ID], [0.7, 0.6])]]),
        # testGreedyWithCornerCase: eos is never among the best two of a step
        ([[[[0.2, 0.1, 0.7]]], [[[0.4, 0.1, 0.5]]]], 0.0, [[([B, B], [0.7, 0.5])]]),
        # testNotGreedyBeamTwo
        ([[FIRST], [SECOND], [LAST]], 0.0, [[SHORT, LONG]]),
        # testNotGreedyBeamTwoWithAlpha
        ([[FIRST], [SECOND], [LAST]], 3.5, [[LONG, SHORT]]),
        # testNotGreedyBatchTwoBeamTwoWithAlpha
        ([[FIRST] * 2, [SECOND, OTHER_SECOND], [LAST] * 2], 3.5, [[LONG, SHORT], [OTHER_SHORT, OTHER_LONG]]),
    ],
)
def test_the_results_of_tensor2tensor(probs, alpha, expected):
    """The cases of its utils/beam_search_test.py; the tables are (A, eos, B) per hypothesis, row and step."""
    probs = np.array(probs)[..., [1, 0, 2]]
    steps, _, width, _ = probs.shape
    rules = Rules("gnmt", end_among="candidates", early_stop="bound", num_best=width)
    check_outputs(published(probs, rules, steps, alpha), expected, rules, alpha)


# `sequence_generator_setup` of fairseq's tests/utils.py: (eos, A, B) of two hypotheses of two sentences at four steps;
# after that all of them end.
FAIRSEQ = [
    [[[0.0, 0.9, 0.1], [0.0, 0.9, 0.1]], [[0.0, 0.7, 0.3], [0.0, 0.7, 0.3]]],
    [[[1.0, 0.0, 0.0], [0.0, 0.9, 0.1]], [[0.25, 0.35, 0.4], [0.0, 0.1, 0.9]]],
    [[[0.0, 0.1, 0.9], [0.6, 0.2, 0.2]], [[0.6, 0.4, 0.0], [0.01, 0.0, 0.99]]],
    [[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[0.1, 0.5, 0.4], [1.0, 0.0, 0.0]]],
    [[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]],
]
SHORT_1, LONG_1 = ([A, EOS_ID], [0.9, 1.0]), ([B, A, B, EOS_ID], [0.1, 0.9, 0.9, 1.0])
SHORT_2, LONG_2 = ([A, B, EOS_ID], [0.7, 0.4, 0.6]), ([A, B, A, EOS_ID], [0.7, 0.4, 0.4, 1.0])
FORCED_1, FORCED_2 = ([B, B, EOS_ID], [0.1, 0.1, 0.6]), ([B, B, EOS_ID], [0.3, 0.9, 0.01])


@pytest.mark.parametrize(
    ("length_penalty", "alpha", "limit", "expected"),
    [
        ("average", 1.0, 5, [[SHORT_1, LONG_1], [LONG_2, SHORT_2]]),  # test_with_normalization
        ("none", 0.0, 5, [[SHORT_1, LONG_1], [SHORT_2, LONG_2]]),  # test_without_normalization
        ("average", 0.6, 5, [[SHORT_1, LONG_1], [SHORT_2, LONG_2]]),  # test_with_lenpen_favoring_short_hypos
        ("average", 5.0, 5, [[LONG_1, SHORT_1], [LONG_2, SHORT_2]]),  # test_with_lenpen_favoring_long_hypos
        ("average", 1.0, 3, [[SHORT_1, FORCED_1], [SHORT_2, FORCED_2]]),  # test_maxlen
    ],
)
def test_the_results_of_fairseq(length_penalty, alpha, limit, expected):
    """The cases of its tests/test_sequence_generator.py."""
    rules = Rules(length_penalty, end_among="beam", early_stop="first", num_best=2)
    check_outputs(published(FAIRSEQ, rules, limit, alpha, force_end=True), expected, rules, alpha)


# A search in plain Python, with logits that depend on all tokens of a hypothesis.

VOCAB_SIZE, LIMIT, NUM_TABLES = 7, 6, 97


def weight(token, position):
    return (token + 3) * (position**2 + 5)


def by_history(ids, positions, visible, cache):
    """A step whose logits come from the table selected by all visible tokens together."""
    tables, known, places, index = cache
    known = jax.lax.dynamic_update_slice_in_dim(known, ids, index, axis=1)
    places = jax.lax.dynamic_update_slice_in_dim(places, positions, index, axis=1)
    number = jnp.where(visible, weight(known, places)[:, None], 0).sum(-1) % NUM_TABLES
    logits = jnp.take_along_axis(tables, number[..., None], axis=1)
    return logits, (tables, known, places, index + ids.shape[1])


def log_probs_by_history(tables, repetition_penalty, no_repeat_ngram, ids):
    number = sum(weight(token, position) for position, token in enumerate((START, *ids))) % NUM_TABLES
    logits = tables[number].astype(np.float64)
    for token in set(ids):
        logits[token] *= repetition_penalty if logits[token] < 0 else 1 / repetition_penalty
    log_probs = scipy.special.log_softmax(logits)
    if no_repeat_ngram is not None:
        log_probs[[*ends_of_ngrams((START, *ids), no_repeat_ngram)]] = -np.inf
    return log_probs


def make_tables(rows, seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, (rows, NUM_TABLES, VOCAB_SIZE)).astype(np.float32)


def start_by_history(tables, max_lengths, width):
    empty = jnp.zeros((len(tables), width * LIMIT), jnp.int32)
    return begin((tables, empty, empty, jnp.int32(0)), max_lengths, width, LIMIT)


@functools.partial(jax.jit, static_argnames=("rules", "width"))
def outputs_by_history(tables, max_lengths, rules, width, alpha, allowed):
    state = start_by_history(tables, max_lengths, width)
    if allowed.repetition_penalty is not None:
        seen = jnp.zeros((len(tables), width, VOCAB_SIZE), bool)
        state = state._replace(hypotheses=state.hypotheses._replace(seen=seen))
    if allowed.no_repeat_ngram is not None:
        starts = jnp.full((len(tables), 1), START)
        runs = runs_of_prompts(starts, jnp.ones(len(tables), jnp.int32), width, LIMIT)
        state = state._replace(hypotheses=state.hypotheses._replace(runs=runs))
    state = beam_search.search(by_history, state, rules, allowed, max_lengths, LIMIT, alpha)
    return beam_search.best_outputs(state, rules, max_lengths, alpha), state.hypotheses.length


def search(tables, max_lengths, rules, width, alpha, **fields):
    """Return the outputs as NumPy arrays, and the number of steps."""
    allowed = constraints(VOCAB_SIZE, **fields)
    outputs, steps = outputs_by_history(tables, np.int32(max_lengths), rules, width, alpha, allowed)
    return masked(outputs), steps


def check_against_reference(tables, max_lengths, rules, width, alpha, stops=True, **fields):
    """Check the outputs against the search in plain Python; return the number of its steps for every row."""
    result, steps = search(tables, max_lengths, rules, width, alpha, **fields)
    all_steps = []
    for row, limit in enumerate(max_lengths):

        def log_probs_of(ids, row=row, limit=limit):
            at_end = fields.get("force_end") and len(ids) + 1 >= limit
            if fields.get("free_forced") and (at_end or len(ids) < len(fields.get("prefix", ()))):
                return np.zeros(VOCAB_SIZE)
            penalty, size = fields.get("repetition_penalty", 1.0), fields.get("no_repeat_ngram")
            return log_probs_by_history(tables[row], penalty, size, ids)

        expected, made = reference(
            log_probs_of,
            width,
            limit,
            rules,
            alpha,
            functools.partial(may_come, limit=limit, **fields),
            stops,
        )
        all_steps.append(made)
        exists = np.arange(rules.num_best) < (len(expected) if limit else 0)
        np.testing.assert_array_equal(np.isfinite(result.scores[row]), exists)
        assert not result.ids[row][~exists].any()
        for rank, hypothesis in enumerate(expected if limit else ()):
            length = result.lengths[row, rank]
            assert tuple(result.ids[row, rank, :length]) == hypothesis.ids
            np.testing.assert_allclose(result.log_probs[row, rank, :length], hypothesis.log_probs, atol=1e-5)
            np.testing.assert_allclose(result.scores[row, rank], hypothesis.score, atol=1e-5)
            assert result.finished[row, rank] == hypothesis.finished
    if stops:
        assert steps == max(all_steps)
    return result, all_steps


def may_come(length, limit, forbidden=(), prefix=(), min_length=0, force_end=False, **of_text):
    if length < len(prefix):
        return [prefix[length]]
    if force_end and length + 1 >= limit:
        return [EOS_ID]
    free = [token for token in range(VOCAB_SIZE) if token != PAD_ID and token not in forbidden]
    return [token for token in free if token != EOS_ID or length >= min_length]


def combinations():
    """Every penalty with all other rules; one half, in which every pair of values occurs, always runs."""
    penalties, ends, stops = ("none", "gnmt", "average"), ("beam", "candidates"), ("bound", "first")
    for (i, penalty), (j, end), (k, stop) in itertools.product(*map(enumerate, (penalties, ends, stops))):
        yield pytest.param(penalty, end, stop, marks=() if (i + j + k) % 2 == 0 else pytest.mark.slow)


CURRENT = [("average", "beam", "current"), pytest.param("gnmt", "candidates", "current", marks=pytest.mark.slow)]


@pytest.mark.parametrize(("length_penalty", "end_among", "early_stop"), [*combinations(), *CURRENT])
def test_equals_a_search_in_plain_python(length_penalty, end_among, early_stop):
    """The logits depend on all visible tokens, which must be the hypothesis's own after every reordering."""
    rules = Rules(length_penalty, end_among, early_stop, num_best=2)
    max_lengths = [LIMIT, 3, 0, 1, *[LIMIT] * 20]
    for alpha in (0.6, 2.0):
        _, steps = check_against_reference(make_tables(24), max_lengths, rules, 3, alpha)
        assert len(set(steps)) > 3
    check_against_reference(
        make_tables(24, 1), max_lengths, rules, 3, 1.0, forbidden=(4,), min_length=4, force_end=True
    )


@pytest.mark.parametrize(
    ("length_penalty", "end_among", "early_stop"),
    [("average", "beam", "bound"), pytest.param("gnmt", "candidates", "first", marks=pytest.mark.slow)],
)
def test_cut_hypotheses_that_compete(length_penalty, end_among, early_stop):
    """At the limit, the best continuations win if they score higher than the ended hypotheses."""
    rules = Rules(length_penalty, end_among, early_stop, num_best=2, cut_hypotheses="compete")
    max_lengths, tables = [LIMIT, 3, 0, 1, *[LIMIT] * 20], make_tables(24)
    found, _ = check_against_reference(tables, max_lengths, rules, 3, 2.0)
    last, _ = search(tables, max_lengths, dataclasses.replace(rules, cut_hypotheses="last"), 3, 2.0)
    better = found.scores[:, 0] > last.scores[:, 0]
    assert better.any()
    assert (last.finished & ~found.finished)[better, 0].all()
    np.testing.assert_array_equal(found.ids[~better, 0], last.ids[~better, 0])


def test_every_output_begins_with_the_prefix():
    rules, max_lengths = Rules("gnmt", "beam", "bound", 3), [LIMIT] * 8
    result, _ = check_against_reference(make_tables(8, 1), max_lengths, rules, 3, 1.0, forbidden=(5,), prefix=(5, 2))
    assert (result.ids[..., :2] == (5, 2)).all()
    assert np.isfinite(result.scores).all()


def test_a_free_prefix_and_a_free_forced_end_have_log_probability_0():
    """Free tokens lengthen an output at no cost, so other outputs win."""
    rules, limits, tables = Rules("average", "beam", "bound", 2), [LIMIT] * 24, make_tables(24, 1)
    forced = {"prefix": (5, 2), "force_end": True}
    free, _ = check_against_reference(tables, limits, rules, 3, 2.0, free_forced=True, **forced)
    assert not free.log_probs[..., :2].any()
    assert not free.log_probs[free.lengths == LIMIT, -1].any()
    scored, _ = search(tables, limits, rules, 3, 2.0, **forced)
    assert (free.ids[:, 0] != scored.ids[:, 0]).any()


def test_a_prefix_with_eos_ends_the_search():
    rules, max_lengths = Rules("gnmt", "beam", "first", 3), [LIMIT] * 8
    _, steps = check_against_reference(make_tables(8, 1), max_lengths, rules, 3, 1.0, prefix=(5, EOS_ID))
    assert set(steps) == {2}


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 4, 9])
def test_other_beams(width):
    for rules in (Rules("gnmt", "candidates", "first", width), Rules("average", "beam", "bound", (width + 1) // 2)):
        check_against_reference(make_tables(40, width), [LIMIT] * 40, rules, width, 1.0)


@pytest.mark.parametrize("length_penalty", ["none", "gnmt"])
def test_stopping_at_the_bound_loses_no_output(length_penalty):
    """The outputs equal those of a search up to the limit, with fewer steps."""
    rules = Rules(length_penalty, "candidates", "bound", 2)
    tables = make_tables(24, 7)
    check_against_reference(tables, [LIMIT] * 24, rules, 3, 0.6, stops=False)
    _, steps = check_against_reference(tables, [LIMIT] * 24, rules, 3, 0.6)
    assert np.mean(steps) < LIMIT - 0.5


def test_the_first_to_end_may_lose():
    """A rule of its own: its best score is never better than that of the bound, and sometimes worse."""
    tables, limits = make_tables(24, 7), [LIMIT] * 24
    first, bound = (
        search(tables, limits, Rules("average", "candidates", stop, 2), 3, 2.0)[0].scores[:, 0]
        for stop in ("first", "bound")
    )
    assert (first <= bound + 1e-6).all()
    assert (first < bound - 1e-3).any()


@pytest.mark.parametrize("early_stop", ["bound", pytest.param("first", marks=pytest.mark.slow)])
def test_a_finished_input_does_not_change(early_stop):
    """A search that is interrupted and continued gives the same result."""
    rules, limits = Rules("none", "beam", early_stop, 2), [LIMIT, 2, 0, *[LIMIT] * 21]
    lengths, tables = jnp.array(limits, jnp.int32), make_tables(24, 3)

    @jax.jit
    def grown(state, until):
        return beam_search.search(by_history, state, rules, constraints(VOCAB_SIZE), lengths, until, 0.6)

    state = jax.jit(start_by_history, static_argnums=2)(tables, lengths, 3)
    states = []
    for until in (2, 4, LIMIT):
        state = grown(state, until)
        states.append(jax.device_get(state._replace(hypotheses=state.hypotheses._replace(cache=()))))
    for before, after in itertools.pairwise(states):
        done = before.done
        assert 0 < done.sum() < 24
        assert after.done[done].all()
        for x, y in zip(before.ended, after.ended, strict=True):
            np.testing.assert_array_equal(x[done], y[done])
        for x, y in zip(
            (before.scores, before.num_ended, before.hypotheses.ids, before.hypotheses.log_probs),
            (after.scores, after.num_ended, after.hypotheses.ids, after.hypotheses.log_probs),
            strict=True,
        ):
            np.testing.assert_array_equal(x[done], y[done])
    result = masked(beam_search.best_outputs(state, rules, lengths, 0.6))
    for ours, theirs in zip(result, search(tables, limits, rules, 3, 0.6)[0], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_repetition_penalty_counts_each_hypothesis_s_own_tokens():
    rules, max_lengths = Rules("none", "beam", "bound", 3), [LIMIT] * 24
    free, penalised = (
        check_against_reference(make_tables(24, 4), max_lengths, rules, 3, 1.0, repetition_penalty=penalty)[0]
        for penalty in (1.0, 1.8)
    )
    assert (free.ids != penalised.ids).any(-1).mean() > 0.3


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_hypothesis_repeats_an_ngram(size):
    """Against the search in plain Python, which looks at the tokens of each hypothesis."""
    rules, max_lengths = Rules("none", "beam", "bound", 3), [LIMIT] * 24
    free, fresh = (
        check_against_reference(make_tables(24, 4), max_lengths, rules, 3, 1.0, no_repeat_ngram=n)[0]
        for n in (None, size)
    )
    assert (free.ids != fresh.ids).any(-1).mean() > 0.1


# Real models.

MODEL = tiny(vocab_size=8, num_encoder_layers=1, num_decoder_layers=1, tie_output=False)
WORDS = (5, 6, 7)  # all other tokens except eos are forbidden
SOURCES = np.array([[5, 6, 7, 4, EOS_ID], [6, EOS_ID, 0, 0, 0], [0] * 5, [7, 7, 4, EOS_ID, 0]], np.int32)


def beams(params, config=MODEL, inputs=SOURCES, **fields):
    return from_sources([config], [params], DecodeConfig(**fields), inputs)


def teacher_forced(config, params, inputs, targets):
    """Return log P of every token of targets [B, T, V] given those before it, by the full forward pass."""
    logits = forward(config, params, as_batch(inputs=inputs, targets=targets))
    return scipy.special.log_softmax(np.asarray(logits, np.float64), axis=-1)


def all_sequences(params, source, limit, with_cut, config=MODEL):
    """Return {ids: log probability of every token} of all outputs of one source."""
    grid = np.array(list(itertools.product(WORDS, repeat=limit)))
    log_probs = teacher_forced(config, params, np.repeat(source[None], len(grid), axis=0), grid)
    found = {}
    for row, known in zip(grid.tolist(), log_probs, strict=True):
        own = [known[i, token] for i, token in enumerate(row)]
        for length in range(limit):
            found[(*row[:length], EOS_ID)] = [*own[:length], known[length, EOS_ID]]
        if with_cut:
            found[tuple(row)] = own
    return found


EXHAUSTIVE = [
    *(fields for fields in itertools.product(("gnmt", "average", "none"), ("end", "cut"), ("last",))),
    ("average", "cut", "compete"),
]
# The first decoder layer of the second model reads two tokens only.
WINDOWS = dataclasses.replace(MODEL, num_decoder_layers=2, layer_pattern="SL", layer_kinds="S: attention_window=2; L:")
EXHAUSTIVE_MODELS = [(*fields, MODEL) for fields in EXHAUSTIVE] + [("gnmt", "cut", "last", WINDOWS)]


@pytest.mark.parametrize(
    ("length_penalty", "at_limit", "cut_hypotheses", "config"), slow_but(EXHAUSTIVE_MODELS[0], EXHAUSTIVE_MODELS)
)
def test_a_beam_with_room_for_every_prefix_finds_the_best_of_all_sequences(
    length_penalty, at_limit, cut_hypotheses, config
):
    """At most three tokens: 9 hypotheses exist before the last one, 27 after it."""
    size, limit = (9 if at_limit == "end" else 27), 3
    alpha = {"none": 0.0, "gnmt": 0.6, "average": 1.3}[length_penalty]
    rules = Rules(length_penalty)

    @settings(max_examples=5, deadline=None)
    @given(seed=st.integers(0, 10_000))
    def check(seed):
        params = random_params(config, seed)
        result = beams(
            params,
            config,
            beam_size=size,
            num_best=size,
            max_new_tokens=limit,
            at_limit=at_limit,
            cut_hypotheses=cut_hypotheses,
            length_penalty=length_penalty,
            length_penalty_alpha=alpha,
            end_among="candidates",
            forbidden_ids="2,3,4",
        )
        for row in (0, 1, 3):
            known = all_sequences(params, SOURCES[row], limit, at_limit == "cut", config)
            scores = {ids: scores_of(known[ids], len(ids), rules, alpha) for ids in known}
            cut_last = cut_hypotheses == "last"
            order = sorted(scores, key=lambda ids: (cut_last and ids[-1] != EOS_ID, -scores[ids]))[:size]
            # In any order for those that float32 cannot distinguish.
            np.testing.assert_allclose(result.scores[row], [scores[ids] for ids in order], atol=1e-4)
            found = [tuple(ids[:n]) for ids, n in zip(result.ids[row], result.lengths[row], strict=True)]
            assert len(set(found)) == size
            for ids, log_probs, score in zip(found, result.log_probs[row], result.scores[row], strict=True):
                np.testing.assert_allclose(log_probs[: len(ids)], known[ids], atol=1e-4)
                np.testing.assert_allclose(score, scores[ids], atol=1e-4)

    check()


BIG = tiny(num_encoder_layers=1, num_decoder_layers=1, tie_output=False)


def big_sources():
    ids = np.random.default_rng(0).integers(4, 19, (8, 6)).astype(np.int32)
    ids[1, 3:] = ids[4, 1:] = ids[6] = PAD_ID
    return ids


@functools.cache
def outputs_of(seed, **fields):
    return beams(random_params(BIG, seed), BIG, big_sources(), max_extra_length=3, **fields)


@pytest.mark.slow
def test_a_beam_of_one_is_greedy_search():
    """With either stopping rule, where no output ends (seed 40), some do (79) and most do (100).

    With an alpha of 0 every penalty equals `none`, which as a name would select greedy search itself.
    """
    ended = []
    for seed in (40, 79, 100):
        greedy = outputs_of(seed)
        ended.append(greedy.finished.mean())
        for fields in ({"early_stop": "bound", "length_penalty": "gnmt"}, {"early_stop": "first"}):
            beam = outputs_of(seed, **{"length_penalty": "average", "length_penalty_alpha": 0.0, **fields})
            for name in ("ids", "lengths", "finished"):
                np.testing.assert_array_equal(getattr(beam, name), getattr(greedy, name))
            np.testing.assert_allclose(beam.log_probs, greedy.log_probs, atol=1e-5)
            exists = greedy.lengths > 0
            np.testing.assert_allclose(beam.scores[exists], greedy.scores[exists], atol=1e-4)
    assert ended[0] == 0 < ended[1] < ended[2]


# Decode settings for two models, about half of whose outputs end.
SEEDS = (46, 119)
RULES = [
    Rules("gnmt", "beam", "bound", 4),
    pytest.param(Rules("average", "candidates", "first", 4), marks=pytest.mark.slow),
    pytest.param(Rules("none", "candidates", "bound", 4), marks=pytest.mark.slow),
]
by_rules = pytest.mark.parametrize("rules", RULES)


def best_four(seed, rules):
    fields = {name: getattr(rules, name) for name in ("length_penalty", "end_among", "early_stop", "num_best")}
    alpha = 0.0 if rules.length_penalty == "none" else 0.8
    return outputs_of(seed, beam_size=4, length_penalty_alpha=alpha, **fields), alpha


@by_rules
def test_outputs_are_distinct_and_sorted_with_unfinished_ones_last(rules):
    ended = 0
    for seed in SEEDS:
        result, _ = best_four(seed, rules)
        lengths = (big_sources() > 0).sum(1) + 3
        for row in (0, 1, 2, 3, 4, 5, 7):
            finished, scores = result.finished[row], result.scores[row]
            assert np.isfinite(scores).all()
            assert len(set(map(tuple, result.ids[row]))) == 4
            for kind in (finished, ~finished):
                assert (np.diff(scores[kind]) <= 0).all()
            assert not (finished[1:] & ~finished[:-1]).any()
            np.testing.assert_array_equal(result.lengths[row], (result.ids[row] > 0).sum(-1))
            np.testing.assert_array_equal(finished, (result.ids[row] == EOS_ID).any(-1))
            assert (result.lengths[row][~finished] == lengths[row]).all()
        ended += (result.finished.any(1) & ~result.finished.all(1)).sum()
    assert ended > 3  # inputs with outputs of both kinds


@by_rules
def test_a_row_of_padding_has_no_output(rules):
    result, _ = best_four(SEEDS[0], rules)
    assert np.isneginf(result.scores[6]).all()
    assert not result.ids[6].any()
    assert not result.lengths[6].any()
    assert not result.log_probs[6].any()
    assert not result.finished[6].any()


@by_rules
def test_scores_are_the_model_s_log_probs_over_the_penalty(rules):
    for seed in SEEDS:
        result, alpha = best_four(seed, rules)
        expected = scores_of(result.log_probs, result.lengths, rules, alpha)
        np.testing.assert_allclose(result.scores[:6], expected[:6], rtol=1e-5)
        for rank in range(4):
            ids = result.ids[:, rank]
            known = teacher_forced(BIG, random_params(BIG, seed), big_sources(), ids)
            own = np.take_along_axis(known, ids[..., None], axis=-1)[..., 0]
            np.testing.assert_allclose(result.log_probs[:, rank], np.where(ids > 0, own, 0), atol=1e-4)


def test_an_output_ends_at_its_limit():
    cut, ended = (outputs_of(SEEDS[1], beam_size=4, num_best=4, at_limit=at_limit) for at_limit in ("cut", "end"))
    rows = [0, 1, 2, 3, 4, 5, 7]
    assert not cut.finished[rows].all()
    assert ended.finished[rows].all()
    assert (ended.lengths[rows] <= (big_sources()[rows] > 0).sum(1)[:, None] + 3).all()
    lasts = np.take_along_axis(ended.ids[rows], ended.lengths[rows][..., None] - 1, axis=-1)
    assert (lasts == EOS_ID).all()
