"""Heads of tasks against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.nn.dropout import Dropout, DropoutRates, keep_mask
from transformer_jax.nn.heads import POOLINGS, MaskedLMHead, SequenceHead, TokenHead

RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(3, 5, 16)), jnp.float32)
TABLE = jnp.asarray(RNG.normal(size=(19, 16)), jnp.float32)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], bool)
BATCH = {"inputs_mask": jnp.asarray(MASK)}


RATE = 0.4
DROPOUT = Dropout(jnp.uint32(5), jnp.array([7, 3, 9]), DropoutRates(residual=0.9, final=0.9, head=RATE))


def kept(shape):
    """Return the factors of dropout at the place `head`, 0 or 1 / (1 - rate), in float64."""
    return np.asarray(keep_mask(DROPOUT.seed, DROPOUT.row_ids, shape, RATE), np.float64) / (1 - RATE)


def applied(head, batch=BATCH, dropout=None):
    """Return the output of a head, and its random parameters in float64."""
    shapes = jax.eval_shape(lambda: head.init(jax.random.key(0), X, BATCH, TABLE)["params"])
    params = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape), jnp.float32), shapes)
    y = head.apply({"params": params}, X, batch, TABLE, dropout)
    assert y.dtype == jnp.float32
    return y, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.parametrize(
    "fields",
    [
        {"activation": "gelu", "output_bias": True},
        {"activation": "swiglu", "norm": "rmsnorm", "use_bias": False, "scale_logits": True},
        {"tie_output": False},
    ],
    ids=["bert", "other", "untied"],
)
def test_masked_lm_head(fields):
    config = tiny(**fields)
    logits, p = applied(MaskedLMHead(config))
    y = np.asarray(X, np.float64) @ p["transform"]["kernel"]
    y = y + p["transform"]["bias"] if config.use_bias else y
    y = reference.norm(config, reference.activation(config.activation, y), p["norm"])
    y = y / 4 if config.scale_logits else y
    expected = y @ (np.asarray(TABLE, np.float64).T if config.tie_output else p["output"]["kernel"])
    assert_close(logits, expected + p["output"]["bias"] if config.output_bias else expected)


def pooled(pooling):
    """One row at a time."""
    rows = []
    for x, mask in zip(np.asarray(X, np.float64), MASK, strict=True):
        tokens = x[mask]
        rows.append({"first": tokens[0], "last": tokens[-1], "mean": tokens.mean(0), "max": tokens.max(0)}[pooling])
    return np.stack(rows)


@pytest.mark.parametrize("dropout", [None, DROPOUT], ids=["deterministic", "dropout"])
@pytest.mark.parametrize("has_pooler", [False, True])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_sequence_head(pooling, has_pooler, dropout):
    logits, p = applied(SequenceHead(tiny(), 4, pooling, has_pooler), dropout=dropout)
    y = pooled(pooling)
    if has_pooler:
        y = np.tanh(y @ p["pooler"]["kernel"] + p["pooler"]["bias"])
    y = y if dropout is None else y * kept(y.shape)
    assert ("pooler" in p) == has_pooler
    assert_close(logits, y @ p["output"]["kernel"] + p["output"]["bias"])


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_empty_row_has_no_nan_and_a_missing_mask_means_all_tokens(pooling):
    head = SequenceHead(tiny(), 4, pooling)
    y, _ = applied(head, {"inputs_mask": jnp.zeros((3, 5), bool)})
    assert np.isfinite(y).all()
    gradient = jax.grad(lambda x: POOLINGS[pooling](x, jnp.zeros((3, 5), bool)).sum())(X)
    assert np.isfinite(gradient).all()
    params = head.init(jax.random.key(1), X, BATCH, TABLE)
    everything = {"inputs_mask": jnp.ones((3, 5), bool)}
    np.testing.assert_array_equal(head.apply(params, X, {}, TABLE), head.apply(params, X, everything, TABLE))


@pytest.mark.parametrize("dropout", [None, DROPOUT], ids=["deterministic", "dropout"])
def test_token_head(dropout):
    logits, p = applied(TokenHead(tiny(), 4), dropout=dropout)
    x = np.asarray(X, np.float64) * (1 if dropout is None else kept(X.shape))
    assert_close(logits, x @ p["output"]["kernel"] + p["output"]["bias"])


def test_the_head_of_masked_tokens_has_no_dropout():
    head = MaskedLMHead(tiny())
    params = head.init(jax.random.key(0), X, BATCH, TABLE)
    np.testing.assert_array_equal(head.apply(params, X, BATCH, TABLE, DROPOUT), head.apply(params, X, BATCH, TABLE))
