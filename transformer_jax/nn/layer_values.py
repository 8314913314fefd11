"""Values that differ between the layers of a stack, as arrays that the loop over layers reads beside the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.masks import NO_WINDOW
from transformer_jax.typing import Array


class LayerValues(NamedTuple):
    """Values of the `per_layer` fields that differ between layers: [L] each, or the scalars of one layer.

    None: all layers have the value of the config. So a stack of equal layers has no arrays here.

    window: int32, `attention_window`, `NO_WINDOW` for None. rotates: int32, 1 or 0. rotary_base: float32.
    """

    window: Array | None = None
    rotates: Array | None = None
    rotary_base: Array | None = None


EQUAL = LayerValues()
"""The values of a layer that is as its config says."""


def layer_values(configs: Sequence[ModelConfig]) -> LayerValues:
    """Return the values that differ between the configs of L layers, [L] each."""
    windows = [NO_WINDOW if config.attention_window is None else config.attention_window for config in configs]
    return LayerValues(
        window=_array(windows, jnp.int32),
        rotates=_array([config.attention_rotates for config in configs], jnp.int32),
        rotary_base=_array([config.rotary_base for config in configs], jnp.float32),
    )


def _array(values: Sequence[float], dtype: type) -> Array | None:
    return jnp.array(values, dtype) if len(set(values)) > 1 else None
