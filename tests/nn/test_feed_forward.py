import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.nn.dropout import Dropout, DropoutRates, keep_mask
from transformer_jax.nn.feed_forward import ACTIVATIONS, FeedForward

RNG = np.random.default_rng(0)
POINTS = [-30.0, -3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0, 30.0]

DEFINITIONS = {
    "relu": lambda x: max(0.0, x),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "geglu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "swiglu": lambda x: x / (1 + math.exp(-x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu2": lambda x: x * x if x > 0 else 0.0,
    "leaky_relu2": lambda x: x * x if x > 0 else x * x / 4,
    "elu": lambda x: x if x > 0 else math.expm1(x),
    "selu": lambda x: 1.0507009873554805 * (x if x > 0 else 1.6732632423543772 * math.expm1(x)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "reglu": lambda x: max(0.0, x),
    "glu": lambda x: 1 / (1 + math.exp(-x)),
    "bilinear": lambda x: x,
    "swiglu_clamped": lambda x: min(x, 7.0) / (1 + math.exp(-1.702 * min(x, 7.0))),
}
GATED = ("swiglu", "geglu", "geglu_tanh", "reglu", "glu", "bilinear", "swiglu_clamped")
NARANG = {
    **{"ReLU": "relu", "GELU": "gelu", "Swish": "silu", "ELU": "elu", "GLU": "glu", "GeGLU": "geglu"},
    **{"ReGLU": "reglu", "SELU": "selu", "SwiGLU": "swiglu", "LiGLU": "bilinear"},
    **{"Sigmoid": "sigmoid", "Softplus": "softplus"},
}
"""The activations of Narang et al. 2021, table 1, and ours."""


@pytest.mark.parametrize("name", DEFINITIONS)
def test_activations_equal_their_definition(name):
    expected = [DEFINITIONS[name](x) for x in POINTS]
    np.testing.assert_allclose(ACTIVATIONS[name].function(jnp.array(POINTS)), expected, rtol=2e-6, atol=2e-7)


def test_every_activation_of_the_comparisons_is_there_with_or_without_a_gate():
    assert {*NARANG.values()} < {*ACTIVATIONS}
    assert [name for name, activation in ACTIVATIONS.items() if activation.gated] == [
        *filter(GATED.__contains__, ACTIVATIONS)
    ]
    assert {*DEFINITIONS, "geglu_tanh"} == {*ACTIVATIONS}


def test_squared_relus_of_normal_numbers():
    """max(x, 0)^2 has the mean 1/2 and the second moment 3/2; the leaky one 5/8, since 1/4 of the other half joins."""
    x = jnp.asarray(RNG.normal(size=400_000), jnp.float32)
    y = np.asarray(ACTIVATIONS["relu2"].function(x), np.float64)
    assert (y.mean(), (y**2).mean()) == pytest.approx((0.5, 1.5), rel=0.03)
    assert np.asarray(ACTIVATIONS["leaky_relu2"].function(x), np.float64).mean() == pytest.approx(0.625, rel=0.03)
    slopes = [jax.grad(ACTIVATIONS[name].function) for name in ("relu2", "leaky_relu2")]
    assert [[float(slope(x)) for x in (-2.0, 3.0)] for slope in slopes] == [[0.0, 6.0], [-1.0, 6.0]]


def test_the_clamped_gate():
    """g sigmoid(1.702 g) (l + 1), with g at most 7 and l between -7 and 7, from literal numbers."""
    gate, linear = jnp.array([1.0, 9.0, -9.0, 1.0]), jnp.array([0.0, 9.0, -9.0, -9.0])
    y = ACTIVATIONS["swiglu_clamped"].hidden(linear, gate)
    # 1 / (1 + e^-1.702) = 0.845796; 7 / (1 + e^-11.914) = 6.999953; -9 / (1 + e^15.318) = -2.003e-6.
    np.testing.assert_allclose(y, [0.845796, 8 * 6.999953, -6 * -2.003179e-6, -6 * 0.845796], rtol=2e-6)
    slope = jax.grad(lambda g, x: ACTIVATIONS["swiglu_clamped"].hidden(x, g), argnums=(0, 1))
    assert [float(d) for d in slope(8.0, 8.0)] == [0.0, 0.0]


def test_the_two_gelus_differ():
    x = jnp.linspace(-4, 4, 101)
    difference = jnp.abs(ACTIVATIONS["gelu"].function(x) - ACTIVATIONS["gelu_tanh"].function(x)).max()
    assert 3e-4 < float(difference) < 6e-4


@pytest.mark.parametrize("name", DEFINITIONS)
def test_activations_keep_bfloat16(name):
    y = ACTIVATIONS[name].function(jnp.array(POINTS, jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    assert_close(y[1:-1], [DEFINITIONS[name](float(jnp.bfloat16(x))) for x in POINTS[1:-1]], 0.02)


def parameters(config, seed=0):
    x = jnp.zeros((1, 2, config.emb_dim))
    tree = jax.eval_shape(lambda: FeedForward(config, 2).init(jax.random.key(0), x, None))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape), jnp.float32), tree)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("name", ["relu", "gelu", "geglu", "gelu_tanh", "swiglu", "bilinear", "swiglu_clamped"])
def test_the_network_equals_its_equation(name, use_bias):
    config = tiny(activation=name, use_bias=use_bias)
    params = parameters(config)
    assert set(params) == ({"gate", "hidden", "out"} if name in GATED else {"hidden", "out"})
    assert all(set(p) == ({"kernel", "bias"} if use_bias else {"kernel"}) for p in params.values())
    assert params["hidden"]["kernel"].shape == (16, 24)
    assert params["out"]["kernel"].shape == (24, 16)
    x = RNG.normal(size=(2, 3, 16))
    actual = FeedForward(config, 2).apply({"params": params}, jnp.asarray(x, jnp.float32), None)
    f = np.vectorize(DEFINITIONS[name])
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    dense = {k: (lambda y, v=v: y @ v["kernel"] + v.get("bias", 0.0)) for k, v in p.items()}
    linear = dense["hidden"](x)
    factor = np.clip(linear, -7, 7) + 1 if name == "swiglu_clamped" else linear
    hidden = f(dense["gate"](x)) * factor if "gate" in p else f(linear)
    assert_close(actual, dense["out"](hidden), 1e-5)


@pytest.mark.parametrize("name", ["relu", "swiglu"])
def test_dropout_applies_to_the_hidden_layer(name):
    """On the product with the gate, if there is one, scaled by 1 / (1 - rate)."""
    config = tiny(activation=name)
    params, x = parameters(config), RNG.normal(size=(2, 3, 16)).astype(np.float32)
    dropout = Dropout(jnp.uint32(5), jnp.arange(2), DropoutRates(residual=0.9, activation=0.4))
    actual = FeedForward(config, 2).apply({"params": params}, jnp.asarray(x), dropout)
    keep = np.asarray(keep_mask(dropout.seed, dropout.row_ids, (2, 3, 24), 0.4))
    assert 0 < keep.sum() < keep.size
    model = reference.Model(config, None, lambda y, place: {"activation": y * keep / 0.6}[place])
    expected = model.feed_forward(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params), x)
    assert_close(actual, expected, 1e-5)
