"""How the sections declare their fields: type, default, meaning and valid values."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

if typing.TYPE_CHECKING:
    # None until the config is resolved, and a value for all code that is handed a config.
    DerivedInt: typing.TypeAlias = int
    DerivedFloat: typing.TypeAlias = float
    DerivedStr: typing.TypeAlias = str
else:
    DerivedInt, DerivedFloat, DerivedStr = int | None, float | None, str | None


def field(default: Any, doc: str, **metadata: Any) -> Any:
    return dataclasses.field(default=default, metadata={"doc": doc, **metadata})


def choice(default: str | None, names: tuple[str, ...], doc: str, **metadata: Any) -> Any:
    return field(default, doc, choices=names, **metadata)


def number(default: Any, doc: str, minimum: float | None = None, maximum: float | None = None, **metadata: Any) -> Any:
    """A field of a numeric type; `above` and `below` are bounds that the value must not have itself."""
    return field(default, doc, minimum=minimum, maximum=maximum, **metadata)


def rate(default: Any, doc: str) -> Any:
    """A probability below 1 that enters the step as an argument; zero removes the feature from the program."""
    return number(default, doc, minimum=0.0, below=1.0, hyper=True, switch=True)


def section(cls: type) -> Any:
    return dataclasses.field(default_factory=cls)
