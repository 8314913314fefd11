"""Losses of blocks: their formula, their gradient over parts, devices and trials, and their place beside statistics."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experts_support import EXPERTS, WEIGHTS, experts_batch, experts_config
from training_support import distance, run_on_eight_devices, start

from transformer_jax.nn.collected import ROWS_AXIS, by_block, over_devices
from transformer_jax.tasks.task import TASKS, training_metrics
from transformer_jax.training.block_losses import BLOCK_LOSSES, batch_sums, block_losses
from transformer_jax.training.hyper import split
from transformer_jax.training.step import batch_gradient, make_train_step
from transformer_jax.training.stepper import stacked

STATIC, HYPER = split(experts_config())


def gradient_of(parts=1):
    """Return the function (params, batch, hyper) -> gradient of a batch, in parts."""
    static = dataclasses.replace(STATIC, accumulation_steps=parts)
    return lambda params, batch, hyper: batch_gradient(static, params, batch, jnp.int32(0), hyper)


@functools.cache
def compiled(parts=1):
    return jax.jit(gradient_of(parts))


@functools.cache
def params():
    return start(STATIC, HYPER).params


@functools.cache
def whole():
    """Return the gradient of the batch as one part."""
    return compiled()(params(), experts_batch(), HYPER)


def test_literal_numbers():
    """Of two layers; the second part has the shares of the first one twice, and chose otherwise."""
    count = jnp.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    share = jnp.array([[1.5, 1.0, 0.5], [0.5, 0.5, 2.0]])
    tokens = jnp.array([3.0, 3.0])

    def part(count, share, squares):
        sums = {
            "balance_loss": {"count": count, "probability": share, "tokens": tokens},
            "router_z_loss": {"squares": jnp.array(squares), "tokens": tokens},
        }
        return {"encoder": {"layers_experts": {"experts": sums}}}

    one, other = part(count, share, [1.0, 2.0]), part(count[:, ::-1], 2 * share, [3.0, 4.0])
    path = ("encoder", "layers_experts", "experts")
    assert by_block(one, "router_z_loss")[path]["squares"].tolist() == [1.0, 2.0]
    assert by_block(one, "other") == {}
    # Layer 1: f = (2, 1, 0) / 3, layer 2: f = (0, 0, 1); the means of the probabilities are a third of the sums.
    found = block_losses(one, batch_sums(one))
    assert found["balance_loss"] == pytest.approx(3 * ((2 * 1.5 + 1 * 1.0) / 3 + 2.0) / 3)
    assert found["router_z_loss"] == pytest.approx((1.0 + 2.0) / 3)
    together = jax.tree.map(jnp.add, batch_sums(one), batch_sums(other))
    assert sorted(together["balance_loss"][path]) == ["count", "tokens"]
    # Of both parts, layer 1: f = (2, 2, 2) / 6, layer 2: (1, 0, 1) / 2.
    found = [block_losses(collected, together) for collected in (one, other)]
    of_one = 3 * (3.0 / 3 + (0.5 + 2.0) / 2) / 6
    assert [values["balance_loss"] for values in found] == pytest.approx([of_one, 2 * of_one])
    # The counts may have a gradient in the block; here they are constants.

    def balance(count):
        collected = part(count, share, [0.0, 0.0])
        return block_losses(collected, batch_sums(collected))["balance_loss"]

    assert not jax.grad(balance)(count).any()
    for nothing in ({}, {"encoder": {"norm": {"statistics": {"weight": jnp.ones(())}}}}):
        assert block_losses(nothing, batch_sums(nothing)) == {}


def test_the_gradient_is_that_of_the_reported_sums():
    """By differences so small that no token chooses another expert: the counts have no gradient."""
    random = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), params())

    def total(step):
        moved = jax.tree.map(lambda x, d: x + step * d, params(), direction)
        sums = compiled()(moved, experts_batch(), HYPER).sums
        weights = {"loss": 1.0} | {name: weight * float(sums["weight"]) for name, weight in WEIGHTS.items()}
        return np.array([weight * float(sums[name]) for name, weight in weights.items()])

    differences = (total(3e-5) - total(-3e-5)) / 6e-5
    expected = sum(np.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (whole().grads, direction)), strict=True))
    assert differences.sum() == pytest.approx(float(expected), rel=0.01)
    assert (abs(differences) > 0.05 * abs(differences.sum())).all()  # every loss has a share that the test would see


def test_parts_have_the_gradient_of_the_whole_batch():
    found = compiled(4)(params(), experts_batch(), HYPER)
    assert distance(found.grads, whole().grads) < 1e-5
    assert {name: float(x) for name, x in found.sums.items()} == pytest.approx(
        {name: float(x) for name, x in whole().sums.items()}, rel=1e-5
    )
    assert found.sums.keys() > WEIGHTS.keys()
    # Without the counts of the whole batch it is another one.
    alone = [compiled()(params(), {n: x[i::4] for n, x in experts_batch().items()}, HYPER) for i in range(4)]
    added = jax.tree.map(lambda *parts: sum(parts), *alone)
    assert distance(added.grads, whole().grads) > 1e-3


@pytest.mark.parametrize("parts", [1, 2])
def test_devices_have_the_gradient_of_the_whole_batch(parts):
    """Four devices, of which `vmap` with the name of their axis makes one program."""

    first = params()  # made outside of the program

    def of_device(batch):
        found = gradient_of(parts)(first, batch, HYPER)
        return over_devices((found.grads, found.sums))

    batch = {name: x.reshape(4, 8, *x.shape[1:]) for name, x in experts_batch().items()}
    grads, sums = jax.jit(jax.vmap(of_device, axis_name=ROWS_AXIS, out_axes=None))(batch)
    assert distance(grads, whole().grads) < 1e-5
    assert distance(sums, whole().sums) < 1e-5


@pytest.mark.slow
def test_trials_have_their_own_counts_and_weights():
    hypers = [HYPER, HYPER._replace(balance_loss=3 * HYPER.balance_loss)]
    batches = [experts_batch(), experts_batch(seed=1)]
    of_trials = jax.jit(jax.vmap(gradient_of(4), in_axes=(None, 0, 0)))
    found = of_trials(params(), stacked(batches), stacked(hypers))
    for number, (batch, hyper) in enumerate(zip(batches, hypers, strict=True)):
        expected = compiled()(params(), batch, hyper)
        assert distance(jax.tree.map(lambda x, n=number: x[n], found), expected) < 1e-5


def test_the_losses_are_means_over_tokens_whatever_the_weights_of_targets():
    """A target of weight 1/2 halves the summed gradient, with that of the losses: the step divides by the weights."""
    batch = experts_batch()
    found = compiled()(params(), batch | {"weights": batch["weights"] / 2}, HYPER)
    assert distance(found.grads, jax.tree.map(lambda x: x / 2, whole().grads)) < 1e-5
    for name in WEIGHTS:
        assert float(found.sums[name]) == pytest.approx(float(whole().sums[name]), rel=1e-5)


def test_a_step_reports_the_losses_by_name_beside_the_statistics():
    """The loss stays that of the task, and statistics of norms are the same whether the losses have a weight or not."""
    static, hyper = split(experts_config(norm="batchnorm"))
    state, step = start(static, hyper), jax.jit(make_train_step(static))
    new, metrics = step(state, experts_batch(), hyper)
    expected, without = step(state, experts_batch(), hyper._replace(balance_loss=None, router_z_loss=None))
    assert metrics.keys() == without.keys() > WEIGHTS.keys()
    for name in ("loss", *WEIGHTS):
        assert float(metrics[name]) == pytest.approx(float(without[name]), rel=1e-6)
    assert float(metrics["gradient_norm"]) != pytest.approx(float(without["gradient_norm"]), rel=0.01)
    assert distance(new.extra, expected.extra) < 1e-6
    # The balance loss of a layer is 1 if it is balanced, and EXPERTS / 2 if all tokens choose two experts for certain.
    layers = static.model.num_encoder_layers
    assert layers * 0.9 < float(metrics["balance_loss"]) < layers * EXPERTS / 2
    assert float(metrics["router_z_loss"]) > layers * np.log(EXPERTS) ** 2 / 2
    assert {spec.name for spec in training_metrics(TASKS["tagging"])} > BLOCK_LOSSES.keys() == WEIGHTS.keys()


CASES = {launcher: {"launcher": launcher, "parallel": {}, "parts": 1} for launcher in ("jit", "shard_map", "pmap")}
CASES |= {f"{name}, 4 parts": fields | {"parts": 4} for name, fields in CASES.items()}
CASES["2 x 2 x 2, 4 parts"] = {"launcher": "jit", "parallel": {"fsdp": 2, "tensor": 2}, "parts": 4}


@pytest.mark.slow
def test_launchers_have_the_gradient_of_the_whole_batch():
    results = run_on_eight_devices({name: ("block_losses", case) for name, case in CASES.items()})
    for name, result in results.items():
        assert "error" not in result, (name, result)
        assert result["grads"] < 1e-5, name
        assert result["sums"][0] == pytest.approx(result["sums"][1], rel=1e-5), name
