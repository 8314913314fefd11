"""How many tokens back a decoder can see: the farthest token with a gradient."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.typing import Array, Params

LENGTH = 64


def reach_by_gradient(config: ModelConfig, params: Params, length: int = LENGTH) -> int:
    """Return the largest distance over which a token changes the logits of a decoder with `tie_output=false`.

    The first token of a row of `length` tokens is the only one of its kind, so the gradient with respect to its row of
    the embedding table is its influence. Where a window hides it, the gradient is exactly 0.
    """
    return int(np.flatnonzero(np.asarray(_influence(config, params, length)).any(-1))[-1])


@functools.partial(jax.jit, static_argnames=("config", "length"))
def _influence(config: ModelConfig, params: Params, length: int) -> Array:
    """Return the derivative [T, D] of a weighted sum of the logits at every place with respect to the first token."""
    first = config.vocab_size - 1
    ids = (jnp.arange(length) % first).at[0].set(first)[None]
    table = params["embedding"]["embedding"]
    weights = jnp.cos(jnp.arange(config.vocab_size, dtype=jnp.float32))

    def outputs(row: Array) -> Array:
        changed = {**params, "embedding": {"embedding": table.at[first].set(row)}}
        module: Any = ARCHITECTURES[config.architecture].module(config)
        return module.apply({"params": changed}, {"decoder_inputs": ids})[0] @ weights

    # In forward mode: the batched backward pass of a scan is wrong in JAX 0.10.2 for some sizes, such as 64 places of
    # width 64.
    return jax.jacfwd(outputs)(table[first])
