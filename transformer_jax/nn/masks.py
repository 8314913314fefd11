"""Attention masks: boolean, True = attend, broadcastable to [B, N, T, S]."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Bool, Int

from transformer_jax.config import PAD_ID
from transformer_jax.typing import Array


def padding_mask(ids: Int[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Every query may attend to the keys that are not padding.

    Args:
      ids: [B, S] int32.
    Returns: [B, 1, 1, S].
    """
    return (ids != PAD_ID)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 T T"]:
    """Query t may attend to keys 0..t (Vaswani et al. 2017, section 3.2.3).

    For length 3:
      1 0 0
      1 1 0
      1 1 1

    Returns: [1, 1, length, length].
    """
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def segment_mask(query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]) -> Bool[Array, "B 1 T S"]:
    """Tokens of a packed row attend within their own segment; segment 0 is padding and attends to nothing.

    Args:
      query_segments: [B, T] int32; key_segments: [B, S] int32.
    Returns: [B, 1, T, S].
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (query_segments > 0)[:, :, None])[:, None]


def cache_mask(query_positions: Int[Array, "B T"], key_positions: Int[Array, "B C"]) -> Bool[Array, "B 1 T C"]:
    """Causality by position, for keys that stand in a cache in any order.

    Args:
      query_positions: [B, T] int32; key_positions: [B, C] int32, -1 where the cache holds no token.
    Returns: [B, 1, T, C].
    """
    keys = key_positions[:, None, None, :]
    return (keys >= 0) & (keys <= query_positions[:, None, :, None])
