"""The places of a model where its activations may be divided among devices.

`nn` knows no mesh. It names the axes of an activation at three places: after the embedding, after each layer, and at
the logits. Tables are named too before rows are looked up in them, so that whole rows come out. Whoever traces the
model may give the names a meaning; without one, `constrain` is the identity.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator
from typing import Protocol, runtime_checkable

from transformer_jax.typing import Array

ACTIVATIONS = ("batch", "length", "emb")
LOGITS = ("batch", "length", "vocab")


@runtime_checkable
class Division(Protocol):
    """What axis names mean; `features`: whether heads and feed-forward units are divided."""

    features: bool

    def constrain(self, x: Array, names: tuple[str | None, ...]) -> Array:
        """x, divided as its axis names say."""
        ...


_division: contextvars.ContextVar[Division | None] = contextvars.ContextVar("division", default=None)


@contextlib.contextmanager
def divided(division: Division) -> Generator[None]:
    """What is traced inside has its activations divided so."""
    token = _division.set(division)
    try:
        yield
    finally:
        _division.reset(token)


def constrain(x: Array, names: tuple[str | None, ...]) -> Array:
    """x itself, and where a division holds, on the devices that it says.

    Args:
      x: an array with one axis per name.
    """
    division = _division.get()
    return x if division is None else division.constrain(x, names)


def features_are_divided() -> bool:
    """Whether heads and feed-forward units are on several devices, so that their concatenation would move them."""
    division = _division.get()
    return division is not None and division.features
