"""Configs of any sections as what they are read from and checked against; no field is named here."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.errors import ConfigError

if typing.TYPE_CHECKING:
    import ml_collections


@functools.cache
def field_types(cls: type) -> dict[str, Any]:
    """The evaluated annotation of every field of a config class."""
    return typing.get_type_hints(cls)


def base_type(annotation: Any) -> type:
    """`int` for both `int` and `int | None`."""
    if isinstance(annotation, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def walk(config: Any, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields (dotted name, field, value) of every leaf field."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field, value


def nearest(name: str, known: typing.Iterable[str]) -> str:
    """' (did you mean X?)', or nothing if no known name is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean '{matches[0]}'?)" if matches else ""


def problems_of(config: Any) -> list[str]:
    """Every problem of a config, as messages that name the field, the value and what was expected."""
    problems = []
    hints = {type(config): "", **{type(s): f"{n}." for n, s in _sections(config)}}
    for cls, prefix in hints.items():
        section = config if not prefix else getattr(config, prefix[:-1])
        for field in dataclasses.fields(cls):
            value = getattr(section, field.name)
            if not dataclasses.is_dataclass(value):
                problem = _value_problem(field, field_types(cls)[field.name], value)
                if problem:
                    problems.append(f"{prefix}{field.name}={value!r}: {problem}")
    # Relations between fields only make sense once each value does.
    wrong = {problem.partition("=")[0].rpartition(".")[0] for problem in problems}
    for name, section in _sections(config):
        if name not in wrong and hasattr(section, "problems"):
            problems += [f"{name}.{p}" for p in section.problems()]
    return problems if wrong else [*problems, *config.problems()]


def _sections(config: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield field.name, value


def _value_problem(field: dataclasses.Field, annotation: Any, value: Any) -> str | None:
    """What is wrong with one value by itself."""
    meta = field.metadata
    if value is None and base_type(annotation) is not annotation:
        return None
    expected = base_type(annotation)
    if type(value) is not expected:
        return f"expected {expected.__name__}, got {type(value).__name__}"
    if "choices" in meta and value not in meta["choices"]:
        return f"expected one of {', '.join(meta['choices'])}{nearest(value, meta['choices'])}"
    if expected is float and not math.isfinite(value):
        return "expected a finite number"
    if meta.get("minimum") is not None and value < meta["minimum"]:
        return f"expected at least {meta['minimum']}"
    if meta.get("maximum") is not None and value > meta["maximum"]:
        return f"expected at most {meta['maximum']}"
    if meta.get("above") is not None and value <= meta["above"]:
        return f"expected more than {meta['above']}"
    if meta.get("below") is not None and value >= meta["below"]:
        return f"expected less than {meta['below']}"
    return None


def from_mapping(cls: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    annotations = field_types(cls)
    kwargs = {}
    for name, value in values.items():
        if name not in annotations:
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


def config_error(problems: list[str]) -> ConfigError:
    """One error that lists every problem."""
    if len(problems) == 1:
        return ConfigError(f"config: {problems[0]}")
    return ConfigError(f"config: {len(problems)} problems\n" + "\n".join(f"  - {p}" for p in problems))
