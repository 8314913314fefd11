"""Inputs of a layer beside its activations, and the outputs of its parts."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from transformer_jax.nn.kv_cache import LayerCache
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.typing import Array


class LayerInputs(NamedTuple):
    """Inputs that are the same for every layer of a stack.

    positions: [B, T] or [1, T]; mask, bias: for attention among the stack's own tokens, bias broadcastable to
    [B, N, T, S]; memory: [B, S, D] with memory_mask. is_token: [B, T], True for tokens that BatchNorm
    and the losses of blocks count; None: all. key_positions: [B, C], of the slots of the caches in incremental
    decoding; None: `positions`.
    """

    positions: Array
    mask: AttentionMask | None
    bias: Array | None
    memory: Array | None = None
    memory_mask: AttentionMask | None = None
    is_token: Array | None = None
    key_positions: Array | None = None


class LayerState(NamedTuple):
    """The state of a layer in incremental decoding.

    own: of its mixer: a cache of its own tokens, or another state [B, W, ...]. index: the slot of the first new token.
    memory: keys and values of the encoder's tokens. steps: whether the new tokens are hypotheses, one each; otherwise
    they follow each other.
    """

    own: Any
    index: Array
    memory: LayerCache | None
    steps: bool = False


class Mixed(NamedTuple):
    """The output of a mixer, [B, T, D], and its state after the tokens; None where there was none before."""

    output: Array
    state: Any = None


class Site(enum.IntEnum):
    """The places in a layer where dropout acts. The numbers enter the dropout masks: do not change them."""

    SELF_ATTENTION_WEIGHTS = 0
    SELF_ATTENTION_OUTPUT = 1
    FEED_FORWARD_HIDDEN = 2
    FEED_FORWARD_OUTPUT = 3
    CROSS_ATTENTION_WEIGHTS = 4
    CROSS_ATTENTION_OUTPUT = 5
