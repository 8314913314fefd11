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
from transformer_jax.nn.monitored import is_monitored, mean_over_tokens, monitor
from transformer_jax.nn.places import at
from transformer_jax.registry import Parts
from transformer_jax.typing import Activations, Array


class Activation(NamedTuple):
    """An elementwise function. gated: whether it acts on a gate, by which the hidden layer is multiplied.

    linear: with a gate, what maps the hidden layer before the product; None: nothing.

    A new activation is a new entry of `ACTIVATIONS`, or `MODULE:OBJECT`.
    """

    function: Callable[[Array], Array]
    gated: bool = False
    linear: Callable[[Array], Array] | None = None

    def hidden(self, x: Array, gate: Array | None = None) -> Array:
        """Return function(x), or with a gate of the same shape function(gate) * linear(x)."""
        if gate is None:
            return self.function(x)
        return self.function(gate) * (x if self.linear is None else self.linear(x))


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


def _relu2(x: Array) -> Array:
    """max(0, x)^2 (So et al. 2021)."""
    return jnp.square(_relu(x))


def _leaky_relu2(x: Array) -> Array:
    """x^2 for x > 0, else (x / 2)^2; it never falls below 0, but its derivative x / 2 does."""
    return jnp.square(jnp.where(x > 0, x, 0.5 * x))


def _elu(x: Array) -> Array:
    """x for x > 0, else exp(x) - 1 (Clevert et al. 2016, alpha = 1)."""
    return jax.nn.elu(x)


def _selu(x: Array) -> Array:
    """1.0507 x for x > 0, else 1.7581 (exp(x) - 1) (Klambauer et al. 2017, equation 2)."""
    return jax.nn.selu(x)


def _softplus(x: Array) -> Array:
    """log(1 + exp(x)) (Dugas et al. 2001)."""
    return jax.nn.softplus(x)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return jax.nn.sigmoid(x)


def _identity(x: Array) -> Array:
    """x."""
    return x


_LIMIT = 7.0  # gpt-oss


def _clamped_swish(x: Array) -> Array:
    """y sigmoid(1.702 y) with y = min(x, 7) (OpenAI 2025, code of gpt-oss)."""
    x = jnp.minimum(x, jnp.asarray(_LIMIT, x.dtype))
    return x * jax.nn.sigmoid(1.702 * x)


def _clamped_plus_one(x: Array) -> Array:
    """x between -7 and 7, plus 1 (OpenAI 2025, code of gpt-oss)."""
    return jnp.clip(x, -_LIMIT, _LIMIT) + 1.0


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
        "relu2": Activation(_relu2),
        "leaky_relu2": Activation(_leaky_relu2),
        "elu": Activation(_elu),
        "selu": Activation(_selu),
        "softplus": Activation(_softplus),
        "sigmoid": Activation(_sigmoid),
        "reglu": Activation(_relu, gated=True),
        "glu": Activation(_sigmoid, gated=True),
        "bilinear": Activation(_identity, gated=True),
        "swiglu_clamped": Activation(_clamped_swish, gated=True, linear=_clamped_plus_one),
    },
)
"""By the values of `model.activation`."""


class FeedForward(nn.Module):
    """FFN(x) = f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2, with f = relu).

    Gated activations multiply the hidden layer: (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020, equation 6;
    `glu`: Dauphin et al. 2017; `bilinear` has f(x) = x). `swiglu_clamped` also clamps the other factor, and adds 1 to
    it. For the same mlp_dim that is 1.5 times as many parameters.

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
        """Map x [B, T, D] to [B, T, D]; `is_token`: the tokens that a monitored step counts, None for all."""
        activation = ACTIVATIONS[self.config.activation]
        if activation.gated:
            gate, linear = fused(x, [self.gate, self.hidden])
            hidden = activation.hidden(linear, gate)
        else:
            hidden = activation.hidden(self.hidden(x))
        hidden = at("hidden", hidden)
        if is_monitored(self):
            monitor(self, "nonzero", mean_over_tokens((hidden != 0).mean(-1), is_token))
        return self.out(drop(hidden, dropout, "activation"))


PARAMETER_AXES = {
    "(hidden|gate)/kernel": Axes(("emb",), ("mlp",), scaled=True),
    "(hidden|gate)/bias": Axes((), ("mlp",)),
    "out/kernel": Axes(("mlp",), ("emb",), scaled=True),
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
