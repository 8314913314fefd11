"""Greedy search over a step function given as a table, and draws from known distributions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from decoding_support import EOS_ID, PAD_ID, START, constraints, masked

from transformer_jax.decoding import sampling
from transformer_jax.decoding.hypotheses import Generated, start_hypotheses
from transformer_jax.decoding.sampling import Sampling, keep_min_p, keep_top_k, keep_top_p

A, B, C = 4, 5, 6
VOCAB_SIZE = 7


def scripted(table):
    """Return a step whose logits at call i, for row b and output w, are table[b, w, i]; the cache is its past input."""
    rows, width, steps, _ = table.shape
    table = jnp.asarray(table)

    def step(ids, positions, visible, cache):
        fed, at, calls = cache
        fed = jax.lax.dynamic_update_slice_in_dim(fed, ids[..., None], calls, axis=2)
        at = jax.lax.dynamic_update_slice_in_dim(at, positions[..., None], calls, axis=2)
        return jax.lax.dynamic_index_in_dim(table, calls, axis=2, keepdims=False), (fed, at, calls + 1)

    empty = jnp.full((rows, width, steps), -1, jnp.int32)
    return step, (empty, empty, jnp.int32(0))


def likeliest(script):
    """Return the table of one output per row whose most likely tokens are given."""
    return jax.nn.one_hot(np.array(script), VOCAB_SIZE)[:, None]


def begin(cache, last, max_lengths, limit, width=1):
    rows = len(max_lengths)
    hypotheses = start_hypotheses(
        cache,
        jnp.array(last, jnp.int32),
        jnp.ones(rows, jnp.int32),
        jnp.zeros((rows, width * limit), bool),
        0,
        width,
        limit,
    )
    return sampling.begin(hypotheses, jnp.asarray(max_lengths, jnp.int32))


@functools.partial(jax.jit, static_argnames=("limit", "top_k"))
def grown(table, max_lengths, limit, drawn, top_k, rules):
    step, cache = scripted(table)
    rows, width, _, vocab_size = table.shape
    state = begin(cache, [START] * rows, max_lengths, limit, width)
    if rules.repetition_penalty is not None:
        seen = jnp.zeros((rows, width, vocab_size), bool)
        state = state._replace(hypotheses=state.hypotheses._replace(seen=seen))
    drawn = None if drawn is None else drawn._replace(top_k=top_k)
    state = sampling.grow(step, state, rules, max_lengths, limit, drawn)
    return state, sampling.outputs(state)


def search(table, max_lengths, limit=None, drawn=None, rules=None):
    """Return the final state and the `masked` outputs."""
    limit, top_k = limit or table.shape[2], None
    if drawn is not None:
        drawn, top_k = drawn._replace(top_k=None), drawn.top_k
    rules = constraints(table.shape[3]) if rules is None else rules
    state, outputs = grown(table, np.int32(max_lengths), limit, drawn, top_k, rules)
    hypotheses = state.hypotheses._replace(cache=jax.device_get(state.hypotheses.cache))
    return state._replace(hypotheses=hypotheses), masked(outputs)


def best(*args, **kwargs):
    """Return the first output of every row."""
    return Generated(*(x[:, 0] for x in search(*args, **kwargs)[1]))


def test_rows_end_at_eos_or_at_their_limit():
    script = [
        [A, B, EOS_ID, C, C],
        [EOS_ID, C, C, C, C],
        [A, B, C, A, EOS_ID],
        [A, B, C, A, B],
        [A, B, C, A, B],
        [A, EOS_ID, C, C, C],
        [C, C, C, C, C],
    ]
    result = best(likeliest(script), [5, 5, 5, 5, 2, 2, 0])
    expected = [
        [A, B, EOS_ID, 0, 0],
        [EOS_ID, 0, 0, 0, 0],
        [A, B, C, A, EOS_ID],
        [A, B, C, A, B],
        [A, B, 0, 0, 0],
        [A, EOS_ID, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    np.testing.assert_array_equal(result.ids, expected)
    np.testing.assert_array_equal(result.lengths, [3, 1, 5, 5, 2, 2, 0])
    np.testing.assert_array_equal(result.finished, [True, True, True, False, False, True, False])
    assert result.ids.dtype == result.lengths.dtype == np.int32
    likely = 1 - np.log(np.e + VOCAB_SIZE - 1)
    np.testing.assert_allclose(result.log_probs, np.where(result.ids > 0, likely, 0), rtol=1e-6)


def test_a_row_of_padding_has_no_output():
    result = best(likeliest([[A, EOS_ID], [C, C]]), [2, 0])
    np.testing.assert_array_equal(np.isneginf(result.scores), [False, True])


def test_the_decoder_reads_the_start_id_and_then_its_own_output():
    step, cache = scripted(likeliest([[A, B, EOS_ID, C], [B, B, B, EOS_ID]]))
    max_lengths = jnp.array([4, 4], jnp.int32)
    state = sampling.grow(step, begin(cache, [START, C], [4, 4], 4), constraints(VOCAB_SIZE), max_lengths, 4)
    fed, positions, calls = state.hypotheses.cache
    assert calls == 4
    np.testing.assert_array_equal(fed[:, 0], [[START, A, B, EOS_ID], [C, B, B, B]])
    np.testing.assert_array_equal(positions[:, 0], [[0, 1, 2, 3]] * 2)


def test_every_output_attends_to_its_prompt_and_to_its_own_tokens():
    """Two outputs after three slots of prompts, one of which is padding in the second row."""

    def step(ids, positions, visible, cache):
        places, seen, calls = cache
        cache = places.at[calls].set(positions), seen.at[calls].set(visible), calls + 1
        return jnp.zeros((2, 2, VOCAB_SIZE)).at[..., A].set(1.0), cache

    prompt = jnp.array([[1, 1, 1], [1, 1, 0]], bool)
    cache = jnp.zeros((2, 2, 2), jnp.int32), jnp.zeros((2, 2, 2, 7), bool), 0
    visible = jnp.pad(prompt, ((0, 0), (0, 4)))
    hypotheses = start_hypotheses(cache, jnp.array([A, A], jnp.int32), jnp.array([4, 3], jnp.int32), visible, 3, 2, 2)
    max_lengths = jnp.array([2, 2], jnp.int32)
    state = sampling.grow(step, sampling.begin(hypotheses, max_lengths), constraints(VOCAB_SIZE), max_lengths, 2)
    places, seen, calls = state.hypotheses.cache
    assert calls == 2
    assert state.hypotheses.index == 7
    np.testing.assert_array_equal(places, [[[3, 3], [2, 2]], [[4, 4], [3, 3]]])
    for slots, own in zip(seen, ([[1, 0, 0, 0], [0, 1, 0, 0]], [[1, 0, 1, 0], [0, 1, 0, 1]]), strict=True):
        np.testing.assert_array_equal(slots[..., :3], np.repeat(np.asarray(prompt)[:, None], 2, axis=1))
        np.testing.assert_array_equal(slots[..., 3:], [own] * 2)


@pytest.mark.parametrize(("script", "max_lengths", "calls"), [([[A, EOS_ID, C, C]], [4], 2), ([[A] * 4], [3], 3)])
def test_no_step_is_made_after_all_rows_end(script, max_lengths, calls):
    assert search(likeliest(script), max_lengths)[0].hypotheses.cache[-1] == calls


def test_the_limit_is_the_width():
    np.testing.assert_array_equal(best(likeliest([[A] * 6]), [3], limit=3).ids, [[A, A, A]])


def test_the_search_continues_where_it_stopped():
    table = likeliest([[A, B, C, A, EOS_ID, C], [B, EOS_ID, C, C, C, C]])
    step, cache = scripted(table)
    max_lengths = jnp.array([6, 6], jnp.int32)
    go_on = jax.jit(lambda state, until: sampling.grow(step, state, constraints(VOCAB_SIZE), max_lengths, until))
    state = begin(cache, [START, START], [6, 6], 6)
    for until in (2, 3, 6):
        state = go_on(state, until)
        assert state.hypotheses.length == min(until, 5)
    np.testing.assert_array_equal(masked(sampling.outputs(state)).ids, search(table, [6, 6])[1].ids)


def test_padding_is_never_chosen():
    result = best(likeliest([[PAD_ID, A, PAD_ID]]), [3])
    assert result.lengths == [1]  # among the equally likely other tokens, eos is the first
    np.testing.assert_array_equal(result.ids, [[EOS_ID, 0, 0]])


def test_the_most_likely_token_is_chosen_even_if_all_are_unlikely():
    """The mask of padding must be below every finite logit."""
    table = np.full((1, 1, 2, VOCAB_SIZE), -3e38, np.float32)
    table[..., B], table[..., PAD_ID] = -2e38, 0.0
    np.testing.assert_array_equal(best(table, [2]).ids, [[B, B]])


def test_constraints_are_kept():
    script = [[A, EOS_ID, EOS_ID, C, C, C]] * 2
    rules = constraints(VOCAB_SIZE, prefix=(C, C), min_length=4, forbidden=(B,), force_end=True)
    table = np.array(likeliest(script))
    table[..., B] = 2.0  # the most likely, but forbidden
    table[..., A] += 0.5
    np.testing.assert_array_equal(best(table, [6, 5], rules=rules).ids, [[C, C, A, C, C, 1], [C, C, A, C, 1, 0]])


def test_a_repetition_penalty_makes_earlier_tokens_less_likely():
    logits = np.full(VOCAB_SIZE, -5.0, np.float32)
    logits[[A, B, C, EOS_ID]] = 2.0, 1.5, -0.1, -0.3
    table = np.broadcast_to(logits, (1, 1, 4, VOCAB_SIZE))
    np.testing.assert_array_equal(best(table, [4]).ids, [[A, A, A, A]])
    # A, seen, falls to 1; B to 0.75; then A is best again.
    rules = constraints(VOCAB_SIZE, repetition_penalty=2.0)
    np.testing.assert_array_equal(best(table, [4], rules=rules).ids, [[A, B, A, A]])
    # C, negative, falls to -0.4, below eos.
    rules = constraints(VOCAB_SIZE, forbidden=(A, B), repetition_penalty=4.0)
    np.testing.assert_array_equal(best(table, [4], rules=rules).ids, [[C, EOS_ID, 0, 0]])


# Published vectors of Hugging Face's tests/generation/test_logits_process.py: the tokens that are kept.
RAMP = np.arange(10.0)
FOLDED_RAMP = np.where(RAMP < 5, RAMP + 10, RAMP)
LOW_RAMP = RAMP - 5
PUBLISHED = [
    (keep_top_k, 3, RAMP, [7, 8, 9]),
    (keep_top_k, 3, FOLDED_RAMP, [2, 3, 4]),
    (keep_top_k, 1, np.full(5, 0.2), [0, 1, 2, 3, 4]),
    (keep_top_p, 0.8, np.log([0.3, 0.1, 0.1, 0.5]), [0, 3]),
    (keep_top_p, 0.8, np.log([0.15, 0.3, 0.3, 0.25]), [1, 2, 3]),
    (keep_top_p, 0.9, LOW_RAMP, [7, 8, 9]),
    (keep_top_p, 0.9, 100 * LOW_RAMP, [9]),
    (keep_min_p, 0.05, np.log([0.9, 0.0274, 0.047, 0.0274]), [0, 2]),
    (keep_min_p, 0.05, np.log([0.15, 0.3, 0.3, 0.25]), [0, 1, 2, 3]),
    (keep_min_p, 0.05, np.log([0.97, 0.01, 0.01, 0.01]), [0]),
    (keep_min_p, 0.9, 100 * LOW_RAMP, [9]),
]


@pytest.mark.parametrize(("cut", "value", "logits", "kept"), PUBLISHED)
def test_the_vectors_of_hugging_face(cut, value, logits, kept):
    logits = logits.astype(np.float32)
    result = np.asarray(cut(jnp.asarray(logits), value))
    np.testing.assert_array_equal(np.flatnonzero(np.isfinite(result)), kept)
    np.testing.assert_array_equal(result[kept], logits[kept])


def top_k_set(logits, k):
    return logits >= np.sort(logits)[::-1][min(k, len(logits)) - 1]


def top_p_set(logits, p):
    probs = scipy.special.softmax(logits)
    descending = np.sort(probs)[::-1]
    size = next(n for n in range(1, len(probs) + 1) if descending[:n].sum() >= p - 1e-6 or n == len(probs))
    return probs >= descending[size - 1]


def min_p_set(logits, min_p):
    return np.exp(logits - logits.max()) >= min_p


CUTS = {"top_k": (keep_top_k, top_k_set), "top_p": (keep_top_p, top_p_set), "min_p": (keep_min_p, min_p_set)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_k", k) for k in (1, 2, 7, 39, 40, 50)]
    + [("top_p", p) for p in (0.01, 0.3, 0.5, 0.9, 0.999)]
    + [("min_p", p) for p in (0.001, 0.1, 0.5, 1.0)],
)
def test_a_cut_keeps_the_set_of_its_definition(name, value):
    cut, kept_by = CUTS[name]
    rng = np.random.default_rng(0)
    # The second half has equal logits; some of the last quarter are already impossible.
    logits = rng.standard_normal((40, 40)).astype(np.float32) * np.linspace(0.1, 5, 40, dtype=np.float32)[:, None]
    logits[20:] = np.round(logits[20:])
    logits[30:][rng.random((10, 40)) < 0.4] = -np.inf
    result = np.asarray(jax.jit(cut, static_argnums=1)(logits.reshape(4, 10, 40), value)).reshape(40, 40)
    for row, cut_row in zip(logits.astype(np.float64), result, strict=True):
        expected = kept_by(row, value)
        np.testing.assert_array_equal(cut_row, np.where(expected, row, -np.inf).astype(np.float32))


def test_a_mass_reached_exactly_is_enough():
    """In thousandths, whose float32 sums round both ways."""
    rng, cut = np.random.default_rng(0), jax.jit(keep_top_p)
    for _ in range(10):
        thousandths = np.sort(np.diff(np.sort(1 + rng.choice(999, 7, replace=False)), prepend=0, append=1000))[::-1]
        logits = np.log(thousandths / 1000).astype(np.float32)
        for size in range(1, 8):
            if thousandths[size] < thousandths[size - 1]:
                p = np.float32(thousandths[:size].sum() / 1000)
                assert np.isfinite(cut(logits, p)).sum() == size


def test_ties_with_the_last_kept_token_are_kept():
    logits = jnp.array([2.0, 1.0, 1.0, 0.0, 1.0])
    np.testing.assert_array_equal(np.isfinite(keep_top_k(logits, 2)), [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(np.isfinite(keep_top_p(logits, 0.5)), [1, 1, 1, 0, 1])
    np.testing.assert_array_equal(np.isfinite(keep_min_p(jnp.array([2.0, 2.0, 1.0]), 1.0)), [1, 1, 0])


def shape(keys=None, temperature=1.0, top_k=None, top_p=None, min_p=None):
    return Sampling(keys, temperature, top_k, top_p, min_p)


def shaped_probs(logits, temperature=1.0, top_k=None, top_p=None, min_p=None):
    """The distribution to draw from, in float64: every cut applies to the result of the previous one."""
    logits = logits.astype(np.float64) / temperature
    for kept_by, value in ((top_k_set, top_k), (top_p_set, top_p), (min_p_set, min_p)):
        if value is not None:
            logits = np.where(kept_by(logits, value), logits, -np.inf)
    return scipy.special.softmax(logits)


# Masses .4 .3 .2 .06 .04: every pair of steps gives another result in the other order.
MASSES = np.log([0.4, 0.3, 0.2, 0.06, 0.04]).astype(np.float32)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"temperature": 3.0, "top_p": 0.65}, 3),  # .4 .3 alone reach the mass at temperature 1
        ({"temperature": 3.0, "min_p": 0.55}, 3),  # .4 .3 alone are within 0.55 of the first at temperature 1
        ({"top_k": 3, "top_p": 0.75}, 2),  # 7/9 of the three; top-p alone needs three
        ({"top_k": 2, "top_p": 0.5}, 1),
        ({"top_p": 0.75, "min_p": 0.2}, 3),  # two have 7/9 of the tokens that min-p keeps
    ],
)
def test_cuts_follow_temperature_and_each_other(fields, kept):
    result = np.asarray(jax.nn.softmax(sampling.shaped(jnp.asarray(MASSES), shape(**fields))))
    assert (result > 0).sum() == kept
    np.testing.assert_allclose(result, shaped_probs(MASSES, **fields), rtol=1e-5)


@functools.partial(jax.jit, static_argnames="top_k")
def drawn_at(logits, rows, seed, length, temperature, **cuts):
    keys = sampling.row_keys(seed, rows, logits.shape[1])
    return sampling.draw(logits, shape(keys, temperature, **cuts), length)


def draws(logits, seed=0, rows=100, width=100, length=0, temperature=1.0, **cuts):
    """Draw tokens [rows, width] from one distribution."""
    logits = jnp.broadcast_to(jnp.asarray(logits), (rows, width, len(logits)))
    return np.asarray(drawn_at(logits, jnp.arange(rows), seed, length, temperature, **cuts))


def check_counts(counts, probs):
    """Chi-square test at one in a thousand; impossible tokens never occur."""
    assert not counts[probs == 0].any()
    expected = probs[probs > 0] * counts.sum()
    assert expected.min() > 5
    assert scipy.stats.chisquare(counts[probs > 0], expected).pvalue > 1e-3


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 2.0},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_p": 0.15},
    ],
)
def test_ten_thousand_draws_have_the_distribution(fields):
    logits = np.random.default_rng(0).standard_normal(12).astype(np.float32)
    logits[5] = -np.inf
    counts = np.bincount(draws(logits, **fields).ravel(), minlength=12)
    check_counts(counts, shaped_probs(logits, **fields))


def test_draws_are_independent_of_their_neighbours():
    """They are independent of the next row, sample, position and seed."""
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    tokens = draws(np.log(probs).astype(np.float32))
    others = {
        "row": (tokens[1:], tokens[:-1]),
        "sample": (tokens[:, 1:], tokens[:, :-1]),
        "row and sample": (tokens, tokens.T),
        "place": (tokens, draws(np.log(probs).astype(np.float32), length=1)),
        "seed": (tokens, draws(np.log(probs).astype(np.float32), seed=1)),
    }
    for one, other in others.values():
        if one.shape == other.T.shape and (one == other.T).all():  # it is its own transpose and counts every pair twice
            upper = np.triu_indices(100, 1)
            one, other = one[upper], other[upper]
        pairs = np.bincount((4 * one + other).ravel(), minlength=16)
        check_counts(pairs, np.outer(probs, probs).ravel())


def test_a_draw_depends_only_on_seed_row_sample_and_position():
    rows = jnp.array([7, 3, 11], jnp.int32)

    def tokens(rows, width=4, seed=5, length=2):
        return np.asarray(drawn_at(jnp.zeros((len(rows), width, 50)), rows, seed, length, 1.0))

    together = tokens(rows)
    np.testing.assert_array_equal(tokens(rows[1:2]), together[1:2])
    np.testing.assert_array_equal(tokens(rows[::-1]), together[::-1])
    np.testing.assert_array_equal(tokens(rows, width=6)[:, :4], together)
    many = [together, tokens(rows, seed=6), tokens(rows, length=3), tokens(rows + 1)]
    for one in range(4):
        for other in range(one):
            assert (many[one] != many[other]).mean() > 0.7
    assert len(np.unique(together)) > 6


def test_samples_of_a_row_do_not_depend_on_other_rows():
    tables = np.random.default_rng(0).standard_normal((7, 6, VOCAB_SIZE)).astype(np.float32)
    ids, limits = np.array([20, 21, 22, 23, 30, 31, 32]), np.array([6, 4, 6, 5, 3, 6, 6])

    def samples(which):
        table = np.repeat(tables[which][:, None], 3, axis=1)
        keys = sampling.row_keys(1, jnp.asarray(ids[which], jnp.int32), 3)
        drawn = shape(keys, temperature=1.5, top_k=5, top_p=0.95, min_p=0.02)
        return search(table, limits[which], drawn=drawn)[1]

    together = samples([0, 1, 2, 3])
    assert len(set(map(tuple, together.ids.reshape(12, 6)))) >= 11
    for which in ([2, 0, 3, 1], [4, 5, 6, 1]):
        for ours, theirs in zip(samples(which), together, strict=True):
            own = [place for place, row in enumerate(which) if row < 4]
            np.testing.assert_array_equal(ours[own], theirs[[which[place] for place in own]])


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.05}])
def test_log_probs_are_the_models_before_temperature_and_cuts(fields):
    table = np.random.default_rng(1).standard_normal((5, 4, 6, VOCAB_SIZE)).astype(np.float32)
    limits = np.array([6, 3, 6, 1, 5])
    _, result = search(table, limits, drawn=shape(sampling.row_keys(3, jnp.arange(5), 4), **fields))
    known = scipy.special.log_softmax(table.astype(np.float64), axis=-1)
    expected = np.take_along_axis(known, result.ids[..., None], axis=-1)[..., 0] * (result.ids != PAD_ID)
    np.testing.assert_allclose(result.log_probs, expected, atol=1e-5)
    np.testing.assert_allclose(result.scores, result.log_probs.sum(-1), atol=1e-5)
    np.testing.assert_array_equal(result.lengths, (result.ids > 0).sum(-1))
    np.testing.assert_array_equal(result.finished, (result.ids == EOS_ID).any(-1))
    assert (result.lengths <= limits[:, None]).all()
    assert (result.finished | (result.lengths == limits[:, None])).all()
    assert 0 < result.finished.mean() < 1


def test_samples_keep_constraints():
    table = np.zeros((40, 2, 5, VOCAB_SIZE), np.float32)
    rules = constraints(VOCAB_SIZE, prefix=(C,), min_length=3, forbidden=(B,), force_end=True)
    drawn = shape(sampling.row_keys(0, jnp.arange(40), 2))
    ids = search(table, [5] * 40, drawn=drawn, rules=rules)[1].ids.reshape(80, 5)
    assert (ids[:, 0] == C).all()
    assert (ids[:, 1:3] > EOS_ID).all()
    assert not (ids == B).any()
    assert ((ids == EOS_ID).sum(1) == 1).all()
    assert set(ids[:, 3]) == {EOS_ID, 2, START, A, C}


def test_greedy_search_equals_sampling_with_top_k_1():
    table = np.random.default_rng(2).standard_normal((6, 1, 5, VOCAB_SIZE)).astype(np.float32)
    greedy = search(table, [5] * 6)[1]
    drawn = search(table, [5] * 6, drawn=shape(sampling.row_keys(0, jnp.arange(6), 1), top_k=1))[1]
    for ours, theirs in zip(drawn, greedy, strict=True):
        np.testing.assert_array_equal(ours, theirs)
