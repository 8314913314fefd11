"""Training on packed rows: loss and gradients equal those of separate rows, and runs resume."""

import functools

import numpy as np
import pytest
from data_support import EOS_ID, encoded_pairs
from support import as_batch, assert_close, forward, random_params, shift_right
from training_support import compiled_gradient, distance, small_config

from transformer_jax.data.columns import RaggedIds
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training.hyper import split

SIDES = ("inputs", "targets")
ENCODINGS = ["sinusoidal", "learned", "rotary", "relative", "none"]
# A row is longer than a learned table has positions.
PACKED = {"data.batching": "packed", "data.packed_length": 32, "data.row_multiple": 4, "data.tokens_per_batch": 128}
NO_DROPOUT = {f"model.{name}dropout_rate": 0.0 for name in ("", "embedding_", "attention_", "activation_", "final_")}


@functools.cache
def corpus(num_pairs=20):
    random = np.random.default_rng(0)

    def side():
        lengths = random.integers(1, 12, num_pairs)
        offsets = np.cumsum([0, *lengths])
        ids = random.integers(4, 17, offsets[-1]).astype(np.int32)
        ids[offsets[1:] - 1] = EOS_ID
        return RaggedIds(ids, offsets)

    return encoded_pairs(side(), side())


def epoch_of(overrides):
    """Return all pairs in one batch."""
    plan = training_batches(small_config(overrides), corpus())
    assert plan.batches_per_epoch == 1
    return {name: np.asarray(array) for name, array in as_batch(**plan.batch(0)).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("position_encoding", "norm_position"),
    [("sinusoidal", "post"), ("learned", "pre"), ("rotary", "post"), ("relative", "pre"), ("none", "post")],
)
def test_packed_rows_have_the_loss_and_gradients_of_separate_rows(position_encoding, norm_position):
    fields = {"model.position_encoding": position_encoding, "model.norm_position": norm_position}
    static, hyper = split(small_config(fields | NO_DROPOUT))
    params = random_params(static.model)
    packed = epoch_of({**PACKED, "data.row_multiple": 8, "data.tokens_per_batch": 256})
    separate = epoch_of({"data.num_buckets": 1})
    assert packed["targets"].shape == (8, 32)
    assert separate["targets"].shape == (32, 11)
    grads, sums = compiled_gradient(static)(params, packed, 0, hyper)
    expected_grads, expected_sums = compiled_gradient(static)(params, separate, 0, hyper)
    assert sums["weight"] == expected_sums["weight"] == corpus().lengths("targets").sum()
    assert sums["correct"] == expected_sums["correct"]
    for name in ("loss", "nll"):
        assert distance(sums[name], expected_sums[name]) < 1e-5
    assert distance(grads, expected_grads) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("position_encoding", ENCODINGS)
def test_a_segment_does_not_depend_on_its_neighbours(position_encoding):
    config = small_config({"model.position_encoding": position_encoding, **NO_DROPOUT}).model
    params = random_params(config)
    batch = epoch_of({**PACKED, "data.row_multiple": 8, "data.tokens_per_batch": 256})
    others = dict(batch)
    for side in SIDES:
        is_other = (batch[f"{side}_segment_ids"] > 0) & (batch[f"{side}_segment_ids"] != 2)
        others[side] = np.where(is_other, 4 + (batch[side] + 5) % 13, batch[side])
        assert (others[side] != batch[side]).sum() > 50
    others["decoder_inputs"] = shift_right(others["targets"], segment_ids=batch["targets_segment_ids"])
    logits, other_logits = forward(config, params, batch), forward(config, params, others)
    segments = batch["targets_segment_ids"]
    assert (segments == 2).sum() > 20
    assert_close(other_logits[segments == 2], logits[segments == 2], 1e-6)
    assert np.abs(np.asarray(other_logits - logits))[segments == 1].max() > 0.1
