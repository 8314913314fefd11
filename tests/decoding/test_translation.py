"""Cached greedy translation against the plainest thing that could work: the whole forward pass for every token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import OPTIONS, forward, random_params, tiny

from transformer_jax.config import EOS_ID, PAD_ID
from transformer_jax.decoding.translation import translate_greedily
from transformer_jax.errors import UserError

MAX_LENGTH = 12
# Tokens of every source, eos included; 0 is a row of padding.
LENGTHS = (6, 3, 0, 1, 5, 2, 6, 4)


def sources(lengths=LENGTHS, width=6, seed=0):
    ids = np.random.default_rng(seed).integers(4, 19, (len(lengths), width))
    column, length = np.arange(width), np.array(lengths)[:, None]
    ids = np.where(column == length - 1, EOS_ID, np.where(column < length, ids, PAD_ID))
    return ids.astype(np.int32)


def naive(config, params, inputs, max_extra_length):
    """Every token by a full forward pass over what there is, in Python; ids [B, limit] and whether each row ended."""
    limit = min(inputs.shape[1] + max_extra_length, config.max_length)
    targets = np.zeros((len(inputs), limit), np.int32)
    done = np.zeros(len(inputs), bool)
    lengths = (inputs > 0).sum(1)
    max_lengths = np.where(lengths, np.minimum(lengths + max_extra_length, limit), 0)
    for t in range(limit):
        # What stands in targets from t on cannot matter: a decoder input is the target before it.
        logits, _ = forward(config, params, {"inputs": inputs, "targets": targets})
        best = 1 + np.asarray(logits, np.float64)[:, t, 1:].argmax(-1)
        targets[:, t] = np.where(done | (t >= max_lengths), 0, best)
        done |= targets[:, t] == EOS_ID
    return targets, (targets == EOS_ID).any(1)


@functools.cache
def lively_params(config, max_extra_length=3):
    """Random parameters with which some rows end and some do not, and rows differ: most seeds only repeat one token."""

    def score(seed):
        result = jax.device_get(translate_greedily(config, random_params(config, seed), sources(), max_extra_length))
        kinds = len({(bool(ended), length > 1) for ended, length in zip(result.finished, result.lengths, strict=True)})
        return min(kinds, 3), len(np.unique(result.ids)), len(set(map(tuple, result.ids)))

    seed = max(range(60), key=score)
    kinds, tokens, rows = score(seed)
    assert kinds == 3  # ended, cut and padding
    assert tokens >= 4
    assert rows >= 4
    return random_params(config, seed)


def config_of(**fields):
    return tiny(num_encoder_layers=1, tie_output=False, **fields)


def check(config, max_extra_length, params=None):
    params = lively_params(config, max_extra_length) if params is None else params
    inputs = sources()
    result = jax.device_get(translate_greedily(config, params, inputs, max_extra_length))
    ids, finished = naive(config, params, inputs, max_extra_length)
    np.testing.assert_array_equal(result.ids, ids)
    np.testing.assert_array_equal(result.finished, finished)
    np.testing.assert_array_equal(result.lengths, (ids > 0).sum(1))
    return result


@pytest.mark.parametrize("position_encoding", OPTIONS["position_encoding"])
def test_equals_the_naive_loop(position_encoding):
    check(config_of(position_encoding=position_encoding), 3)


def test_rows_end_by_themselves_or_unfinished_at_their_own_limit():
    result = check(config_of(num_kv_heads=2, decoder_start_id=7), 3)
    lengths = np.array(LENGTHS)
    cut = ~result.finished & (lengths > 0)
    np.testing.assert_array_equal(result.lengths[cut], np.minimum(lengths + 3, MAX_LENGTH)[cut])
    assert len(set(result.lengths[cut])) > 1
    assert not result.ids[lengths == 0].any()
    assert not result.finished[lengths == 0].any()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{"norm_position": "pre"}, {"scan_layers": True}, {"share_embeddings": False}])
def test_other_models(fields):
    check(config_of(**fields), 3)


@pytest.mark.slow
def test_the_capacity_of_the_model_is_a_limit_too():
    result = check(config_of(max_length=5), 50)
    assert result.ids.shape[1] == 5
    assert result.lengths.max() == 5


@pytest.mark.slow
def test_no_extra_length():
    params = lively_params(config_of())
    assert (check(config_of(), 0, params).lengths <= LENGTHS).all()


def test_a_translation_does_not_depend_on_its_batch():
    config = config_of(num_kv_heads=2, decoder_start_id=7)
    params, inputs = lively_params(config), sources()
    together = jax.device_get(translate_greedily(config, params, inputs, 3))
    order = np.random.default_rng(0).permutation(len(inputs))
    shuffled = jax.device_get(translate_greedily(config, params, inputs[order], 3))
    for ours, theirs in zip(shuffled, together, strict=True):
        np.testing.assert_array_equal(ours, theirs[order])
    # Beside other rows, and in a wider batch.
    for row in (0, 4, 6):
        fewer = sources((6, 3), width=9, seed=5)
        fewer[0] = np.pad(inputs[row], (0, 3))
        alone = jax.device_get(translate_greedily(config, params, fewer, 3))
        np.testing.assert_array_equal(alone.ids[0, :9], together.ids[row])
        assert alone.finished[0] == together.finished[row]
        assert alone.lengths[0] == together.lengths[row]


def test_a_source_longer_than_the_learned_table_is_an_error():
    config = config_of(position_encoding="learned")
    with pytest.raises(UserError, match=r"13.*model\.max_length=12"):
        translate_greedily(config, random_params(config), jnp.ones((1, 13), jnp.int32), 3)
