"""Initial parameters: kernels of linear maps, and tables of embeddings. Biases are 0 and scales of norms are 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.typing import Array

KernelInit = Callable[[Array, Sequence[int], int, int], Array]
"""A function of a key, the shape of a kernel, and its numbers of inputs and outputs; it returns float32 samples."""


class Init(NamedTuple):
    """The initial distributions of one value of `model.init`.

    - kernel: of a linear map.
    - residual_kernel: of a map whose output is added to the residual stream, in a stack with `num_sums` such sums.
    - table_std: standard deviation of the normal distribution of embedding tables.
    """

    kernel: Callable[[ModelConfig], KernelInit]
    residual_kernel: Callable[[ModelConfig, int], KernelInit]
    table_std: Callable[[ModelConfig], float]


def xavier_uniform(key: Array, shape: Sequence[int], num_inputs: int, num_outputs: int) -> Array:
    """Return float32 samples, uniform in +-sqrt(6 / (num_inputs + num_outputs)) (Glorot and Bengio 2010, eq. 16)."""
    limit = math.sqrt(6.0 / (num_inputs + num_outputs))
    return jax.random.uniform(key, tuple(shape), jnp.float32, -limit, limit)


def normal(std: float) -> KernelInit:
    """Return the initialiser of kernels with normal samples of mean 0."""
    return lambda key, shape, num_inputs, num_outputs: std * jax.random.normal(key, tuple(shape), jnp.float32)


INITS = {
    "glorot": Init(
        kernel=lambda config: xavier_uniform,
        residual_kernel=lambda config, num_sums: xavier_uniform,
        table_std=lambda config: config.emb_dim**-0.5,
    ),
    "normal": Init(
        kernel=lambda config: normal(config.init_std),
        residual_kernel=lambda config, num_sums: normal(config.init_std / math.sqrt(num_sums)),
        table_std=lambda config: config.init_std,
    ),
}
"""By the values of `model.init`.

- `glorot`: as in Tensor2Tensor's model of Vaswani et al. 2017: kernels are uniform by their numbers of inputs and
  outputs; tables have the variance 1 / emb_dim, which `scale_embeddings` turns into 1.
- `normal`: as in GPT-2 (Radford et al. 2019, section 2.3): all are normal with `init_std`. Outputs of sub-layers are
  divided by the square root of their number in the stack, 2 L, so that the residual stream does not grow with L.
"""


def kernel_init(config: ModelConfig) -> KernelInit:
    """Return the initialiser of kernels."""
    return INITS[config.init].kernel(config)


def residual_kernel_init(config: ModelConfig, num_sums: int) -> KernelInit:
    """Return the initialiser of kernels whose output is added to the residual stream, one of `num_sums` sums."""
    return INITS[config.init].residual_kernel(config, num_sums)


def table_init(config: ModelConfig) -> Callable[[Array, Sequence[int]], Array]:
    """Return the initialiser of embedding tables: a function of a key and a shape."""
    std = INITS[config.init].table_std(config)
    return lambda key, shape: std * jax.random.normal(key, tuple(shape), jnp.float32)
