"""Decoding with a cache equals the full forward pass, whatever the options and however the tokens are fed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import OPTIONS, assert_close, covering_params, forward, make_batch, random_params, tiny

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.encoder_decoder import decode_step, decoding_params, prefill, shift_right, start_cache

ROWS, LENGTH, CAPACITY = 3, 6, 9


@functools.partial(jax.jit, static_argnames=("config", "capacity"))
def start(config, params, inputs, capacity=CAPACITY):
    return start_cache(config, decoding_params(params), inputs, capacity)


step = jax.jit(decode_step, static_argnums=0)


def full(config, params):
    """A batch with padded sources and whole targets, what the decoder reads, and its logits."""
    batch = make_batch(ROWS, 7, LENGTH)
    batch["inputs"] = batch["inputs"].at[1, 4:].set(0).at[2, 1:].set(0)
    return batch["inputs"], shift_right(batch["targets"], config.decoder_start_id), forward(config, params, batch)[0]


def feed(config, params, cache, ids, positions, sizes):
    """Logits of all ids, fed in parts of these sizes."""
    decoding, logits, at = decoding_params(params), [], 0
    for size in sizes:
        part = slice(at, at + size)
        y, cache = step(config, decoding, cache, ids[:, part], positions[:, part])
        logits.append(y)
        at += size
    return jnp.concatenate(logits, axis=1), cache


@pytest.mark.parametrize("fields", covering_params())
def test_cached_decoding_equals_the_full_forward(fields):
    config = tiny(**fields)
    params = random_params(config)
    inputs, ids, expected = full(config, params)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
    empty = start(config, params, inputs)
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
    empty = start(config, params, inputs)
    for leaf in jax.tree.leaves((empty.self_attention, empty.cross_attention)):
        assert leaf.dtype == jnp.bfloat16
    logits, _ = feed(config, params, empty, ids, jnp.broadcast_to(jnp.arange(LENGTH), ids.shape), [3, 3])
    assert logits.dtype == jnp.float32
    assert_close(logits, expected, 0.05)


def test_the_cache_goes_in_and_comes_out():
    config = tiny(position_encoding="relative")
    params = random_params(config)
    decoding = decoding_params(params)
    inputs, ids, _ = full(config, params)
    empty = start(config, params, inputs)
    assert empty.capacity == CAPACITY
    assert (empty.positions == -1).all()
    assert empty.index == 0
    assert len(empty.self_attention) == len(empty.cross_attention) == config.num_decoder_layers
    np.testing.assert_array_equal(empty.cross_mask[:, 0, 0], np.asarray(inputs) != 0)
    _, once = step(config, decoding, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))
    again, _ = step(config, decoding, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))
    assert once.index == 1
    np.testing.assert_array_equal(once.positions[0], [0, *[-1] * (CAPACITY - 1)])
    assert jax.tree.structure(once) == jax.tree.structure(empty)
    assert jax.tree.map(jnp.shape, once) == jax.tree.map(jnp.shape, empty)
    for before, after, cross_before, cross_after in zip(
        empty.self_attention, once.self_attention, empty.cross_attention, once.cross_attention, strict=True
    ):
        assert not np.any(before.key)
        assert np.any(after.key[..., 0])
        assert not np.any(after.key[..., 1:])
        np.testing.assert_array_equal(cross_before.key, cross_after.key)
    assert_close(again, step(config, decoding, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))[0], 0)


def test_a_larger_cache_gives_the_same():
    config = tiny(position_encoding="relative")
    params = random_params(config)
    inputs, ids, expected = full(config, params)
    empty = start(config, params, inputs, capacity=40)
    logits, _ = feed(config, params, empty, ids, jnp.broadcast_to(jnp.arange(LENGTH), ids.shape), [3, 3])
    assert_close(logits, expected)


def test_a_learned_table_limits_the_capacity():
    config = tiny(position_encoding="learned")
    params = random_params(config)
    inputs = make_batch(2, 7)["inputs"]
    assert start(config, params, inputs, capacity=12).capacity == 12
    with pytest.raises(ConfigError, match=r"13 positions.*model\.max_length=12"):
        start(config, params, inputs, capacity=13)


@pytest.mark.parametrize("tie_output", [True, False])
def test_decoding_params_are_the_same_numbers(tie_output):
    config = tiny(num_decoder_layers=3, tie_output=tie_output)
    params = random_params(config)
    result = decoding_params(params)
    assert len(result["decoder"]["layers"]) == 3
    for i, layer in enumerate(result["decoder"]["layers"]):
        expected = jax.tree.map(lambda p, i=i: p[i], params["decoder"]["layers"])
        jax.tree.map(np.testing.assert_array_equal, layer, expected)
    assert result["encoder"] is params["encoder"]
    table = params["embedding"]["embedding"].T if tie_output else params["output"]["kernel"]
    np.testing.assert_array_equal(result["output"]["kernel"], table)


def test_parameters_in_the_other_form_are_refused():
    config = tiny()
    params = random_params(config)
    with pytest.raises(ConfigError, match=r"params: decoding needs them as decoding_params returns them"):
        start_cache(config, params, make_batch(2, 7)["inputs"], 8)
    with pytest.raises(ConfigError, match=r"params: these are what decoding_params has returned already"):
        decoding_params(decoding_params(params))


def test_a_source_beyond_a_learned_table_is_refused():
    config = tiny(position_encoding="learned")
    with pytest.raises(DataError, match=r"13 positions exceeds.*model\.max_length=12"):
        start(config, random_params(config), make_batch(2, 13)["inputs"], capacity=8)


def test_a_model_without_a_decoder_is_refused():
    params = {name: value for name, value in random_params(tiny()).items() if name != "decoder"}
    with pytest.raises(ConfigError, match=r"the model has no decoder to generate with; its parts are .*encoder"):
        decoding_params(params)


@pytest.mark.parametrize("position_encoding", OPTIONS["position_encoding"])
def test_prefill_returns_the_logits_after_each_prompt(position_encoding):
    config = tiny(position_encoding=position_encoding, num_kv_heads=2)
    params = random_params(config)
    inputs, ids, expected = full(config, params)
    lengths = jnp.array([2, 4, 0])
    logits, cache = prefill(config, decoding_params(params), start(config, params, inputs), ids[:, :4], lengths)
    assert_close(logits[0], expected[0, 1])
    assert_close(logits[1], expected[1, 3])
    assert not logits[2].any()
    np.testing.assert_array_equal(cache.positions[:, :4], [[0, 1, -1, -1], [0, 1, 2, 3], [-1] * 4])
    assert cache.index == 4
    # Each row goes on behind its own prompt.
    at = lengths[:, None]
    logits, _ = step(config, decoding_params(params), cache, jnp.take_along_axis(ids, at, axis=1), at)
    for row, position in enumerate((2, 4, 0)):
        assert_close(logits[row, 0], expected[row, position])


@pytest.mark.parametrize("fields", covering_params())
def test_tokens_of_one_row_that_see_other_slots_are_other_sequences(fields):
    """Three sequences in one row of the cache, as a beam has them, equal three rows."""
    config = tiny(**fields)
    params = random_params(config)
    decoding = decoding_params(params)
    batch = make_batch(3, 7, 4)
    batch["inputs"] = jnp.repeat(batch["inputs"][:1], 3, axis=0)
    expected = forward(config, params, batch)[0]
    ids = shift_right(batch["targets"], config.decoder_start_id)  # [3, 4]
    cache = start(config, params, batch["inputs"][:1], capacity=12)
    visible = jnp.zeros((1, 3, 12), bool)
    for position in range(4):
        slots = 3 * position + jnp.arange(3)
        visible = visible.at[0, jnp.arange(3), slots].set(True)
        at = jnp.full((1, 3), position)
        logits, cache = step(config, decoding, cache, ids[None, :, position], at, visible)
        assert_close(logits[0], expected[:, position])
