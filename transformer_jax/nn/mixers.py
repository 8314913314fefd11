"""Mixers: the part of a layer that moves information between tokens, one entry per value of `model.mixer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn

from transformer_jax.config import ModelConfig
from transformer_jax.nn import attention, gated_delta
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.nn.kv_cache import empty_layer
from transformer_jax.registry import Parts


class Tokens(NamedTuple):
    """The tokens that a mixer reads, padding included: B rows of T; causal: whether no query attends to a later key."""

    rows: int
    length: int
    causal: bool

    @property
    def number(self) -> int:
        return self.rows * self.length


class Mixer(NamedTuple):
    """The parts of a mixer. A new mixer is a new entry of `MIXERS`, or `MODULE:OBJECT`.

    - name: of the module in a layer, and of its parameters' folder.
    - module: of (config, num_sums), a `flax.linen.Module` with the methods of `SelfAttention`:
      a call maps a whole sequence; `read` maps the next T tokens of a sequence, and `step` one token for each of W
      hypotheses, from a state and to a new one.
    - axes: axes of its parameters, by the end of their paths.
    - start: (config, rows, slots) -> the state before the first token. A cache of slots is shared by the hypotheses of
      a row; any other state is a tree of arrays [B, 1, ...], which the decoder repeats and gathers by hypothesis.
    - flops: (config, tokens) -> operations of the forward pass, with all pairs of a query and a key.
    - hidden_flops: (config, tokens) -> the part of them for pairs that the mask hides in any text.
    - kept_bytes: (config, tokens) -> roughly the bytes that the backward pass needs, beside 14 D elements a token,
      which the rest of the layer has.
    - mask_kind: (config, kind of the stack's mask) -> the kind of mask (`AttentionMask.kind`) of its attention; None
      for a mixer that has no attention.
    """

    name: str
    module: Callable[..., nn.Module]
    axes: ParameterAxes
    start: Callable[[ModelConfig, int, int], Any]
    flops: Callable[[ModelConfig, Tokens], int]
    kept_bytes: Callable[[ModelConfig, Tokens], int]
    hidden_flops: Callable[[ModelConfig, Tokens], int] = lambda config, tokens: 0
    mask_kind: Callable[[ModelConfig, str], str | None] = lambda config, kind: None


def _attention_flops(config: ModelConfig, tokens: Tokens) -> int:
    return attention.forward_flops(config, tokens.number, tokens.number, tokens.number * tokens.length)


def _attention_bytes(config: ModelConfig, tokens: Tokens) -> int:
    return attention.activation_bytes(config, tokens.number, tokens.number, tokens.number * tokens.length)


def _attention_hidden_flops(config: ModelConfig, tokens: Tokens) -> int:
    visible = attention.visible_pairs(config, tokens.length, tokens.causal)
    return attention.forward_flops(config, 0, 0, tokens.rows * (tokens.length**2 - visible))


MIXERS: Parts[Mixer] = Parts(
    "model.mixer",
    Mixer,
    {
        "attention": Mixer(
            name="self_attention",
            module=attention.SelfAttention,
            axes=attention.PARAMETER_AXES,
            start=empty_layer,
            flops=_attention_flops,
            hidden_flops=_attention_hidden_flops,
            kept_bytes=_attention_bytes,
            mask_kind=attention.mask_kind,
        ),
        "gated_delta": Mixer(
            name="gated_delta",
            module=gated_delta.GatedDelta,
            axes=gated_delta.PARAMETER_AXES,
            start=lambda config, rows, slots: gated_delta.empty_state(config, rows),
            flops=lambda config, tokens: tokens.rows * tokens.length * gated_delta.forward_flops(config, tokens.length),
            kept_bytes=lambda config, tokens: tokens.number * gated_delta.activation_bytes(config, tokens.length),
        ),
    },
    methods={"module": ("__call__", "read", "step")},
)
"""By the values of `model.mixer`."""
