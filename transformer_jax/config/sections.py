"""The sections of a config: their classes, fields and values; no field is named here."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.errors import ConfigError


@functools.cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the evaluated annotation of every field of a config class, by name."""
    annotations = typing.get_type_hints(cls)
    return {field.name: annotations[field.name] for field in dataclasses.fields(cls)}


def base_type(annotation: Any) -> type:
    """Return the type without None: `int` for both `int` and `int | None`."""
    if isinstance(annotation, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def section_class(base: type, values: Mapping[str, Any]) -> type:
    """Return the class of a section: `base`, or the subclass that its values select.

    An architecture or a task from outside the package may add fields, in a subclass of the section's class.

    Args:
      base: the class that the config declares for the section.
      values: values of the section's fields; fields may be missing.
    Raises: ConfigError if the values name an object that cannot be used.
    """
    for field in extending(base):
        value = values.get(field.name, field.default)
        # The default is built in: its class is known without an import.
        if value != field.default and isinstance(value, str):
            return field.metadata["choices"].table.config_class(value)
    return base


def loaded_classes(base: type) -> list[type]:
    """Return `base` and its subclasses for all outside objects that are registered or imported so far."""
    classes = [base]
    for field in extending(base):
        table = field.metadata["choices"].loaded_table
        classes += [item.config_class for item in table.from_outside()] if table is not None else []
    return list(dict.fromkeys(classes))


def extending(base: Any) -> list[dataclasses.Field]:
    """Return the fields of a section whose values may name an object that adds fields."""
    return [field for field in dataclasses.fields(base) if field.metadata.get("extends")]


def with_section_classes(config: Any) -> Any:
    """Return a config whose sections have the classes of `section_class`; new fields have their defaults."""
    replaced = {}
    for name, section in sections(config):
        base, values = field_types(type(config))[name], values_of(section)
        with contextlib.suppress(ConfigError):  # `problems_of` reports it
            cls = section_class(base, values)
            if type(section) is base and cls is not base:
                replaced[name] = cls(**values)
    return dataclasses.replace(config, **replaced)


def values_of(section: Any) -> dict[str, Any]:
    """Return the values of a section's fields, by name."""
    return {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yield (dotted name, field, value) of every leaf field."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def sections(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, section) of every section."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield field.name, value
