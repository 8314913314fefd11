"""Sharding of a model's activations over devices.

Blocks do not know the mesh. They name the axes of an activation at three places: after the embedding, after each layer,
and at the logits. They also name the axes of a table before a lookup, so that the lookup returns whole rows. A launcher
that traces the model may map the names to mesh axes. It does so in a context variable, so that blocks need no parameter
for it. Without such a launcher, `constrain` is the identity.
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
class ActivationSharding(Protocol):
    """The meaning of axis names; `features`: whether heads and feed-forward units are sharded."""

    features: bool

    def constrain(self, x: Array, names: tuple[str | None, ...]) -> Array:
        """Return x, sharded by its axis names."""
        ...


_sharding: contextvars.ContextVar[ActivationSharding | None] = contextvars.ContextVar(
    "activation_sharding", default=None
)


@contextlib.contextmanager
def activations_sharded(sharding: ActivationSharding) -> Generator[None]:
    """Shard the activations of everything that is traced inside."""
    token = _sharding.set(sharding)
    try:
        yield
    finally:
        _sharding.reset(token)


def constrain(x: Array, names: tuple[str | None, ...]) -> Array:
    """Return x, sharded by its axis names within `activations_sharded`, and unchanged elsewhere.

    Args:
      x: an array with one axis per name.
    """
    sharding = _sharding.get()
    return x if sharding is None else sharding.constrain(x, names)


def features_are_sharded() -> bool:
    """Return whether heads and feed-forward units are on several devices; concatenating them would then move data."""
    sharding = _sharding.get()
    return sharding is not None and sharding.features
