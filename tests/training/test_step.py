import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from support import as_batch, forward
from training_support import (
    LENGTHS,
    SMALL,
    VOCAB_SIZE,
    compiled_gradient,
    compiled_step,
    distance,
    identical,
    small_config,
    start,
    uneven_batch,
)

from transformer_jax.nn.collected import ROWS_AXIS
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.schedules import learning_rate
from transformer_jax.training.state import TrainState, init_state, state_shapes, state_template
from transformer_jax.training.step import BatchLoss, _counts, make_train_step

TOKENS = sum(LENGTHS)
both_norm_positions = pytest.mark.parametrize("norm_position", ["post", pytest.param("pre", marks=pytest.mark.slow)])


@functools.cache
def gradient_of(norm_position: str = "post") -> Any:
    """Return (compiled gradient(batch, step=0, hyper=...), hyper) at the initial parameters of the run."""
    config = small_config({"model.norm_position": norm_position})
    static, hyper = split(config)
    params = start(static, hyper).params
    gradient = compiled_gradient(static)
    return lambda batch, step=0, hyper=hyper: gradient(params, batch, step, hyper)


def only_rows(batch: Any, rows: Any) -> Any:
    """Return the batch with zero weights for the targets of all other rows."""
    keep = np.isin(np.arange(len(batch["row_ids"])), rows)[:, None]
    return {**batch, "weights": np.where(keep, batch["weights"], 0)}


def listed(sums: Any) -> list[float]:
    return [float(sums[name]) for name in ("loss", "nll", "correct", "weight")]


def added(trees: Any) -> Any:
    return jax.tree.map(lambda *x: np.sum([np.asarray(y, np.float64) for y in x], axis=0), *trees)


def divided(grads: Any, weight: Any) -> Any:
    return jax.tree.map(lambda g: g / weight, grads)


@pytest.mark.slow
@both_norm_positions
def test_the_gradient_is_the_sum_of_its_rows(norm_position):
    gradient = gradient_of(norm_position)
    grads, sums = gradient(uneven_batch())
    by_row = [gradient(only_rows(uneven_batch(), [row])) for row in range(len(LENGTHS))]
    assert distance(grads, added([g for g, _ in by_row])) < 1e-6
    np.testing.assert_allclose(listed(sums), np.sum([listed(s) for _, s in by_row], axis=0), rtol=1e-6)
    assert [s["weight"] for _, s in by_row] == list(LENGTHS)


def test_the_tests_find_an_average_of_the_means_of_the_parts():
    gradient = gradient_of()
    expected, sums = gradient(uneven_batch())
    parts = [gradient(only_rows(uneven_batch(), range(part, len(LENGTHS), 4))) for part in range(4)]
    assert distance(added([g for g, _ in parts]), expected) < 1e-6
    means = divided(added([divided(g, s["weight"]) for g, s in parts]), 4)
    assert distance(means, divided(expected, sums["weight"])) > 0.05


def test_dropout_depends_on_the_row_id_and_not_on_the_place_in_the_batch():
    gradient = gradient_of()
    grads, sums = gradient(uneven_batch())
    order = np.random.default_rng(1).permutation(len(LENGTHS))
    moved, moved_sums = gradient({name: rows[order] for name, rows in uneven_batch().items()})
    assert distance(moved, grads) < 1e-6
    np.testing.assert_allclose(listed(moved_sums), listed(sums), rtol=1e-6)
    renamed, _ = gradient({**uneven_batch(), "row_ids": uneven_batch()["row_ids"] + 1})
    assert distance(renamed, grads) > 0.05


def test_dropout_changes_with_step_and_seed():
    gradient = gradient_of()
    hyper = split(small_config())[1]
    grads, _ = gradient(uneven_batch())
    assert identical(gradient(uneven_batch())[0], grads)
    assert distance(gradient(uneven_batch(), step=1)[0], grads) > 0.05
    assert distance(gradient(uneven_batch(), hyper=hyper._replace(seed=4))[0], grads) > 0.05


def test_a_batch_without_a_target_has_a_finite_loss_and_no_gradient():
    static, hyper = split(small_config({}))
    batch = uneven_batch()
    batch["weights"] = np.zeros_like(batch["weights"])
    state, metrics = compiled_step(static)(start(static, hyper), batch, hyper)
    assert (float(metrics["loss"]), float(metrics["gradient_norm"]), int(state.step)) == (0.0, 0.0, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_a_row_of_padding_does_nothing():
    """Such rows fill up a batch that has too few."""
    gradient, batch = gradient_of(), uneven_batch()
    grads, _ = gradient(batch)
    assert LENGTHS[2] == 0
    assert not batch["inputs"][2].any()
    other = {name: array.copy() for name, array in batch.items()}  # a step may still read the arrays of `batch`
    other["inputs"][2], other["inputs_mask"][2], other["row_ids"][2] = 5, True, 999
    assert distance(gradient(other)[0], grads) < 1e-7


def test_tokens_are_those_that_a_decoder_predicts_or_else_those_that_the_model_reads():
    """The speed of training counts them, also of tasks with one weight per label or masked token."""
    batch = {name: jnp.asarray(array) for name, array in uneven_batch().items()}
    read = batch["inputs_mask"].sum()
    assert read != TOKENS
    assert _counts(TASKS["translation"], batch)["tokens"] == TOKENS
    rows = {"decoder_inputs": batch["decoder_inputs"], "weights": batch["weights"]}
    assert _counts(TASKS["language_model"], rows)["tokens"] == TOKENS
    labels = {"weights": jnp.full(len(LENGTHS), 0.5, jnp.float32)}
    masked = {"weights": jnp.ones((len(LENGTHS), 2), jnp.float32)}
    for name, targets in (("classification", labels), ("masked_lm", masked)):
        counts = _counts(TASKS[name], {"inputs": batch["inputs"], "inputs_mask": batch["inputs_mask"], **targets})
        assert (counts["tokens"], counts["filled"], counts["slots"]) == (read, read, batch["inputs"].size)
    assert _counts(TASKS["images"], labels)["tokens"] == len(LENGTHS)
    assert _counts(TASKS["images"], {})["tokens"] == 0


WITHOUT_DROPOUT = {
    "model.dropout_rate": 0.0,
    "model.embedding_dropout_rate": 0.0,
    "model.attention_dropout_rate": 0.0,
    "model.activation_dropout_rate": 0.0,
    "model.final_dropout_rate": 0.0,
}


def test_metrics_are_means_over_the_tokens_of_the_batch():
    static, hyper = split(small_config({**WITHOUT_DROPOUT, "training.label_smoothing": 0.3}))
    state, batch = start(static, hyper), uneven_batch()
    logits = forward(static.model, state.params, batch)
    # The decoder does not read a row's last target, so the test can make it a correct one.
    full = np.flatnonzero(batch["targets"][:, -1])
    batch["targets"][full, -1] = np.argmax(logits[full, -1], -1)
    _, metrics = compiled_step(static)(state, batch, hyper)
    log_p = np.asarray(logits, np.float64)
    log_p = log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))
    targets, real = batch["targets"], batch["targets"] > 0
    gold = np.take_along_axis(log_p, targets[..., None], -1)[..., 0][real]
    assert metrics["nll"] == pytest.approx(-gold.mean(), rel=1e-5)
    assert metrics["loss"] == pytest.approx(-(0.7 * gold + 0.3 * log_p.mean(-1)[real]).mean(), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx(100 * (log_p.argmax(-1) == targets)[real].mean(), rel=1e-5)
    assert metrics["accuracy"] > 0
    assert metrics["tokens"] == metrics["weight"] == real.sum() == TOKENS
    assert all(value.dtype == jnp.float32 and value.shape == () for value in metrics.values())


@functools.cache
def first_update() -> Any:
    """Return (state before, state after, metrics, gradient of the mean) of the run with everything on."""
    static, hyper = split(small_config())
    state = start(static, hyper)
    after, metrics = compiled_step(static)(state, uneven_batch(), hyper)
    grads, sums = gradient_of()(uneven_batch())
    return state, after, metrics, divided(grads, sums["weight"])


def test_an_update_applies_the_optimizer_to_the_gradient_of_the_mean():
    static, hyper = split(small_config())
    state, after, metrics, grads = first_update()
    norm = np.sqrt(sum(np.square(np.asarray(g, np.float64)).sum() for g in jax.tree.leaves(grads)))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert norm > 1.5 * hyper.clip_norm  # so that the norm after clipping would be another number
    update = jax.jit(lambda g, s, p, h: make_optimizer(static.optimizer, h).update(g, s, p))
    updates, opt_state = update(grads, state.opt_state, state.params, hyper)
    assert distance(after.opt_state, opt_state) < 1e-5
    # Where the gradient is only rounding, Adam makes a whole step; such parameters are not compared.
    largest = max(np.abs(g).max() for g in jax.tree.leaves(grads))
    moved = jax.tree.map(
        lambda new, old, g: np.where(np.abs(g) > 1e-3 * largest, new - old, 0), after.params, state.params, grads
    )
    expected = jax.tree.map(lambda u, g: np.where(np.abs(g) > 1e-3 * largest, u, 0), updates, grads)
    assert distance(moved, expected) < 1e-3


def test_parts_and_devices_add_their_rows(monkeypatch):
    """Two devices compute two parts each, with unequal numbers of targets; the model is a number, its loss a square."""
    fields = {"optimizer.layer_decay": 1.0, "training.accumulation_steps": 2}
    static, hyper = split(small_config(fields))
    batch = {name: array.reshape(2, 4, *array.shape[1:]) for name, array in uneven_batch().items()}

    def loss(static: Any, params: Any, part: Any, *args: Any) -> BatchLoss:
        value = (part["weights"] * (params["kernel"] - part["targets"]) ** 2).sum()
        sums = {"loss": value, "nll": value, "correct": value, "weight": part["weights"].sum()}
        return BatchLoss(value, sums, {}, {})

    def of_device(part: Any) -> Any:
        params = {"kernel": jnp.float32(1.0)}
        state = TrainState(jnp.int32(0), params, make_optimizer(static.optimizer, hyper).init(params))
        return make_train_step(static)(state, part, hyper).metrics

    monkeypatch.setattr("transformer_jax.training.step.batch_loss", loss)
    metrics = jax.jit(jax.vmap(of_device, axis_name=ROWS_AXIS))(batch)
    differences = 1.0 - batch["targets"][batch["weights"] > 0]
    expected = {"weight": TOKENS, "loss": (differences**2).mean(), "gradient_norm": abs(2 * differences.mean())}
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], [value, value], rtol=1e-6, err_msg=name)


def test_the_reported_learning_rate_is_the_applied_one():
    """Adam's first step is the rate times the sign of the gradient; biases do not decay.

    The metric is the rate of the head; that of the last layer is `layer_decay` times as large.
    """
    state, after, metrics, grads = first_update()
    rate = SMALL["optimizer.layer_decay"] * float(metrics["learning_rate"])

    def bias(tree: Any) -> np.ndarray:
        return np.asarray(tree["decoder"]["layers"]["feed_forward"]["out"]["bias"])

    assert np.abs(bias(grads)).min() > 1e-5
    np.testing.assert_allclose(bias(after.params) - bias(state.params), -rate * np.sign(bias(grads)), rtol=1e-3)


def test_steps_are_counted_and_the_schedule_follows():
    static, hyper = split(small_config())
    state = start(static, hyper)
    assert state.step == 0
    for update in range(1, 6):
        state, metrics = compiled_step(static)(state, uneven_batch(seed=update), hyper)
        assert state.step == update
        assert state.step.dtype == jnp.int32
        expected = learning_rate(static.optimizer.schedule, jnp.int32(update), hyper)
        assert metrics["learning_rate"] == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.slow
def test_a_program_that_loops_over_layers_does_not_grow_with_them():
    """So compile time does not grow either; it is not measured here, benchmarks/README.md has the seconds."""
    sizes = []
    for layers in (2, 16):
        fields = {"model.num_encoder_layers": layers, "model.num_decoder_layers": layers, "model.scan_layers": True}
        static, hyper = split(small_config(fields))
        lowered = jax.jit(make_train_step(static)).lower(state_shapes(static, hyper), uneven_batch(), hyper)
        sizes.append(len(lowered.as_text()))
    assert sizes[1] < 1.05 * sizes[0]


@pytest.mark.slow
def test_recomputed_layers_need_less_memory():
    """Recomputing all layers saves more than keeping the products with parameters."""
    fields = {"model.num_encoder_layers": 4, "model.num_decoder_layers": 4, "model.scan_layers": True}
    batch = uneven_batch([30] * 16, source=32, target=32)
    sizes = {}
    for remat in ("none", "dots", "full"):
        static, hyper = split(small_config({**fields, "model.remat": remat}))
        state = state_shapes(static, hyper)
        sizes[remat] = jax.jit(make_train_step(static)).lower(state, batch, hyper).compile().memory_analysis()
    none, dots, full = (sizes[remat].temp_size_in_bytes for remat in ("none", "dots", "full"))
    assert dots < 0.6 * none
    assert full < 0.3 * none


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_an_update_that_is_not_finite_can_be_left_out(parts):
    """The state is unchanged except for the step; the next update is the one that would have been made instead."""
    overrides = {"training.on_nonfinite": "skip", "training.accumulation_steps": parts}
    static, hyper = split(small_config(overrides))
    state, metrics = compiled_step(static)(start(static, hyper), uneven_batch(), hyper)
    broken = state._replace(params=jax.tree.map(lambda p: p, state.params))
    broken.params["embedding"] = {"embedding": broken.params["embedding"]["embedding"].at[5, 0].set(jnp.inf)}
    after, metrics = compiled_step(static)(broken, uneven_batch(seed=1), hyper)
    assert not np.isfinite(metrics["loss"])
    assert after.step == 2
    assert identical(after[1:], broken[1:])
    after, metrics = compiled_step(static)(state._replace(step=jnp.int32(2)), uneven_batch(seed=2), hyper)
    assert metrics["learning_rate"] == pytest.approx(
        float(learning_rate(static.optimizer.schedule, 2, hyper)), rel=1e-6
    )
    # If all is finite, the policy changes nothing.
    plain, _ = split(small_config(overrides | {"training.on_nonfinite": "stop"}))
    expected, _ = compiled_step(plain)(state._replace(step=jnp.int32(2)), uneven_batch(seed=2), hyper)
    params, expected = map(without_key_biases, (after.params, expected.params))
    assert distance(params, expected) < 1e-6


@pytest.mark.slow
def test_an_update_whose_gradient_alone_is_not_finite_is_left_out():
    """A hidden unit of 1e-22 times a weight of 1e22: the loss is finite, and the square of the gradient is not."""
    static, hyper = split(small_config({"training.on_nonfinite": "skip"}))
    state = start(static, hyper)
    layers = state.params["decoder"]["layers"]
    hidden, out = layers["feed_forward"]["hidden"], layers["feed_forward"]["out"]
    hidden["kernel"] = hidden["kernel"].at[0, :, 0].set(0.0)
    hidden["bias"] = hidden["bias"].at[0, 0].set(1e-22)
    out["kernel"] = out["kernel"].at[0, 0, 0].set(1e22)
    after, metrics = compiled_step(static)(state, uneven_batch(), hyper)
    assert np.isfinite(metrics["loss"])
    assert not np.isfinite(metrics["gradient_norm"])
    assert identical(after[1:], state[1:])


def without_key_biases(params: Any) -> Any:
    """Their gradients are zero up to rounding, from which Adam makes steps of full size."""
    return jax.tree_util.tree_map_with_path(
        lambda path, p: jnp.zeros_like(p) if jax.tree_util.keystr(path).endswith("['key']['bias']") else p, params
    )


def test_a_run_is_a_function_of_its_seed():
    static, hyper = split(small_config())

    def run(hyper: Hyper) -> Any:
        state, history = start(static, hyper), []
        for seed in range(3):
            state, metrics = compiled_step(static)(state, uneven_batch(seed=seed), hyper)
            history.append(metrics)
        return state, history

    assert identical(run(hyper), run(hyper))
    assert distance(run(hyper._replace(seed=4, seed_init=4))[0].params, run(hyper)[0].params) > 0.1


def test_the_first_state_is_a_function_of_its_seed_alone():
    static, hyper = split(small_config())
    other = split(small_config({"optimizer.learning_rate": 0.5, "model.dropout_rate": 0.4}))[1]
    assert identical(start(static, other), start(static, hyper))
    assert not identical(start(static, other._replace(seed_init=4)).params, start(static, hyper).params)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    template, state = state_template(static, hyper, sharding), start(static, hyper)
    assert jax.tree.structure(template) == jax.tree.structure(state)
    for expected, leaf in zip(jax.tree.leaves(template), jax.tree.leaves(state), strict=True):
        assert (expected.shape, expected.dtype, expected.sharding) == (leaf.shape, leaf.dtype, leaf.sharding)


@pytest.mark.slow
@both_norm_positions
def test_the_loss_falls_on_a_copying_task(norm_position):
    config = small_config(
        {
            "model.norm_position": norm_position,
            "model.emb_dim": 32,
            "model.mlp_dim": 64,
            **dict.fromkeys(WITHOUT_DROPOUT, 0.02),
            "optimizer.schedule": "constant",
            "optimizer.learning_rate": 5e-3,
            "optimizer.warmup_steps": 10,
        }
    )
    static, hyper = split(config)
    state, history = start(static, hyper), []
    for step in range(160):
        ids = np.random.default_rng(step).integers(4, VOCAB_SIZE, (32, 4), dtype=np.int32)
        batch = as_batch(inputs=ids, targets=ids, row_ids=np.arange(32, dtype=np.int32))
        state, metrics = compiled_step(static)(state, batch, hyper)
        history.append(metrics)
    assert history[0]["nll"] > np.log(13)
    assert all(np.isfinite(m["loss"]) for m in history)
    last = history[-20:]
    assert np.mean([m["nll"] for m in last]) < 0.6
    assert np.mean([m["accuracy"] for m in last]) > 85


def matrix_products(jaxpr: Any) -> list[tuple[str, ...]]:
    """Return the types of the operands of every matrix product of a program."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            found.append(tuple(v.aval.dtype.name for v in eqn.invars))
        for inner in jaxprs_in_params(eqn.params):
            found += matrix_products(inner)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dtype_is_the_type_of_products_and_not_of_the_state(dtype):
    static, hyper = split(small_config({"model.dtype": dtype, "training.accumulation_steps": 2}))
    state = jax.eval_shape(lambda: init_state(static, hyper))
    step = make_train_step(static)
    after, metrics = jax.eval_shape(step, state, uneven_batch(), hyper)
    assert after == state  # shapes, types and weak types: the next call does not recompile
    floats = [leaf for leaf in jax.tree.leaves(after) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(floats) == 4 * len(jax.tree.leaves(state.params))  # both moments, and the average of the weights
    assert {leaf.dtype for leaf in floats} == {jnp.dtype("float32")}
    assert {value.dtype for value in metrics.values()} == {jnp.dtype("float32")}
    products = matrix_products(jax.make_jaxpr(step)(state, uneven_batch(), hyper).jaxpr)
    assert len(products) > 20
    assert set(products) == {(dtype, dtype)}


@pytest.mark.slow
def test_bfloat16_computes_nearly_the_same():
    static, hyper = split(small_config({"model.dtype": "bfloat16"}))
    params = start(static, hyper).params
    grads, sums = compiled_gradient(static)(params, uneven_batch(), 0, hyper)
    expected, expected_sums = gradient_of()(uneven_batch())
    np.testing.assert_allclose(sums["loss"], expected_sums["loss"], rtol=1e-2)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    assert 1e-4 < distance(grads, expected) < 0.05
