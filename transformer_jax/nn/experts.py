"""A mixture of experts: E feed-forward networks, of which a router chooses k for every token.

With the router's logits r = x W_r, their softmax p over all E experts, and the set K of the k largest p,

    y = sum_{e in K} w_e FFN_e(x)        w_e = p_e / sum_{j in K} p_j

Sources: Shazeer et al. 2017 (arXiv 1701.06538), section 2, for the sum over the top k; Fedus et al. 2021 (arXiv
2101.03961), section 2.4, for a router in float32. Shazeer et al. take the softmax over the k largest logits, to which
they add noise; without the noise, the weights are the same.

This is a dense reference: every expert maps every token, and the weights of those that were not chosen are 0. So no
expert has a capacity and no token is dropped, but time and memory grow with E, where a sparse implementation needs the
operations of k experts.

Two losses over the n real tokens of a batch keep the experts in use, with f_e the share of expert e in the k n choices
and P_e the mean of p_e:

    balance    E sum_e f_e P_e             1 if all experts have an equal share (Fedus et al. 2021, equations 4 to 6)
    router z   mean of logsumexp(r)^2      (Zoph et al. 2022, arXiv 2202.08906, equation 5)

f has no gradient. Both are collected as sums over tokens, from which training/block_losses.py makes the losses of the
whole batch: f and P are means over all of its parts and devices.

Letters beyond those of `transformer_jax.typing`: E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn import feed_forward
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.collected import collect, is_collecting
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.feed_forward import ACTIVATIONS
from transformer_jax.nn.initialisation import KernelInit, kernel_init, residual_kernel_init
from transformer_jax.nn.linear import linear
from transformer_jax.nn.monitored import Mean, Shares, is_monitored, monitor
from transformer_jax.typing import Activations, Array

BALANCE = "balance_loss"
"""Name of the sums of the balance loss: `count` [E], the choices of every expert; `probability` [E]; `tokens` []."""
ROUTER_Z = "router_z_loss"
"""Name of the sums of the router z-loss: `squares` [] of logsumexp(r); `tokens` []."""


class Choice(NamedTuple):
    """The experts of every token: weights [..., E], 0 for those not chosen; is_chosen: [..., E] bool."""

    weights: Array
    is_chosen: Array


def choose(probabilities: Float[Array, "*batch E"], number: int) -> Choice:
    """Return the `number` most probable experts of every token, with weights in proportion that add up to 1.

    Of equal probabilities, those of the first experts count as larger.
    """
    largest, places = jax.lax.top_k(probabilities, number)
    one_hot = jax.nn.one_hot(places, probabilities.shape[-1], dtype=probabilities.dtype)  # [..., k, E]
    weights = (largest / largest.sum(-1, keepdims=True))[..., None] * one_hot
    return Choice(weights.sum(-2), one_hot.any(-2))


class Router(nn.Module):
    """Owns `kernel` [D, E], and maps tokens to logits over experts in float32."""

    config: ModelConfig

    def setup(self) -> None:
        width, experts = self.config.emb_dim, self.config.num_experts
        self.kernel = self.param("kernel", lambda key: kernel_init(self.config)(key, (width, experts), width, experts))

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch E"]:
        """Return the logits [..., E] of x [..., D]."""
        return linear(x.astype(jnp.float32), self.kernel)


class ExpertLinear(nn.Module):
    """Owns one linear map for each of E experts: `kernel` [E, inputs, features] and, with `use_bias`, `bias`.

    Every map has the initial distribution of a map by itself.
    """

    experts: int
    inputs: int
    features: int
    use_bias: bool
    kernel_init: KernelInit

    def setup(self) -> None:
        shape = (self.experts, self.inputs, self.features)
        self.kernel = self.param("kernel", lambda key: self.kernel_init(key, shape, self.inputs, self.features))
        self.bias = self.param("bias", nn.initializers.zeros, (self.experts, self.features)) if self.use_bias else None

    def __call__(self, x: Float[Array, "t D"]) -> Float[Array, "t E F"]:
        """Map every token by every expert: [t, inputs] -> [t, E, features]."""
        y = jnp.einsum("td,edf->tef", x, self.kernel.astype(x.dtype))
        return y if self.bias is None else y + self.bias[None].astype(x.dtype)

    def mixed(self, x: Float[Array, "t E F"], weights: Float[Array, "t E"]) -> Float[Array, "t D"]:
        """Return sum_e weights_e (x_e kernel_e + bias_e): [t, E, inputs] -> [t, features]."""
        weights = weights.astype(x.dtype)
        y = jnp.einsum("tef,efd->td", x * weights[..., None], self.kernel.astype(x.dtype))
        return y if self.bias is None else y + weights @ self.bias.astype(x.dtype)


class Experts(nn.Module):
    """The mixture of experts of this module's docstring, with E = `num_experts` and k = `experts_per_token`.

    Every expert is a feed-forward network of width `mlp_dim`, with the activation of `model.activation`. With k = 1 the
    weight of the chosen expert is 1, so the router has a gradient by its own two losses alone.

    num_sums: number of residual sums of the stack; initial values of the second maps may depend on it.
    """

    config: ModelConfig
    num_sums: int

    def setup(self) -> None:
        config, init = self.config, kernel_init(self.config)
        experts, width, hidden = config.num_experts, config.emb_dim, config.mlp_dim
        self.router = Router(config)
        self.hidden = ExpertLinear(experts, width, hidden, config.use_bias, init)
        if ACTIVATIONS[config.activation].gated:
            self.gate = ExpertLinear(experts, width, hidden, config.use_bias, init)
        residual_init = residual_kernel_init(config, self.num_sums)
        self.out = ExpertLinear(experts, hidden, width, config.use_bias, residual_init)

    def __call__(
        self, x: Activations, dropout: Dropout | None, is_token: Bool[Array, "B T"] | None = None
    ) -> Activations:
        """Map x [B, T, D] to [B, T, D]; in training, collect the sums of the losses.

        Args:
          is_token: True for the tokens that the losses count; None: all.
        """
        logits = self.router(x)  # [B, T, E]
        probabilities = jax.nn.softmax(logits)
        weights, is_chosen = choose(probabilities, self.config.experts_per_token)
        if is_collecting(self):
            counted = jnp.ones(x.shape[:2], bool) if is_token is None else is_token
            self._collect(logits, probabilities, is_chosen, counted)

        activation, flat = ACTIVATIONS[self.config.activation], x.reshape(-1, x.shape[-1])
        hidden = self.hidden(flat)  # [B T, D] -> [B T, E, F]
        hidden = activation.hidden(hidden, self.gate(flat) if activation.gated else None)
        if is_monitored(self):
            chosen = (is_chosen if is_token is None else is_chosen & is_token[..., None]).astype(jnp.float32)
            nonzero = (hidden != 0).mean(-1).reshape(chosen.shape)  # [B, T, E]
            monitor(self, "nonzero", Mean((nonzero * chosen).sum(), chosen.sum()))
            monitor(self, "load", Shares(chosen.sum((0, 1))))
        hidden = drop(hidden.reshape(*x.shape[:2], *hidden.shape[1:]), dropout, "activation")
        hidden = hidden.reshape(-1, *hidden.shape[2:])
        return self.out.mixed(hidden, weights.reshape(-1, weights.shape[-1])).reshape(x.shape)

    def _collect(
        self,
        logits: Float[Array, "B T E"],
        probabilities: Float[Array, "B T E"],
        is_chosen: Bool[Array, "B T E"],
        counted: Bool[Array, "B T"],
    ) -> None:
        def total(values: Float[Array, "B T *shape"]) -> Float[Array, "*shape"]:
            mask = counted.reshape(*counted.shape, *(1,) * (values.ndim - 2))
            return jnp.where(mask, values, 0.0).sum((0, 1))

        tokens = counted.sum(dtype=jnp.float32)
        count = total(is_chosen.astype(jnp.float32))
        collect(self, BALANCE, {"count": count, "probability": total(probabilities), "tokens": tokens})
        squares = total(jnp.square(jax.nn.logsumexp(logits, axis=-1)))
        collect(self, ROUTER_Z, {"squares": squares, "tokens": tokens})


def balance_loss(sums: Mapping[str, Array], whole: Mapping[str, Array]) -> Array:
    """Return the balance loss E sum_e f_e P_e, added over layers: the share that a part of a batch has in it.

    Args:
      sums: of the part, under `BALANCE`: [E] and [], or with an axis of layers in front. whole: `count` and `tokens` of
        the whole batch.
    """
    experts = sums["probability"].shape[-1]
    frequency = whole["count"] / jnp.maximum(whole["count"].sum(-1, keepdims=True), 1.0)
    probability = sums["probability"] / jnp.maximum(whole["tokens"], 1.0)[..., None]
    return experts * (frequency * probability).sum()


def router_z_loss(sums: Mapping[str, Array], whole: Mapping[str, Array]) -> Array:
    """Return the mean of logsumexp(r)^2, added over layers: the share of a part; arguments as in `balance_loss`."""
    return (sums["squares"] / jnp.maximum(whole["tokens"], 1.0)).sum()


PARAMETER_AXES = {
    "router/kernel": Axes(("emb",), (None,)),
    **feed_forward.PARAMETER_AXES,
}
"""Axes of the parameters of `Experts`, by the end of their paths; E is in front, and is not divided among devices."""


def forward_flops(config: ModelConfig, tokens: int) -> int:
    """Return the operations of a forward pass that computes chosen experts only: 2 D E + k (2 M D F) a token.

    M = 3 matrices of an expert if it is gated, else 2. `Experts` itself computes all E.
    """
    chosen = config.experts_per_token * feed_forward.forward_flops(config, tokens)
    return 2 * tokens * config.emb_dim * config.num_experts + chosen


def activation_bytes(config: ModelConfig, tokens: int) -> int:
    """Return the bytes that the backward pass of `Experts` needs: those of all E experts, chosen or not.

    Beside those of E networks, these are the weighted hidden layer and its gradient, 2 F elements a token and expert.
    """
    weighted = 2 * tokens * config.mlp_dim * jnp.dtype(config.dtype).itemsize
    return config.num_experts * (feed_forward.activation_bytes(config, tokens) + weighted)
