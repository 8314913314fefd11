"""JSON, bounded in size and depth, without text that cannot be encoded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from transformer_jax.readers.files import read_bytes

MAX_JSON_BYTES = 1 << 28
"""Largest JSON file. The largest tokenizers have about 35 MB."""
MAX_DEPTH = 64
"""Deepest nesting of objects and lists. Configs, tokenizers and records have at most 10."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(data: bytes | str, most: int = MAX_JSON_BYTES, check_text: bool = True) -> Any:
    """Return the values of a JSON text; a byte order mark before it is not part of it.

    Args: check_text: False if the caller reads some texts only, and checks them itself.
    Raises: ValueError if it is not JSON, is longer than `most`, is nested deeper than `MAX_DEPTH`, has a number of
    more digits than Python converts, or has half of a surrogate pair, which no file or terminal can encode.
    """
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes, too many for such a file")
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError(f"its objects and lists are nested deeper than {MAX_DEPTH}") from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(values)
    if check_text and _SURROGATE.search(text):
        _check_encodable(values)
    return values


def read_json(path: Path | str, most: int = MAX_JSON_BYTES) -> Any:
    """Return the values of a JSON file; raises OSError as `read_bytes`, and ValueError as `parse_json`."""
    return parse_json(read_bytes(path, most), most)


def read_json_object(path: Path | str, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Return the object of a JSON file; raises as `read_json`, and ValueError if it holds something else."""
    values = read_json(path, most)
    if not isinstance(values, dict):
        raise ValueError(f"it holds {_kind(values)}, not an object")
    return values


def through_json(values: Any) -> Any:
    """Return values as they come back from JSON, with lists in place of tuples and texts in place of other keys."""
    return json.loads(json.dumps(values))


def _kind(values: Any) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(values), "a number")


def _inside(level: list[Any]) -> list[Any]:
    """Return what the objects and lists of one level hold."""
    return [
        child
        for value in level
        if isinstance(value, dict | list)
        for child in (value.values() if isinstance(value, dict) else value)
    ]


def _check_depth(values: Any) -> None:
    level, depth = [values], 0
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"its objects and lists are nested deeper than {MAX_DEPTH}")
        level = _inside(level)


def _check_encodable(values: Any) -> None:
    level = [values]
    while level:
        texts = [value for value in level if isinstance(value, str)]
        texts += [key for value in level if isinstance(value, dict) for key in value]
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = f"\\u{ord(text[error.start]):04x}"
                raise ValueError(f"it has {half}, half of a surrogate pair, which is not a character") from None
        level = _inside(level)
