"""Training of a stack whose layers have different parameters: stored and resumed bit for bit, alone and as trials."""

import functools

import jax
import numpy as np
import pytest
from training_support import compiled_step, distance, identical, read_by, small_config, start, uneven_batch

from transformer_jax.checkpoints.checksums import by_path
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.training.hyper import split
from transformer_jax.training.state import state_shapes, state_template
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import StackedStepper, over_trials

CONFIG = small_config(
    {
        "model.architecture": "decoder_only",
        "task.name": "language_model",
        "model.num_encoder_layers": 6,  # not read; the default
        "model.num_decoder_layers": 4,
        "model.layer_pattern": "GAXA",
        "model.layer_kinds": "G: mixer=gated_delta; X: mixer=gated_delta, feed_forward=experts; A: attention_window=3",
        "model.norm_position": "pre",
        "model.scan_layers": True,
        "training.balance_loss": 0.01,
    }
)
STATIC, HYPER = split(CONFIG)


@functools.cache
def batch(step):
    return read_by("decoder_only", uneven_batch((5, 1, 0, 4) * 4, seed=step))


def trained(state, first, last):
    for step in range(first, last):
        state, _ = compiled_step(STATIC)(state, batch(step), HYPER)
    return state


@pytest.mark.slow
def test_a_stored_state_goes_on_bit_for_bit(tmp_path):
    with CheckpointStore(tmp_path) as store:
        state = trained(start(STATIC, HYPER), 0, 2)
        store.save(2, state, {}, {})
        expected = trained(state, 2, 3)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template = state_template(STATIC, HYPER, jax.tree.map(lambda _: device, state_shapes(STATIC, HYPER)))
    restored = store.restore(template).state
    assert identical(trained(restored, 2, 3), expected)
    folders = {
        "/".join(path.split("/")[:2]): len(x) for path, x in by_path(expected.params).items() if "layers" in path
    }
    assert folders == {"decoder/layers": 2, "decoder/layers_gated_delta": 1, "decoder/layers_gated_delta_experts": 1}
    before = by_path(start(STATIC, HYPER).params)
    assert all(not np.array_equal(x, before[path]) for path, x in by_path(expected.params).items() if "kernel" in path)


@pytest.mark.slow
def test_trials_in_one_program_equal_trials_alone():
    faster = HYPER._replace(learning_rate=2 * HYPER.learning_rate)
    stepper = StackedStepper(
        over_trials(make_train_step(STATIC), "vmap"), [start(STATIC, h) for h in (HYPER, faster)], [HYPER, faster]
    )
    stepper.step([batch(0), batch(0)])
    for number, hyper in enumerate((HYPER, faster)):
        alone, _ = compiled_step(STATIC)(start(STATIC, hyper), batch(0), hyper)
        assert distance(stepper.state_of(number).opt_state, alone.opt_state) < 1e-5
