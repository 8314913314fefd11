"""Training on packed rows: loss and gradients equal those of separate rows, and runs resume."""

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_support import EOS_ID, encoded_pairs
from run_support import at, metric_lines
from support import as_batch, assert_close, forward, random_params, shift_right
from training_support import compiled_gradient, distance, identical, small_config

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.data.columns import RaggedIds
from transformer_jax.data.packing import PackedPlan
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training import loop
from transformer_jax.training.hyper import split
from transformer_jax.training.loop import run_loop
from transformer_jax.training.metric_log import MetricLog
from transformer_jax.training.progress import Progress
from transformer_jax.training.session import RunParts, TrainingSession
from transformer_jax.training.state import placed_state, state_shapes, state_template
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import SingleStepper

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
def test_accumulated_gradients_of_packed_rows_are_those_of_the_whole_batch():
    """With dropout, where rows have the same numbers."""
    batch = epoch_of({**PACKED, "data.row_multiple": 8, "data.tokens_per_batch": 256})
    static, hyper = split(small_config())
    params = random_params(static.model)
    expected = compiled_gradient(static)(params, batch, 0, hyper)
    parts, _ = split(small_config({"training.accumulation_steps": 2}))
    assert distance(compiled_gradient(parts)(params, batch, 0, hyper), expected) < 1e-5


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
    logits, other_logits = forward(config, params, batch)[0], forward(config, params, others)[0]
    segments = batch["targets_segment_ids"]
    assert (segments == 2).sum() > 20
    assert_close(other_logits[segments == 2], logits[segments == 2], 1e-6)
    assert np.abs(np.asarray(other_logits - logits))[segments == 1].max() > 0.1


# Runs.

NUM_STEPS, EVERY = 8, {"training.log_every_steps": 3, "training.checkpoint_every_steps": 20}


@functools.cache
def prepared():
    config = small_config({**PACKED, **EVERY, "training.num_train_steps": NUM_STEPS, "parallel.num_devices": 1})
    static, hyper = split(config)
    return config, static, hyper, make_launcher(config, make_train_step(static), parameter_axes(config.model))


def train(workdir):
    """Train from the last checkpoint in a folder, if there is one; return the result and the last saved state."""
    config, static, hyper, launcher = prepared()
    plan = training_batches(config, corpus(60))
    assert isinstance(plan, PackedPlan)
    assert 1 < plan.batches_per_epoch < NUM_STEPS
    store = CheckpointStore(workdir / "checkpoints", keep_last=1)
    places = launcher.shardings(state_shapes(static, hyper))
    template = state_template(static, hyper, places)
    state, record = placed_state(static, hyper, places), {}
    if store.steps():
        _, state, record = store.restore(template)
    data: Any = None  # what is trained is not scored
    parts = RunParts(config.training, data, False, plan, store, lambda _: {"loss": 1.0}, {}, {}, lambda *batch: Path())
    step = int(state.step)
    with MetricLog(workdir, step) as log, store:
        progress = Progress(step, NUM_STEPS)
        session = TrainingSession(parts, log, progress, record)
        [result] = run_loop([session], SingleStepper(launcher, state, hyper), step, progress)
    return result, store.restore(template).state


@pytest.mark.slow
def test_a_packed_run_resumes_and_logs_its_padding_efficiency(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    whole, expected = train(tmp_path / "a")
    assert (whole.step, whole.reason) == (NUM_STEPS, "finished")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "kill_point", at("after_batch", 4, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        stopped, _ = train(tmp_path / "b")
    assert (stopped.step, stopped.reason) == (4, "SIGTERM")
    resumed, state = train(tmp_path / "b")
    assert resumed == whole
    assert identical(state, expected)
    lines = metric_lines(tmp_path / "a")
    assert metric_lines(tmp_path / "b") == lines
    plan = training_batches(prepared()[0], corpus(60))
    shape = plan.shapes[0]
    slots = shape.rows * sum(map(shape.width, SIDES))
    windows = [(first, last, line) for first, last, line in zip((0, 3, 6), (3, 6, 8), lines[:3], strict=True)]
    for first, last, line in windows:
        ids = sum(np.count_nonzero(plan.batch(step)[side]) for step in range(first, last) for side in SIDES)
        assert line["padding_efficiency"] == ids / ((last - first) * slots)
