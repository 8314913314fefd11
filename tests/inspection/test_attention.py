"""Attention weights equal the model's: exactly, for every kind of model, with its masks."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import HYBRIDS, as_batch, assert_close, forward, make_batch, random_params, tiny

from transformer_jax.cli import attention as attention_command
from transformer_jax.config import DecodeConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.inspection import attention as attention_module
from transformer_jax.inspection.attention import (
    KINDS,
    attention_maps,
    capture,
    check_model,
    mean_entropy,
    selection,
)
from transformer_jax.models.architecture import init_params
from transformer_jax.tasks.trained.language_model import LanguageModel
from transformer_jax.tasks.trained.translator import Translator

EOS_ID = 1

slow = pytest.mark.slow
MODELS = [
    pytest.param({"norm_position": "post"}, id="post, sinusoidal", marks=slow),
    pytest.param(
        {"norm_position": "pre", "position_encoding": "learned", "num_kv_heads": 2}, id="pre, learned, two key heads"
    ),
    pytest.param(
        {"position_encoding": "rotary", "num_kv_heads": 1, "norm_position": "pre"},
        id="pre, rotary, one key head",
        marks=slow,
    ),
    pytest.param({"position_encoding": "relative", "scan_layers": True}, id="post, relative, scanned"),
    pytest.param({"position_encoding": "none", "attention_implementation": "xla"}, id="none, by the library"),
    pytest.param({"remat": "full", "scan_layers": True}, id="layers computed twice", marks=slow),
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", MODELS)
def test_weights_are_a_distribution_over_the_visible_tokens(fields):
    config = tiny(num_encoder_layers=3, **fields)
    params, batch = random_params(config), make_batch()
    batch = as_batch(inputs=batch["inputs"].at[1, 4:].set(0), targets=batch["targets"])  # 4 of 7 are tokens
    logits, weights = capture(config, params, batch)
    expected = forward(config, params, batch)
    assert_close(logits, expected)

    keys = np.asarray(batch["inputs"] != 0)[:, None, None, :]
    causal = np.tril(np.ones((5, 5), bool))[None, None]
    allowed = {
        "encoder_self_attention": (np.broadcast_to(keys, (3, 4, 7, 7)), 3),
        "decoder_self_attention": (np.broadcast_to(causal, (3, 4, 5, 5)), 2),
        "decoder_cross_attention": (np.broadcast_to(keys, (3, 4, 5, 7)), 2),
    }
    assert weights.keys() == KINDS.keys() == allowed.keys()
    for kind, (mask, layers) in allowed.items():
        assert weights[kind].shape == (layers, *mask.shape)
        assert weights[kind].dtype == np.float32
        np.testing.assert_allclose(weights[kind].sum(-1), 1, atol=1e-6)
        assert (weights[kind][:, ~mask] == 0).all()
        assert (weights[kind][:, mask] > 0).all()


def test_weights_are_those_that_the_model_computes_with():
    """In the first layer of an encoder without positions: softmax(x Wq (x Wk)^T / sqrt(H)) by NumPy in float64."""
    config = tiny(position_encoding="none", num_kv_heads=2, norm_position="post")
    params, batch = random_params(config), make_batch(rows=1)
    x = np.asarray(params["embedding"]["embedding"], np.float64)[np.asarray(batch["inputs"][0])] * 4.0  # sqrt(D)
    layer = params["encoder"]["layers"]["self_attention"]
    heads = {}
    for name in ("query", "key"):
        kernel, bias = (np.asarray(layer[name][leaf][0], np.float64) for leaf in ("kernel", "bias"))
        heads[name] = (x @ kernel.reshape(16, -1) + bias.reshape(-1)).reshape(7, -1, 4)
    for head in range(4):
        logits = heads["query"][:, head] @ heads["key"][:, head // 2].T / 2.0  # sqrt(H)
        expected = np.exp(logits - logits.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
        assert_close(capture(config, params, batch)[1]["encoder_self_attention"][0, 0, head], expected)


def test_entropy():
    weights = np.array([[[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], [[0.5, 0.5, 0, 0], [0.5, 0.25, 0.25, 0]]])
    expected = [np.log(4) / 2, (np.log(2) + 1.5 * np.log(2)) / 2]
    np.testing.assert_allclose(mean_entropy(weights), expected, rtol=1e-12)


# Maps of a text.


@pytest.fixture(scope="module")
def translator():
    """Return a translator with random parameters and a vocabulary of numbers."""
    tokenizer = train_tokenizer([f"{n} {n * 7 % 60}" for n in range(60)], "bpe", 290)
    model = ModelConfig(
        **{"vocab_size": 290, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "num_encoder_layers": 1},
        **{"num_decoder_layers": 1, "max_length": 48},
    )
    config = ExperimentConfig(model=model, decode=DecodeConfig(max_extra_length=8)).resolved()
    return Translator(config, random_params(config.model, 3), tokenizer)


def test_maps_of_a_text_and_its_translation(translator):
    maps = attention_maps(translator, "12 7")
    ids = translator.tokenizer.encode_batch(["12 7"]).ids
    assert maps.source == [*translator.tokenizer.tokens(ids), "</s>"]
    assert maps.target == translator.translate_all(["12 7"])[0]
    assert maps.read == ["<s>", *maps.predicted[:-1]]
    assert maps.queries("decoder_cross_attention")[0] == f"<s> → {maps.predicted[0]}"
    assert maps.keys("decoder_cross_attention") == maps.source == maps.queries("encoder_self_attention")
    lengths = len(maps.source), len(maps.read)
    assert maps.weights["decoder_cross_attention"].shape == (1, 2, *lengths[::-1])
    assert maps.weights["decoder_self_attention"].shape == (1, 2, lengths[1], lengths[1])
    assert maps.weights["encoder_self_attention"].shape == (1, 2, lengths[0], lengths[0])


def test_a_translation_is_shown_token_by_token_as_generated(translator):
    """Splitting its text again could give other tokens; and each token follows from the weights of its row."""
    maps = attention_maps(translator, "3 44 5")
    (translation,) = translator.generate_chunk([attention_module.Line("3 44 5")])
    ids = translation.outputs[0].ids
    assert maps.predicted == translator.tokenizer.tokens(ids)
    assert maps.finished == (ids[-1] == EOS_ID)
    source = [*translator.tokenizer.encode_batch(["3 44 5"]).ids.tolist(), EOS_ID]
    batch = as_batch(inputs=jnp.array([source]), targets=jnp.array([ids]))
    logits, _ = capture(translator.config.model, translator.params, batch)
    assert np.asarray(logits[0]).argmax(-1).tolist() == ids


def test_a_given_target(translator):
    maps = attention_maps(translator, "12 7", "7 12")
    assert maps.predicted == [*translator.tokenizer.tokens(translator.tokenizer.encode_batch(["7 12"]).ids), "</s>"]
    assert (maps.target, maps.finished) == ("7 12", True)


@pytest.mark.parametrize(
    ("text", "target", "message"),
    [
        (" ", None, "--text is empty; give a sentence"),
        ("1", "", "--target is empty; give a sentence"),
        ("1\n2", None, "--text has 2 lines"),
        ("1 2 " * 80, None, r"^--text: \d+ tokens, including end-of-sequence; a picture shows at most 120"),
        ("1", "1 2 " * 80, r"^--target: \d+ tokens, including end-of-sequence; a picture shows at most 120"),
        ("9 " * 3000, None, r"--text: \d+ tokens with end-of-sequence are too many: evaluation.tokens_per_batch"),
    ],
)
def test_texts_that_cannot_be_shown(translator, text, target, message):
    with pytest.raises(DataError, match=message):
        attention_maps(translator, text, target)


@pytest.mark.parametrize(("text", "target", "flag"), [("9 8 " * 9, None, "--text"), ("1", "9 8 " * 9, "--target")])
def test_texts_longer_than_a_learned_table(translator, text, target, flag):
    model = dataclasses.replace(translator.config.model, position_encoding="learned", max_length=12)
    config = dataclasses.replace(translator.config, model=model)
    other = Translator(config, random_params(model, 3), translator.tokenizer)
    with pytest.raises(DataError, match=re.escape(flag) + r": \d+ tokens .* model.max_length=12"):
        attention_maps(other, text, target)


def test_a_model_without_cross_attention(translator):
    params = jax.eval_shape(lambda: init_params(tiny(architecture="decoder_only"), 0))
    with pytest.raises(ConfigError, match="the parts of this model are encoder"):
        check_model(translator.config.model, {"encoder": params["decoder"]})
    with pytest.raises(ConfigError, match="attention can be shown for encoder-decoders and decoder-only models"):
        attention_maps(dataclasses.replace(translator, params={"encoder": params["decoder"]}), "1")


# Selections.


def test_selection():
    model = tiny(num_encoder_layers=3)
    everything = selection(model)
    assert everything.heads == [0, 1, 2, 3]
    assert list(everything.layers.values()) == [[0, 1, 2], [0, 1], [0, 1]]
    one = selection(model, layer=2, head=1)
    assert (one.heads, list(one.layers.values())) == ([1], [[2], [], []])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layer": 3}, "--layer=3: the model has layers 0 to 2 of the encoder, layers 0 to 1 of the decoder"),
        ({"layer": -1}, "--layer=-1: the model has"),
        ({"head": 4}, "--head=4: the model has heads 0 to 3"),
    ],
)
def test_no_such_layer_or_head(asked, message):
    with pytest.raises(ConfigError, match=message):
        selection(tiny(num_encoder_layers=3), **asked)


def test_maps_of_a_language_model(translator):
    """It reads the text itself, after the start token; each row's weights are those of the tokens up to its own."""
    model = dataclasses.replace(translator.config.model, architecture="decoder_only")
    config = dataclasses.replace(translator.config, model=model, task=TaskConfig(name="language_model"))
    generator = LanguageModel(config, random_params(model, 3), translator.tokenizer)
    maps = attention_maps(generator, "12 7")
    tokens = translator.tokenizer.tokens(translator.tokenizer.encode_batch(["12 7"]).ids)
    assert maps.predicted == [*tokens, "</s>"]
    assert maps.read == ["<s>", *tokens]
    assert list(maps.weights) == ["decoder_self_attention"] == list(selection(model).layers)
    weights = maps.weights["decoder_self_attention"]
    assert weights.shape == (1, 2, len(maps.read), len(maps.read))
    np.testing.assert_allclose(np.tril(weights).sum(-1), 1.0, rtol=1e-6)
    with pytest.raises(ConfigError, match="--target: a language model reads one text"):
        attention_maps(generator, "12 7", "1")


def recurrent_translator(translator, **fields):
    model = ModelConfig(
        **{"architecture": "recurrent", "vocab_size": 290, "emb_dim": 16, "num_encoder_layers": 1},
        **{"num_decoder_layers": 1} | fields,
    )
    config = dataclasses.replace(translator.config, model=model.resolved())
    return Translator(config, random_params(config.model, 3), translator.tokenizer)


def test_maps_of_a_recurrent_model(translator):
    generator = recurrent_translator(translator, attention="dot")
    maps = attention_maps(generator, "12 7", "7 12")
    assert list(maps.weights) == ["decoder_cross_attention"] == list(selection(generator.config.model).layers)
    assert selection(generator.config.model).heads == [0]
    weights = maps.weights["decoder_cross_attention"]
    assert weights.shape == (1, 1, len(maps.read), len(maps.source))
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)
    with pytest.raises(ConfigError, match="--layer=1: the model has layers 0 to 0 of the decoder"):
        selection(generator.config.model, layer=1)


def test_a_recurrent_model_without_attention(translator):
    generator = recurrent_translator(translator)
    for use in (lambda: selection(generator.config.model), lambda: attention_maps(generator, "12 7")):
        with pytest.raises(ConfigError, match=r"model.attention='none': .* no attention to show; train one with"):
            use()


def test_layers_without_attention_are_left_out():
    """Of G A G A G, layers 1 and 3 have attention; the others have NaN in its place."""
    config = tiny(architecture="decoder_only", **HYBRIDS[0])
    params, batch = random_params(config), {"decoder_inputs": np.array([[3, 5, 6, 7]], np.int32)}
    check_model(config, params)
    weights = capture(config, params, batch).weights["decoder_self_attention"]
    assert [bool(np.isfinite(of_layer).all()) for of_layer in weights] == [False, True, False, True, False]
    assert_close(weights[[1, 3]].sum(-1), np.ones(weights[[1, 3]].shape[:-1]))
    shown = selection(config)
    assert shown.layers == {"decoder_self_attention": [1, 3]}
    attention_command._check_finite({kind: weights[layers] for kind, layers in shown.layers.items()})
    assert selection(config, layer=3).layers == {"decoder_self_attention": [3]}
    with pytest.raises(ConfigError, match="--layer=2 has no attention"):
        selection(config, layer=2)
    without = tiny(architecture="decoder_only", mixer="gated_delta")
    with pytest.raises(ConfigError, match="no layer of this model has attention to show"):
        check_model(without, random_params(without))
