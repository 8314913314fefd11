"""Initial parameters: kernels of linear maps, and tables of embeddings. Scales of norms are 1.

Biases are 0, except those of recurrent layers and of output projections: see `Init.bias` and `Init.forget_bias`.
"""

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

    - kernel: of a linear map. query_kernel: of the map to queries, if it is another one.
    - residual_kernel: of a map whose output is added to the residual stream, in a stack with `num_sums` such sums.
    - table_std: standard deviation of the normal distribution of embedding tables, and of an output projection that is
      not tied, if `output_like_table`.
    - bias_table_std: the same of a table of relative biases; None: as of embedding tables.
    - table: the distribution of embedding tables, if it is not normal.
    - state_kernel: of the map from a recurrent state to one gate; None: as of other kernels.
    - bias: of the biases of recurrent layers and of output projections; None: 0. forget_bias: is added to that of the
      forget gate of an LSTM.
    """

    kernel: Callable[[ModelConfig], KernelInit]
    residual_kernel: Callable[[ModelConfig, int], KernelInit]
    table_std: Callable[[ModelConfig], float]
    query_kernel: Callable[[ModelConfig], KernelInit] | None = None
    bias_table_std: Callable[[ModelConfig], float] | None = None
    output_like_table: bool = False
    table: Callable[[ModelConfig], KernelInit] | None = None
    state_kernel: Callable[[ModelConfig], KernelInit] | None = None
    bias: Callable[[ModelConfig], KernelInit] | None = None
    forget_bias: float = 0.0


def xavier_uniform(key: Array, shape: Sequence[int], num_inputs: int, num_outputs: int) -> Array:
    """Return float32 samples, uniform in +-sqrt(6 / (num_inputs + num_outputs)) (Glorot and Bengio 2010, eq. 16)."""
    limit = math.sqrt(6.0 / (num_inputs + num_outputs))
    return jax.random.uniform(key, tuple(shape), jnp.float32, -limit, limit)


def xavier_normal(key: Array, shape: Sequence[int], num_inputs: int, num_outputs: int) -> Array:
    """Return float32 normal samples of variance 2 / (num_inputs + num_outputs) (Glorot and Bengio 2010, eq. 12)."""
    return normal(math.sqrt(2.0 / (num_inputs + num_outputs)))(key, shape, num_inputs, num_outputs)


def normal(std: float) -> KernelInit:
    """Return the initialiser of kernels with normal samples of mean 0."""
    return lambda key, shape, num_inputs, num_outputs: std * jax.random.normal(key, tuple(shape), jnp.float32)


def normal_by_inputs(key: Array, shape: Sequence[int], num_inputs: int, num_outputs: int) -> Array:
    """Return float32 normal samples of variance 1 / num_inputs (LeCun et al. 1998, section 4.6)."""
    return normal(num_inputs**-0.5)(key, shape, num_inputs, num_outputs)


def uniform_within(limit: float) -> KernelInit:
    """Return the initialiser of kernels with samples that are uniform in +-limit."""
    return lambda key, shape, num_inputs, num_outputs: jax.random.uniform(key, tuple(shape), jnp.float32, -limit, limit)


def orthogonal(key: Array, shape: Sequence[int], num_inputs: int, num_outputs: int) -> Array:
    """Return a random orthogonal matrix, float32 (Saxe et al. 2014, section 3)."""
    return jax.nn.initializers.orthogonal()(key, tuple(shape), jnp.float32)


def zero(key: Array, shape: Sequence[int], num_inputs: int, num_outputs: int) -> Array:
    """Return zeros, float32."""
    return jnp.zeros(tuple(shape), jnp.float32)


INITS = {
    "glorot": Init(
        kernel=lambda config: xavier_uniform,
        residual_kernel=lambda config, num_sums: xavier_uniform,
        table_std=lambda config: config.emb_dim**-0.5,
        state_kernel=lambda config: orthogonal,
        forget_bias=1.0,
    ),
    "xavier_normal": Init(
        kernel=lambda config: xavier_normal,
        residual_kernel=lambda config, num_sums: xavier_normal,
        table_std=lambda config: config.emb_dim**-0.5,
    ),
    "normal": Init(
        kernel=lambda config: normal(config.init_std),
        residual_kernel=lambda config, num_sums: normal(config.init_std / math.sqrt(num_sums)),
        table_std=lambda config: config.init_std,
    ),
    "plain_normal": Init(
        kernel=lambda config: normal(config.init_std),
        residual_kernel=lambda config, num_sums: normal(config.init_std),
        table_std=lambda config: config.init_std,
    ),
    "t5": Init(
        kernel=lambda config: normal_by_inputs,
        residual_kernel=lambda config, num_sums: normal_by_inputs,
        table_std=lambda config: 1.0,
        query_kernel=lambda config: normal((config.emb_dim * config.head_dim) ** -0.5),
        bias_table_std=lambda config: config.emb_dim**-0.5,
        output_like_table=True,
    ),
    "uniform": Init(
        kernel=lambda config: uniform_within(config.init_range),
        residual_kernel=lambda config, num_sums: uniform_within(config.init_range),
        table_std=lambda config: config.init_range / math.sqrt(3.0),
        table=lambda config: uniform_within(config.init_range),
        bias=lambda config: uniform_within(config.init_range),
    ),
    "normal_with_biases": Init(
        kernel=lambda config: normal(config.init_std),
        residual_kernel=lambda config, num_sums: normal(config.init_std),
        table_std=lambda config: config.init_std,
        bias=lambda config: normal(config.init_std),
    ),
}
"""By the values of `model.init`.

- `glorot`: as in Tensor2Tensor's model of Vaswani et al. 2017: kernels are uniform by their numbers of inputs and
  outputs; tables have the variance 1 / emb_dim, which `scale_embeddings` turns into 1. In recurrent models, maps from
  the state to a gate are orthogonal (Saxe et al. 2014), and the bias of the forget gate is 1 (Gers et al. 2000;
  Jozefowicz et al. 2015).
- `xavier_normal`: kernels are normal with the variance of `glorot`; tables as there. With `norm_position=deepnorm`,
  which multiplies some kernels by a factor, it is that of the paper of DeepNorm (Wang et al. 2022).
- `normal`: as in GPT-2 (Radford et al. 2019, section 2.3): all are normal with `init_std`. Outputs of sub-layers are
  divided by the square root of their number in the stack, 2 L, so that the residual stream does not grow with L.
- `plain_normal`: all are normal with `init_std`, as in fairseq's and Hugging Face's BERT and BART (Google's BERT cuts
  the tails at two standard deviations).
- `t5`: as in T5's code (Raffel et al. 2020): kernels are normal with variance 1 / inputs, those of queries with
  1 / (D H), which stands in for the missing scale of the attention logits; tables, and an output projection that is
  not tied, have the variance 1, tables of relative biases 1 / D.
- `uniform`: all are uniform in +-`init_range`, biases of recurrent layers and output projections too, as in Sutskever
  et al. 2014 with 0.08.
- `normal_with_biases`: as `plain_normal`, and biases of recurrent layers and output projections too.
"""


def kernel_init(config: ModelConfig) -> KernelInit:
    """Return the initialiser of kernels."""
    return INITS[config.init].kernel(config)


def query_init(config: ModelConfig) -> KernelInit:
    """Return the initialiser of the kernel that makes queries."""
    init = INITS[config.init]
    return (init.query_kernel or init.kernel)(config)


def output_init(config: ModelConfig, of_labels: bool = False) -> KernelInit:
    """Return the initialiser of a kernel that makes logits; it may return zeros, see `model.zero_head`.

    Args:
      of_labels: whether they are over labels; otherwise over the vocabulary, by a kernel that is not tied to a table.
    """
    if config.zero_head:
        return zero
    init = INITS[config.init]
    return normal(init.table_std(config)) if init.output_like_table and not of_labels else init.kernel(config)


def output_bias_init(config: ModelConfig) -> Callable[[Array, Sequence[int]], Array]:
    """Return the initialiser of the bias of logits, as `bias_init`, but zeros with `model.zero_head`."""
    return jax.nn.initializers.zeros if config.zero_head else bias_init(config)


def state_kernel_init(config: ModelConfig) -> KernelInit:
    """Return the initialiser of the map from a recurrent state to one gate."""
    init = INITS[config.init]
    return (init.state_kernel or init.kernel)(config)


def bias_init(config: ModelConfig) -> Callable[[Array, Sequence[int]], Array]:
    """Return the initialiser of biases of recurrent layers and output projections: a function of a key and a shape."""
    bias = INITS[config.init].bias
    if bias is None:
        return jax.nn.initializers.zeros
    return lambda key, shape: bias(config)(key, shape, 1, 1)


def forget_bias(config: ModelConfig) -> float:
    """Return the initial bias of an LSTM's forget gate."""
    return INITS[config.init].forget_bias


def residual_kernel_init(config: ModelConfig, num_sums: int) -> KernelInit:
    """Return the initialiser of kernels whose output is added to the residual stream, one of `num_sums` sums."""
    if config.zero_init_outputs:
        return zero
    return INITS[config.init].residual_kernel(config, num_sums)


def table_init(config: ModelConfig) -> Callable[[Array, Sequence[int]], Array]:
    """Return the initialiser of embedding tables: a function of a key and a shape."""
    init = INITS[config.init]
    if init.table is None:
        return _normal_table(init.table_std(config))
    table = init.table(config)
    return lambda key, shape: table(key, shape, *shape)


def bias_table_init(config: ModelConfig) -> Callable[[Array, Sequence[int]], Array]:
    """Return the initialiser of a table of relative biases: a function of a key and a shape."""
    init = INITS[config.init]
    return _normal_table((init.bias_table_std or init.table_std)(config))


def _normal_table(std: float) -> Callable[[Array, Sequence[int]], Array]:
    return lambda key, shape: std * jax.random.normal(key, tuple(shape), jnp.float32)
