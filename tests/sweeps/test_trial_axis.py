"""The training step over an axis of trials: every trial makes the update of its own step."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_support import (
    compiled_step,
    distance,
    first_moment,
    identical,
    moved,
    read_by,
    small_config,
    split_for,
    start,
    uneven_batch,
)

from transformer_jax.nn.dropout import keep_mask
from transformer_jax.sweeps.trials import program_key
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import over_trials, stacked

# Every scalar argument of a compiled step differs in at least one trial. Nothing is clipped, so that the first moment
# after one update is proportional to the gradient.
FIELDS = [
    {"seed": 1, "model.embedding_multiplier": 2.0},
    {
        "seed": 2,
        "training.z_loss": 0.1,
        "model.logits_multiplier": 0.5,
        "optimizer.learning_rate": 0.003,
        "optimizer.warmup_steps": 5,
        "model.dropout_rate": 0.3,
    },
    {
        "seed": 2**31 - 1,
        "optimizer.beta1": 0.8,
        "optimizer.beta2": 0.9,
        "optimizer.epsilon": 1e-6,
        "model.output_logit_cap": 3.0,
    },
    {
        "seed": 4,
        "training.label_smoothing": 0.3,
        "optimizer.weight_decay": 0.1,
        "optimizer.decay_steps": 10,
        "optimizer.end_fraction": 0.5,
        "optimizer.layer_decay": 0.7,
        "model.embedding_dropout_rate": 0.4,
        "model.attention_dropout_rate": 0.05,
        "model.activation_dropout_rate": 0.5,
        "model.final_dropout_rate": 0.2,
    },
]
OUTPUTS = {
    **{"model.scale_embeddings": False, "model.embedding_multiplier": 4.0, "model.logits_multiplier": 0.9},
    **{"model.output_logit_cap": 30.0, "training.z_loss": 0.01},
}
FIELDS = [OUTPUTS | fields for fields in FIELDS]


class Case(NamedTuple):
    axis: str
    architecture: str
    packed: bool = False


CASES = [
    Case("map", "encoder_decoder"),
    Case("vmap", "encoder_decoder", packed=True),
    Case("map", "decoder_only", packed=True),
    Case("vmap", "recurrent"),
]
RECURRENT = [{"model.teacher_forcing_rate": rate, "optimizer.layer_decay": 1.0} for rate in (0.7, 0.7, 0.4, 0.9)]


def batch_of(case: Case, number: int) -> dict[str, np.ndarray]:
    """Return the batch of a trial; two tokens are one segment of a packed row, the others another one."""
    batch = uneven_batch(seed=100 * number)
    for side in ("inputs", "targets") if case.packed else ():
        place = np.arange(batch[side].shape[1], dtype=np.int32)
        batch[f"{side}_segment_ids"] = np.where(batch[side] > 0, np.where(place < 2, 1, 2), 0).astype(np.int32)
        batch[f"{side}_positions"] = np.broadcast_to(np.where(place < 2, place, place - 2), batch[side].shape)
    return read_by(case.architecture, batch)


def test_the_trials_share_a_program():
    assert len({program_key(small_config(fields)) for fields in FIELDS}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_every_trial_makes_the_update_of_its_own_step(case):
    own = RECURRENT if case.architecture == "recurrent" else [{}] * len(FIELDS)
    configs = [{**fields, **others, "optimizer.clip_norm": 1e9} for fields, others in zip(FIELDS, own, strict=True)]
    statics, hypers = zip(*(split_for(case.architecture, fields) for fields in configs), strict=True)
    static = statics[0]
    assert set(statics) == {static}
    batches = [batch_of(case, number) for number in range(len(FIELDS))]
    before = [start(static, hyper) for hyper in hypers]
    expected = [compiled_step(static)(*trial) for trial in zip(before, batches, hypers, strict=True)]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *before)
    found, metrics = over_trials(make_train_step(static), case.axis)(together, stacked(batches), stacked(hypers))
    for number, (state, own_metrics) in enumerate(expected):
        mine = jax.tree.map(lambda leaf, n=number: leaf[n], found)
        assert mine.step == state.step == 1
        assert distance(first_moment(mine), first_moment(state)) < 1e-5
        for name, value in own_metrics.items():
            np.testing.assert_allclose(metrics[name][number], value, rtol=1e-5, err_msg=name)
        updates = [moved(after, before[number], first_moment(state), 1e-3) for after in (mine, state)]
        assert distance(*updates) < 1e-3
    assert len({float(loss) for loss in metrics["loss"]}) == len(FIELDS)
    assert not identical(before[0].params, before[1].params)


def test_dropout_masks_are_identical():
    """Every trial has its own seed, rows and rate."""
    seeds = jnp.array([7, 8, 2**32 - 1], jnp.uint32)
    rows = jnp.array([[0, 1], [5, 1000], [3, 2**31 - 1]], jnp.int32)
    rates = jnp.array([0.1, 0.5, 0.9], jnp.float32)

    def mask(seed, row_ids, rate):
        return keep_mask(seed, row_ids, (2, 33, 17), rate)

    vmapped = jax.jit(jax.vmap(mask))(seeds, rows, rates)
    mapped = jax.jit(lambda *trials: jax.lax.map(lambda trial: mask(*trial), trials))(seeds, rows, rates)
    for number in range(3):
        alone = jax.jit(mask)(seeds[number], rows[number], rates[number])
        assert (vmapped[number] == alone).all()
        assert (mapped[number] == alone).all()
