"""Experts against a loop over tokens, and the cases in which they are one feed-forward network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.collected import COLLECTED
from transformer_jax.nn.dropout import Dropout, DropoutRates
from transformer_jax.nn.experts import BALANCE, ROUTER_Z, Experts, balance_loss, choose, router_z_loss
from transformer_jax.nn.feed_forward import FeedForward
from transformer_jax.nn.initialisation import INITS

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 16)), jnp.float32)
DROPOUT = Dropout(jnp.uint32(5), jnp.arange(2), DropoutRates(activation=0.4))
gated_or_not = pytest.mark.parametrize("activation", ["relu", "swiglu"])


def config_of(**fields):
    return tiny(**{"feed_forward": "experts", "num_experts": 5, "experts_per_token": 2, **fields})


def parameters(config, seed=1):
    tree = jax.eval_shape(lambda: Experts(config, 2).init(jax.random.key(0), X, None))["params"]
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(random.normal(size=p.shape), jnp.float32), tree)


def apply(config, params, dropout=None, x=X):
    return Experts(config, 2).apply({"params": params}, x, dropout)


def dense(config, params, expert, dropout=None):
    """Return the output of a feed-forward network with the parameters of one expert."""
    own = jax.tree.map(lambda p: p[expert], {name: p for name, p in params.items() if name != "router"})
    return FeedForward(config, 2).apply({"params": own}, X, dropout)


@pytest.mark.parametrize(
    ("activation", "use_bias", "number"),
    [("relu", True, 1), ("relu", False, 5), ("swiglu", True, 2), ("geglu", False, 3), ("swiglu_clamped", True, 2)],
)
def test_the_block_equals_a_loop_over_tokens(activation, use_bias, number):
    config = config_of(activation=activation, use_bias=use_bias, experts_per_token=number)
    params = parameters(config)
    assert {name: set(p) for name, p in params.items()} == {
        name: {"kernel", "bias"} if use_bias and name != "router" else {"kernel"} for name in params
    }
    assert [params[name]["kernel"].shape for name in ("router", "hidden", "out")] == [(16, 5), (5, 16, 24), (5, 24, 16)]
    expected = reference.Model(config, None).experts(jax.tree.map(lambda p: np.asarray(p, np.float64), params), X)
    assert_close(apply(config, params), expected, 1e-5)


@gated_or_not
def test_one_expert_is_the_feed_forward_network(activation):
    """Dropout included, since the hidden layer has the same elements."""
    config = config_of(activation=activation, num_experts=1, experts_per_token=1)
    params = parameters(config)
    for dropout in (None, DROPOUT):
        assert_close(apply(config, params, dropout), dense(config, params, 0, dropout), 1e-6)
    assert abs(apply(config, params, DROPOUT) - apply(config, params)).max() > 0.1


@gated_or_not
def test_equal_experts_are_the_feed_forward_network(activation):
    """Whatever the router chooses: the weights of a token add up to 1."""
    config = config_of(activation=activation, num_experts=4, experts_per_token=3)
    params = {
        name: p if name == "router" else jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), p)
        for name, p in parameters(config).items()
    }
    assert_close(apply(config, params), dense(config, params, 0), 1e-5)


def test_experts_have_no_order():
    config = config_of()
    params, order = parameters(config), np.array([3, 0, 4, 1, 2])
    other = {
        name: {"kernel": p["kernel"][:, order]} if name == "router" else jax.tree.map(lambda x: x[order], p)
        for name, p in params.items()
    }
    assert_close(apply(config, other), apply(config, params), 1e-5)


def test_a_token_is_mapped_by_itself():
    config = config_of()
    params = parameters(config)
    whole = apply(config, params)
    for row, place in np.ndindex(2, 3):
        assert_close(
            apply(config, params, x=X[row : row + 1, place : place + 1]), whole[row : row + 1, place : place + 1]
        )


# The logits of the worked example, and their softmax.
LOGITS, SOFTMAX = [2.0, 1.0, 0.0, -1.0], [0.643914, 0.236883, 0.087144, 0.032059]


@pytest.mark.parametrize(
    ("number", "weights"), [(1, [1, 0, 0, 0]), (2, [0.731059, 0.268941, 0, 0]), (4, SOFTMAX)], ids=str
)
def test_weights_of_the_worked_example(number, weights):
    """Also with the experts in another order, and, of equal ones, with the first."""
    found = choose(jax.nn.softmax(jnp.array(LOGITS)), number)
    np.testing.assert_allclose(found.weights, weights, atol=1e-6)
    assert found.is_chosen.tolist() == [bool(weight) for weight in weights]
    found = choose(jax.nn.softmax(jnp.array([LOGITS[::-1]])), number)
    np.testing.assert_allclose(found.weights[0], weights[::-1], atol=1e-6)
    assert choose(jnp.full(4, 0.25), 2).weights.tolist() == [0.5, 0.5, 0, 0]


def collected(config, params, x, is_token=None):
    _, variables = Experts(config, 2).apply({"params": params}, x, None, is_token, mutable=[COLLECTED])
    return variables[COLLECTED]


def losses(sums):
    return float(balance_loss(sums[BALANCE], sums[BALANCE])), float(router_z_loss(sums[ROUTER_Z], sums[ROUTER_Z]))


def test_losses_of_the_worked_example():
    """The same logits for all tokens; padding, with others, does not count, and nor does the number of tokens."""
    config = config_of(num_experts=4)
    params = parameters(config)
    params["router"] = {"kernel": jnp.zeros((16, 4)).at[0].set(jnp.array(LOGITS)).at[1].set(jnp.array(LOGITS[::-1]))}
    x = X.at[..., :2].set(jnp.array([1.0, 0.0]))
    balance, router_z = 4 * (0.643914 + 0.236883) / 2, 5.954525
    assert losses(collected(config, params, x)) == pytest.approx((balance, router_z), rel=1e-5)
    is_token = jnp.array([[True, True, False], [True, False, False]])
    with_padding = jnp.where(is_token[..., None], x, x.at[..., :2].set(jnp.array([0.0, 5.0])))
    sums = collected(config, params, with_padding, is_token)
    assert losses(sums) == pytest.approx((balance, router_z), rel=1e-5)
    assert sums[BALANCE]["count"].tolist() == [3, 3, 0, 0]
    assert float(sums[BALANCE]["tokens"]) == float(sums[ROUTER_Z]["tokens"]) == 3
    assert losses(collected(config, params, x, jnp.zeros((2, 3), bool))) == (0, 0)
    # Tokens that choose each other's experts are balanced.
    other = x.at[0, :, :2].set(jnp.array([0.0, 1.0]))
    assert losses(collected(config, params, other))[0] == pytest.approx(1.0, rel=1e-5)
    # The equations themselves, with a softmax of its own.
    logits = np.asarray(other, np.float64) @ np.asarray(params["router"]["kernel"], np.float64)
    assert losses(collected(config, params, other))[1] == pytest.approx(
        np.square(np.log(np.exp(logits).sum(-1))).mean(), rel=1e-5
    )


def test_only_training_collects():
    config = config_of()
    _, variables = Experts(config, 2).apply({"params": parameters(config)}, X, None, mutable=[])
    assert variables == {}


@pytest.mark.parametrize("name", ["glorot", "normal", "t5"])
def test_every_expert_starts_as_a_network_by_itself(name):
    """The standard deviation is that of D inputs and F features, not of E times as many."""
    config = config_of(init=name, emb_dim=64, mlp_dim=256, num_experts=3, num_heads=4)
    params = Experts(config, 2).init(jax.random.key(0), jnp.zeros((1, 1, 64)), None)["params"]
    for part, inputs, features, init in (
        ("hidden", 64, 256, INITS[name].kernel(config)),
        ("out", 256, 64, INITS[name].residual_kernel(config, 2)),
    ):
        expected = np.std(init(jax.random.key(1), (inputs, features), inputs, features))
        np.testing.assert_allclose(np.std(params[part]["kernel"], axis=(1, 2)), expected, rtol=0.05)
    first, second, _ = params["hidden"]["kernel"]
    assert not (first == second).any()


def test_the_router_computes_in_float32():
    """Logits that bfloat16 would make equal: 256 and 257."""
    config = config_of(num_experts=2, experts_per_token=1, dtype="bfloat16", use_bias=False)
    params = parameters(config)
    params["router"] = {"kernel": jnp.zeros((16, 2)).at[0].set(jnp.array([256.0, 257.0]))}
    x = X.astype(jnp.bfloat16).at[..., 0].set(1.0)
    y = apply(config, params, x=x)
    assert y.dtype == jnp.bfloat16
    own = jax.tree.map(lambda p: p[1], {name: params[name] for name in ("hidden", "out")})
    assert_close(y, FeedForward(config, 2).apply({"params": own}, x, None), 0.02)


def test_operations_are_those_of_chosen_experts():
    """The router, and k networks of a token; parameters are those of all experts."""
    fields = {"architecture": "decoder_only", "num_decoder_layers": 1}
    config = tiny(feed_forward="experts", num_experts=5, experts_per_token=2, **fields)

    def flops(config):
        return ARCHITECTURES["decoder_only"].train_flops(config, 3, {"targets": 7})

    one = flops(tiny(**fields))
    network = 3 * 21 * 2 * 2 * 16 * 24
    assert flops(config) == one + network + 3 * 21 * 2 * 16 * 5
    assert flops(config) == flops(dataclasses.replace(config, mlp_dim=48, experts_per_token=1))
