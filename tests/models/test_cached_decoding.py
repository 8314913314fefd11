"""Decoding with a cache equals the reference of the whole text, for all options and however the tokens are fed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import Model
from support import (
    ATTENTIONS,
    OPTIONS,
    STREAMS,
    assert_close,
    covering_params,
    forward,
    make_batch,
    random_params,
    slow_but,
    tiny,
)

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.models.architecture import ARCHITECTURES

ROWS, LENGTH, CAPACITY = 3, 6, 9
GENERATING = tuple(name for name in ARCHITECTURES if ARCHITECTURES[name].generates and name != "recurrent")
by_architecture = pytest.mark.parametrize("architecture", GENERATING)


def decoder_of(config):
    return ARCHITECTURES[config.architecture].decoder(config)


def prepared(config, params):
    return decoder_of(config).prepare(params)


@functools.partial(jax.jit, static_argnames=("config", "capacity"))
def start(config, params, batch, capacity=CAPACITY):
    """Return an empty cache; without an encoder, the prompts of a batch only give the number of rows."""
    return decoder_of(config).empty_cache(prepared(config, params), {**batch, "prompts": batch["targets"]}, capacity)


@functools.partial(jax.jit, static_argnums=0)
def step(config, params, cache, ids, positions, visible=None):
    decoder = decoder_of(config)
    if visible is None:
        return decoder.read(params, cache, ids, positions)
    return decoder.step(params, cache, ids, positions, visible)


def full(config, params):
    """Return a batch with padded sources and whole targets, the decoder's inputs, and the reference's logits."""
    batch = make_batch(ROWS, 7, LENGTH)
    batch["inputs_mask"] = batch["inputs_mask"].at[1, 4:].set(False).at[2, 1:].set(False)
    batch["types"] = jnp.asarray(np.random.default_rng(2).integers(0, 3, (ROWS, 7)), jnp.int32)
    return batch, batch["decoder_inputs"], Model(config, params)(batch)


def feed(config, params, cache, ids, positions, sizes):
    """Return logits of all ids, fed in parts of these sizes."""
    decoding, logits, at = prepared(config, params), [], 0
    for size in sizes:
        part = slice(at, at + size)
        y, cache = step(config, decoding, cache, ids[:, part], positions[:, part])
        logits.append(y)
        at += size
    return jnp.concatenate(logits, axis=1), cache


OTHER_STREAMS = [
    pytest.param(
        fields,
        id=f"{fields['architecture']}-{fields['norm_position']}",
        marks=pytest.mark.slow if fields["norm_position"] in ("deepnorm", "output") else (),
    )
    for fields in STREAMS
    if fields["architecture"] in GENERATING
]

WITH_OPTIONS = [
    pytest.param(
        {**fields, "architecture": architecture},
        id=f"{fields['qk_norm']}-{architecture}",
        marks=pytest.mark.slow if fields["qk_norm"] == "l2" else (),
    )
    for fields, architecture in zip(ATTENTIONS[:2], ("encoder_decoder", "decoder_only"), strict=True)
]


@pytest.mark.parametrize("fields", [*covering_params(architecture=GENERATING), *OTHER_STREAMS, *WITH_OPTIONS])
def test_cached_decoding_equals_the_float64_reference(fields):
    config = tiny(**fields)
    params = random_params(config)
    batch, ids, expected = full(config, params)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
    empty = start(config, params, batch)
    for sizes in ([1] * LENGTH, [3, 3]):  # token by token, and a prefill of a prompt and of more text after it
        logits, _ = feed(config, params, empty, ids, positions, sizes)
        assert_close(logits, expected)

    # Prompts of 1, 3 and 2 tokens in one prefill, padded on the right, on the left and not at all.
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


@pytest.mark.slow
@by_architecture
def test_a_decoder_starts_after_all_but_the_last_token_of_every_prompt(architecture):
    """It continues in its own slots, with prompts of 1, 5 and 3 tokens and two hypotheses per row."""
    config = tiny(architecture=architecture, position_encoding="rotary")
    params, decoder = random_params(config), decoder_of(config)
    batch, ids, expected = full(config, params)
    lengths = np.array([1, 5, 3])
    # The padding of a prompt is not read.
    prompts = jnp.where(np.arange(5) < lengths[:, None], ids[:, :5], 17)
    decoding = prepared(config, params)
    batch |= {"prompts": prompts, "prompt_lengths": jnp.asarray(lengths)}
    started = jax.jit(decoder.start, static_argnums=(2, 3))(decoding, batch, 8, 2)
    np.testing.assert_array_equal(started.visible, np.arange(8) < lengths[:, None] - 1)
    assert started.index == 4
    own = np.array([[4], [5]]) == np.arange(8)  # [W, C]
    last = jnp.take_along_axis(ids, lengths[:, None] - 1, axis=1)
    fed = jnp.concatenate([last, last + 1], axis=1)
    at = np.repeat(lengths[:, None] - 1, 2, axis=1)
    logits, cache = step(config, decoding, started.cache, fed, jnp.asarray(at), started.visible[:, None] | own[None])
    for row, length in enumerate(lengths):
        assert_close(logits[row, 0], expected[row, length - 1])
    assert np.abs(np.asarray(logits[:, 0] - logits[:, 1])).max() > 0.1
    # Hypotheses are reordered only by their visible slots.
    assert decoder.reorder(cache, jnp.array([[1, 0]] * 3)) is cache


@pytest.mark.slow
def test_bfloat16_decodes_close_to_its_full_forward():
    config = tiny(dtype="bfloat16", position_encoding="rotary", norm_position="pre")
    params = random_params(config)
    batch, ids, expected = full(config, params)
    empty = start(config, params, batch)
    for leaf in jax.tree.leaves((empty.layers, empty.memory)):
        assert leaf.dtype == jnp.bfloat16
    logits, _ = feed(config, params, empty, ids, jnp.broadcast_to(jnp.arange(LENGTH), ids.shape), [3, 3])
    assert logits.dtype == jnp.float32
    assert_close(logits, expected, 0.05)


@by_architecture
def test_the_cache_is_an_argument_and_a_result(architecture):
    config = tiny(position_encoding="relative", architecture=architecture)
    params = random_params(config)
    decoding = prepared(config, params)
    batch, ids, _ = full(config, params)
    empty = start(config, params, batch)
    assert empty.capacity == CAPACITY
    assert (empty.positions == -1).all()
    assert empty.index == 0
    assert len(empty.layers) == config.num_decoder_layers
    if architecture == "encoder_decoder":
        assert len(empty.memory) == config.num_decoder_layers
        np.testing.assert_array_equal(empty.memory_mask[:, 0, 0], batch["inputs_mask"])
    else:
        assert empty.memory == ()
        assert empty.memory_mask is None
    first, once = step(config, decoding, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))
    again, _ = step(config, decoding, empty, ids[:, :1], jnp.zeros((ROWS, 1), jnp.int32))
    assert once.index == 1
    np.testing.assert_array_equal(once.positions[0], [0, *[-1] * (CAPACITY - 1)])
    assert jax.tree.structure(once) == jax.tree.structure(empty)
    assert jax.tree.map(jnp.shape, once) == jax.tree.map(jnp.shape, empty)
    for before, after in zip(empty.layers, once.layers, strict=True):
        assert not np.any(before.key)
        assert np.any(after.key[..., 0])
        assert not np.any(after.key[..., 1:])
    jax.tree.map(np.testing.assert_array_equal, empty.memory, once.memory)
    assert_close(again, first, 0)


@pytest.mark.slow
@by_architecture
@pytest.mark.parametrize("capacity", [40, None], ids=["large", "grown"])
def test_a_larger_cache_gives_the_same(architecture, capacity):
    """From the start, or grown after some tokens."""
    config = tiny(position_encoding="relative", architecture=architecture)
    params = random_params(config)
    batch, ids, expected = full(config, params)
    positions = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
    first, cache = feed(config, params, start(config, params, batch, capacity=capacity or 3), ids, positions, [3])
    cache = cache if capacity else decoder_of(config).grow(cache, 8)
    assert cache.capacity == (capacity or 8)
    second, _ = feed(config, params, cache, ids[:, 3:], positions[:, 3:], [2, 1])
    assert_close(jnp.concatenate([first, second], axis=1), expected)


def test_tokens_that_do_not_fit_are_refused():
    config = tiny()
    params = random_params(config)
    batch = make_batch(ROWS, 7, LENGTH)
    cache, ids = start(config, params, batch, capacity=3)._replace(index=jnp.int32(2)), batch["targets"]
    for tokens in (2, 0):
        with pytest.raises(ConfigError, match=rf"{tokens} tokens do not fit into a cache with 1 free slots"):
            decoder_of(config).read(prepared(config, params), cache, ids[:, :tokens], ids[:, :tokens])


@by_architecture
def test_a_learned_table_limits_the_prompt(architecture):
    config = tiny(position_encoding="learned", architecture=architecture)
    params, decoder = random_params(config), decoder_of(config)
    assert decoder.max_length == 12
    batch = make_batch(2, 7, 13)
    empty, params, lengths = start(config, params, batch, capacity=20), prepared(config, params), jnp.array([3, 12])
    prefill = jax.jit(decoder.prefill)
    assert prefill(params, empty, batch["targets"][:, :12], lengths)[1].index == 12
    with pytest.raises(ConfigError, match=r"13 positions.*model\.max_length=12"):
        prefill(params, empty, batch["targets"], lengths)


@pytest.mark.parametrize(("tie_output", "output_bias"), [(True, False), (True, True), (False, True)])
def test_prepared_parameters_are_the_same_numbers(tie_output, output_bias):
    config = tiny(num_decoder_layers=3, tie_output=tie_output, output_bias=output_bias)
    params = random_params(config)
    result = prepared(config, params)
    assert len(result["decoder"]["layers"]) == 3
    for i, layer in enumerate(result["decoder"]["layers"]):
        expected = jax.tree.map(lambda p, i=i: p[i], params["decoder"]["layers"])
        jax.tree.map(np.testing.assert_array_equal, layer, expected)
    assert result["encoder"] is params["encoder"]
    table = params["embedding"]["embedding"].T if tie_output else params["output"]["kernel"]
    np.testing.assert_array_equal(result["output"]["kernel"], table)
    assert ("bias" in result["output"]) == output_bias


def test_parameters_in_the_other_form_are_refused():
    config = tiny()
    params, decoder = random_params(config), decoder_of(config)
    with pytest.raises(ConfigError, match=r"params: not prepared for decoding; pass the result of `prepare`"):
        decoder.empty_cache(params, make_batch(2, 7), 8)
    with pytest.raises(ConfigError, match=r"params: they are prepared already; call `prepare` once"):
        decoder.prepare(decoder.prepare(params))


def test_a_source_beyond_a_learned_table_is_refused():
    config = tiny(position_encoding="learned")
    with pytest.raises(DataError, match=r"13 positions exceeds.*model\.max_length=12"):
        start(config, random_params(config), make_batch(2, 13), capacity=8)


def test_a_model_without_a_decoder_is_refused():
    params = {name: value for name, value in random_params(tiny()).items() if name != "decoder"}
    with pytest.raises(ConfigError, match=r"the model has no decoder to generate with; its parts are .*encoder"):
        prepared(tiny(), params)


@pytest.mark.parametrize("position_encoding", slow_but("relative", OPTIONS["position_encoding"]))
def test_prefill_returns_the_logits_after_each_prompt(position_encoding):
    config = tiny(position_encoding=position_encoding, num_kv_heads=2)
    params = random_params(config)
    batch, ids, expected = full(config, params)
    lengths = jnp.array([2, 4, 0])
    decoding = prepared(config, params)
    logits, cache = jax.jit(decoder_of(config).prefill)(decoding, start(config, params, batch), ids[:, :4], lengths)
    assert_close(logits[0], expected[0, 1])
    assert_close(logits[1], expected[1, 3])
    assert not logits[2].any()
    np.testing.assert_array_equal(cache.positions[:, :4], [[0, 1, -1, -1], [0, 1, 2, 3], [-1] * 4])
    assert cache.index == 4
    # Each row continues after its own prompt.
    at = lengths[:, None]
    logits, _ = step(config, decoding, cache, jnp.take_along_axis(ids, at, axis=1), at)
    for row, position in enumerate((2, 4, 0)):
        assert_close(logits[row, 0], expected[row, position])


@pytest.mark.slow
@pytest.mark.parametrize("fields", covering_params()[:4])
def test_tokens_of_one_row_with_different_visible_slots_are_different_sequences(fields):
    """Three sequences in one row of the cache, as in a beam, equal three rows."""
    config = tiny(**fields)
    params = random_params(config)
    decoding = prepared(config, params)
    batch = make_batch(3, 7, 4)
    for name in ("inputs", "inputs_mask"):
        batch[name] = jnp.repeat(batch[name][:1], 3, axis=0)
    expected = forward(config, params, batch)
    ids = batch["decoder_inputs"]  # [3, 4]
    cache = start(config, params, {name: array[:1] for name, array in batch.items()}, capacity=12)
    visible = jnp.zeros((1, 3, 12), bool)
    for position in range(4):
        slots = 3 * position + jnp.arange(3)
        visible = visible.at[0, jnp.arange(3), slots].set(True)
        at = jnp.full((1, 3), position)
        logits, cache = step(config, decoding, cache, ids[None, :, position], at, visible)
        assert_close(logits[0], expected[:, position])
