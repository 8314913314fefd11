import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.nn.embeddings import OutputProjection, TokenEmbedding, token_logits
from transformer_jax.nn.positions import PositionEmbedding

RNG = np.random.default_rng(0)
TABLE = jnp.asarray(RNG.normal(size=(19, 16)), jnp.float32)
IDS = jnp.array([[3, 0, 18], [7, 7, 1]])


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
