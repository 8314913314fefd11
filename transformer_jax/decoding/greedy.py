"""Greedy decoding: the likeliest next token, until every row has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from transformer_jax.config import EOS_ID, PAD_ID
from transformer_jax.typing import Array

Cache = TypeVar("Cache")
DecodeStep = Callable[[Array, Array, Cache], tuple[Array, Cache]]
"""step(ids [B, 1], positions [B, 1], cache) -> (logits [B, 1, V], cache)."""


class Generated(NamedTuple):
    """ids: [B, limit] int32, eos included, 0 after it; lengths: [B] int32, tokens before the padding;
    finished: [B] bool, False where the limit came before eos."""

    ids: Array
    lengths: Array
    finished: Array


def greedy(step: DecodeStep[Cache], cache: Cache, start_ids: Array, max_lengths: Array, limit: int) -> Generated:
    """Appends argmax_v p(v | tokens so far) to every row until it is eos or the row is full. Padding is never chosen.

    Args:
      step: feeds one token per row to the decoder.
      cache: with room for `limit` tokens, none there yet.
      start_ids: [B] int32, the first decoder input.
      max_lengths: [B] int32, tokens a row may have, eos included; at most `limit`. 0 for a row that is padding.
      limit: width of the result.
    """
    rows = start_ids.shape[0]

    def unfinished(carry: Any) -> Array:
        index, _, _, done, _ = carry
        return (index < limit) & ~done.all()

    def extend(carry: Any) -> Any:
        index, last, ids, done, cache = carry
        positions = jnp.broadcast_to(index, (rows, 1))
        logits, cache = step(last[:, None], positions, cache)
        best = jnp.argmax(logits[:, 0].astype(jnp.float32).at[:, PAD_ID].set(-jnp.inf), axis=-1).astype(jnp.int32)
        chosen = jnp.where(done, PAD_ID, best)
        ids = jax.lax.dynamic_update_slice_in_dim(ids, chosen[:, None], index, axis=1)
        done = done | (chosen == EOS_ID) | (index + 1 >= max_lengths)
        return index + 1, chosen, ids, done, cache

    ids = jnp.zeros((rows, limit), jnp.int32)
    start = jnp.zeros((), jnp.int32), start_ids, ids, max_lengths <= 0, cache
    ids = jax.lax.while_loop(unfinished, extend, start)[2]
    return Generated(ids, (ids != PAD_ID).sum(-1), (ids == EOS_ID).any(-1))
