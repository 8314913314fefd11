"""Configs from nested mappings, and as ConfigDicts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from transformer_jax.config.sections import base_type, field_types, section_class
from transformer_jax.config.similar_names import nearest
from transformer_jax.errors import ConfigError

if typing.TYPE_CHECKING:
    import ml_collections


def from_mapping(cls: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    """Return an instance of a config class, or of the subclass that the values select.

    Args:
      values: nested; missing fields get their defaults.
      prefix: put before the names of fields in messages.
      problems: messages about names of fields are appended to it.
    """
    is_known = True
    try:
        cls = section_class(cls, values)
    except ConfigError:  # `problems_of` reports it
        is_known = False
    annotations = field_types(cls)
    kwargs = {}
    for name, value in values.items():
        if name not in annotations:
            if not is_known:
                continue
            problems.append(f"{prefix}{name}: no such field{nearest(name, annotations)}")
        elif dataclasses.is_dataclass(annotations[name]):
            if isinstance(value, Mapping):
                kwargs[name] = from_mapping(annotations[name], value, f"{prefix}{name}.", problems)
            else:
                problems.append(f"{prefix}{name}={value!r}: expected a section of fields")
        else:
            # An integer is a valid value of a float field, in Python and on the command line alike.
            is_float = base_type(annotations[name]) is float and type(value) is int
            kwargs[name] = float(value) if is_float else value
    return cls(**kwargs)


def to_config_dict(section: Any) -> ml_collections.ConfigDict:
    from ml_collections import config_dict

    annotations = field_types(type(section))
    result = config_dict.ConfigDict()
    for field in dataclasses.fields(section):
        value = getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            result[field.name] = to_config_dict(value)
        elif value is None:
            result[field.name] = config_dict.placeholder(base_type(annotations[field.name]))
        else:
            result[field.name] = value
    return result
