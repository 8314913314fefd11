"""Attention masks: boolean, True = attend, broadcastable to [B, N, T, S]; with a description for fused kernels."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Bool, Int

from transformer_jax.typing import Array


@struct.dataclass
class AttentionMask:
    """A mask, and a description of it: with one, a kernel need not read the mask.

    allowed: bool, broadcastable to [B, 1, T, S]. kind: `causal`; `lengths` if a row attends to its first `lengths` [B]
    keys, int32; or `any`.
    """

    allowed: Array
    lengths: Array | None = None
    kind: str = struct.field(pytree_node=False, default="any")

    def __and__(self, other: AttentionMask) -> AttentionMask:
        """Return the mask that allows a pair if both masks do."""
        return AttentionMask(self.allowed & other.allowed)


def padding_mask(is_token: Bool[Array, "B S"]) -> AttentionMask:
    """Return the mask in which every query may attend to the keys that are tokens.

    Args:
      is_token: [B, S]; True for tokens, which stand before all padding of their row.
    Returns: `allowed` [B, 1, 1, S].
    """
    return AttentionMask(is_token[:, None, None, :], is_token.sum(-1, dtype=jnp.int32), "lengths")


def causal_mask(length: int) -> AttentionMask:
    """Return the mask in which query t may attend to keys 0..t (Vaswani et al. 2017, section 3.2.3).

    For length 3:
      1 0 0
      1 1 0
      1 1 1

    Returns: `allowed` [1, 1, length, length].
    """
    return AttentionMask(jnp.tril(jnp.ones((length, length), bool))[None, None], kind="causal")


def prefix_mask(is_prefix: Bool[Array, "B T"]) -> AttentionMask:
    """Return the causal mask with attention in both directions within the prefix (Raffel et al. 2020, figure 3).

    For length 3 with a prefix of 2:
      1 1 0
      1 1 0
      1 1 1

    Args:
      is_prefix: [B, T]; True for the tokens of the prefix.
    Returns: `allowed` [B, 1, T, T].
    """
    both_ways = is_prefix[:, None, :, None] & is_prefix[:, None, None, :]
    return AttentionMask(causal_mask(is_prefix.shape[1]).allowed | both_ways)


def segment_mask(query_segments: Int[Array, "B T"], key_segments: Int[Array, "B S"]) -> AttentionMask:
    """Return the mask of packed rows: tokens attend within their segment; segment 0 is padding, attends to nothing.

    Args:
      query_segments: [B, T] int32; key_segments: [B, S] int32.
    Returns: `allowed` [B, 1, T, S].
    """
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return AttentionMask((same & (query_segments > 0)[:, :, None])[:, None])


def window_mask(
    query_positions: Int[Array, "#B T"], key_positions: Int[Array, "#B S"], window: int | Int[Array, ""]
) -> AttentionMask:
    """Return the mask of a sliding window: |query position - key position| < window (Beltagy et al. 2020, section 3.1).

    With a causal mask it leaves `window` keys, the query's own among them (Mistral's `sliding_window`; Jiang et al.
    2023). Positions decide, not places: so it is the same for packed rows and for the slots of a cache.

    Args:
      query_positions: [B, T] or [1, T] int32; key_positions: [B, S] or [1, S] int32.
    Returns: `allowed` [B or 1, 1, T, S].
    """
    distances = jnp.abs(query_positions[:, None, :, None] - key_positions[:, None, None, :])
    return AttentionMask(distances < window)


def cache_mask(query_positions: Int[Array, "B T"], key_positions: Int[Array, "B C"]) -> AttentionMask:
    """Return the causal mask over the slots of a cache, whose keys may stand in any order.

    Args:
      query_positions: [B, T] int32; key_positions: [B, C] int32, -1 for an empty slot.
    Returns: `allowed` [B, 1, T, C].
    """
    keys = key_positions[:, None, None, :]
    return AttentionMask((keys >= 0) & (keys <= query_positions[:, None, :, None]))
