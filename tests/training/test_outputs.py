"""The z-loss, and the numbers of the output layer, in a step: against logits, in parts, on devices and in trials."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import forward
from training_support import distance, small_config, start, uneven_batch

from transformer_jax.config import TaskConfig
from transformer_jax.errors import ConfigError
from transformer_jax.nn.collected import ROWS_AXIS, over_devices
from transformer_jax.tasks.metrics.cross_entropy import CROSS_ENTROPY_SUMS, z_loss_summed
from transformer_jax.tasks.task import TASKS, training_metrics
from transformer_jax.tasks.trained.loss_sums import loss_sums, split_for_evaluation
from transformer_jax.training import step
from transformer_jax.training.hyper import split
from transformer_jax.training.stepper import stacked

RATES = ("dropout_rate", "embedding_dropout_rate", "attention_dropout_rate", "activation_dropout_rate")
NUMBERS = {
    **{"model.scale_embeddings": False, "model.embedding_multiplier": 3.0, "model.logits_multiplier": 0.5},
    **{"model.output_logit_cap": 2.0, "training.z_loss": 0.3, "training.label_smoothing": 0.1},
    **{f"model.{name}": 0.0 for name in (*RATES, "final_dropout_rate")},
}
CONFIG = small_config(NUMBERS)
STATIC, HYPER = split(CONFIG)


def gradient_of(parts=1, chunks=1):
    """Return the function (params, batch, hyper) -> gradient of a batch, in parts, with logits in chunks."""
    static = dataclasses.replace(STATIC, accumulation_steps=parts, loss_chunks=chunks)
    return lambda params, batch, hyper: step.batch_gradient(static, params, batch, jnp.int32(0), hyper)


@functools.cache
def compiled():
    return jax.jit(gradient_of())


@functools.cache
def params():
    return start(STATIC, HYPER).params


@functools.cache
def whole():
    """Return the gradient of the batch as one part."""
    return compiled()(params(), uneven_batch(), HYPER)


def test_the_numbers_of_a_step_are_those_of_the_model_of_the_config():
    """The sums are those of the logits of a model that has the numbers in its config; `loss` is without the z-loss."""
    batch = uneven_batch()
    assert (STATIC.model.output_logit_cap, STATIC.model.embedding_multiplier) == (None, 1.0)
    logits = np.asarray(forward(CONFIG.model, params(), batch), np.float64)
    assert 1.0 < abs(logits).max() < 2.0
    normaliser = np.log(np.exp(logits).sum(-1))
    nll = normaliser - np.take_along_axis(logits, batch["targets"][..., None], -1)[..., 0]
    smoothed = 0.9 * nll + 0.1 * (normaliser - logits.mean(-1))
    expected = {"nll": nll, "loss": smoothed, "z_loss": normaliser**2}
    found = whole().sums
    assert {name: float(found[name]) for name in expected} == pytest.approx(
        {name: float((batch["weights"] * x).sum()) for name, x in expected.items()}, rel=1e-5
    )


def test_an_evaluation_has_the_same_logits_and_no_z_loss():
    static, hyper = split_for_evaluation(CONFIG)
    found = loss_sums(static, params(), uneven_batch(), hyper)
    assert {*found} == {*CROSS_ENTROPY_SUMS}
    assert float(found["nll"]) == pytest.approx(float(whole().sums["nll"]), rel=1e-6)


def test_the_gradient_is_that_of_both_losses():
    random = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), params())

    def losses(size):
        moved = jax.tree.map(lambda x, d: x + size * d, params(), direction)
        sums = compiled()(moved, uneven_batch(), HYPER).sums
        return np.array([float(sums["loss"]), 0.3 * float(sums["z_loss"])])

    differences = (losses(3e-4) - losses(-3e-4)) / 6e-4
    expected = sum(np.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (whole().grads, direction)), strict=True))
    assert differences.sum() == pytest.approx(float(expected), rel=0.02)
    assert (abs(differences) > 0.05 * abs(differences.sum())).all()


def test_parts_and_chunks_have_the_gradient_of_the_whole_batch():
    found = jax.jit(gradient_of(parts=4, chunks=2))(params(), uneven_batch(), HYPER)
    assert distance(found.grads, whole().grads) < 1e-5
    assert distance(found.sums, whole().sums) < 1e-5


@pytest.mark.slow
def test_devices_have_the_gradient_of_the_whole_batch():
    """Four devices, of which `vmap` with the name of their axis makes one program."""
    first = params()  # made outside of the program

    def of_device(batch):
        found = gradient_of()(first, batch, HYPER)
        return over_devices((found.grads, found.sums))

    batch = {name: x.reshape(4, -1, *x.shape[1:]) for name, x in uneven_batch().items()}
    grads, sums = jax.jit(jax.vmap(of_device, axis_name=ROWS_AXIS, out_axes=None))(batch)
    assert distance(grads, whole().grads) < 1e-5
    assert distance(sums, whole().sums) < 1e-5


@pytest.mark.slow
def test_trials_have_their_own_numbers():
    others = {"model.embedding_multiplier": 1.5, "model.logits_multiplier": 0.9, "model.output_logit_cap": 4.0}
    static, hyper = split(small_config(NUMBERS | others | {"training.z_loss": 0.1}))
    assert static == STATIC
    found = jax.jit(jax.vmap(gradient_of(), in_axes=(None, None, 0)))(params(), uneven_batch(), stacked([HYPER, hyper]))
    expected = [whole(), compiled()(params(), uneven_batch(), hyper)]
    assert distance(expected[1].grads, expected[0].grads) > 0.1
    for number, of_trial in enumerate(expected):
        assert distance(jax.tree.map(lambda x, n=number: x[n], found), of_trial) < 1e-5


def test_the_first_loss_of_a_head_that_begins_at_zero():
    """ln V for every target, and the step reports the mean z-loss, ln(V)^2, beside it."""
    config = small_config(NUMBERS | {"model.zero_head": True, "model.tie_output": False})
    static, hyper = split(config)
    state = start(static, hyper)
    assert not any(x.any() for x in jax.tree.leaves(state.params["output"]))
    metrics = jax.jit(step.make_train_step(static))(state, uneven_batch(), hyper).metrics
    entropy = math.log(config.model.vocab_size)
    assert [float(metrics[name]) for name in ("loss", "nll", "z_loss")] == pytest.approx(
        [entropy, entropy, entropy**2], rel=1e-6
    )
    assert {spec.name for spec in training_metrics(TASKS["translation"])} > {"loss", "nll", "z_loss"}


class Fixed(NamedTuple):
    """A model with given outputs."""

    logits: Any

    def features(self, batch, dropout, hyper):
        return jnp.zeros((*self.logits.shape[:2], 2))

    def outputs(self, x, batch, dropout=None):
        return self.logits


SHAPES = {
    "translation": ((3, 4, 7), (3, 4)),
    "language_model": ((3, 4, 7), (3, 4)),
    "masked_lm": ((3, 4, 7), (3, 4)),
    "span_corruption": ((3, 4, 7), (3, 4)),
    "tagging": ((3, 4, 7), (3, 4)),
    "classification": ((3, 7), (3,)),
    "images": ((3, 7), (3,)),
    "span_qa": ((3, 6, 2), (3, 2)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_every_task_has_the_z_loss_of_its_softmax(name):
    """Over tokens, tags, labels, mixed labels, or the places of the ends of an answer; only where it is asked for."""
    random, (shape, of_targets) = np.random.default_rng(0), SHAPES[name]
    logits = random.normal(size=shape).astype(np.float32)
    batch: dict[str, Any] = {
        "targets": random.integers(0, 4, of_targets).astype(np.int32),
        "weights": random.uniform(0.5, 2.0, of_targets).astype(np.float32),
        "places": np.zeros((3, 4), np.int32),
        "inputs_mask": np.ones((3, 6), bool),
    }
    if name == "images":
        batch |= {"other_targets": batch["targets"][::-1], "shares": np.array([1.0, 0.3, 0.6], np.float32)}
    batch = {key: jnp.asarray(value) for key, value in batch.items()}
    normaliser = np.log(np.exp(np.float64(logits)).sum(1 if name == "span_qa" else -1))
    with z_loss_summed():
        found = TASKS[name].loss(TaskConfig(name=name), Fixed(jnp.asarray(logits)), batch, None, HYPER)  # ty: ignore
    assert float(found["z_loss"]) == pytest.approx(float((batch["weights"] * normaliser**2).sum()), rel=1e-5)
    without = TASKS[name].loss(TaskConfig(name=name), Fixed(jnp.asarray(logits)), batch, None, HYPER)  # ty: ignore
    assert {key: float(x) for key, x in without.items()} == {
        key: float(x) for key, x in found.items() if key != "z_loss"
    }


def test_a_task_without_the_sum_of_the_z_loss_is_an_error(monkeypatch):
    class Other:
        def head(self, task, model):
            return None

        def loss(self, config, model, batch, dropout, hyper, chunks):
            return {"loss": jnp.zeros(()), "weight": jnp.ones(())}

    monkeypatch.setattr(step, "TASKS", {"translation": Other()})
    with pytest.raises(
        ConfigError, match=r"training\.z_loss: the loss of task\.name='translation' has no sum 'z_loss'"
    ):
        step.batch_loss(STATIC, {}, uneven_batch(), jnp.int32(0), HYPER)
    assert step.batch_loss(STATIC, {}, uneven_batch(), jnp.int32(0), HYPER._replace(z_loss=None)).loss == 0
