"""The k largest entries of a vocabulary equal those of `jax.lax.top_k`, with ties in the same order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.decoding.top_k import top_k

_ours = jax.jit(top_k, static_argnums=1)
_theirs = jax.jit(jax.lax.top_k, static_argnums=1)


def check(x, k):
    values, indices = _ours(jnp.asarray(x), k)
    expected_values, expected_indices = _theirs(jnp.asarray(x), k)
    np.testing.assert_array_equal(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)
    assert indices.dtype == jnp.int32


# Blocks are used where the vocabulary has more than 32 k entries: 33 is the first such size, 96 and 1024 are whole
# blocks.
SHAPES = [
    ((3,), 33, 1),
    ((3,), 96, 1),
    ((2, 2), 100, 3),
    ((), 1024, 4),
    ((4,), 1000, 31),
    ((3,), 64, 2),
    ((3,), 19, 19),
]
by_shape = pytest.mark.parametrize(("batch", "size", "k"), SHAPES)


@by_shape
def test_random_numbers(batch, size, k):
    check(np.random.default_rng(0).standard_normal((*batch, size)).astype(np.float32), k)


@by_shape
@pytest.mark.parametrize("values", [1, 2, 5])
def test_of_equal_numbers_the_first(batch, size, k, values):
    """With one value all are equal; with few, the k-th has ties in earlier blocks, its own and later ones."""
    check(np.random.default_rng(values).integers(0, values, (*batch, size)).astype(np.float32), k)


@by_shape
@pytest.mark.parametrize("left", [0, 1, 2])
def test_fewer_than_k_are_finite(batch, size, k, left):
    x = np.full((*batch, size), -np.inf, np.float32)
    x[..., np.random.default_rng(0).choice(size, left, replace=False)] = -1.5
    check(x, k)


def test_indices_never_lie_outside_the_vocabulary():
    """100 numbers are padded to 4 blocks of 32 with -inf, which also occurs among the numbers."""
    indices = top_k(jnp.full((2, 100), -jnp.inf), 3)[1]
    np.testing.assert_array_equal(indices, [[0, 1, 2]] * 2)


entries = st.lists(st.tuples(st.integers(0, 139), st.integers(-2, 2)), max_size=60)


@settings(max_examples=100, deadline=None)
@given(rows=st.tuples(entries, entries), k=st.sampled_from([1, 2, 4]))
def test_any_places_in_five_blocks(rows, k):
    x = np.full((2, 140), -np.inf, np.float32)
    for row, chosen in enumerate(rows):
        for place, value in chosen:
            x[row, place] = value
    check(x, k)


def test_low_precision():
    check(np.random.default_rng(0).integers(0, 9, (3, 200)).astype(np.float16), 3)
