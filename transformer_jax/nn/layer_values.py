"""Values that differ between the layers of a stack, as arrays that the loop over layers reads beside the parameters."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from transformer_jax.config import ModelConfig, base_type, field_types, per_layer_fields
from transformer_jax.typing import Array

LayerValues = Mapping[str, Array]
"""Values of the `per_layer` fields that differ between layers, by field: [L], or the scalars of one layer.

A field that is not here has the value of the config; so a stack of equal layers has no arrays. Integers and truth
values are int32, `NO_LIMIT` for None; floats are float32.
"""

NO_LIMIT = 2**31 - 1
"""Stands for None, and is above every length and distance, which are int32."""
EQUAL: LayerValues = types.MappingProxyType({})
"""The values of a layer that is as its config says."""


def layer_values(configs: Sequence[ModelConfig]) -> LayerValues:
    """Return the values that differ between the configs of L layers, [L] each."""
    result = {}
    for name, field in per_layer_fields(type(configs[0])).items():
        values = [getattr(config, name) for config in configs]
        if len(set(values)) > 1 and not field.metadata.get("structure"):
            dtype = jnp.float32 if base_type(field_types(type(configs[0]))[name]) is float else jnp.int32
            result[name] = jnp.array([NO_LIMIT if value is None else value for value in values], dtype)
    return result


def value_in(config: ModelConfig, values: LayerValues, name: str) -> Any:
    """Return a `per_layer` field of one layer: from `values` if the layers of a stack differ, else from its config."""
    return values.get(name, getattr(config, name))
