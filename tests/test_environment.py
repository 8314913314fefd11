"""The strict environment of conftest.py is on; without it all other tests would check less."""

import warnings

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from transformer_jax.nn.attention import dot_product_attention
from transformer_jax.nn.masks import padding_mask
from transformer_jax.nn.norms import rms_norm


def test_rank_promotion_raises():
    with pytest.raises(ValueError, match="could not be broadcast"):
        jnp.ones((2, 3)) + jnp.ones(3)


def test_shapes_are_checked():
    assert rms_norm(jnp.ones((2, 3)), jnp.ones(3), 1e-6).shape == (2, 3)
    with pytest.raises(jaxtyping.TypeCheckError):
        rms_norm(jnp.ones((2, 3)), jnp.ones(1), 1e-6)  # would broadcast
    with pytest.raises(jaxtyping.TypeCheckError):
        jax.eval_shape(dot_product_attention, *(jnp.ones((1, 2, 3, n)) for n in (4, 5, 5)))


def test_types_are_checked():
    with pytest.raises(jaxtyping.TypeCheckError):
        padding_mask(jnp.ones((2, 3)))  # ids are integers


def test_a_warning_of_the_package_is_an_error():
    with pytest.raises(UserWarning, match="careless"):
        warnings.warn_explicit("careless", UserWarning, "masks.py", 1, module="transformer_jax.nn.masks")
