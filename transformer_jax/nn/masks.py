"""Attention masks: boolean, True = attend, broadcastable to [B, N, T, S]."""

from __future__ import annotations

import jax.numpy as jnp

from transformer_jax.config import PAD_ID
from transformer_jax.typing import Array


def padding_mask(ids: Array) -> Array:
    """Every query may attend to the keys that are not padding.

    Args:
      ids: [B, S] int32.
    Returns: [B, 1, 1, S].
    """
    return (ids != PAD_ID)[:, None, None, :]


def causal_mask(length: int) -> Array:
    """Query t may attend to keys 0..t (Vaswani et al. 2017, section 3.2.3).

    For length 3:
      1 0 0
      1 1 0
      1 1 1

    Returns: [1, 1, length, length].
    """
    return jnp.tril(jnp.ones((length, length), bool))[None, None]


def segment_mask(query_segments: Array, key_segments: Array) -> Array:
    """Tokens of a packed row attend within their own segment; segment 0 is padding and attends to nothing.

    Args:
      query_segments: [B, T] int32; key_segments: [B, S] int32.
    Returns: [B, 1, T, S].
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & (query_segments > 0)[:, :, None])[:, None]


def cache_mask(query_positions: Array, key_positions: Array) -> Array:
    """Causality by position, for keys that stand in a cache in any order.

    Args:
      query_positions: [B, T] int32; key_positions: [B, C] int32, -1 where the cache holds no token.
    Returns: [B, 1, T, C].
    """
    keys = key_positions[:, None, None, :]
    return (keys >= 0) & (keys <= query_positions[:, None, :, None])
