"""The keys of config.json that transformers reads, of `keys.json`, which tests/convert/transformers_keys.py makes."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.readers import read_json_object

FILE = Path(__file__).with_name("keys.json")


@functools.cache
def _content() -> Mapping[str, Any]:
    return read_json_object(FILE)


def version() -> str:
    """Return the version of transformers whose source was read."""
    return _content()["transformers"]


def of_family(name: str) -> frozenset[str]:
    """Return the keys that the code of a family reads, by its `model_type`."""
    return frozenset(_content()["families"][name]["keys"])


def of_generation() -> frozenset[str]:
    """Return the settings of generation, which older versions kept in config.json."""
    return frozenset(_content()["generation"])


def of_library() -> frozenset[str]:
    """Return the keys that the code that all families share reads, though most concern other families."""
    return frozenset(_content()["library"])


def aliases(name: str) -> Mapping[str, str]:
    """Return other names of a family's keys. Where a file has both, transformers takes the value of the other name."""
    return _content()["families"][name]["aliases"]


def is_later(written: str) -> bool:
    """Return whether a version, as in `5.24.0.dev0`, is later than the one whose source was read, by two numbers."""
    numbers = [re.match(r"(\d{1,6})\.(\d{1,6})", text) for text in (written, version())]
    theirs, ours = ([*map(int, found.groups())] if found else [] for found in numbers)
    return theirs > ours
