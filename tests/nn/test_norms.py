import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import norm
from support import assert_close, tiny

from transformer_jax.nn.norms import Norm, WideNorm, l2_norm, layer_norm, make_norm, rms_norm

RNG = np.random.default_rng(0)
SHAPE = (2, 3, 16)
X = RNG.normal(1.5, 3.0, SHAPE).astype(np.float32)
SCALE, BIAS = (jnp.asarray(row, jnp.float32) for row in RNG.normal(size=(2, 16)))
FLOAT64 = {"scale": np.asarray(SCALE, np.float64), "bias": np.asarray(BIAS, np.float64)}


def params(config):
    return {"scale": SCALE, "bias": BIAS} if config.use_bias and config.norm == "layernorm" else {"scale": SCALE}


@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", ["layernorm", "rmsnorm"])
def test_norms_equal_their_definition(name, use_bias, epsilon):
    config = tiny(norm=name, use_bias=use_bias, norm_epsilon=epsilon)
    expected = norm(config, X.astype(np.float64), FLOAT64)
    actual = Norm(config).apply({"params": params(config)}, jnp.asarray(X))
    assert_close(actual, expected, 2e-6)


def test_layer_norm_of_literal_numbers():
    x = jnp.array([[1.0, 2.0, 3.0, 4.0]])  # mean 2.5, variance 1.25
    y = layer_norm(x, jnp.ones(4), None, 0.0)
    assert_close(y, [[-1.3416408, -0.4472136, 0.4472136, 1.3416408]], 1e-6)


def test_rms_norm_of_literal_numbers():
    y = rms_norm(jnp.array([[1.0, 2.0, 3.0, 4.0]]), jnp.array([1.0, 1.0, 1.0, 10.0]), 0.0)  # mean of squares 7.5
    assert_close(y, [[0.3651484, 0.7302967, 1.0954451, 14.605935]], 1e-6)


def test_norms_of_queries_by_hand():
    """(3, 4) has the root mean square 5 / sqrt(2), and the length 5."""
    query = jnp.array([[[[3.0, 4.0]]]])
    assert_close(rms_norm(query, jnp.ones(2), 0.0)[0, 0, 0], [0.848528, 1.131371], 1e-6)
    assert_close(l2_norm(query, 0.0)[0, 0, 0], [0.6, 0.8], 1e-6)
    assert not l2_norm(jnp.zeros((1, 4)), 1e-6).any()
    # Two heads, (1, 1) and (1, 3): together a root mean square of sqrt(3).
    heads, scale = jnp.array([[[[1.0, 1.0], [1.0, 3.0]]]]), jnp.array([1.0, 2.0, 1.0, 1.0])
    y = WideNorm(0.0).apply({"params": {"scale": scale}}, heads)
    assert_close(y[0, 0], np.array([[1.0, 2.0], [1.0, 3.0]]) / np.sqrt(3), 1e-6)


def test_rms_norm_does_not_centre_and_layer_norm_does():
    shifted = jnp.asarray(X) + 7
    ones = jnp.ones(16)
    assert_close(layer_norm(shifted, ones, None, 1e-6), layer_norm(jnp.asarray(X), ones, None, 1e-6), 1e-5)
    assert np.abs(rms_norm(shifted, ones, 1e-6) - rms_norm(jnp.asarray(X), ones, 1e-6)).max() > 0.5


def test_variance_survives_a_large_mean():
    """E[x^2] - E[x]^2 in float32 would be off by whole units here, or negative."""
    x = jnp.asarray(X) + 10_000
    expected = norm(tiny(use_bias=False), np.asarray(x, np.float64), FLOAT64)
    assert_close(layer_norm(x, SCALE, None, 1e-6), expected, 1e-3)


def test_bfloat16_is_normalised_in_float32():
    x = jnp.asarray(X, jnp.bfloat16)
    for config in (tiny(norm="layernorm"), tiny(norm="rmsnorm")):
        y = Norm(config).apply({"params": params(config)}, x)
        assert y.dtype == jnp.bfloat16
        expected = norm(config, np.asarray(x, np.float64), FLOAT64)
        assert_close(y, expected, 2**-8)  # one rounding, of the result


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"norm": "layernorm"}, {"scale", "bias"}),
        ({"norm": "layernorm", "use_bias": False}, {"scale"}),
        ({"norm": "rmsnorm"}, {"scale"}),
    ],
)
def test_parameters(fields, names):
    tree = Norm(tiny(**fields)).init(jax.random.key(0), jnp.zeros((1, 2, 16)))["params"]
    assert set(tree) == names
    assert all(p.shape == (16,) for p in tree.values())
    assert (tree["scale"] == 1).all()
    assert (tree.get("bias", jnp.zeros(1)) == 0).all()


def test_forms_of_gains():
    """1 + w is a learned gain of 1 + w, and no gain is a gain of 1."""
    x, offset = jnp.asarray(X), {"scale": SCALE - 1, "bias": BIAS}
    for name in ("layernorm", "rmsnorm", "dyt"):
        learned, none, one_and = (tiny(norm=name, norm_scale=kind) for kind in ("learned", "none", "offset"))
        alpha = {"alpha": jnp.float32(0.7)} if name == "dyt" else {}
        whole = {**alpha, "scale": SCALE, "bias": BIAS}
        assert_close(apply(one_and, {**alpha, **offset}, x), apply(learned, whole, x), 1e-6)
        assert_close(apply(none, {**alpha, "bias": BIAS}, x), apply(learned, {**whole, "scale": jnp.ones(16)}, x), 1e-6)


def apply(config, tree, x):
    return make_norm(config).apply({"params": tree}, x)


def test_dynamic_tanh():
    config = tiny(norm="dyt")
    tree = {"alpha": jnp.float32(0.7), "scale": SCALE, "bias": BIAS}
    assert_close(apply(config, tree, jnp.asarray(X)), np.tanh(0.7 * X) * np.asarray(SCALE) + np.asarray(BIAS), 1e-6)
    assert "bias" not in make_norm(tiny(norm="dyt", use_bias=False)).init(jax.random.key(0), jnp.asarray(X))["params"]


def test_dynamic_tanh_of_a_small_factor_is_linear():
    """y / alpha approaches x times the gain."""
    tree = {"alpha": jnp.float32(1e-4), "scale": SCALE}
    assert_close(apply(tiny(norm="dyt", use_bias=False), tree, jnp.asarray(X)) / 1e-4, X * np.asarray(SCALE), 1e-4)
