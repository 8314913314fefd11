"""Losses of blocks: their formula, their gradient over parts, devices and trials, and their place beside statistics."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from routed_support import CHOICES, LOSSES, routed, routed_batch, routed_config
from training_support import distance, run_on_eight_devices, start

from transformer_jax.nn.collected import ROWS_AXIS, by_block, over_devices
from transformer_jax.training.block_losses import batch_sums, block_losses
from transformer_jax.training.hyper import split
from transformer_jax.training.step import batch_gradient, make_train_step
from transformer_jax.training.stepper import stacked

STATIC, HYPER = split(routed_config())


def gradient_of(parts=1):
    """Return the function (params, batch, hyper) -> gradient of a batch, in parts."""
    static = dataclasses.replace(STATIC, accumulation_steps=parts)
    return routed()(lambda params, batch, hyper: batch_gradient(static, params, batch, jnp.int32(0), hyper))


@functools.cache
def compiled(parts=1):
    return jax.jit(gradient_of(parts))


@functools.cache
def params():
    return start(STATIC, HYPER).params


@functools.cache
def whole():
    """Return the gradient of the batch as one part."""
    return compiled()(params(), routed_batch(), HYPER)


@routed()
def test_literal_numbers():
    """Of two layers; the second part has the shares of the first one twice, and chose otherwise."""
    count = jnp.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    share = jnp.array([[1.5, 1.0, 0.5], [0.5, 0.5, 2.0]])

    def part(count, share, squares):
        sums = {"balance": {"count": count, "share": share}, "router_z": {"squares": jnp.array(squares)}}
        return {"encoder": {"layers": {"feed_forward_residual": {"norm": sums}}}}

    one, other = part(count, share, [1.0, 2.0]), part(count[:, ::-1], 2 * share, [3.0, 4.0])
    path = ("encoder", "layers", "feed_forward_residual", "norm")
    assert by_block(one, "router_z")[path]["squares"].tolist() == [1.0, 2.0]
    assert by_block(one, "other") == {}
    # Layer 1: f = (2, 1, 0) / 3, layer 2: f = (0, 0, 1).
    found = block_losses(one)
    assert found["balance"] == pytest.approx(3 * ((2 * 1.5 + 1 * 1.0) / 3 + 2.0))
    assert found["router_z"] == 3.0
    together = jax.tree.map(jnp.add, batch_sums(one), batch_sums(other))
    assert list(together["balance"][path]) == ["count"]
    # Of both parts, layer 1: f = (2, 2, 2) / 6, layer 2: (1, 0, 1) / 2.
    found = [block_losses(collected, together) for collected in (one, other)]
    of_one = 3 * (3.0 / 3 + (0.5 + 2.0) / 2)
    assert [values["balance"] for values in found] == pytest.approx([of_one, 2 * of_one])
    # The counts may have a gradient in the block; here they are constants.
    of_count = jax.grad(lambda count: block_losses(part(count, share, [0.0, 0.0]))["balance"])(count)
    assert not of_count.any()
    assert block_losses({}) == {}
    assert block_losses({"encoder": {"norm": {"statistics": {"weight": jnp.ones(())}}}}) == {}


def test_the_gradient_is_that_of_the_reported_sums():
    """By differences so small that no token chooses another expert: the counts have no gradient."""
    random = np.random.default_rng(1)
    direction = jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), params())

    def total(step):
        moved = jax.tree.map(lambda x, d: x + step * d, params(), direction)
        sums = compiled()(moved, routed_batch(), HYPER).sums
        weights = {"loss": 1.0} | {name: float(loss.weight(HYPER)) for name, loss in LOSSES.items()}
        return np.array([weight * float(sums[name]) for name, weight in weights.items()])

    differences = (total(3e-5) - total(-3e-5)) / 6e-5
    expected = sum(np.vdot(g, d) for g, d in zip(*map(jax.tree.leaves, (whole().grads, direction)), strict=True))
    assert differences.sum() == pytest.approx(float(expected), rel=0.01)
    assert (abs(differences) > 0.05 * abs(differences.sum())).all()  # every loss has a share that the test would see


def test_parts_have_the_gradient_of_the_whole_batch():
    found = compiled(4)(params(), routed_batch(), HYPER)
    assert distance(found.grads, whole().grads) < 1e-5
    assert {name: float(x) for name, x in found.sums.items()} == pytest.approx(
        {name: float(x) for name, x in whole().sums.items()}, rel=1e-5
    )
    assert found.sums.keys() > LOSSES.keys()
    # Without the counts of the whole batch it is another one.
    alone = [compiled()(params(), {n: x[i::4] for n, x in routed_batch().items()}, HYPER) for i in range(4)]
    added = jax.tree.map(lambda *parts: sum(parts), *alone)
    assert distance(added.grads, whole().grads) > 1e-3
    assert float(added.sums["router_z"]) == pytest.approx(float(found.sums["router_z"]), rel=1e-5)


@pytest.mark.parametrize("parts", [1, 2])
def test_devices_have_the_gradient_of_the_whole_batch(parts):
    """Four devices, of which `vmap` with the name of their axis makes one program."""

    def of_device(batch):
        found = gradient_of(parts)(params(), batch, HYPER)
        return over_devices((found.grads, found.sums))

    batch = {name: x.reshape(4, 8, *x.shape[1:]) for name, x in routed_batch().items()}
    grads, sums = jax.jit(jax.vmap(of_device, axis_name=ROWS_AXIS, out_axes=None))(batch)
    assert distance(grads, whole().grads) < 1e-5
    assert distance(sums, whole().sums) < 1e-5


@pytest.mark.slow
def test_trials_have_their_own_counts_and_weights():
    hypers = [HYPER, HYPER._replace(learning_rate=3 * HYPER.learning_rate)]
    batches = [routed_batch(), routed_batch(seed=1)]
    of_trials = jax.jit(jax.vmap(gradient_of(4), in_axes=(None, 0, 0)))
    found = of_trials(params(), stacked(batches), stacked(hypers))
    for number, (batch, hyper) in enumerate(zip(batches, hypers, strict=True)):
        expected = compiled()(params(), batch, hyper)
        assert distance(jax.tree.map(lambda x, n=number: x[n], found), expected) < 1e-5


def test_a_step_reports_the_losses_by_name_beside_the_statistics():
    """The loss stays that of the task, and statistics of norms are the same with and without losses."""
    static, hyper = split(routed_config(norm="batchnorm"))
    state, step = start(static, hyper), make_train_step(static)
    new, metrics = jax.jit(routed()(step))(state, routed_batch(), hyper)
    expected, without = jax.jit(step)(state, routed_batch(), hyper)
    assert metrics.keys() == without.keys() | LOSSES.keys()
    assert float(metrics["loss"]) == pytest.approx(float(without["loss"]), rel=1e-6)
    assert float(metrics["gradient_norm"]) != pytest.approx(float(without["gradient_norm"]), rel=0.01)
    assert distance(new.extra, expected.extra) < 1e-6
    tokens, norms = float(metrics["weight"]), 2 * static.model.num_encoder_layers
    # The loss of a norm is 1 per token if it is balanced, and CHOICES if all tokens choose one expert for certain.
    assert norms * 0.9 < float(metrics["balance"]) < norms * CHOICES
    assert tokens == routed_batch()["weights"].sum()
    assert float(metrics["router_z"]) > 0


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
