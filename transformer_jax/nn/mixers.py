"""Mixers: the part of a layer that moves information between tokens, one entry per value of `model.mixer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn

from transformer_jax.config import ModelConfig
from transformer_jax.nn import attention
from transformer_jax.nn.kv_cache import empty_layer
from transformer_jax.typing import Axes


class Tokens(NamedTuple):
    """The tokens that a part of a layer reads, padding included.

    rows: B; length: T; pairs: of a query and a key, over all rows.
    """

    rows: int
    length: int
    pairs: int


class Mixer(NamedTuple):
    """The parts of a mixer. A new mixer is a new entry of `MIXERS`.

    - name: of the module in a layer, and of its parameters' folder.
    - module: of (config, num_sums, return_weights), a `flax.linen.Module` with the methods of `SelfAttention`:
      a call maps a whole sequence; `read` maps the next T tokens of a sequence, and `step` one token for each of W
      hypotheses, from a state and to a new one.
    - axes: logical axes of its parameters, by the end of their paths.
    - start: (config, rows, slots) -> the state before the first token. A cache of slots is shared by the hypotheses of
      a row; any other state is a tree of arrays [B, 1, ...], which the decoder repeats and gathers by hypothesis.
    - flops: (config, tokens) -> floating-point operations of the forward pass; kept_elements: of (config, tokens), what
      its backward pass needs, as a number of elements, beside 14 D a token for the rest of the layer.
    """

    name: str
    module: Callable[..., nn.Module]
    axes: Mapping[str, Axes]
    start: Callable[[ModelConfig, int, int], Any]
    flops: Callable[[ModelConfig, Tokens], int]
    kept_elements: Callable[[ModelConfig, Tokens], int]


MIXERS = {
    "attention": Mixer(
        name="self_attention",
        module=attention.SelfAttention,
        axes=attention.PARAMETER_AXES,
        start=empty_layer,
        flops=lambda config, tokens: attention.forward_flops(
            config, tokens.rows * tokens.length, tokens.rows * tokens.length, tokens.pairs
        ),
        kept_elements=lambda config, tokens: attention.kept_elements(config, tokens.pairs),
    ),
}
"""By the values of `model.mixer`."""
