"""Types of the values in JSON objects that this program has written.

A checksum shows that a file is as it was written; it does not show who wrote it, or with which version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """Values of a field.

    name: as messages say it, such as "an integer". part: names the part of an object that is not accepted, as the end
    of a message; empty if it is the whole value.
    """

    name: str
    accepts: Callable[[Any], bool]
    part: Callable[[Any], str] = lambda value: ""


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


INTEGER = Kind("an integer", _is_integer)
COUNT = Kind("an integer of at least 0", lambda value: _is_integer(value) and value >= 0)
NUMBER = Kind("a number", _is_number)
FINITE = Kind("a finite number", lambda value: _is_number(value) and math.isfinite(value))
TEXT = Kind("a text", lambda value: isinstance(value, str))
TRUTH = Kind("true or false", lambda value: isinstance(value, bool))
OBJECT = Kind("an object", lambda value: isinstance(value, dict))
LIST = Kind("a list", lambda value: isinstance(value, list))
ANYTHING = Kind("anything", lambda value: True)


def either(one: Kind, other: Kind) -> Kind:
    """Return the values of two kinds."""
    return Kind(f"{one.name} or {other.name}", lambda value: one.accepts(value) or other.accepts(value))


def or_null(kind: Kind) -> Kind:
    """Return the kind with null."""
    return Kind(f"{kind.name} or null", lambda value: value is None or kind.accepts(value), kind.part)


def object_of(kind: Kind) -> Kind:
    """Return objects whose values are of a kind."""

    def part(value: Any) -> str:
        items = value.items() if isinstance(value, dict) else ()
        return next((f"; '{name}' in it is {in_words(x)}" for name, x in items if not kind.accepts(x)), "")

    return Kind(
        f"an object whose values are each {kind.name}",
        lambda value: isinstance(value, dict) and all(map(kind.accepts, value.values())),
        part,
    )


def list_of(kind: Kind) -> Kind:
    """Return lists whose items are of a kind."""
    return Kind(
        f"a list whose items are each {kind.name}",
        lambda value: isinstance(value, list) and all(map(kind.accepts, value)),
    )


def fields_of(required: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None) -> Kind:
    """Return objects with fields, as `expect` checks them."""

    def accepts(value: Any) -> bool:
        try:
            expect(value, required, optional)
        except ValueError:
            return False
        return True

    return Kind(f"an object with {', '.join(required)}", accepts)


def expect(values: Any, required: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None) -> dict[str, Any]:
    """Check that `values` is an object whose fields have the given kinds, and return it.

    Fields that are not named in `required` or `optional` may have any value.

    Raises: ValueError if it is not an object; or if a required field is missing or a field has another kind, with the
      name of the field.
    """
    if not isinstance(values, dict):
        raise ValueError(f"expected an object, got {in_words(values)}")
    for name, kind in {**required, **(optional or {})}.items():
        if name not in values:
            if name in required:
                raise ValueError(f"lacks '{name}'")
        elif not kind.accepts(values[name]):
            value = values[name]
            raise ValueError(f"'{name}' is {in_words(value)}, expected {kind.name}{kind.part(value)}")
    return values


def in_words(value: Any) -> str:
    """Return a value of JSON as messages say it."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= 60 else f"{text[:60]}..."
