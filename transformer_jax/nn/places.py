"""Named places of a forward pass, whose values can be read and replaced.

A block marks a value with `x = at("output", x)`. Outside of a `visit` that is x itself: the program stays the same. In
a visit the value is kept if its place is read, and goes through a function if it is replaced. Blocks add the parts of a
place's name from the inside out: `decoder/3/self_attention/output` is `self_attention/output` of a layer, inside
`decoder/3`.

A visit acts while a program is traced. So places are never inside of a loop of the compiled program: in a visit, a
stack runs its layers one after the other. A recurrent decoder that runs token by token hides its steps (`no_visit`).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Collection, Generator, Mapping

from transformer_jax.errors import ConfigError
from transformer_jax.typing import Array

Replace = Callable[[Array], Array]
"""A function of the value of a place, to one of the same shape and type."""


@dataclasses.dataclass(frozen=True)
class Visit:
    """A pass whose places are read or replaced; it is filled while the pass runs.

    read: names of places; None: all. replace: functions by place. found: the values that were read, after their
    replacement. seen: all places of the pass, in order.
    """

    read: Collection[str] | None = ()
    replace: Mapping[str, Replace] = dataclasses.field(default_factory=dict)
    found: dict[str, Array] = dataclasses.field(default_factory=dict)
    seen: list[str] = dataclasses.field(default_factory=list)

    def at(self, name: str, value: Array, is_result: bool = False) -> Array:
        """Return the value of a place, replaced if it is to be; keep it if it is read.

        Args:
          is_result: whether the pass has used the value already, so that it can be read only.
        Raises: ConfigError for a function of a result; ValueError if a function returns another shape or type.
        """
        if name in self.replace and is_result:
            raise ConfigError(f"place '{name}' can be read, but not replaced: it is computed in a loop over the tokens")
        if name in self.replace:
            new = self.replace[name](value)
            if new.shape != value.shape or new.dtype != value.dtype:
                raise ValueError(
                    f"place '{name}': the function returns {new.dtype}{list(new.shape)}; expected "
                    f"{value.dtype}{list(value.shape)}"
                )
            value = new
        self.seen.append(name)
        if self.read is None or name in self.read:
            self.found[name] = value
        return value

    def wants(self, name: str) -> bool:
        """Return whether a place is read or replaced."""
        return self.read is None or name in self.read or name in self.replace


_visit: contextvars.ContextVar[Visit | None] = contextvars.ContextVar("visit", default=None)
_prefix: contextvars.ContextVar[str] = contextvars.ContextVar("prefix", default="")


@contextlib.contextmanager
def visit(visited: Visit) -> Generator[Visit]:
    """Read and replace places of the pass that is traced inside."""
    tokens = _visit.set(visited), _prefix.set("")
    try:
        yield visited
    finally:
        _visit.reset(tokens[0])
        _prefix.reset(tokens[1])


@contextlib.contextmanager
def inside(part: str) -> Generator[None]:
    """Put `part/` in front of the names of places inside."""
    token = _prefix.set(f"{_prefix.get()}{part}/")
    try:
        yield
    finally:
        _prefix.reset(token)


def at(name: str, value: Array, is_result: bool = False) -> Array:
    """Return the value of a place: the given one outside of a visit, else that of `Visit.at`."""
    visited = _visit.get()
    return value if visited is None else visited.at(_prefix.get() + name, value, is_result)


@contextlib.contextmanager
def no_visit() -> Generator[None]:
    """Hide the places inside, which are in a loop of the compiled program."""
    token = _visit.set(None)
    try:
        yield
    finally:
        _visit.reset(token)


def is_visited() -> bool:
    """Return whether the pass is a visit."""
    return _visit.get() is not None


def wants(name: str) -> bool:
    """Return whether a visit reads or replaces a place."""
    visited = _visit.get()
    return visited is not None and visited.wants(_prefix.get() + name)
