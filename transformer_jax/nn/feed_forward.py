"""The position-wise feed-forward network."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.linear import Linear, fused
from transformer_jax.typing import Activations, Array


def activate(x: Float[Array, "*batch F"], activation: str) -> Float[Array, "*batch F"]:
    """The elementwise part of an activation, x [..., F].

    - `relu`: max(0, x). - `gelu`, `geglu`: x Phi(x), with the exact normal distribution (Hendrycks and Gimpel 2016).
    - `gelu_tanh`: their tanh approximation. - `swiglu`: x sigmoid(x) (Ramachandran et al. 2017, beta = 1).
    """
    if activation == "relu":
        return jnp.maximum(x, jnp.zeros((), x.dtype))
    if activation == "swiglu":
        return jax.nn.silu(x)
    return jax.nn.gelu(x, approximate=activation == "gelu_tanh")


class FeedForward(nn.Module):
    """FFN(x) = f(x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, equation 2, with f = relu).

    `swiglu` and `geglu` gate the hidden layer: (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2 (Shazeer 2020, equation 6),
    half as many parameters again for the same mlp_dim.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.hidden = Linear((config.emb_dim,), (config.mlp_dim,), config.use_bias)
        if config.activation in ("swiglu", "geglu"):
            self.gate = Linear((config.emb_dim,), (config.mlp_dim,), config.use_bias)
        self.out = Linear((config.mlp_dim,), (config.emb_dim,), config.use_bias)

    def __call__(self, x: Activations, dropout: Dropout | None) -> Activations:
        """Maps x [B, T, D] to [B, T, D]."""
        activation = self.config.activation
        if activation in ("swiglu", "geglu"):
            gate, linear = fused(x, [self.gate, self.hidden])
            hidden = activate(gate, activation) * linear
        else:
            hidden = activate(self.hidden(x), activation)
        return self.out(drop(hidden, dropout, "activation"))
