"""The softmax of attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.typing import Array


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
