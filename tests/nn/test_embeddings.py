import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.nn.embeddings import OutputProjection, TokenEmbedding, token_logits
from transformer_jax.nn.heads import SequenceHead
from transformer_jax.nn.model_numbers import number_of, numbers_given
from transformer_jax.nn.positions import PositionEmbedding

RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(size=(19, 16)), jnp.float32)
IDS = jnp.array([[3, 0, 18], [7, 7, 1]])
NUMBERS = ("embedding_multiplier", "logits_multiplier", "output_logit_cap")


@pytest.mark.parametrize(("scale_embeddings", "factor"), [(True, 4.0), (False, 1.0)])
def test_token_embedding_looks_up_and_scales(scale_embeddings, factor):
    config = tiny(scale_embeddings=scale_embeddings)
    x = TokenEmbedding(config).apply({"params": {"embedding": TABLE}}, IDS)
    np.testing.assert_array_equal(x, factor * np.asarray(TABLE)[np.asarray(IDS)])


def test_tied_logits_are_products_with_the_unscaled_table():
    x = jnp.asarray(RNG.normal(size=(2, 3, 16)), jnp.float32)
    expected = np.asarray(x, np.float64) @ np.asarray(TABLE, np.float64).T
    assert_close(token_logits(tiny(), x, TABLE, None), expected, 1e-6)
    assert_close(token_logits(tiny(scale_logits=True), x, TABLE, None), expected / 4, 1e-6)


def test_embeddings_and_logits_times_a_number():
    config = tiny(scale_embeddings=False, embedding_multiplier=12.0, logits_multiplier=0.125)
    x = TokenEmbedding(config).apply({"params": {"embedding": TABLE}}, IDS)
    np.testing.assert_array_equal(x, 12 * np.asarray(TABLE)[np.asarray(IDS)])
    np.testing.assert_array_equal(token_logits(config, x, TABLE, None), token_logits(tiny(), x, TABLE, None) / 8)


@pytest.mark.parametrize(
    ("cap", "logits", "expected"),
    [(50.0, [30, 50, 100, -30], [26.852478, 38.079708, 48.201379, -26.852478]), (15.0, [5, 15], [4.822691, 11.423912])],
)
def test_the_cap_of_logits(cap, logits, expected):
    """c tanh(z / c) after the multiplier; in float32 whatever the type of the computation."""
    for dtype in ("float32", "bfloat16"):
        config = tiny(output_logit_cap=cap, logits_multiplier=2.0, dtype=dtype)
        x = jnp.array(logits, jnp.dtype(dtype))[None, :, None] / 2
        y = token_logits(config, x, jnp.ones((1, 1)), None)
        assert y.dtype == jnp.float32
        np.testing.assert_allclose(y[0, :, 0], expected, rtol=1e-6)


def test_a_cap_keeps_the_order_of_logits_and_a_huge_one_keeps_the_logits():
    x = jnp.asarray(6 * RNG.normal(size=(2, 50, 16)), jnp.float32)
    plain = np.asarray(token_logits(tiny(), x, TABLE, None))
    assert abs(plain).max() < 8 * 20
    assert abs(plain).max() > 3 * 20
    capped = np.asarray(token_logits(tiny(output_logit_cap=20.0), x, TABLE, None))
    assert abs(capped).max() <= 20
    np.testing.assert_array_equal(capped.argmax(-1), plain.argmax(-1))
    np.testing.assert_allclose(token_logits(tiny(output_logit_cap=1e6), x, TABLE, None), plain, rtol=1e-5, atol=1e-5)


def test_numbers_that_a_program_gives_replace_those_of_the_config():
    """None turns a feature off. A number that nothing gives, or that is given no more, is that of the config."""
    config = tiny(scale_embeddings=False, embedding_multiplier=3.0, output_logit_cap=30.0)
    assert [number_of(config, name) for name in NUMBERS] == [3.0, None, 30.0]
    with numbers_given({"embedding_multiplier": 5.0, "output_logit_cap": None}):
        assert [number_of(config, name) for name in NUMBERS] == [5.0, None, None]
        assert [number_of(tiny(), name) for name in NUMBERS] == [5.0, None, None]
        with pytest.raises(KeyError), numbers_given({"embedding_multiplier": 7.0}):
            raise KeyError
        with numbers_given({}):
            assert number_of(config, "embedding_multiplier") == 3.0
        assert number_of(config, "embedding_multiplier") == 5.0
    assert [number_of(config, name) for name in NUMBERS] == [3.0, None, 30.0]


def test_output_projection():
    x = jnp.asarray(RNG.normal(size=(2, 3, 16)), jnp.float32)
    config = tiny(tie_output=False)
    logits = OutputProjection(config).apply({"params": {"kernel": TABLE.T}}, x, TABLE)
    assert_close(logits, np.asarray(x, np.float64) @ np.asarray(TABLE, np.float64).T, 1e-6)


def test_initial_scales():
    config = tiny(vocab_size=500, emb_dim=64, tie_output=False)
    table = TokenEmbedding(config).init(jax.random.key(0), IDS)["params"]["embedding"]
    assert table.shape == (500, 64)
    assert float(table.std()) == pytest.approx(64**-0.5, rel=0.02)
    x = jnp.zeros((1, 1, 64))
    kernel = OutputProjection(config).init(jax.random.key(0), x, jnp.zeros((500, 64)))["params"]["kernel"]
    assert kernel.shape == (64, 500)
    assert float(jnp.abs(kernel).max()) == pytest.approx(math.sqrt(6 / 564), rel=0.001)


@pytest.mark.parametrize("init", ["glorot", "t5", "uniform", "normal_with_biases"])
def test_a_head_that_begins_at_zero(init):
    """Over a vocabulary and over labels, and its bias too; the layer in front of it has other values."""
    config = tiny(init=init, tie_output=False, output_bias=True, zero_head=True)
    x = jnp.ones((1, 2, 16))
    of_vocabulary = OutputProjection(config).init(jax.random.key(0), x, TABLE)["params"]
    of_labels = SequenceHead(config, 3, has_pooler=True).init(jax.random.key(0), x, {}, None)["params"]
    for params in (of_vocabulary, of_labels["output"]):
        assert {*params} == {"kernel", "bias"}
        assert not any(leaf.any() for leaf in params.values())
    assert of_labels["pooler"]["kernel"].all()
    begins = OutputProjection(dataclasses.replace(config, zero_head=False)).init(jax.random.key(0), x, TABLE)["params"]
    assert begins["kernel"].all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_stay_float32_and_results_have_the_type_of_the_computation(dtype):
    config = tiny(dtype=dtype)
    params = TokenEmbedding(config).init(jax.random.key(0), IDS)
    assert params["params"]["embedding"].dtype == jnp.float32
    x = TokenEmbedding(config).apply(params, IDS)
    assert x.dtype == jnp.dtype(dtype)
    assert token_logits(config, x, params["params"]["embedding"], None).dtype == jnp.float32


@pytest.mark.parametrize("name", ["sinusoidal", "learned", "rotary", "relative", "none"])
def test_position_embedding_adds_the_named_encoding(name):
    config = tiny(position_encoding=name)
    x, positions = jnp.asarray(RNG.normal(size=(2, 3, 16)), jnp.float32), jnp.array([[0, 1, 2], [5, 0, 11]])
    table = jnp.asarray(RNG.normal(size=(12, 16)), jnp.float32)
    added = {
        "sinusoidal": reference.sinusoids(np.asarray(positions), 16),
        "learned": np.asarray(table)[np.asarray(positions)],
    }
    params = {"learned": {"embedding": table}} if name == "learned" else {}
    y = PositionEmbedding(config).apply({"params": params}, x, positions)
    assert_close(y, x + added.get(name, np.zeros(x.shape)), 2e-6)


def test_one_row_of_positions_is_broadcast_over_the_batch():
    config = tiny()
    x = jnp.asarray(RNG.normal(size=(2, 3, 16)), jnp.float32)
    one = PositionEmbedding(config).apply({}, x, jnp.array([[0, 1, 2]]))
    two = PositionEmbedding(config).apply({}, x, jnp.array([[0, 1, 2], [0, 1, 2]]))
    np.testing.assert_array_equal(one, two)
