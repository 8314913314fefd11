"""Attention masks: boolean, True = attend, broadcastable to [B, N, T, S]; and what kernels want to know of them."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Bool, Int

from transformer_jax.config import PAD_ID
from transformer_jax.typing import Array


@struct.dataclass
class AttentionMask:
    """A mask, and a description of it where it has one, by which a kernel need not read it.

    allowed: bool, broadcastable to [B, 1, T, S]. kind: `causal`; `lengths`: the first `lengths` [B] keys, int32; or
    `any`.
    """

    allowed: Array
    lengths: Array | None = None
    kind: str = struct.field(pytree_node=False, default="any")


def of_padding(ids: Int[Array, "B S"]) -> AttentionMask:
    """`padding_mask`, for ids [B, S] whose padding stands at the end of the rows."""
    return AttentionMask(padding_mask(ids), (ids != PAD_ID).sum(-1, dtype=jnp.int32), "lengths")


def of_causality(length: int) -> AttentionMask:
    """`causal_mask`."""
    return AttentionMask(causal_mask(length), kind="causal")


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
