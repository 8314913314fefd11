import jax.numpy as jnp
import numpy as np
import pytest
from support import tiny

from transformer_jax.nn.attention import LayerCache
from transformer_jax.nn.kv_cache import KVCache, append, empty_layer


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_empty_layer(dtype):
    config = tiny(num_kv_heads=2, head_dim=6, value_head_dim=3, dtype=dtype)
    cache = empty_layer(config, batch=5, capacity=7)
    assert cache.key.shape == (5, 7, 2, 6)
    assert cache.value.shape == (5, 7, 2, 3)
    assert cache.key.dtype == cache.value.dtype == jnp.dtype(dtype)
    assert not cache.key.any()
    assert not cache.value.any()


def test_append_writes_from_the_index_on_and_nowhere_else():
    cache = empty_layer(tiny(value_head_dim=3), batch=2, capacity=5)
    new = LayerCache(jnp.full((2, 2, 4, 4), 7.0), jnp.full((2, 2, 4, 3), 8.0))
    result = append(cache, new, jnp.int32(1))
    np.testing.assert_array_equal(result.key[0, :, 0, 0], [0, 7, 7, 0, 0])
    np.testing.assert_array_equal(result.value[1, :, 3, 2], [0, 8, 8, 0, 0])
    assert not cache.key.any()  # the old one is as it was
    again = append(result, LayerCache(new.key[:, :1] + 1, new.value[:, :1] + 1), jnp.int32(3))
    np.testing.assert_array_equal(again.key[0, :, 0, 0], [0, 7, 7, 8, 0])


def test_capacity():
    cache = KVCache((), (), None, jnp.full((2, 9), -1), jnp.int32(0))
    assert cache.capacity == 9
