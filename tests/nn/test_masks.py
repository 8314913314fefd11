import jax.numpy as jnp
import numpy as np

from transformer_jax.nn.masks import AttentionMask, cache_mask, causal_mask, padding_mask, prefix_mask, segment_mask


def assert_mask(mask, rows):
    assert mask.dtype == bool
    np.testing.assert_array_equal(np.asarray(mask).astype(int), rows)


def test_padding_mask():
    mask = padding_mask(jnp.array([[1, 1, 0], [0, 0, 0], [1, 1, 1]], bool))
    assert mask.allowed.shape == (3, 1, 1, 3)
    assert_mask(mask.allowed[:, 0, 0], [[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    assert mask.kind == "lengths"
    assert mask.lengths.dtype == jnp.int32
    np.testing.assert_array_equal(mask.lengths, [2, 0, 3])


def test_causal_mask():
    mask = causal_mask(4)
    assert mask.allowed.shape == (1, 1, 4, 4)
    assert (mask.kind, mask.lengths) == ("causal", None)
    assert_mask(mask.allowed[0, 0], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])


def test_causal_mask_of_one_token():
    assert_mask(causal_mask(1).allowed, [[[[1]]]])


def test_prefix_mask():
    """Tokens of the prefix attend to each other in both directions; all others are causal."""
    mask = prefix_mask(jnp.array([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool))
    assert mask.allowed.shape == (4, 1, 4, 4)
    assert (mask.kind, mask.lengths) == ("any", None)
    causal = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert_mask(
        mask.allowed[:, 0],
        [
            [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]],
            causal,
            causal,
            [[1, 1, 1, 1]] * 4,
        ],
    )


def test_causal_and_padding_masks_combine_to_any():
    both = causal_mask(3) & padding_mask(jnp.array([[1, 1, 0], [1, 1, 1]], bool))
    assert isinstance(both, AttentionMask)
    assert (both.kind, both.lengths) == ("any", None)
    assert_mask(both.allowed[:, 0], [[[1, 0, 0], [1, 1, 0], [1, 1, 0]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]])


def test_segment_mask_within_a_packed_row():
    segments = jnp.array([[1, 1, 2, 0]])
    assert_mask(
        segment_mask(segments, segments).allowed[0, 0],
        [
            [1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 0],
            [0, 0, 0, 0],  # padding attends to nothing, not even to padding
        ],
    )


def test_segment_mask_across_two_sides():
    mask = segment_mask(jnp.array([[1, 2, 2], [0, 1, 3]]), jnp.array([[2, 1, 1, 0], [1, 3, 2, 0]]))
    assert mask.allowed.shape == (2, 1, 3, 4)
    assert mask.kind == "any"
    assert_mask(
        mask.allowed[:, 0],
        [
            [[0, 1, 1, 0], [1, 0, 0, 0], [1, 0, 0, 0]],
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]],
        ],
    )


def test_cache_mask_depends_on_positions_not_on_slots():
    # Two prompts of lengths 1 and 2 in slots 0 and 1, then a token each in slot 2, slot 3 still empty.
    keys = jnp.array([[0, -1, 1, -1], [0, 1, 2, -1]])
    mask = cache_mask(jnp.array([[1], [2]]), keys)
    assert mask.allowed.shape == (2, 1, 1, 4)
    assert mask.kind == "any"
    assert_mask(mask.allowed[:, 0, 0], [[1, 0, 1, 0], [1, 1, 1, 0]])


def test_cache_mask_of_a_prefill_is_causal():
    positions = jnp.array([[0, 1, 2], [0, -1, -1]])
    assert_mask(
        cache_mask(positions, positions).allowed[:, 0],
        [
            [[1, 0, 0], [1, 1, 0], [1, 1, 1]],
            [[1, 0, 0], [0, 0, 0], [0, 0, 0]],  # the padding of a short prompt neither attends nor is attended to
        ],
    )
