"""Feed-forward parts: what maps every token of a layer by itself, one entry per value of `model.feed_forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn

from transformer_jax.config import ModelConfig
from transformer_jax.nn import experts, feed_forward
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.registry import Parts


class FeedForwardPart(NamedTuple):
    """The parts of a feed-forward part. A new one is a new entry of `FEED_FORWARDS`, or `MODULE:OBJECT`.

    - name: of the module in a layer, and of its parameters' folder.
    - module: of (config, num_sums), a `flax.linen.Module` that maps (x [B, T, D], dropout, is_token) to [B, T, D]; in
      training it may collect sums over the tokens of is_token [B, T], None for all (nn/collected.py).
    - axes: axes of its parameters, by the end of their paths.
    - flops: (config, number of tokens) -> floating-point operations of the forward pass.
    - kept_bytes: (config, number of tokens) -> the bytes that the backward pass needs beside 14 D elements a token,
      which the rest of the layer has.
    """

    name: str
    module: Callable[[ModelConfig, int], nn.Module]
    axes: ParameterAxes
    flops: Callable[[ModelConfig, int], int]
    kept_bytes: Callable[[ModelConfig, int], int]


FEED_FORWARDS: Parts[FeedForwardPart] = Parts(
    "model.feed_forward",
    FeedForwardPart,
    {
        "dense": FeedForwardPart(
            name="feed_forward",
            module=feed_forward.FeedForward,
            axes=feed_forward.PARAMETER_AXES,
            flops=feed_forward.forward_flops,
            kept_bytes=feed_forward.activation_bytes,
        ),
        "experts": FeedForwardPart(
            name="experts",
            module=experts.Experts,
            axes=experts.PARAMETER_AXES,
            flops=experts.forward_flops,
            kept_bytes=experts.activation_bytes,
        ),
    },
    methods={"module": ("__call__",)},
)
"""By the values of `model.feed_forward`."""
