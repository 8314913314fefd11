"""Linear maps over the last axis: the function, and the module that owns a kernel and a bias."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.nn.activation_sharding import features_are_sharded
from transformer_jax.nn.initialisation import KernelInit, xavier_uniform
from transformer_jax.typing import Array


def linear(
    x: Float[Array, "*batch D"], kernel: Float[Array, "D ..."], bias: Float[Array, "*features"] | None = None
) -> Array:
    """Return x W + b over the last axis of x.

    Args:
      x: [..., D].
      kernel: [D, *features]; cast to the type of x.
      bias: [*features], or None.
    Returns: [..., *features].
    """
    # Flatten the tokens first: on CPU the gradient of a product whose left side has rank 3 takes twice the time.
    features = kernel.shape[1:]
    y = x.reshape(-1, x.shape[-1]) @ kernel.reshape(kernel.shape[0], -1).astype(x.dtype)
    if bias is not None:
        y = y + bias.reshape(1, -1).astype(x.dtype)
    return y.reshape(*x.shape[:-1], *features)


def product_float32(equation: str, left: Array, right: Array) -> Array:
    """Return jnp.einsum in float32: sums of narrower operands are not rounded to the operands' type.

    Meant for logits: a softmax turns their differences into ratios, and bfloat16 keeps only 8 bits of them. The
    gradient is computed in the operands' type, as for other products.

    Args:
      equation: for jnp.einsum; left, right: arrays of the same type.
    """
    return jnp.einsum(equation, left, right) if left.dtype == jnp.float32 else _widened(equation, left, right)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _widened(equation: str, left: Array, right: Array) -> Array:
    return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)


def _widened_forward(equation: str, left: Array, right: Array) -> tuple[Array, tuple[Array, Array]]:
    return _widened(equation, left, right), (left, right)


def _widened_backward(equation: str, operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    _, pullback = jax.vjp(lambda left, right: jnp.einsum(equation, left, right), *operands)
    return pullback(gradient.astype(operands[0].dtype))


_widened.defvjp(_widened_forward, _widened_backward)


def logits(x: Float[Array, "*batch D"], kernel: Float[Array, "D V"]) -> Float[Array, "*batch V"]:
    """Return x W over the last axis of x, float32: [..., D] -> [..., V]."""
    flat = x.reshape(-1, x.shape[-1])  # as in `linear`
    return product_float32("td,dv->tv", flat, kernel.astype(x.dtype)).reshape(*x.shape[:-1], kernel.shape[-1])


class Linear(nn.Module):
    """Owns `kernel` [*inputs, *features] and, with `use_bias`, `bias` [*features].

    Both are attributes, so that a caller can fuse several maps into one product.
    """

    inputs: tuple[int, ...]
    features: tuple[int, ...]
    use_bias: bool
    kernel_init: KernelInit = xavier_uniform

    def setup(self) -> None:
        fan_in, fan_out = math.prod(self.inputs), math.prod(self.features)
        shape = (*self.inputs, *self.features)
        self.kernel = self.param("kernel", lambda key: self.kernel_init(key, shape, fan_in, fan_out))
        self.bias = self.param("bias", nn.initializers.zeros, self.features) if self.use_bias else None

    def __call__(self, x: Array) -> Array:
        """Map x [..., *inputs] to [..., *features]."""
        rank = len(self.inputs)
        flat = x.reshape(*x.shape[: x.ndim - rank], math.prod(self.inputs))
        return linear(flat, self.kernel.reshape(-1, *self.features), self.bias)


def fused(x: Float[Array, "*batch D"], maps: Sequence[Linear]) -> list[Array]:
    """Return [f(x) for f in maps], computed as one matrix product: one wide product is faster than three narrow ones.

    If features are divided among devices, the products stay separate: one product would move kernels between devices.
    """
    if features_are_sharded():
        return [f(x) for f in maps]
    widths = [math.prod(f.features) for f in maps]
    kernel = jnp.concatenate([f.kernel.reshape(f.kernel.shape[0], -1).astype(x.dtype) for f in maps], axis=1)
    biases = [f.bias.reshape(-1) for f in maps if f.bias is not None]
    bias = jnp.concatenate(biases) if biases else None
    y = linear(x, kernel, bias)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [
        y[..., start : start + width].reshape(*x.shape[:-1], *f.features)
        for f, start, width in zip(maps, starts, widths, strict=True)
    ]
