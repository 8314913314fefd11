"""The position-wise feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.initialisation import kernel_init, residual_kernel_init
from transformer_jax.nn.linear import Linear, fused
from transformer_jax.registry import Parts
from transformer_jax.typing import Activations, Array


class Activation(NamedTuple):
    """An elementwise function. gated: whether it acts on a gate, by which the hidden layer is multiplied.

    A new activation is a new entry of `ACTIVATIONS`, or `MODULE:OBJECT`.
    """

    function: Callable[[Array], Array]
    gated: bool = False


def _relu(x: Array) -> Array:
    """max(0, x)."""
    return jnp.maximum(x, jnp.zeros((), x.dtype))


def _gelu(x: Array) -> Array:
    """x Phi(x), with the exact normal distribution (Hendrycks and Gimpel 2016)."""
    return jax.nn.gelu(x, approximate=False)


def _gelu_tanh(x: Array) -> Array:
    """The tanh approximation of x Phi(x) (Hendrycks and Gimpel 2016)."""
    return jax.nn.gelu(x, approximate=True)


def _swish(x: Array) -> Array:
    """x sigmoid(x) (Ramachandran et al. 2017, beta = 1)."""
    return jax.nn.silu(x)


ACTIVATIONS: Parts[Activation] = Parts(
    "model.activation",
    Activation,
    {
        "relu": Activation(_relu),
        "gelu": Activation(_gelu),
        "gelu_tanh": Activation(_gelu_tanh),
        "silu": Activation(_swish),
        "swiglu": Activation(_swish, gated=True),
        "geglu": Activation(_gelu, gated=True),
        "geglu_tanh": Activation(_gelu_tanh, gated=True),
    },
)
"""By the values of `model.activation`."""


class FeedForward(nn.Module):
    """FFN(x) = f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2, with f = relu).

    `swiglu`, `geglu` and `geglu_tanh` gate the hidden layer: (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020,
    equation 6). For the same mlp_dim that is 1.5 times as many parameters.

    num_sums: number of residual sums of the stack; initial values of W_2 may depend on it.
    """

    config: ModelConfig
    num_sums: int

    def setup(self) -> None:
        config = self.config
        init = kernel_init(config)
        self.hidden = Linear((config.emb_dim,), (config.mlp_dim,), config.use_bias, init)
        if ACTIVATIONS[config.activation].gated:
            self.gate = Linear((config.emb_dim,), (config.mlp_dim,), config.use_bias, init)
        residual_init = residual_kernel_init(config, self.num_sums)
        self.out = Linear((config.mlp_dim,), (config.emb_dim,), config.use_bias, residual_init)

    def __call__(
        self, x: Activations, dropout: Dropout | None, is_token: Bool[Array, "B T"] | None = None
    ) -> Activations:
        """Map x [B, T, D] to [B, T, D]; `is_token` is not read."""
        activation = ACTIVATIONS[self.config.activation]
        if activation.gated:
            gate, linear = fused(x, [self.gate, self.hidden])
            hidden = activation.function(gate) * linear
        else:
            hidden = activation.function(self.hidden(x))
        return self.out(drop(hidden, dropout, "activation"))


PARAMETER_AXES = {
    "(hidden|gate)/kernel": Axes(("emb",), ("mlp",)),
    "(hidden|gate)/bias": Axes((), ("mlp",)),
    "out/kernel": Axes(("mlp",), ("emb",)),
    "out/bias": Axes((), (None,)),
}
"""Axes of the parameters of `FeedForward`, by the end of their paths."""


def forward_flops(config: ModelConfig, tokens: int) -> int:
    """Return the operations of the forward pass: 2 M D F a token, with M = 3 matrices if it is gated, else 2."""
    return tokens * 2 * (3 if ACTIVATIONS[config.activation].gated else 2) * config.emb_dim * config.mlp_dim


def activation_bytes(config: ModelConfig, tokens: int) -> int:
    """Return roughly the bytes that the backward pass needs: F elements a token before and after the activation.

    With a gate it is twice that. The elements are of `config.dtype`.
    """
    gated = ACTIVATIONS[config.activation].gated
    return tokens * (4 if gated else 2) * config.mlp_dim * jnp.dtype(config.dtype).itemsize
