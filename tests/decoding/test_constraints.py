"""The tokens that may come next, against the rules written out in plain Python, and the repetition penalty."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from decoding_support import ENDS, EOS_ID, PAD_ID, constraints, ends_of_ngrams

from transformer_jax.decoding.constraints import allowed, penalise_repetition, propose, repeating
from transformer_jax.decoding.hypotheses import extend, runs_of_prompts, start_hypotheses
from transformer_jax.decoding.settings import Ends

VOCAB_SIZE = 8
LIMITS = (0, 1, 2, 3, 5)  # of every row


def tokens_at(length, **rules):
    """Return the tokens that `allowed` permits at position `length`, a list per row of LIMITS."""
    table = np.asarray(allowed(constraints(VOCAB_SIZE, **rules), jnp.int32(length), jnp.array(LIMITS, jnp.int32)))
    assert table.dtype == bool
    assert table.shape == (len(LIMITS), VOCAB_SIZE)
    return [np.flatnonzero(row).tolist() for row in table]


def expected_at(length, limit, forbidden=(), prefix=(), min_length=0, force_end=False, ends=ENDS):
    if length < len(prefix):
        return [prefix[length]]
    if force_end and length + 1 >= limit:
        return [ends.end_id]
    free = [token for token in range(VOCAB_SIZE) if token not in (*ends.never, *forbidden)]
    return [token for token in free if token != ends.end_id or length >= min_length]


def test_padding_never_comes():
    assert tokens_at(0) == [[1, 2, 3, 4, 5, 6, 7]] * 5
    assert tokens_at(0, ends=Ends(EOS_ID, ())) == [[PAD_ID, 1, 2, 3, 4, 5, 6, 7]] * 5


def test_nothing_ends_an_output_without_an_end():
    for length in range(6):
        assert tokens_at(length, min_length=3, ends=Ends(None, ())) == [[0, 1, 2, 3, 4, 5, 6, 7]] * 5


def test_forbidden_tokens_never_come():
    for length in range(6):
        assert tokens_at(length, forbidden=(2, 7)) == [[1, 3, 4, 5, 6]] * 5


def test_the_end_comes_after_min_length_tokens_at_the_earliest():
    for length in range(6):
        for tokens in tokens_at(length, min_length=3):
            assert (EOS_ID in tokens) == (length >= 3)
            assert tokens[-6:] == [2, 3, 4, 5, 6, 7]


def test_a_prefix_comes_first_and_leaves_the_rest_free():
    assert [tokens_at(length, prefix=(6, 2, 6))[0] for length in range(4)] == [[6], [2], [6], [1, 2, 3, 4, 5, 6, 7]]


def test_every_row_ends_at_its_own_limit():
    free, end = [1, 2, 3, 4, 5, 6, 7], [EOS_ID]
    assert tokens_at(1, force_end=True) == [end, end, end, free, free]
    assert tokens_at(4, force_end=True) == [end] * 5
    assert tokens_at(4, force_end=False) == [free] * 5


def test_a_forced_end_wins_over_min_length_and_over_its_being_forbidden():
    assert tokens_at(2, force_end=True, min_length=9, forbidden=(EOS_ID,))[3:] == [[EOS_ID], [2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("rules", [{"forbidden": (5,)}, {"min_length": 4, "forbidden": (EOS_ID,)}, {"force_end": True}])
def test_a_prefix_wins_over(rules):
    for length, token in enumerate((5, EOS_ID, 5)):
        assert tokens_at(length, prefix=(5, EOS_ID, 5), **rules) == [[token]] * 5


@pytest.mark.parametrize("ends", [ENDS, Ends(0, (7,))])
def test_all_rules_together(ends):
    choices = itertools.product([(), (1,), (4, 6)], [(), (3,), (6, 1)], [0, 1, 3], [False, True])
    for forbidden, prefix, min_length, force_end in choices:
        rules = {"forbidden": forbidden, "prefix": prefix, "min_length": min_length, "force_end": force_end}
        rules["ends"] = ends
        for length in range(5):
            assert tokens_at(length, **rules) == [expected_at(length, limit, **rules) for limit in LIMITS], rules


def test_positive_logits_of_seen_tokens_are_divided_and_negative_ones_multiplied():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 3, 11)).astype(np.float32)
    logits[0, 0, :2] = 0.0, -np.inf
    seen = rng.random(logits.shape) < 0.5
    seen[0, 0, :2] = True
    for penalty in (1.0, 1.3, 0.8):
        expected = logits.copy()
        for at in np.argwhere(seen):
            x = logits[tuple(at)]
            expected[tuple(at)] = x / penalty if x > 0 else x * penalty
        result = penalise_repetition(jnp.asarray(logits), jnp.asarray(seen), penalty)
        np.testing.assert_allclose(result, expected, rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(result)[~seen], logits[~seen])


def test_the_vectors_of_hugging_face():
    """test_repetition_penalty_dist_process of tests/generation/test_logits_process.py.

    Penalty 2 over ten logits of 0.1, except -0.1 and 0.4.
    """
    logits = np.full((2, 10), 0.1, np.float32)
    logits[0, 0], logits[1, 5] = -0.1, 0.4
    seen = np.zeros((2, 10), bool)
    seen[0, [0, 1]] = seen[1, [5, 0]] = True
    expected = logits.copy()
    expected[0, [0, 1]] = -0.2, 0.05
    expected[1, [0, 5]] = 0.05, 0.2
    np.testing.assert_allclose(penalise_repetition(jnp.asarray(logits), jnp.asarray(seen), 2.0), expected, rtol=1e-6)


def hypotheses_of(prompts, width, limit):
    """Return hypotheses with repetitions, after prompts of any lengths."""
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    padded = np.zeros((len(prompts), lengths.max()), np.int32)
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    last = jnp.asarray(padded[np.arange(len(prompts)), lengths - 1])
    empty = jnp.zeros((len(prompts), 1), bool)
    hypotheses = start_hypotheses((), last, jnp.asarray(lengths), empty, 0, width, limit)
    return hypotheses._replace(runs=runs_of_prompts(jnp.asarray(padded), jnp.asarray(lengths), width, limit))


@pytest.mark.parametrize("size", [1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 5))])
def test_repeating_tokens_equal_a_loop_over_ngrams(size):
    """Prompts of several lengths in which tokens are padding ids too; hypotheses that are reordered."""
    rng, prompts, width, limit = np.random.default_rng(size), ((2, 0, 0), (1,), (0, 1, 0, 1, 0, 0)), 2, 14
    hypotheses = hypotheses_of(prompts, width, limit)
    texts = [[list(prompt) for _ in range(width)] for prompt in prompts]
    many = 0
    for _ in range(limit):
        found = np.asarray(repeating(hypotheses.runs, size, 3))
        for row, hypothesis in itertools.product(range(3), range(width)):
            expected = ends_of_ngrams(texts[row][hypothesis], size)
            assert set(np.flatnonzero(found[row, hypothesis])) == expected
            many += len(expected)
        tokens, parents = rng.integers(0, 2 if size > 3 else 3, (3, width)), rng.integers(0, width, (3, width))
        texts = [[[*texts[r][parents[r, w]], tokens[r, w]] for w in range(width)] for r in range(3)]
        hypotheses = extend(
            hypotheses, jnp.asarray(tokens, jnp.int32), jnp.zeros((3, width)), jnp.asarray(parents, jnp.int32)
        )
    assert many > 10


def test_the_vectors_of_hugging_face_for_ngrams():
    """test_no_repeat_ngram_dist_processor of tests/generation/test_logits_process.py."""
    runs = hypotheses_of(((1, 1, 2, 1), (0, 1, 0, 1)), 1, 1).runs
    for size, expected in ((2, [[0, 1, 1], [1, 0, 0]]), (3, [[0, 0, 0], [1, 0, 0]])):
        np.testing.assert_array_equal(repeating(runs, size, 3)[:, 0], np.array(expected, bool))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({}, [2, 3]),
        ({"prefix": (4,)}, [4]),  # although it repeats
        ({"force_end": True}, [EOS_ID]),
        ({"forbidden": (2, 3), "min_length": 1}, [4]),  # otherwise no token would be left
    ],
)
def test_rules_before_that_of_ngrams(rules, expected):
    """After 4, 1, 4 no token may occur again."""

    def step(ids, positions, visible, cache):
        return jnp.zeros((1, 1, 5)), cache

    rules = constraints(5, no_repeat_ngram=1, **rules)
    hypotheses = hypotheses_of(((4, 1, 4),), 1, 1)
    allowed_tokens = propose(step, hypotheses, rules, jnp.array([1])).allowed[0, 0]
    assert np.flatnonzero(allowed_tokens).tolist() == expected
