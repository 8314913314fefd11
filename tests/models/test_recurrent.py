"""Recurrent models: whole passes, decoding, beams, packed rows and own outputs, for every field that they have."""

import dataclasses
import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from support import as_batch, assert_close, forward, make_batch, random_params, shapes, slow_but

from transformer_jax.config import DecodeConfig, ModelConfig
from transformer_jax.decoding.generate import generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection.attention import capture
from transformer_jax.models.architecture import ARCHITECTURES, Model, parameter_axes
from transformer_jax.models.decoder import TWO_WAY
from transformer_jax.models.recurrent import StateDecoder
from transformer_jax.nn.dropout import Dropout, DropoutRates
from transformer_jax.parallel.rules import shardings
from transformer_jax.tasks.trained.decode_requests import prompt_request, source_request

TINY = {
    "architecture": "recurrent",
    "vocab_size": 19,
    "emb_dim": 8,
    "hidden_dim": 6,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "tie_output": False,
    "dropout_rate": 0.0,
}
VARIANTS = {
    "lstm": {"num_encoder_layers": 2, "num_decoder_layers": 2},
    "context at every step": {"cell": "gru", "feed_context": True, "deep_output": "concat", "output_bias": True},
    "additive": {
        "cell": "gru",
        "attention": "additive",
        "bidirectional": True,
        "bridge": "tanh",
        "deep_output": "maxout",
        "num_decoder_layers": 2,
    },
    "additive lstm": {"attention": "additive", "bridge": "zero", "num_decoder_layers": 2, "deep_output": "concat"},
    "dot": {"cell": "rnn", "attention": "dot", "share_embeddings": False, "cell_biases": 0},
    "general": {"attention": "general", "bidirectional": True, "bridge": "linear", "hidden_dim": 8, "tie_output": True},
    "input feeding": {
        "attention": "general",
        "input_feeding": True,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "cell_biases": 2,
        "deep_output": "concat",
    },
    "decoder": {"num_encoder_layers": 0, "num_decoder_layers": 2, "cell": "gru", "cell_biases": 2},
    "deep decoder": {"num_encoder_layers": 0, "deep_output": "maxout", "tie_output": True},
}
every_variant = pytest.mark.parametrize("variant", slow_but("additive", VARIANTS))
ENCODER = {"num_encoder_layers": 2, "num_decoder_layers": 0, "bidirectional": True}


def recurrent(**fields):
    return ModelConfig(**TINY | fields).resolved()


def padded_batch(config):
    """Return a batch whose rows have padding in inputs and targets, without what the model does not read."""
    batch = make_batch()
    inputs = batch["inputs"].at[1, 4:].set(0).at[2, 1:].set(0)
    batch = as_batch(inputs=inputs, targets=batch["targets"].at[0, 3:].set(0))
    if not config.num_encoder_layers:
        batch = {name: x for name, x in batch.items() if not name.startswith("inputs")}
    return batch


@functools.partial(jax.jit, static_argnames=("decoder", "width"))
def started(decoder, params, batch, width):
    return decoder.start(decoder.prepare(params), batch, 8, width).cache


@functools.partial(jax.jit, static_argnames="decoder")
def stepped(decoder, params, cache, ids):
    return decoder.step(decoder.prepare(params), cache, ids, jnp.zeros_like(ids))


@every_variant
def test_decoding_step_by_step_equals_the_whole_pass(variant):
    """From the start, and after prompts of different lengths."""
    config = recurrent(**VARIANTS[variant])
    params, batch, decoder = random_params(config), padded_batch(config), StateDecoder(config)
    expected = forward(config, params, batch)
    ids = batch["decoder_inputs"]
    cache = started(decoder, params, {**batch, "prompts": ids[:, :1], "prompt_lengths": jnp.ones(3, jnp.int32)}, 2)
    for t in range(5):
        logits, cache = stepped(decoder, params, cache, jnp.stack([ids[:, t]] * 2, axis=1))
        assert_close(logits[:, 0], expected[:, t], 2e-6)
        assert_close(logits[:, 1], expected[:, t], 2e-6)
    lengths = jnp.array([3, 1, 2])
    prompts = jnp.where(jnp.arange(3)[None] < lengths[:, None], ids[:, :3], 17)
    cache = started(decoder, params, {**batch, "prompts": prompts, "prompt_lengths": lengths}, 1)
    for t in range(2):
        at = (lengths - 1 + t)[:, None]
        logits, cache = stepped(decoder, params, cache, jnp.take_along_axis(ids, at, axis=1))
        assert_close(logits[:, 0], jnp.take_along_axis(expected, at[..., None], axis=1)[:, 0], 2e-6)


@every_variant
def test_padding_and_the_order_of_rows_change_nothing(variant):
    config = recurrent(**VARIANTS[variant])
    params, batch = random_params(config), padded_batch(config)
    expected = forward(config, params, batch)
    order = jnp.array([2, 0, 1])

    def wider(name, x):
        fill = 17 if name in ("inputs", "decoder_inputs") else 0
        return jnp.pad(x[order], ((0, 0), (0, 3)), constant_values=fill)

    logits = forward(config, params, {name: wider(name, x) for name, x in batch.items()})
    assert_close(logits[:, :5], expected[order], 2e-6)


def packed_batch():
    """Return two pairs in one row, the same pairs in two rows, and where in the packed row each target is."""
    rng = np.random.default_rng(3)
    packed, separate = {}, {}
    for name, lengths, width in (("inputs", (4, 3), 9), ("targets", (3, 5), 10)):
        parts = [rng.integers(4, 19, n) for n in lengths]
        pad = [0] * (width - sum(lengths))
        packed[name] = jnp.array([[*parts[0], *parts[1], *pad]], jnp.int32)
        packed[f"{name}_segment_ids"] = jnp.array([[1] * lengths[0] + [2] * lengths[1] + pad], jnp.int32)
        packed[f"{name}_positions"] = jnp.array([[*range(lengths[0]), *range(lengths[1]), *pad]], jnp.int32)
        separate[name] = jnp.array([np.pad(x, (0, max(lengths) - len(x))) for x in parts], jnp.int32)
    return as_batch(**packed), as_batch(**separate), (slice(0, 3), slice(3, 8))


@every_variant
def test_packed_rows_equal_separate_ones(variant):
    config = recurrent(**VARIANTS[variant])
    params, (packed, separate, places) = random_params(config), packed_batch()
    if not config.num_encoder_layers:
        packed, separate = ({n: x for n, x in b.items() if not n.startswith("inputs")} for b in (packed, separate))
    logits = forward(config, params, packed)
    expected = forward(config, params, separate)
    for row, place in enumerate(places):
        assert_close(logits[0, place], expected[row, : place.stop - place.start], 2e-6)


def test_an_encoder_alone_reads_padded_and_packed_rows():
    config = recurrent(**ENCODER)
    params, (packed, separate, _) = random_params(config), packed_batch()
    packed, separate = ({n: x for n, x in b.items() if n.startswith("inputs")} for b in (packed, separate))
    logits = forward(config, params, packed)
    expected = forward(config, params, separate)
    assert_close(logits[0, :4], expected[0, :4], 2e-6)
    assert_close(logits[0, 4:7], expected[1, :3], 2e-6)
    x = Model(ARCHITECTURES["recurrent"].module(config), params).features(separate)
    assert x.shape == (2, 4, 12)
    assert not x[1, 3].any()


@every_variant
def test_gradients_are_finite_and_reach_every_parameter(variant):
    config = recurrent(**VARIANTS[variant])
    batch = padded_batch(config)
    if "inputs_mask" in batch:  # a row without any token, as in the padding of a batch
        batch["inputs_mask"] = batch["inputs_mask"].at[2].set(False)

    @jax.jit
    def loss(params):
        logits = ARCHITECTURES["recurrent"].module(config).apply({"params": params}, batch)
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"][..., None], axis=-1)[..., 0]
        return -(picked * batch["weights"]).sum()

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.grad(loss)(random_params(config))):
        assert np.isfinite(gradient).all(), path
        assert np.any(gradient), path


def test_attention_weights_are_those_of_the_source():
    for variant in ("additive", "dot", "input feeding"):
        config = recurrent(**VARIANTS[variant])
        batch = padded_batch(config)
        shares = capture(config, random_params(config), batch).weights["decoder_cross_attention"]
        assert shares.shape == (1, 3, 1, 5, 7)
        np.testing.assert_allclose(shares.sum(-1), 1.0, rtol=1e-5)
        assert not shares[0, 1, 0, :, 4:].any()
        assert shares[0, 1, 0, :, :4].all()
    config = recurrent()
    assert capture(config, random_params(config), padded_batch(config)).weights == {}


# --- searches ------------------------------------------------------------------------------------------------------


SEEDS = {"lstm": 3, "additive": 3, "input feeding": 5}
"""Seeds of parameters with which hypotheses of a beam change their order."""


def small(variant):
    fields = {"vocab_size": 4, "emb_dim": 4} | VARIANTS[variant] | {"hidden_dim": 4}
    config = ModelConfig(**TINY | fields).resolved()
    return config, jax.tree.map(lambda p: 4.0 * p, random_params(config, SEEDS[variant]))


def log_probs(config, params, inputs, outputs):
    """Return log P of each output after the start id 3."""
    read = np.concatenate([np.full((len(outputs), 1), 3), outputs[:, :-1]], axis=1)
    batch = {"decoder_inputs": jnp.asarray(read)}
    if config.num_encoder_layers:
        batch["inputs"] = jnp.asarray(np.repeat(inputs, len(outputs), axis=0))
    logits = forward(config, params, batch)
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(outputs)[..., None], axis=-1)[..., 0]
    return np.asarray(found, np.float64)


def searched(config, params, inputs, decoder=None, **fields):
    decoder = decoder or StateDecoder(config)
    decode = DecodeConfig(**{"max_new_tokens": 5, "min_length": 3, "length_penalty": "none"} | fields)
    if config.num_encoder_layers:
        request = source_request((decoder,), decode, 3, inputs, np.full(len(inputs), inputs.shape[1]))
    else:
        request = prompt_request(3, [row.tolist() for row in inputs], np.full(len(inputs), 5))
    return jax.device_get(generate((decoder,), (decoder.prepare(params),), decode, Ends(1, (0,)), request))


class Unordered(StateDecoder):
    def reorder(self, cache, parents):
        return cache


@pytest.mark.parametrize("variant", slow_but("additive", SEEDS))
def test_beam_search_equals_brute_force(variant):
    """A beam as wide as there are prefixes finds the best output; without `reorder` hypotheses lose their states."""
    config, params = small(variant)
    differences = []
    for first, second in itertools.product((2, 3), repeat=2):
        inputs = np.array([[first, second]], np.int32)
        best = -np.inf
        for length in (3, 4):  # tokens before eos
            texts = np.array([[*text, 1] for text in itertools.product((2, 3), repeat=length)])
            best = max(best, log_probs(config, params, inputs, texts).sum(1).max())
        found = searched(config, params, inputs, beam_size=32)
        assert found.finished[0, 0]
        assert found.scores[0, 0] == pytest.approx(best, abs=1e-4)
        differences.append(abs(searched(config, params, inputs, Unordered(config), beam_size=32).scores[0, 0] - best))
    assert max(differences) > 1e-2


@pytest.mark.parametrize("variant", slow_but("lstm", ["lstm", "additive", "general", "decoder"]))
def test_greedy_search_equals_teacher_forcing_of_its_own_output(variant):
    config = recurrent(**VARIANTS[variant])
    params = random_params(config)
    inputs = np.random.default_rng(0).integers(4, 19, (3, 6)).astype(np.int32)
    found = searched(config, params, inputs, min_length=5)
    prompts = np.zeros((3, 0), np.int32) if config.num_encoder_layers else inputs
    read = np.concatenate([np.full((3, 1), 3), prompts, found.ids[:, 0, :-1]], axis=1)
    batch = {"decoder_inputs": jnp.asarray(read)}
    if config.num_encoder_layers:
        batch["inputs"] = jnp.asarray(inputs)
    logits = np.array(forward(config, params, batch))[:, prompts.shape[1] :]
    logits[..., :2] = -np.inf  # neither padding nor, before the fifth token, the end
    np.testing.assert_array_equal(logits.argmax(-1), found.ids[:, 0])


def test_samples_follow_the_model():
    config = recurrent(**VARIANTS["lstm"])
    params, inputs = random_params(config), np.array([[5, 6, 7]], np.int32)
    found = searched(config, params, inputs, method="sample", num_samples=4, seed=1, min_length=5)
    for n in range(4):
        expected = log_probs(config, params, inputs, found.ids[0, n][None])[0]
        np.testing.assert_allclose(found.log_probs[0, n], expected, atol=1e-5)
    assert len({tuple(ids) for ids in found.ids[0].tolist()}) > 1


@pytest.mark.slow
def test_outputs_are_longer_than_the_first_stage_of_a_search():
    """A state has no slots that could be full."""
    config = recurrent(**VARIANTS["additive"])
    params, inputs = random_params(config), np.array([[5, 6, 7]], np.int32)
    found = searched(config, params, inputs, beam_size=2, max_new_tokens=70, min_length=69)
    length = found.lengths[0, 0]
    assert length >= 69
    expected = log_probs(config, params, inputs, found.ids[0, :1, :length])[0]
    np.testing.assert_allclose(found.log_probs[0, 0, :length], expected, atol=1e-4)


# --- own outputs in training ---------------------------------------------------------------------------------------


def trained_pass(config, params, batch, rate, dropout_rate=None):
    """Return the logits of a training pass with a teacher-forcing rate."""
    dropout = Dropout(jnp.uint32(5), jnp.arange(3), DropoutRates(dropout_rate, dropout_rate))
    module = ARCHITECTURES["recurrent"].module(config)
    hyper = {"teacher_forcing_rate": rate}
    return jax.jit(lambda p: module.apply({"params": p}, batch, dropout, hyper))(params)


@pytest.mark.parametrize("variant", slow_but("context at every step", VARIANTS))
def test_without_teacher_forcing_the_model_reads_its_own_output(variant):
    config = recurrent(**VARIANTS[variant])
    params, batch = random_params(config), padded_batch(config)
    batch["weights"] = jnp.ones((3, 5))
    own = trained_pass(config, params, batch, 0.0)
    read = jnp.concatenate([batch["decoder_inputs"][:, :1], own.argmax(-1)[:, :-1]], axis=1)
    expected = forward(config, params, {**batch, "decoder_inputs": read.astype(jnp.int32)})
    assert_close(own, expected, 2e-6)
    assert np.any(read != batch["decoder_inputs"])
    # All tokens are those of the target with a rate of 1, and some with a rate between.
    given = forward(config, params, batch)
    assert_close(trained_pass(config, params, batch, 1.0), given, 2e-6)
    # A token that is no target is never replaced.
    batch["weights"] = jnp.zeros((3, 5))
    assert_close(trained_pass(config, params, batch, 0.0), given, 2e-6)


def test_every_row_and_place_chooses_by_itself():
    config = recurrent(**VARIANTS["lstm"])
    params, batch = random_params(config), make_batch(64, 4, 20)
    dropout = Dropout(jnp.uint32(5), jnp.arange(64), DropoutRates())
    seen = []

    def embed(ids):
        seen.append(ids)
        return jnp.zeros((*ids.shape, 8))

    module = ARCHITECTURES["recurrent"].module(config)
    bound = module.bind({"params": params})
    own = bound._own_output(batch, dropout, {"teacher_forcing_rate": 0.25})
    assert not own.reads_own[:, 0].any()
    share = np.asarray(own.reads_own[:, 1:])
    assert share.mean() == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / share.size) ** 0.5)
    assert len({tuple(row) for row in share.tolist()}) == 64
    assert bound._own_output(batch, None, {"teacher_forcing_rate": 0.25}) is None
    assert bound._own_output(batch, dropout, {"teacher_forcing_rate": None}) is None


def test_a_token_is_replaced_exactly_if_it_is_a_target():
    """The model reads a target one place later: a prefix stays as given, the last target does not."""
    bound = ARCHITECTURES["recurrent"].module(recurrent()).bind({})
    weights = np.array([[0.0, 0.0, 0.5, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0, 1.0], [0.0] * 5])
    batch = {"decoder_inputs": np.ones((3, 5), np.int32), "weights": weights}
    dropout, hyper = Dropout(np.uint32(5), np.arange(3), DropoutRates()), {"teacher_forcing_rate": 0.0}
    reads_own = jax.jit(lambda batch, dropout: bound._own_output(batch, dropout, hyper).reads_own)(batch, dropout)
    assert np.asarray(reads_own).astype(int).tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 0, 1], [0] * 5]


def test_dropout_is_the_same_however_a_token_is_read():
    """One scan over tokens, which own outputs need, drops what layer by layer does."""
    config = recurrent(**VARIANTS["lstm"])
    params, batch = random_params(config), padded_batch(config)
    by_layers = trained_pass(config, params, batch, None, 0.5)
    assert_close(trained_pass(config, params, batch, 1.0, 0.5), by_layers, 2e-6)
    assert not np.allclose(by_layers, forward(config, params, batch))


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["inputs", "decoder_inputs"])
def test_a_sequence_of_length_0_is_refused(name):
    config = recurrent()
    batch = padded_batch(config)
    with pytest.raises(DataError, match=f"{name}: sequences of length 0"):
        forward(config, random_params(config), {**batch, name: batch[name][:, :0]})


def test_a_source_of_length_0_is_refused_in_decoding():
    config = recurrent()
    decoder = StateDecoder(config)
    prompts = {"prompts": jnp.ones((2, 1), jnp.int32), "prompt_lengths": jnp.ones(2, jnp.int32)}
    empty = {"inputs": jnp.ones((2, 0), jnp.int32), "inputs_mask": jnp.ones((2, 0), bool)}
    with pytest.raises(DataError, match="inputs: sequences of length 0"):
        decoder.start(decoder.prepare(random_params(config)), prompts | empty, 4, 1)


def test_two_way_prompts_are_refused():
    config = recurrent(num_encoder_layers=0)
    batch = {"prompts": jnp.ones((1, 2), jnp.int32), TWO_WAY: jnp.full(1, 2, jnp.int32)}
    with pytest.raises(ConfigError, match="one direction"):
        StateDecoder(config).start({}, batch, 4, 1)


def test_every_parameter_has_axes_and_every_entry_is_for_a_parameter():
    used, ends = set(), set()
    for fields in (*VARIANTS.values(), ENCODER):
        config = recurrent(**fields, **({"cell_biases": 2} if "cell_biases" not in fields else {}))
        specs = shardings(shapes(config), parameter_axes(config), AbstractMesh((1, 1, 1), ("data", "fsdp", "tensor")))
        paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in _leaves(specs)]
        ends |= set(parameter_axes(config))
        used |= {end for end in parameter_axes(config) for path in paths if re.search(rf"(^|/){end}$", path)}
    assert used == ends
    config = recurrent(**VARIANTS["additive"], emb_dim=16, hidden_dim=16, vocab_size=24)
    specs = shardings(shapes(config), parameter_axes(config), AbstractMesh((1, 2, 4), ("data", "fsdp", "tensor")))
    assert specs["encoder"]["forwards_0"]["state"]["kernel"].spec == PartitionSpec("fsdp", None, "tensor")
    assert specs["decoder"]["bridge"]["kernel"].spec == PartitionSpec("fsdp", None, None, "tensor")


def _leaves(tree):
    return jax.tree_util.tree_leaves_with_path(tree)


def test_parameters_depend_on_the_stacks():
    decoder, encoder = shapes(recurrent(**VARIANTS["decoder"])), shapes(recurrent(**ENCODER))
    assert sorted(decoder) == ["decoder", "embedding", "output"]
    assert sorted(encoder) == ["embedding", "encoder", "output"]
    assert dataclasses.replace(recurrent(), num_decoder_layers=0).form == "encoder_only"
