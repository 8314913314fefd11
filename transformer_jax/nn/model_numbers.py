"""Numbers of a model that blocks read: fields of `ModelConfig` marked `hyper`.

A compiled program takes such a number as an argument, so that a new value does not recompile it. The config of its
blocks then has the default of the field, and the program gives the number in a context variable, so that blocks need no
parameter for it. Elsewhere, as in decoding, the number is that of the config.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any

from transformer_jax.config import ModelConfig
from transformer_jax.typing import Array

_given: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar(
    "model_numbers", default=MappingProxyType({})
)


@contextlib.contextmanager
def numbers_given(numbers: Mapping[str, Any]) -> Generator[None]:
    """Give everything that is traced inside these numbers by the names of their fields, such as `Hyper.model`.

    None turns a feature off.
    """
    token = _given.set(numbers)
    try:
        yield
    finally:
        _given.reset(token)


def number_of(config: ModelConfig, name: str) -> Array | float | None:
    """Return the number of a field, [] float32 or a Python number; None if the feature is off."""
    given = _given.get()
    if name in given:
        return given[name]
    field, value = config.__dataclass_fields__[name], getattr(config, name)
    is_off = field.metadata.get("switch") and value == field.metadata.get("off", 0)
    return None if is_off else value
