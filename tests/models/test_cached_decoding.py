"""Decoding with a cache equals the full forward pass, whatever the options and however the tokens are fed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, covering_params, forward, make_batch, random_params, tiny

from transformer_jax.errors import ConfigError
from transformer_jax.models.encoder_decoder import decode, shift_right, start_cache, unstack_layers

ROWS, LENGTH, CAPACITY = 3, 6, 9


@functools.partial(jax.jit, static_argnames=("config", "capacity"))
def start(config, params, layers, inputs, capacity=CAPACITY):
    return start_cache(config, params, layers, inputs, capacity)


step = jax.jit(decode, static_argnums=0)


def full(config, params):
    """A batch with padded sources and whole targets, what the decoder reads, and its logits."""
    batch = make_batch(ROWS, 7, LENGTH)
    batch["inputs"] = batch["inputs"].at[1, 4:].set(0).at[2, 1:].set(0)
    return batch["inputs"], shift_right(batch["targets"], config.decoder_start_id), forward(config, params, batch)[0]


def feed(config, params, cache, ids, positions, sizes):
    """Logits of all ids, fed in parts of these sizes."""
    layers, logits, at = unstack_layers(params), [], 0
    for size in sizes:
        part = slice(at, at + size)
        y, cache = step(config, params, layers, cache, ids[:, part], positions[:, part])
        logits.append(y)
        at += size
    return jnp.concatenate(logits, axis=1), cache


@pytest.mark.parametrize("fields", covering_params())
def test_cached_decoding_equals_the_full_forward(fields):
    config = tiny(**fields)
    params = random_params(config)
    inputs, ids, expected = full(config, params)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
    empty = start(config, params, unstack_layers(params), inputs)
    for sizes in ([1] * LENGTH, [3, 3]):  # token by token, and a prefill of a prompt and of more text behind it
        logits, _ = feed(config, params, empty, ids, positions, sizes)
        assert_close(logits, expected)

    # Prompts of 1, 3 and 2 tokens in one prefill, padded on the right, on the left and on both sides of nothing.
    prompts = [[0, -1, -1], [0, 1, 2], [-1, 0, 1]]
    continuations = [[1, 2, 3], [3, 4, 5], [2, 3, 4]]
    positions = jnp.array([p + c for p, c in zip(prompts, continuations, strict=True)])
    logits, cache = feed(
        config, params, empty, jnp.take_along_axis(ids, jnp.maximum(positions, 0), axis=1), positions, [3, 1, 1, 1]
    )
    for row in range(ROWS):
        fed = np.flatnonzero(np.asarray(positions[row]) >= 0)
        assert_close(logits[row, fed], expected[row, np.asarray(positions[row])[fed]])
    np.testing.assert_array_equal(cache.positions[:, :6], positions)


def test_bfloat16_decodes_close_to_its_full_forward():
    config = tiny(dtype="bfloat16", position_encoding="rotary", norm_position="pre")
    params = random_params(config)
    inputs, ids, expected = full(config, params)
    empty = start(config, params, unstack_layers(params), inputs)
    for leaf in jax.tree.leaves((empty.self_attention, empty.cross_attention)):
        assert leaf.dtype == jnp.bfloat16
    logits, _ = feed(config, params, empty, ids, jnp.broadcast_to(jnp.arange(LENGTH), ids.shape), [3, 3])
    assert logits.dtype == jnp.float32
    assert_close(logits, expected, 0.05)


def test_the_cache_goes_in_and_comes_out():
    config = tiny(position_encoding="relative")
    params = random_params(config)
    layers = unstack_layers(params)
    inputs, ids, _ = full(config, params)
    empty = start(config, params, layers, inputs)
    assert empty.capacity == CAPACITY
    assert (empty.positions == -1).all()
    assert empty.index == 0
    assert len(empty.self_attention) == len(empty.cross_attention) == config.num_decoder_layers
    np.testing.assert_array_equal(empty.cross_mask[:, 0, 0], np.asarray(inputs) != 0)
    _, once = step(config, params, layers, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))
    again, _ = step(config, params, layers, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))
    assert once.index == 1
    np.testing.assert_array_equal(once.positions[0], [0, *[-1] * (CAPACITY - 1)])
    assert jax.tree.structure(once) == jax.tree.structure(empty)
    assert jax.tree.map(jnp.shape, once) == jax.tree.map(jnp.shape, empty)
    for before, after, cross_before, cross_after in zip(
        empty.self_attention, once.self_attention, empty.cross_attention, once.cross_attention, strict=True
    ):
        assert not np.any(before.key)
        assert np.any(after.key[:, 0])
        assert not np.any(after.key[:, 1:])
        np.testing.assert_array_equal(cross_before.key, cross_after.key)
    assert_close(again, step(config, params, layers, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))[0], 0)


def test_a_larger_cache_gives_the_same():
    config = tiny(position_encoding="relative")
    params = random_params(config)
    inputs, ids, expected = full(config, params)
    empty = start(config, params, unstack_layers(params), inputs, capacity=40)
    logits, _ = feed(config, params, empty, ids, jnp.broadcast_to(jnp.arange(LENGTH), ids.shape), [3, 3])
    assert_close(logits, expected)


def test_a_learned_table_limits_the_capacity():
    config = tiny(position_encoding="learned")
    params = random_params(config)
    layers, inputs = unstack_layers(params), make_batch(2, 7)["inputs"]
    assert start(config, params, layers, inputs, capacity=12).capacity == 12
    with pytest.raises(ConfigError, match=r"13 positions.*model\.max_length=12"):
        start(config, params, layers, inputs, capacity=13)


def test_layers_are_unstacked_in_order():
    config = tiny(num_decoder_layers=3)
    params = random_params(config)
    layers = unstack_layers(params)
    assert len(layers) == 3
    for i, layer in enumerate(layers):
        expected = jax.tree.map(lambda p, i=i: p[i], params["decoder"]["layers"])
        jax.tree.map(np.testing.assert_array_equal, layer, expected)
