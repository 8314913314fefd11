"""Training with hashed masks gives as good a model as with masks of a random generator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import as_batch
from training_support import small_config

from transformer_jax.nn import dropout
from transformer_jax.training.hyper import Hyper, StaticConfig, split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import batch_loss, make_train_step

SEEDS, STEPS, TRAIN_ROWS, TEST_ROWS, LENGTH = 8, 100, 32, 96, 5


def threefry_mask(seed, row_ids, shape, rate):
    return jax.random.bernoulli(jax.random.key(seed, impl="threefry2x32"), 1.0 - rate, tuple(shape))


def batch(rows, seed):
    """Return sequences and, as targets, the same reversed with every tenth token replaced; few enough to overfit."""
    random = np.random.default_rng(seed)
    inputs = random.integers(4, 17, (rows, LENGTH))
    noise = random.integers(4, 17, (rows, LENGTH))
    targets = np.where(random.random((rows, LENGTH)) < 0.1, noise, inputs[:, ::-1])
    ids = {"inputs": inputs, "targets": targets, "row_ids": np.arange(rows)}
    return as_batch(**{name: jnp.asarray(value, jnp.int32) for name, value in ids.items()})


def held_out_losses(static: StaticConfig, hyper: Hyper) -> np.ndarray:
    """Return the loss per token on unseen rows after training, [SEEDS]."""
    train, test = batch(TRAIN_ROWS, 0), batch(TEST_ROWS, 1)
    step = make_train_step(static)
    without = hyper._replace(dropout=dropout.DropoutRates(), label_smoothing=None)

    def one(seed):
        mine = hyper._replace(seed=seed)
        state, _ = jax.lax.scan(lambda s, _: (step(s, train, mine)[0], None), init_state(static, mine), None, STEPS)
        sums = batch_loss(static, state.params, test, state.step, without).sums
        return sums["nll"] / sums["weight"]

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(SEEDS)))


@pytest.mark.slow
def test_hashed_masks_regularise_like_random_ones(monkeypatch):
    """Means over seeds differ by less than three standard errors; without dropout they differ by many."""
    rates = {f"model.{name}dropout_rate": 0.2 for name in ("", "embedding_", "attention_", "activation_")}
    config = {"model.emb_dim": 32, "optimizer.learning_rate": 5e-3, "optimizer.decay_steps": STEPS}
    static, hyper = split(small_config({**config, **rates}))
    hashed = held_out_losses(static, hyper)
    none = held_out_losses(static, hyper._replace(dropout=dropout.DropoutRates()))
    monkeypatch.setattr(dropout, "keep_mask", threefry_mask)
    random = held_out_losses(static, hyper)
    error = np.sqrt((hashed.var(ddof=1) + random.var(ddof=1)) / SEEDS)
    assert abs(hashed.mean() - random.mean()) < 3 * error
    assert none.mean() - random.mean() > 6 * error
