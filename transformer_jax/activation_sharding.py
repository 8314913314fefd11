"""The places of a model where its activations may be sharded over devices.

Blocks know no mesh. They name the axes of an activation at three places: after the embedding, after each layer, and at
the logits. Tables are named too before rows are looked up in them, so that whole rows come out. A launcher that traces
the model may give the names a meaning, in a context variable, so that no block has a parameter for it; without one,
`constrain` is the identity.
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
        """x, sharded as its axis names say."""
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
    """x itself, or within `activations_sharded` x on the devices that it says.

    Args:
      x: an array with one axis per name.
    """
    sharding = _sharding.get()
    return x if sharding is None else sharding.constrain(x, names)


def features_are_sharded() -> bool:
    """Whether heads and feed-forward units are on several devices, so that their concatenation would move them."""
    sharding = _sharding.get()
    return sharding is not None and sharding.features
