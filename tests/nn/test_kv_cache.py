import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny

from transformer_jax.nn.kv_cache import KeyValue, KVCache, append, empty_layer, grown


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_empty_layer(dtype):
    config = tiny(num_kv_heads=2, head_dim=6, value_head_dim=3, dtype=dtype)
    cache = empty_layer(config, batch=5, capacity=7)
    assert cache.key.shape == (10, 6, 7)
    assert cache.value.shape == (10, 7, 3)
    assert cache.capacity == 7
    assert cache.key.dtype == cache.value.dtype == jnp.dtype(dtype)
    assert not cache.key.any()
    assert not cache.value.any()


def test_append_writes_only_from_the_index_on():
    cache = empty_layer(tiny(value_head_dim=3), batch=2, capacity=5)
    new = KeyValue(jnp.full((2, 2, 4, 4), 7.0), jnp.full((2, 2, 4, 3), 8.0))
    result = append(cache, new, jnp.int32(1))
    np.testing.assert_array_equal(result.key[0, 0], [0, 7, 7, 0, 0])
    np.testing.assert_array_equal(result.value[7, :, 2], [0, 8, 8, 0, 0])
    assert not cache.key.any()  # the old cache is unchanged
    again = append(result, KeyValue(new.key[:, :1] + 1, new.value[:, :1] + 1), jnp.int32(3))
    np.testing.assert_array_equal(again.key[0, 0], [0, 7, 7, 8, 0])


def test_append_keeps_heads_and_widths_apart():
    config = tiny(num_kv_heads=2, head_dim=3, value_head_dim=5)
    random = np.random.default_rng(0)
    tokens = KeyValue(*(jnp.asarray(random.random((2, 4, 2, width)), jnp.float32) for width in (3, 5)))
    cache = append(empty_layer(config, 2, 4), tokens, jnp.int32(0))
    for row, slot, head in np.ndindex(2, 4, 2):
        np.testing.assert_array_equal(cache.key[2 * row + head, :, slot], tokens.key[row, slot, head])
        np.testing.assert_array_equal(cache.value[2 * row + head, slot], tokens.value[row, slot, head])


def filled(capacity):
    config = tiny(num_decoder_layers=2)
    ones = KeyValue(jnp.ones((3, 2, 4, 4)), jnp.ones((3, 2, 4, 4)))
    layers = tuple(append(empty_layer(config, 3, capacity), ones, jnp.int32(0)) for _ in range(2))
    positions = jnp.full((3, capacity), -1).at[:, :2].set(jnp.arange(2))
    return KVCache(layers, (), None, positions, jnp.int32(2))


def test_a_grown_cache_contains_the_same_tokens():
    larger, expected = grown(filled(5), 9), filled(9)
    assert larger.capacity == 9
    for ours, theirs in zip(larger.layers, expected.layers, strict=True):
        np.testing.assert_array_equal(ours.key, theirs.key)
        np.testing.assert_array_equal(ours.value, theirs.value)
    np.testing.assert_array_equal(larger.positions, expected.positions)
    assert larger.index == 2
