import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params
from training_support import distance

from transformer_jax.tasks.metrics.cross_entropy import (
    CROSS_ENTROPY_SUMS,
    Z_LOSS,
    chunked_cross_entropy,
    cross_entropy,
    z_loss_summed,
)

PAD_ID = 0

B, T, V = 3, 5, 11
SMOOTHINGS = [None, 0.0, 0.1, 0.7]


def weights_of(targets: Any) -> jax.Array:
    return jnp.asarray(np.asarray(targets) != PAD_ID, jnp.float32)


def listed(sums: Any) -> list[Any]:
    """Return the sums in a fixed order."""
    assert set(sums) == set(CROSS_ENTROPY_SUMS)
    return [sums[name] for name in CROSS_ENTROPY_SUMS]


def examples(scale: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    """Return logits [B, T, V] and targets [B, T] of rows with 5, 2 and 0 tokens."""
    rng = np.random.default_rng(0)
    logits = (scale * rng.standard_normal((B, T, V))).astype(np.float32)
    targets = rng.integers(1, V, (B, T)).astype(np.int32)
    targets[1, 2:] = PAD_ID
    targets[2] = PAD_ID
    return logits, targets


def target_distributions(targets: np.ndarray, smoothing: float) -> np.ndarray:
    """Return q [B, T, V]: e / V for every token, padding and the target included, and 1 - e more for the target."""
    q = np.zeros((*targets.shape, V))
    for b, t, v in np.ndindex(q.shape):
        q[b, t, v] = smoothing / V + (1 - smoothing if v == targets[b, t] else 0.0)
    return q


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def reference(logits: np.ndarray, targets: np.ndarray, smoothing: float | None) -> tuple[dict[str, Any], np.ndarray]:
    """Return the sums, and the gradient of `loss` with respect to the logits, in float64."""
    log_p, weights = log_softmax(logits), (targets != PAD_ID).astype(np.float64)
    q = target_distributions(targets, smoothing or 0.0)
    correct = [logits[b, t, targets[b, t]] == logits[b, t].max() for b, t in np.ndindex(targets.shape) if targets[b, t]]
    sums = {
        "loss": -(weights * (q * log_p).sum(-1)).sum(),
        "nll": -(weights * (target_distributions(targets, 0.0) * log_p).sum(-1)).sum(),
        "correct": sum(correct),
        "weight": weights.sum(),
    }
    return sums, weights[..., None] * (np.exp(log_p) - q)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_sums_equal_those_of_the_explicit_distribution(smoothing, scale):
    logits, targets = examples(scale)
    expected, _ = reference(logits, targets, smoothing)
    actual = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), weights_of(targets), smoothing)
    assert all(x.shape == () and x.dtype == jnp.float32 for x in actual.values())
    np.testing.assert_allclose(listed(actual), listed(expected), rtol=1e-5)
    assert actual["weight"] == 7


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_every_target_counts_by_its_weight(smoothing):
    """Weights are any numbers; padding is whatever has weight 0, whatever its id."""
    logits, targets = examples()
    rng = np.random.default_rng(2)
    targets = rng.integers(0, V, (B, T)).astype(np.int32)
    targets[:, 1:3] = logits[:, 1:3].argmax(-1)
    targets[0, 0] = PAD_ID
    weights = rng.uniform(0.2, 3.0, (B, T)).astype(np.float32)
    weights[1, 2:] = 0.0
    assert (targets[1, 2:] != PAD_ID).any()
    log_p, q = log_softmax(logits), target_distributions(targets, smoothing or 0.0)
    expected = {
        "loss": -(weights * (q * log_p).sum(-1)).sum(),
        "nll": -(weights * (target_distributions(targets, 0.0) * log_p).sum(-1)).sum(),
        "correct": (weights * (log_p.argmax(-1) == targets)).sum(),
        "weight": weights.sum(),
    }
    assert 0 < expected["correct"] < expected["weight"]
    actual = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights), smoothing)
    np.testing.assert_allclose(listed(actual), listed(expected), rtol=1e-5)


@pytest.mark.parametrize(("size", "term"), [(8192, 0.0081197), (50304, 0.0117199)])
def test_the_z_loss_of_equal_logits(size, term):
    """1e-4 ln(V)^2, as with a head that begins at 0; ln 8192 = 9.010913 and ln 50304 = 10.825840."""
    with z_loss_summed():
        sums = cross_entropy(jnp.zeros((2, size)), jnp.array([3, 5]), jnp.array([1.0, 0.5]))
    assert float(sums["nll"]) / 1.5 == pytest.approx({8192: 9.010913, 50304: 10.825840}[size], rel=1e-6)
    assert 1e-4 * float(sums[Z_LOSS]) / 1.5 == pytest.approx(term, rel=1e-5)


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_the_z_loss_has_the_weights_of_the_targets_and_leaves_the_others(smoothing):
    """A constant that is added to all logits changes it alone. Its gradient is 2 logsumexp p."""
    logits, targets = examples()
    weights = np.where(targets != PAD_ID, np.random.default_rng(3).uniform(0.2, 3.0, (B, T)), 0.0).astype(np.float32)

    def sums(logits: Any) -> Any:
        with z_loss_summed():
            return cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights), smoothing)

    found, moved = sums(logits), sums(logits + 2)
    without = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), jnp.asarray(weights), smoothing)
    assert {name: float(found[name]) for name in without} == {name: float(value) for name, value in without.items()}
    normaliser = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    expected = [(weights * (normaliser + constant) ** 2).sum() for constant in (0, 2)]
    assert [float(found[Z_LOSS]), float(moved[Z_LOSS])] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(*([float(x[name]) for name in CROSS_ENTROPY_SUMS] for x in (found, moved)), rtol=1e-5)
    gradient = jax.grad(lambda x: sums(x)[Z_LOSS])(jnp.asarray(logits))
    assert distance(gradient, 2 * (weights * normaliser)[..., None] * np.exp(log_softmax(logits))) < 1e-6


def test_targets_may_have_any_shape():
    """Such as classes [B], or the ends of spans [B, 2]."""
    logits, targets = (jnp.asarray(x) for x in examples())
    whole = cross_entropy(logits, targets, weights_of(targets), 0.1)
    flat = cross_entropy(logits.reshape(-1, V), targets.reshape(-1), weights_of(targets).reshape(-1), 0.1)
    np.testing.assert_allclose(listed(flat), listed(whole), rtol=1e-6)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_the_gradient_is_that_of_the_distribution(smoothing):
    logits, targets = examples()
    _, expected = reference(logits, targets, smoothing)
    weights = weights_of(targets)
    actual = jax.grad(lambda x: cross_entropy(x, jnp.asarray(targets), weights, smoothing)["loss"])(jnp.asarray(logits))
    assert distance(actual, expected) < 1e-6
    assert not np.asarray(actual)[targets == PAD_ID].any()


def test_the_best_smoothed_loss_is_the_entropy_of_the_target_distribution():
    """Mass on the target and on padding counts; without either, the minimum would be elsewhere."""
    targets = np.array([[4, PAD_ID]], np.int32)
    q = target_distributions(targets, 0.3)
    sums = cross_entropy(jnp.asarray(np.log(q), jnp.float32), jnp.asarray(targets), weights_of(targets), 0.3)
    assert sums["loss"] == pytest.approx(-(q[0, 0] * np.log(q[0, 0])).sum(), rel=1e-6)
    assert q[0, 0, PAD_ID] == pytest.approx(0.3 / V)
    assert q[0, 0, 4] == pytest.approx(0.7 + 0.3 / V)


def test_logits_of_padding_do_not_matter():
    logits, targets = examples()
    expected = cross_entropy(jnp.asarray(logits), jnp.asarray(targets), weights_of(targets), 0.1)
    logits[targets == PAD_ID] = 1e4
    assert cross_entropy(jnp.asarray(logits), jnp.asarray(targets), weights_of(targets), 0.1) == expected


def test_a_batch_of_padding_is_all_zeros():
    logits, targets = examples()
    sums = cross_entropy(jnp.asarray(logits), jnp.zeros_like(targets), jnp.zeros(targets.shape), 0.1)
    assert listed(sums) == [0.0, 0.0, 0.0, 0.0]


def test_parts_add_up():
    logits, targets = (jnp.asarray(x) for x in examples())
    weights = weights_of(targets)
    whole = cross_entropy(logits, targets, weights, 0.1)
    rows = [cross_entropy(*(x[b : b + 1] for x in (logits, targets, weights)), 0.1) for b in range(B)]
    np.testing.assert_allclose(np.sum([listed(row) for row in rows], axis=0), listed(whole), rtol=1e-6)


def test_a_target_that_ties_for_the_largest_logit_is_correct():
    logits = jnp.asarray([[[0.0, 2.0, 2.0, 1.0], [0.0, 2.0, 2.0, 1.0], [0.0, 2.0, 2.0, 1.0]]])
    assert cross_entropy(logits, jnp.asarray([[1, 2, 3]]), jnp.ones((1, 3)))["correct"] == 2


@pytest.mark.slow
def test_bfloat16_logits_are_summed_in_float32():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((2, 8, 5000)), jnp.bfloat16)
    targets = jnp.asarray(rng.integers(1, 5000, (2, 8)), jnp.int32)
    weights = weights_of(targets)
    sums = cross_entropy(logits, targets, weights, 0.1)
    assert all(x.dtype == jnp.float32 for x in sums.values())
    exact = -(log_softmax(np.asarray(logits, np.float32)) * np.eye(5000)[targets]).sum()
    assert sums["nll"] == pytest.approx(exact, rel=1e-6)
    in_bfloat16 = -(jax.nn.log_softmax(logits) * jnp.eye(5000, dtype=jnp.bfloat16)[targets]).sum()
    assert abs(float(in_bfloat16) - exact) > 1e-3 * exact
    grads = jax.grad(lambda x: cross_entropy(x, targets, weights, 0.1)["loss"])(logits)
    assert grads.dtype == jnp.bfloat16


def test_the_smoothing_may_be_traced():
    logits, targets = (jnp.asarray(x) for x in examples())
    smoothings = jnp.asarray([0.0, 0.1, 0.7])
    weights = weights_of(targets)
    together = jax.jit(jax.vmap(cross_entropy, in_axes=(None, None, None, 0)))(logits, targets, weights, smoothings)
    for i, smoothing in enumerate(smoothings):
        alone = cross_entropy(logits, targets, weights, float(smoothing))
        np.testing.assert_allclose([x[i] for x in listed(together)], listed(alone), rtol=1e-6)


def arrays_made_from(jaxpr: Any, tainted: list[bool]) -> tuple[list[bool], list[tuple[int, ...]]]:
    """Return which outputs depend on the tainted inputs, and the shapes of all values that do."""
    dirty = {v for v, t in zip(jaxpr.invars, tainted, strict=True) if t}
    shapes = []
    for eqn in jaxpr.eqns:
        inputs = [not hasattr(v, "val") and v in dirty for v in eqn.invars]
        inner = list(jaxprs_in_params(eqn.params))
        if inner and len(inner[0].invars) == len(inputs):
            outputs, inside = arrays_made_from(inner[0], inputs)
            shapes += inside
        else:
            outputs = [any(inputs)] * len(eqn.outvars)
        dirty |= {v for v, t in zip(eqn.outvars, outputs, strict=True) if t}
        shapes += [v.aval.shape for v, t in zip(eqn.outvars, outputs, strict=True) if t]
    return [not hasattr(v, "val") and v in dirty for v in jaxpr.outvars], shapes


def largest_array_made_from_targets(loss: Any) -> int:
    logits, targets = examples()
    jaxpr = jax.make_jaxpr(loss)(logits, targets, weights_of(targets), 0.1).jaxpr
    return max(int(np.prod(shape)) for shape in arrays_made_from(jaxpr, [False, True, True, False])[1])


def test_no_distribution_over_the_vocabulary_is_built():
    def with_one_hot(logits, targets, weights, smoothing):
        q = (1 - smoothing) * jax.nn.one_hot(targets, V) + smoothing / V
        return -(q * jax.nn.log_softmax(logits) * weights[..., None]).sum()

    assert largest_array_made_from_targets(with_one_hot) == B * T * V
    assert largest_array_made_from_targets(cross_entropy) < B * T * V


@pytest.mark.parametrize("num_chunks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_in_parts_sums_and_gradients_are_the_same(num_chunks, smoothing):
    """5 targets in parts of equal length, the last of which may be shorter or empty."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.standard_normal((B, T, 4)), jnp.float32)
    kernel = jnp.asarray(rng.standard_normal((4, V)), jnp.float32)
    _, targets = examples()

    weights = weights_of(targets)

    with_z_loss, rest = smoothing is not None, (jnp.asarray(targets), weights, smoothing)

    def added(result: Any) -> tuple[Any, Any]:
        assert (Z_LOSS in result) == with_z_loss
        return result["loss"] + 0.3 * result.get(Z_LOSS, 0.0), result

    def sums(x: Any, kernel: Any) -> tuple[Any, Any]:
        with z_loss_summed(with_z_loss):
            return added(chunked_cross_entropy(lambda y: y @ kernel, x, *rest, num_chunks))

    def whole(x: Any, kernel: Any) -> tuple[Any, Any]:
        with z_loss_summed(with_z_loss):
            return added(cross_entropy(x @ kernel, *rest))

    actual, expected = (jax.jit(jax.value_and_grad(f, (0, 1), has_aux=True))(x, kernel) for f in (sums, whole))
    assert distance(actual[0], expected[0]) < 1e-6
    assert distance(actual[1], expected[1]) < 1e-6


def test_in_parts_no_array_holds_all_logits():
    """For 2 x 64 targets and 1,000 tokens, in both passes; arrays of the parts, 2 x 8, exist."""

    def loss(x: Any, kernel: Any, num_chunks: int) -> Any:
        targets = jnp.ones((2, 64), jnp.int32)
        weights = jnp.ones(targets.shape)
        return chunked_cross_entropy(lambda y: y @ kernel, x, targets, weights, 0.1, num_chunks)["loss"]

    def largest(num_chunks: int) -> int:
        x, kernel = jnp.ones((2, 64, 4)), jnp.ones((4, 1000))
        jaxpr = jax.make_jaxpr(jax.grad(functools.partial(loss, num_chunks=num_chunks), (0, 1)))(x, kernel)
        return max(size_of_arrays(jaxpr.jaxpr))

    assert largest(1) == 2 * 64 * 1000
    assert largest(8) == 2 * 8 * 1000


def size_of_arrays(jaxpr: Any) -> list[int]:
    """Return the number of elements of every array that a program makes."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [v.aval.size for v in equation.outvars]
        for inner in jaxprs_in_params(equation.params):
            sizes += size_of_arrays(inner)
    return sizes


@pytest.mark.parametrize("smoothing", [None, 0.1])
def test_outputs_that_do_not_exist_have_no_part_in_the_loss(smoothing):
    """The sums and gradients are those of the outputs that exist, and a row without any has none."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7)), jnp.float32)
    allowed = jnp.arange(7)[None] < jnp.array([[4], [4], [0]])
    targets, weights = jnp.array([1, 3, 0]), jnp.array([1.0, 1.0, 0.0])

    def loss(logits, allowed=None):
        rows = slice(None) if allowed is not None else slice(2)
        with z_loss_summed():
            sums = cross_entropy(logits, targets[rows], weights[rows], smoothing, allowed)
        return sums["loss"] + 0.1 * sums[Z_LOSS]

    value, gradient = jax.value_and_grad(loss)(logits, allowed)
    expected, of_existing = jax.value_and_grad(loss)(logits[:2, :4])
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    np.testing.assert_allclose(gradient[:2, :4], of_existing, rtol=0, atol=1e-6)
    assert not gradient[:2, 4:].any()
    assert not gradient[2].any()
