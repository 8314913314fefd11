"""The softmax of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.typing import Array, Bias, Mask


def attention_weights(
    logits: Float[Array, "B N T S"],
    mask: Mask | None,
    bias: Bias | None,
    cap: float | Float[Array, ""] | None = None,
    sinks: Float[Array, " N"] | None = None,
) -> Float[Array, "B N T S"]:
    """Return the weights of attention: the softmax of cap * tanh((logits + bias) / cap), by all implementations.

    A bounded logit (Gemma Team 2024, Gemma 2, section 2) is at most `cap`; None: logits are not bounded. A sink is one
    more logit of the softmax, whose weight is dropped: the others then add up to less than 1.

    Args:
      logits: [B, N, T, S] float32, with their scale; mask: bool, bias: float, both broadcastable to [B, N, T, S].
      sinks: a logit for each head, float32 [N].
    """
    if bias is not None:
        logits = logits + bias
    if cap is not None:
        logits = cap * jnp.tanh(logits / cap)
    if sinks is None:
        return masked_softmax(logits, mask)
    column = jnp.broadcast_to(sinks[None, :, None, None], (*logits.shape[:-1], 1))
    if mask is not None:
        mask = jnp.broadcast_to(mask, (*mask.shape[:-1], logits.shape[-1]))
    shown = None if mask is None else jnp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, 1)], constant_values=True)
    return masked_softmax(jnp.concatenate([logits, column], -1), shown)[..., :-1]


def masked_softmax(logits: Float[Array, "*batch S"], mask: Bool[Array, "*#batch S"] | None) -> Float[Array, "*batch S"]:
    """Return the softmax over the entries of the last axis that mask allows; zeros for a row without any.

    Args:
      logits: [..., S] float32; mask: bool, broadcastable to logits.
    """
    if mask is None:
        return jax.nn.softmax(logits, axis=-1)
    # A large finite number instead of -inf: in a row without any allowed entry, -inf - -inf would be NaN.
    weights = jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(logits.dtype).min), axis=-1)
    return jnp.where(mask, weights, 0.0)
