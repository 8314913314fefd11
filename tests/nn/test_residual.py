import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import assert_close, tiny

from transformer_jax.nn.dropout import Dropout, DropoutRates, keep_mask
from transformer_jax.nn.residual import Residual

RNG = np.random.default_rng(0)
X, KERNEL = RNG.normal(2.0, 3.0, (2, 3, 16)), RNG.normal(size=(16, 16)) / 4
SCALE, BIAS = RNG.normal(size=(2, 16))
NORM = {"norm": {"scale": jnp.asarray(SCALE, jnp.float32), "bias": jnp.asarray(BIAS, jnp.float32)}}


def apply(config, dropout=None):
    def around(module, x):
        return module.after(x, jnp.tanh(module.before(x) @ jnp.asarray(KERNEL, jnp.float32)), dropout)

    return Residual(config).apply({"params": NORM}, jnp.asarray(X, jnp.float32), method=around)


def formula(config, drop=lambda y: y):
    def norm(y):
        return reference.norm(config, y, {"scale": SCALE, "bias": BIAS})

    if config.norm_position == "post":
        return norm(X + drop(np.tanh(X @ KERNEL)))
    return X + drop(np.tanh(norm(X) @ KERNEL))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_the_formula(norm_position, norm):
    config = tiny(norm_position=norm_position, norm=norm)
    assert_close(apply(config), formula(config), 2e-6)


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_dropout_applies_to_the_sublayer_not_to_the_sum(norm_position):
    config = tiny(norm_position=norm_position)
    dropout = Dropout(jnp.uint32(3), jnp.arange(2), DropoutRates(residual=0.4, attention=0.9, activation=0.8))
    keep = np.asarray(keep_mask(dropout.seed, dropout.row_ids, X.shape, 0.4))
    assert_close(apply(config, dropout), formula(config, lambda y: y * keep / 0.6), 2e-6)


def test_post_normalises_the_residual_stream_and_pre_does_not():
    """With a sub-layer that returns zeros, the gradient of "pre" reaches x unchanged and that of "post" does not."""

    def through(norm_position):
        def around(module, x):
            return module.after(x, jnp.zeros_like(module.before(x)), None)

        module = Residual(tiny(norm_position=norm_position))
        jacobian = jax.jacobian(lambda x: module.apply({"params": NORM}, x, method=around)[0, 0])
        return jacobian(jnp.asarray(X, jnp.float32))[:, 0, 0]

    np.testing.assert_array_equal(through("pre"), np.eye(16))
    assert np.abs(through("post") - np.eye(16)).max() > 0.1
