"""Greedy search over a step function that is written down as a table."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import EOS_ID, PAD_ID
from transformer_jax.decoding.greedy import greedy

START, A, B, C = 3, 4, 5, 6
VOCAB_SIZE = 7


def scripted(script):
    """A step whose likeliest token for row r at position i is script[r][i]; the cache is what it has been fed."""
    table = jax.nn.one_hot(np.array(script), VOCAB_SIZE)

    def step(ids, positions, cache):
        fed, at, calls = cache
        fed = jax.lax.dynamic_update_slice_in_dim(fed, ids, calls, axis=1)
        at = jax.lax.dynamic_update_slice_in_dim(at, positions, calls, axis=1)
        return jax.lax.dynamic_slice_in_dim(table, calls, 1, axis=1), (fed, at, calls + 1)

    empty = jnp.full(np.shape(script), -1, jnp.int32)
    return step, (empty, empty, jnp.int32(0))


def search(script, max_lengths, limit=None):
    step, cache = scripted(script)
    rows, width = np.shape(script)
    start = jnp.full(rows, START, jnp.int32)
    return jax.tree.map(np.asarray, greedy(step, cache, start, jnp.array(max_lengths, jnp.int32), limit or width))


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
    result = search(script, [5, 5, 5, 5, 2, 2, 0])
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


def test_the_decoder_reads_the_start_id_and_then_its_own_output():
    script = [[A, B, EOS_ID, C], [B, B, B, EOS_ID]]
    step, cache = scripted(script)
    carried = []

    def watched(ids, positions, cache):
        logits, cache = step(ids, positions, cache)
        jax.debug.callback(lambda *values: carried.append(jax.tree.map(np.asarray, values)), *cache)
        return logits, cache

    start = jnp.array([START, C], jnp.int32)  # one id per row
    greedy(watched, cache, start, jnp.array([4, 4], jnp.int32), 4)
    jax.effects_barrier()
    fed, positions, calls = max(carried, key=lambda values: values[2])
    assert calls == 4
    np.testing.assert_array_equal(fed, [[START, A, B, EOS_ID], [C, B, B, B]])
    np.testing.assert_array_equal(positions, [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize(("script", "max_lengths", "calls"), [([[A, EOS_ID, C, C]], [4], 2), ([[A] * 4], [3], 3)])
def test_no_step_is_made_once_all_rows_are_done(script, max_lengths, calls):
    step, cache = scripted(script)
    count = []

    def watched(ids, positions, cache):
        jax.debug.callback(lambda: count.append(1))
        return step(ids, positions, cache)

    greedy(watched, cache, jnp.array([START], jnp.int32), jnp.array(max_lengths, jnp.int32), 4)
    jax.effects_barrier()
    assert len(count) == calls


def test_the_limit_is_the_width():
    result = search([[A] * 6], [3], limit=3)
    np.testing.assert_array_equal(result.ids, [[A, A, A]])


def test_padding_is_never_chosen():
    result = search([[PAD_ID, A, PAD_ID]], [3])
    assert result.lengths == [1]  # of all other tokens, which are equally likely, eos is the first
    np.testing.assert_array_equal(result.ids, [[EOS_ID, 0, 0]])


def test_the_likeliest_token_is_chosen_even_where_all_are_unlikely():
    """The mask of padding is no finite number that a logit could be below."""

    def step(ids, positions, cache):
        logits = jnp.full((1, 1, VOCAB_SIZE), -3e38).at[0, 0, B].set(-2e38).at[0, 0, PAD_ID].set(0.0)
        return logits, cache

    ids = greedy(step, (), jnp.array([START], jnp.int32), jnp.array([2], jnp.int32), 2).ids
    np.testing.assert_array_equal(ids, [[B, B]])


def test_low_precision_logits():
    def step(ids, positions, cache):
        return jax.nn.one_hot(jnp.array([[C]]), VOCAB_SIZE, dtype=jnp.bfloat16), cache

    ids = greedy(step, (), jnp.array([START], jnp.int32), jnp.array([2], jnp.int32), 2).ids
    np.testing.assert_array_equal(ids, [[C, C]])
