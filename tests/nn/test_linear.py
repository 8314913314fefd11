import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from support import assert_close

from transformer_jax.nn.initialisation import xavier_uniform
from transformer_jax.nn.linear import Linear, fused, linear, logits

RNG = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


def test_linear_is_a_product_over_the_last_axis():
    x, kernel, bias = normal(2, 3, 5), normal(5, 4, 6), normal(4, 6)
    assert_close(linear(x, kernel, bias), np.einsum("btd,dnh->btnh", x, kernel) + np.asarray(bias), 1e-6)
    assert_close(linear(x, kernel), np.einsum("btd,dnh->btnh", x, kernel), 1e-6)
    assert_close(linear(x[0, 0], kernel), np.einsum("d,dnh->nh", x[0, 0], kernel), 1e-6)


@pytest.mark.parametrize("use_bias", [True, False])
def test_the_shell_maps_several_axes_to_several(use_bias):
    module = Linear((3, 4), (5, 2), use_bias)
    params = {"kernel": normal(3, 4, 5, 2)} | ({"bias": normal(5, 2)} if use_bias else {})
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros((1, 3, 4))))["params"]
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda s: s.shape, shapes)
    x = normal(2, 7, 3, 4)
    expected = np.einsum("btnh,nhkd->btkd", x, params["kernel"]) + np.asarray(params.get("bias", 0.0))
    assert_close(module.apply({"params": params}, x), expected, 1e-6)


class Three(nn.Module):
    use_bias: bool

    def setup(self) -> None:
        self.maps = [Linear((6,), shape, self.use_bias) for shape in ((2, 3), (4,), (2, 2))]

    def __call__(self, x, together):
        return fused(x, self.maps) if together else [f(x) for f in self.maps]


@pytest.mark.parametrize("use_bias", [True, False])
def test_fused_maps_equal_separate_ones(use_bias):
    x, module = normal(2, 5, 6), Three(use_bias)
    params = jax.tree.map(lambda p: normal(*p.shape), module.init(jax.random.key(0), x, False))
    together, separate = (module.apply(params, x, t) for t in (True, False))
    assert [y.shape for y in together] == [(2, 5, 2, 3), (2, 5, 4), (2, 5, 2, 2)]
    for a, b in zip(together, separate, strict=True):
        assert_close(a, b, 1e-6)


def test_bfloat16_input_casts_the_parameters():
    x, kernel, bias = normal(2, 3, 5).astype(jnp.bfloat16), normal(5, 4), normal(4)
    y = linear(x, kernel, bias)
    assert y.dtype == jnp.bfloat16
    assert_close(y, np.asarray(x, np.float64) @ np.asarray(kernel, np.float64) + np.asarray(bias, np.float64), 0.02)


def test_float32_logits_of_bfloat16_operands():
    """Exact products of the operands; rounded to bfloat16 the relative error would be 2^-9."""
    x, kernel = normal(2, 3, 64).astype(jnp.bfloat16), normal(64, 7)
    y = logits(x, kernel)
    assert y.dtype == jnp.float32
    assert_close(y, np.asarray(x, np.float64) @ np.asarray(kernel.astype(jnp.bfloat16), np.float64), 1e-6)


def test_gradients_of_float32_logits():
    """They equal those of the plain product, exactly in float32, and have the types of the operands."""
    x, kernel = normal(4, 5), normal(5, 3)
    plain = jax.grad(lambda x, k: jnp.sum(jnp.sin(x @ k)), argnums=(0, 1))
    ours = jax.grad(lambda x, k: jnp.sum(jnp.sin(logits(x, k))), argnums=(0, 1))
    for a, b in zip(ours(x, kernel), plain(x, kernel), strict=True):
        np.testing.assert_array_equal(a, b)
    narrow = x.astype(jnp.bfloat16)
    for a, b, operand in zip(ours(narrow, kernel), plain(x, kernel), (narrow, kernel), strict=True):
        assert a.dtype == operand.dtype
        assert_close(a.astype(jnp.float32), b, 0.02)


def test_xavier_uniform_fills_its_interval():
    limit = math.sqrt(6 / (300 + 200))
    kernel = xavier_uniform(jax.random.key(0), (300, 200), 300, 200)
    assert kernel.dtype == jnp.float32
    assert limit * 0.999 < float(jnp.abs(kernel).max()) <= limit
    assert abs(float(kernel.mean())) < 5 * limit / math.sqrt(3 * 60_000)
    assert float(kernel.var()) == pytest.approx(limit**2 / 3, rel=0.02)


def test_initial_kernels_count_all_axes_of_a_side():
    """A projection to heads [D, N, H] has N * H outputs, one back from heads N * H inputs."""
    for inputs, features in (((64,), (8, 16)), ((8, 16), (64,))):
        params = Linear(inputs, features, True).init(jax.random.key(1), jnp.zeros((1, *inputs)))["params"]
        limit = math.sqrt(6 / (64 + 128))
        assert limit * 0.98 < float(jnp.abs(params["kernel"]).max()) <= limit
        assert (params["bias"] == 0).all()
        assert params["bias"].shape == features
