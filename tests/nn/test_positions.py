import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, forward, make_batch, random_params, tiny

from transformer_jax.errors import DataError
from transformer_jax.nn.positions import (
    ENCODINGS,
    LearnedPositions,
    LinearBias,
    RelativeBias,
    alibi_slopes,
    bucket_starts,
    relative_buckets,
    rotary,
    rotated,
    sinusoidal,
)

RNG = np.random.default_rng(0)


def test_sinusoids_at_position_1_are_interleaved():
    """The paper's layout; other codebases put all sines first, or divide by dim / 2 - 1."""
    expected = [0.8415, 0.5403, 0.0998, 0.9950, 0.0100, 1, 0.0010, 1]
    np.testing.assert_allclose(sinusoidal(jnp.array([1]), 8)[0], expected, rtol=0, atol=5.1e-5)


def test_sinusoids_equal_their_definition():
    positions = np.array([[0, 1, 2, 3, 50, 511], [7, 7, 0, 100, 2, 1]])
    actual = sinusoidal(jnp.asarray(positions), 16)
    assert actual.dtype == jnp.float32
    # Position 511 has an angle of up to 511 radians, which float32 rounds by 3e-5.
    assert_close(actual, reference.sinusoids(positions, 16), 1e-4)
    assert_close(actual[:, :4], reference.sinusoids(positions[:, :4], 16), 1e-6 * 8)


def test_sinusoids_take_positions_of_any_rank():
    assert sinusoidal(jnp.array(3), 6).shape == (6,)
    assert sinusoidal(jnp.zeros((2, 3, 4), jnp.int32), 6).shape == (2, 3, 4, 6)


@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_rotary_is_complex_multiplication(base):
    x = RNG.normal(size=(2, 5, 3, 8)).astype(np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [9, 0, 3, 1, 100]])
    assert_close(rotary(jnp.asarray(x), jnp.asarray(positions), base), reference.rotated(x, positions, base), 2e-5)


def test_rotary_literal():
    """Position 2, one pair: rotated by 2 radians, from (1, 0) to (cos 2, sin 2)."""
    y = rotary(jnp.array([[[[1.0, 0.0]]]]), jnp.array([[2]]), 10_000.0)
    assert_close(y[0, 0, 0], [math.cos(2), math.sin(2)], 1e-6)


def test_rotary_keeps_the_norm_and_position_0():
    x = jnp.asarray(RNG.normal(size=(1, 6, 2, 8)), jnp.float32)
    y = rotary(x, jnp.arange(6)[None], 10_000.0)
    assert_close(jnp.square(y).sum(-1), jnp.square(x).sum(-1), 1e-6)
    np.testing.assert_array_equal(y[:, 0], x[:, 0])
    assert np.abs(y[:, 1:] - x[:, 1:]).max() > 0.5


def test_rotary_products_depend_only_on_the_distance():
    query, key = jnp.asarray(RNG.normal(size=(2, 1, 1, 1, 8)), jnp.float32)

    def product(query_position, key_position):
        turned = rotary(query, jnp.array([[query_position]]), 100.0), rotary(key, jnp.array([[key_position]]), 100.0)
        return float((turned[0] * turned[1]).sum())

    assert product(5, 3) == pytest.approx(product(42, 40), abs=1e-5)
    assert product(3, 5) == pytest.approx(product(40, 42), abs=1e-5)
    assert abs(product(5, 3) - product(5, 2)) > 1e-3
    assert abs(product(5, 3) - product(3, 5)) > 1e-3


def test_rotary_keeps_the_type_and_computes_in_float32():
    x = jnp.asarray(RNG.normal(size=(1, 4, 2, 8)), jnp.bfloat16)
    positions = jnp.array([[250, 251, 252, 253]])  # bfloat16 cannot tell 251 from 252
    y = rotary(x, positions, 10_000.0)
    assert y.dtype == jnp.bfloat16
    assert_close(y, reference.rotated(np.asarray(x, np.float64), np.asarray(positions), 10_000.0), 2**-8)


@pytest.mark.parametrize(
    ("bidirectional", "num_buckets", "max_distance"),
    [(True, 32, 128), (False, 32, 128), (True, 8, 20), (False, 8, 20), (True, 64, 1024), (False, 6, 7), (True, 4, 3)],
)
def test_buckets_equal_the_rule_in_float64(bidirectional, num_buckets, max_distance):
    distances = np.arange(-2 * max_distance - 50, 2 * max_distance + 51)
    expected = [reference.bucket(int(d), bidirectional, num_buckets, max_distance) for d in distances]
    # A key after the query is at least one away, so the upper half's bucket for distance 0 stays empty, as in T5.
    assert set(expected) == set(range(num_buckets)) - ({num_buckets // 2} if bidirectional else set())
    compute = jax.jit(relative_buckets, static_argnums=(1, 2, 3))
    actual = compute(jnp.asarray(distances), bidirectional, num_buckets, max_distance)
    np.testing.assert_array_equal(actual, expected)


def test_buckets_of_t5_by_hand():
    """32 buckets up to distance 128, the published setting: 8 exact distances per side, then factors of sqrt(2)."""
    both = {0: 0, -1: 1, -7: 7, -8: 8, -11: 8, -12: 9, -15: 9, -16: 10, -64: 14, -91: 15, -128: 15, -9999: 15}
    both |= {1: 17, 7: 23, 8: 24, 16: 26, 128: 31, 9999: 31}
    causal = {0: 0, 1: 0, 9999: 0, -1: 1, -15: 15, -16: 16, -18: 16, -19: 17, -113: 31, -128: 31, -9999: 31}
    for table, bidirectional in ((both, True), (causal, False)):
        actual = relative_buckets(jnp.array(list(table)), bidirectional, 32, 128)
        assert dict(zip(table, actual.tolist(), strict=True)) == table


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "distance", "bidirectional", "expected"),
    [
        # of transformers 5.23, on a CPU
        (8, 200, 20, True, [7, 3]),
        (6, 100, 10, True, [5, 2]),
        (4, 200, 20, False, [0, 3]),
        (10, 54, 18, True, [9, 4]),
        (10, 54, 17, True, [8, 3]),
        (28, 896, 224, True, [26, 12]),
        (36, 648, 108, False, [0, 27]),
        (54, 468, 78, True, [47, 20]),
    ],
)
def test_a_distance_where_a_bucket_begins(num_buckets, max_distance, distance, bidirectional, expected):
    """There the logarithms are equal, and those of float32 were rounded below the bucket."""
    actual = relative_buckets(jnp.array([distance, -distance]), bidirectional, num_buckets, max_distance)
    assert actual.tolist() == expected


def test_buckets_begin_at_the_integers_of_their_definition():
    for num_buckets, max_distance in itertools.product(range(2, 65, 3), [33, 50, 81, 128, 200, 576, 889, 1024]):
        exact = num_buckets // 2
        n, distances = num_buckets - exact, range(max_distance + 1)
        powers = [max_distance**k * exact ** (n - k) for k in range(n)]
        expected = [next(d for d in distances if d**n >= power) for power in powers]
        assert bucket_starts(num_buckets, max_distance) == (*range(exact), *expected)


def test_buckets_of_any_size_are_quick():
    assert bucket_starts(4, 10**30) == (0, 1, 2, 2**31 - 1)
    assert len(bucket_starts(20_000, 10**6)) == 20_000


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_looks_up_its_table(bidirectional):
    config = tiny(position_encoding="relative", relative_num_buckets=8, relative_max_distance=20)
    table = jnp.asarray(RNG.normal(size=(8, 4)), jnp.float32)
    queries, keys = np.array([[3, 4], [0, 30]]), np.array([[0, 1, 9], [2, 3, 4]])
    bias = RelativeBias(config, bidirectional).apply(
        {"params": {"embedding": table}}, jnp.asarray(queries), jnp.asarray(keys)
    )
    assert bias.shape == (2, 4, 2, 3)
    assert bias.dtype == jnp.float32
    for b, n, t, s in np.ndindex(2, 4, 2, 3):
        assert bias[b, n, t, s] == table[reference.bucket(int(keys[b, s] - queries[b, t]), bidirectional, 8, 20), n]


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (8, [0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (1, [0.00390625]),
        (3, [0.0625, 0.00390625, 0.25]),
        (12, [2.0**-h for h in range(1, 9)] + [2.0 ** (-h / 2) for h in (1, 3, 5, 7)]),
    ],
)
def test_slopes_of_linear_biases(heads, expected):
    assert list(alibi_slopes(heads)) == expected


def test_linear_biases_count_the_distance_on_both_sides():
    config = tiny(num_heads=2, position_encoding="alibi")
    queries, keys = jnp.array([[3, 4]]), jnp.array([[0, 4, 9]])
    bias = LinearBias(config, True).apply({}, queries, keys)
    distances = np.array([[3, 1, 6], [4, 0, 5]])
    np.testing.assert_array_equal(bias[0], [-distances / 16, -distances / 256])
    np.testing.assert_array_equal(bias, LinearBias(config, True).apply({}, queries + 1000, keys + 1000))


def test_partial_rotation_turns_the_first_dimensions_with_rates_of_their_number():
    """The numbers are those of a head of 4 at position 1, interleaved."""
    x = jnp.arange(1.0, 9.0).reshape(1, 1, 1, 8)
    y = rotated(rotary, x, jnp.array([[1]]), 10_000.0, 4)[0, 0, 0]
    assert_close(y[:4], [-1.14264, 1.922076, 2.959851, 4.0298], 1e-5)
    np.testing.assert_array_equal(y[4:], x[0, 0, 0, 4:])
    assert rotated(rotary, x, jnp.array([[1]]), 10_000.0, 0) is x
    np.testing.assert_array_equal(
        rotated(rotary, x, jnp.array([[1]]), 10_000.0, 8), rotary(x, jnp.array([[1]]), 10_000.0)
    )


def test_learned_positions_are_rows_of_the_table():
    config = tiny(position_encoding="learned")
    table = jnp.asarray(RNG.normal(size=(12, 16)), jnp.float32)
    positions = jnp.array([[0, 11, 3], [5, 5, 1]])
    rows = LearnedPositions(config).apply({"params": {"embedding": table}}, positions)
    np.testing.assert_array_equal(rows, table[np.asarray(positions)])


def test_the_config_knows_which_encodings_have_a_table():
    for name, encoding in ENCODINGS.items():
        assert tiny(position_encoding=name).has_position_table == encoding.has_table


def test_a_learned_table_that_is_too_short_is_an_error():
    config = tiny(position_encoding="learned", max_length=4)
    params = random_params(config)
    assert forward(config, params, make_batch(2, 4, 4)).shape == (2, 4, 19)
    for sides in ((5, 4), (4, 5)):
        with pytest.raises(DataError, match=r"5 positions.*model\.max_length=4"):
            forward(config, params, make_batch(2, *sides))
