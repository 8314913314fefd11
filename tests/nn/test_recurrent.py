"""Recurrent cells equal those of PyTorch, and padding changes no state."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.config import ModelConfig
from transformer_jax.nn.initialisation import INITS
from transformer_jax.nn.recurrent import CELLS, RecurrentCell, RecurrentEncoder, gru, lstm, rnn

GOLDEN = Path(__file__).parent.parent / "golden" / "recurrent" / "torch.npz"
INPUTS, HIDDEN, LAYERS = 5, 4, 2


def config_of(cell, **fields):
    sizes = {"emb_dim": INPUTS, "hidden_dim": HIDDEN, "num_encoder_layers": LAYERS, "num_decoder_layers": 0}
    return ModelConfig(architecture="recurrent", cell=cell, bidirectional=True, **sizes | fields).resolved()


@functools.cache
def stored():
    return dict(np.load(GOLDEN))


def our_tree(cell, kind):
    """Return arrays of PyTorch, `parameter` or `gradient`, as a tree of ours."""
    arrays, tree = stored(), {}
    for layer in range(LAYERS):
        for direction, suffix in (("forwards", ""), ("backwards", "_reverse")):
            maps = {}
            for name, theirs in (("input", "ih"), ("state", "hh")):
                weight = arrays[f"{cell}/{kind}/weight_{theirs}_l{layer}{suffix}"]  # [Q U, I]
                bias = arrays[f"{cell}/{kind}/bias_{theirs}_l{layer}{suffix}"]
                shape = (-1, HIDDEN)
                maps[name] = {"kernel": weight.T.reshape(-1, *bias.reshape(shape).shape), "bias": bias.reshape(shape)}
            tree[f"{direction}_{layer}"] = maps
    return tree


@pytest.mark.parametrize("cell", CELLS)
def test_outputs_states_and_gradients_equal_those_of_pytorch(cell):
    arrays, config = stored(), config_of(cell, cell_biases=2)
    mask = np.arange(6)[None] < arrays["lengths"][:, None]

    def read(params, x):
        return RecurrentEncoder(config).apply({"params": params}, x, jnp.asarray(mask))

    def weigh(part):
        return (part * jnp.cos(jnp.arange(part.size).reshape(part.shape))).sum()

    def loss(params, x):
        y, finals = read(params, x)
        # PyTorch's last states are [layers x directions, B, U].
        lasts = [
            jnp.concatenate([jnp.moveaxis(layer[i].reshape(3, 2, HIDDEN), 1, 0) for layer in finals])
            for i in range(CELLS[cell].num_parts)
        ]
        return weigh(y) + sum(map(weigh, lasts)), (y, lasts)

    params, x = our_tree(cell, "parameter"), jnp.asarray(arrays[f"{cell}/x"])
    gradients, (y, lasts) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, x)
    np.testing.assert_allclose(y, arrays[f"{cell}/y"], atol=1e-6)
    for i, last in enumerate(lasts):
        np.testing.assert_allclose(last, arrays[f"{cell}/last/{i}"], atol=1e-6)
    np.testing.assert_allclose(gradients[1], arrays[f"{cell}/gradient/x"], atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradients[0], our_tree(cell, "gradient"))


def test_cells_with_literal_numbers():
    """Gates of 0 are sigmoid(0) = 1/2 and tanh(0) = 0; large gates are open or shut."""
    zeros, state = jnp.zeros((4, 1)), (jnp.array([0.8]), jnp.array([0.6]))
    h, c = lstm(zeros, zeros, state)
    np.testing.assert_allclose(c, [0.3])
    np.testing.assert_allclose(h, 0.5 * np.tanh([0.3]), rtol=1e-6)
    remember = jnp.array([[-50.0], [50.0], [1.0], [50.0]])  # i, f, g, o
    np.testing.assert_allclose(lstm(remember, zeros, state)[1], [0.6], rtol=1e-6)
    (h,) = gru(zeros[:3], zeros[:3], state[:1])
    np.testing.assert_allclose(h, [0.4], rtol=1e-6)
    (h,) = gru(jnp.array([[50.0], [-50.0], [0.0]]), jnp.array([[0.0], [0.0], [0.7]]), state[:1])  # r, z, n
    np.testing.assert_allclose(h, np.tanh([0.7]), rtol=1e-6)
    np.testing.assert_allclose(rnn(zeros[:1] + 0.2, zeros[:1] + 0.1, state[:1])[0], np.tanh([0.3]), rtol=1e-6)


def initial(config, seed=0):
    return RecurrentCell(config, INPUTS).init(jax.random.key(seed), method="weights")["params"]


def test_biases_are_none_one_or_two():
    for count, expected in ((0, []), (1, ["input"]), (2, ["input", "state"])):
        params = initial(config_of("gru", cell_biases=count))
        assert [name for name, maps in params.items() if "bias" in maps] == expected


@pytest.mark.parametrize("init", INITS)
def test_initial_values(init):
    config = config_of("lstm", cell_biases=2, hidden_dim=60, init=init, init_std=0.5, init_range=0.3)
    params = initial(config)
    kernel, state, bias = params["input"]["kernel"], params["state"]["kernel"], np.array(params["input"]["bias"])
    assert kernel.shape == (INPUTS, 4, 60)
    assert state.shape == (60, 4, 60)
    if init == "glorot":
        for gate in range(4):  # each gate is a matrix of its own
            np.testing.assert_allclose(state[:, gate].T @ state[:, gate], np.eye(60), atol=1e-5)
        assert np.abs(kernel).max() == pytest.approx((6 / 65) ** 0.5, rel=0.02)
        np.testing.assert_array_equal(bias, np.repeat([[0.0], [1.0], [0.0], [0.0]], 60, axis=1))
    elif init == "uniform":
        for x in (kernel, state, bias):
            assert 0.25 < np.abs(x).max() <= 0.3
    elif init in ("normal", "plain_normal", "normal_with_biases"):
        assert np.std(state) == pytest.approx(0.5, rel=0.05)
        assert np.std(bias) == (pytest.approx(0.5, rel=0.2) if init == "normal_with_biases" else 0.0)
    else:
        assert np.std(state) == pytest.approx(60**-0.5, rel=0.05)


def test_outputs_are_zeros_at_padding():
    config = config_of("lstm")
    x, mask = jnp.ones((2, 3, INPUTS)), jnp.array([[True, False, False], [False] * 3])
    encoder = RecurrentEncoder(config)
    params = encoder.init(jax.random.key(0), x, mask)
    y, finals = encoder.apply(params, x, mask)
    assert y[0, 0].any()
    assert not y[0, 1:].any()
    assert not y[1].any()
    for part in finals[-1]:
        assert part[0].any()
        assert not part[1].any()
