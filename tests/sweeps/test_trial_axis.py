"""The training step over an axis of trials: every trial has the gradients, masks and losses of its own step."""

import functools

import jax
import jax.numpy as jnp
import pytest
from training_support import compiled_gradient, distance, small_config, start, uneven_batch

from transformer_jax.nn.dropout import keep_mask
from transformer_jax.sweeps.trials import program_key
from transformer_jax.training.hyper import split
from transformer_jax.training.step import batch_gradient
from transformer_jax.training.stepper import stacked

# Every scalar argument of a compiled step differs in at least one trial.
FIELDS = [
    {"seed": 1},
    {"seed": 2, "optimizer.learning_rate": 0.003, "optimizer.warmup_steps": 5, "model.dropout_rate": 0.3},
    {"seed": 3, "optimizer.beta1": 0.8, "optimizer.beta2": 0.9, "optimizer.epsilon": 1e-6, "optimizer.clip_norm": 0.3},
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
CONFIGS = [small_config(fields) for fields in FIELDS]
STATICS, HYPERS = zip(*(split(config) for config in CONFIGS), strict=True)


def batch_of(number, step):
    return uneven_batch(seed=100 * number + step)


def test_the_trials_share_a_program():
    assert len({program_key(config) for config in CONFIGS}) == 1
    assert len(set(STATICS)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["vmap", "map"])
def test_gradients_of_the_first_step(axis):
    """They agree to 1e-5 of the largest, with four kinds of dropout on."""
    gradient = functools.partial(batch_gradient, STATICS[0])
    states = [start(STATICS[0], hyper) for hyper in HYPERS]
    batches = [batch_of(number, 0) for number in range(4)]

    def one(params, batch, hyper):
        return gradient(params, batch, jnp.int32(0), hyper)[0]

    def together(*stacks):
        return jax.vmap(one)(*stacks) if axis == "vmap" else jax.lax.map(lambda trial: one(*trial), stacks)

    found = jax.jit(together)(stacked([state.params for state in states]), stacked(batches), stacked(HYPERS))
    for number, (state, batch, hyper) in enumerate(zip(states, batches, HYPERS, strict=True)):
        alone, _ = compiled_gradient(STATICS[0])(state.params, batch, 0, hyper)
        assert distance(jax.tree.map(lambda leaf, n=number: leaf[n], found), alone) < 1e-5


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
