"""Dropout in the whole model: its places, a separate mask for each, and masks that depend only on seed and row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import Model
from support import assert_close, forward, make_batch, random_params, tiny

from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn import attention, embedder, feed_forward, residual, stack
from transformer_jax.nn.dropout import Dropout, DropoutRates, drop, fold, keep_mask

RATES = DropoutRates(residual=0.1, embedding=0.2, attention=0.3, activation=0.4, final=0.5)
SEED = fold(jnp.uint32(0), 99)


def make_dropout(rates=RATES, rows=3, seed=SEED):
    return Dropout(seed, jnp.arange(10, 10 + rows), rates)


@pytest.fixture
def record(monkeypatch):
    """Record every call of `drop` while a model runs, in order: (place, seed, keep mask)."""
    records = []

    def recording_drop(x, dropout, place):
        if dropout is not None and getattr(dropout.rates, place) is not None:
            keep = keep_mask(dropout.seed, dropout.row_ids, x.shape, getattr(dropout.rates, place))
            if not isinstance(keep, jax.core.Tracer):  # Flax traces the body of a scan once before running it
                records.append((place, int(dropout.seed), np.asarray(keep)))
        return drop(x, dropout, place)

    for module in (attention, embedder, feed_forward, residual, stack):
        monkeypatch.setattr(module, "drop", recording_drop)

    def run(config, params, batch, dropout):
        records.clear()
        with jax.disable_jit():  # a scan is then a Python loop over arrays
            logits = ARCHITECTURES[config.architecture].module(config).apply({"params": params}, batch, dropout)
        return logits, list(records)

    return run


# The layer of an encoder, and that of a decoder without an encoder.
ENCODER_LAYER = ["attention", "residual", "activation", "residual"]
DECODER_LAYER = ["attention", "residual", "attention", "residual", "activation", "residual"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {"norm_position": "post", "activation": "swiglu", "scan_layers": True},
        {"norm_position": "pre", "num_kv_heads": 2},
        {"architecture": "decoder_only", "norm_position": "pre"},
        {"architecture": "encoder_only", "embedding_norm": True},
    ],
    ids=["post", "pre", "decoder_only", "encoder_only"],
)
def test_dropout_is_applied_where_the_papers_put_it(record, fields):
    """The float64 reference computes the same logits with the recorded masks at its own places."""
    config = tiny(**fields)
    params, batch = random_params(config), make_batch()
    logits, records = record(config, params, batch, make_dropout())
    expected_places = ["embedding", *ENCODER_LAYER * 2, "final"]
    if config.architecture == "encoder_decoder":
        expected_places += ["embedding", *DECODER_LAYER * 2, "final"]
    assert [place for place, _, _ in records] == expected_places
    masks = iter(records)

    def recorded(x, place):
        at, _, keep = next(masks)
        assert at == place
        return x * keep / (1 - getattr(RATES, place))

    assert_close(logits, Model(config, params, recorded)(batch))
    assert_close(logits, forward(config, params, batch, make_dropout()), 1e-6)
    # Encoder and decoder, layers, and places within a layer: each has its own seed.
    assert len({seed for _, seed, _ in records}) == len(records) == len(expected_places)


@pytest.mark.slow
@pytest.mark.parametrize("place", [place for place in DropoutRates._fields if place != "head"])  # nn/test_heads.py
def test_every_place_is_used(place):
    """One rate alone changes the output, and two values of it change it differently."""
    config = tiny(scan_layers=True, num_encoder_layers=1, num_decoder_layers=1)
    params, batch = random_params(config), make_batch()
    plain = forward(config, params, batch)
    outputs = [forward(config, params, batch, make_dropout(DropoutRates(**{place: rate}))) for rate in (0.0, 0.1, 0.5)]
    assert_close(outputs[0], plain, 1e-6)
    assert np.abs(outputs[1] - plain).max() > 0.01
    assert np.abs(outputs[2] - outputs[1]).max() > 0.01


def hash_operations(config, dropout):
    """Return equations on arrays (not scalars) of 32-bit words, which only the hash has."""
    params, batch = random_params(config), make_batch()
    module = ARCHITECTURES[config.architecture].module(config)
    jaxpr = jax.make_jaxpr(lambda p: module.apply({"params": p}, batch, dropout))(params)
    return [line for line in str(jaxpr).splitlines() if ":u32[" in line and "xor" in line and ":u32[]" not in line]


@pytest.mark.slow
def test_with_rates_of_none_the_program_has_no_hash():
    config = tiny(scan_layers=True)
    assert not hash_operations(config, None)
    assert not hash_operations(config, make_dropout(DropoutRates()))
    one = len(hash_operations(config, make_dropout(DropoutRates(embedding=0.1))))
    all_of_them = len(hash_operations(config, make_dropout()))
    assert 0 < one < all_of_them
    without = make_dropout(DropoutRates())
    params, batch = random_params(config), make_batch()
    assert_close(forward(config, params, batch, without), forward(config, params, batch), 0)


@pytest.mark.slow
def test_the_mask_of_a_row_does_not_depend_on_its_batch():
    """The mask stays the same when rows are split over micro-batches or devices, or come in another order."""
    config = tiny(scan_layers=True)
    params, batch, dropout = random_params(config), make_batch(4), make_dropout(rows=4)
    whole = forward(config, params, batch, dropout)
    for rows in ([0, 1], [2, 3], [3, 1]):
        rows = jnp.array(rows)
        part = {name: ids[rows] for name, ids in batch.items()}
        logits = forward(config, params, part, dropout._replace(row_ids=dropout.row_ids[rows]))
        assert_close(logits, whole[rows], 1e-6)
    swapped = forward(config, params, batch, dropout._replace(row_ids=dropout.row_ids[::-1]))
    assert np.abs(swapped - whole).max() > 0.01


def test_equal_sentences_in_different_rows_have_different_masks():
    config = tiny(scan_layers=True)
    params, batch = random_params(config), make_batch()
    batch = {name: jnp.broadcast_to(ids[:1], ids.shape) for name, ids in batch.items()}
    logits = forward(config, params, batch, make_dropout())
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(logits[a] - logits[b]).max() > 0.01


@pytest.mark.slow
def test_trials_under_vmap_equal_separate_runs():
    """Seeds and rates of several trials in one program: rates are arguments, so a new value does not recompile."""
    config = tiny(scan_layers=True)
    params, batch = random_params(config), make_batch()
    seeds = fold(SEED, jnp.arange(2))
    rates = DropoutRates(*(None if rate is None else jnp.array([rate, rate / 2]) for rate in RATES))
    axes = Dropout(seed=0, row_ids=None, rates=0)
    trials = Dropout(seeds, jnp.arange(3), rates)
    together = jax.jit(jax.vmap(lambda d: forward(config, params, batch, d), (axes,)))(trials)
    compiled = forward._cache_size()
    for i in range(2):
        dropout = Dropout(seeds[i], jnp.arange(3), jax.tree.map(lambda rate, i=i: rate[i], rates))
        assert_close(together[i], forward(config, params, batch, dropout), 2e-6)
    assert forward._cache_size() == compiled + 1
    assert np.abs(together[0] - together[1]).max() > 0.01
