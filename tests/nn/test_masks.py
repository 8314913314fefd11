import jax.numpy as jnp
import numpy as np

from transformer_jax.nn.masks import cache_mask, causal_mask, padding_mask, segment_mask


def assert_mask(mask, rows):
    assert mask.dtype == bool
    np.testing.assert_array_equal(np.asarray(mask).astype(int), rows)


def test_padding_mask():
    mask = padding_mask(jnp.array([[5, 1, 0], [0, 0, 0], [7, 8, 1]]))
    assert mask.shape == (3, 1, 1, 3)
    assert_mask(mask[:, 0, 0], [[1, 1, 0], [0, 0, 0], [1, 1, 1]])


def test_causal_mask():
    mask = causal_mask(4)
    assert mask.shape == (1, 1, 4, 4)
    assert_mask(mask[0, 0], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])


def test_causal_mask_of_one_token():
    assert_mask(causal_mask(1), [[[[1]]]])


def test_segment_mask_within_a_packed_row():
    segments = jnp.array([[1, 1, 2, 0]])
    assert_mask(
        segment_mask(segments, segments)[0, 0],
        [
            [1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 0],  # padding attends to nothing, not even to padding
        ],
    )


def test_segment_mask_across_two_sides():
    mask = segment_mask(jnp.array([[1, 2, 2], [0, 1, 3]]), jnp.array([[2, 1, 1, 0], [1, 3, 2, 0]]))
    assert mask.shape == (2, 1, 3, 4)
    assert_mask(
        mask[:, 0],
        [
            [[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]],
        ],
    )


def test_cache_mask_goes_by_position_not_by_slot():
    # Two prompts of lengths 1 and 2 in slots 0 and 1, then a token each in slot 2, slot 3 still empty.
    keys = jnp.array([[0, -1, 1, -1], [0, 1, 2, -1]])
    mask = cache_mask(jnp.array([[1], [2]]), keys)
    assert mask.shape == (2, 1, 1, 4)
    assert_mask(mask[:, 0, 0], [[1, 0, 1, 0], [1, 1, 1, 0]])


def test_cache_mask_of_a_prefill_is_causal():
    positions = jnp.array([[0, 1, 2], [0, -1, -1]])
    assert_mask(
        cache_mask(positions, positions)[:, 0],
        [
            [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
            [[1, 0, 0], [0, 0, 0], [0, 0, 0]],  # the padding of a short prompt neither reads nor is read
        ],
    )
