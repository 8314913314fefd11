"""The modules outside this package that may be imported because a value names them, as `MODULE:OBJECT`.

Flags, config files in Python, the study.py of `--study` and configs that a program makes are trusted. A file that is
read (a checkpoint, a work directory, a prepared dataset) may come from somebody else, so the modules that it names are
imported only if the user trusts them: with `--trust`, with the argument `trust` of a function, or with the environment
variable. In a program, as opposed to a command, what it has imported itself is trusted too. Trust lasts until the
program or the command ends: a module that was imported once stays imported.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import os
import sys
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path

from transformer_jax.errors import ConfigError

VARIABLE = "TRANSFORMER_JAX_TRUST"
"""Environment variable with names of trusted modules, separated by commas."""


class UntrustedError(ConfigError):
    """A file names code that is not part of this package and that the user has not said to trust."""


@dataclasses.dataclass
class _State:
    """modules: those that the user has named. in_command: a command runs, so what is imported is not the user's."""

    modules: set[str] = dataclasses.field(default_factory=set)
    in_command: bool = False


_state = _State()  # of the process, since threads must see it too
_file: contextvars.ContextVar[Path | str | None] = contextvars.ContextVar("the file that is being read", default=None)


@contextlib.contextmanager
def command() -> Generator[None]:
    """Start with no trusted module while a command runs, except those of the environment."""
    global _state
    before, _state = _state, _State(in_command=True)
    try:
        yield
    finally:
        _state = before


@contextlib.contextmanager
def reading(file: Path | str | None = None) -> Generator[None]:
    """Name a file in the errors of `check`; meanwhile `own` adds nothing, since no value is the user's.

    Args: file: None for one that is not known here; the errors keep the name that they have.
    """
    token = _file.set(file or _file.get() or "config")
    try:
        yield
    finally:
        _file.reset(token)


def trust_modules(given: str | Iterable[str], where: str = "trust") -> None:
    """Trust modules, and the modules inside them.

    Args:
      given: their dotted names; a text may have several, separated by commas.
      where: the flag or argument, for messages.
    Raises: ConfigError for a text that is not the name of a module.
    """
    _state.modules.update(_names([given] if isinstance(given, str) else given, where))


def own(values: Iterable[str]) -> None:
    """Trust the modules that values `MODULE:OBJECT` of the user's own config name."""
    if _file.get() is None:
        _state.modules.update(value.partition(":")[0] for value in values)


def modules() -> list[str]:
    """Return the trusted modules in alphabetical order; a worker is started with them."""
    return sorted(_state.modules | _of_environment(os.environ.get(VARIABLE, "")))


def is_trusted(module: str) -> bool:
    """Return whether the user has named a module, or one that contains it."""
    trusted, parts = set(modules()), module.split(".")
    return any(".".join(parts[: count + 1]) in trusted for count in range(len(parts)))


def is_imported(module: str) -> bool:
    """Return whether the user's program has imported a module; the standard library and commands do not count."""
    return not _state.in_command and module in sys.modules and module.partition(".")[0] not in sys.stdlib_module_names


def check(named: Mapping[str, str]) -> None:
    """Raise UntrustedError if values name modules that may not be imported; nothing is imported.

    Args:
      named: `MODULE:OBJECT`, or another text that begins with `MODULE:`, by the name of its field.
    """
    modules_of = {name: value.partition(":")[0] for name, value in named.items()}
    refused = {name: module for name, module in modules_of.items() if not (is_trusted(module) or is_imported(module))}
    if refused:
        raise refusal({name: named[name] for name in refused})


def refusal(named: Mapping[str, str], kind: str = "") -> UntrustedError:
    """Return the error that these values are not trusted, with the file that is being read and the remedy.

    Args:
      kind: what the object of an imported module is not, such as `a Task`; the remedy is then not to import it.
    """
    names = sorted({value.partition(":")[0] for value in named.values()})
    modules, them = ",".join(names), "it" if len(names) == 1 else "them"
    where = "config" if (file := _file.get()) is None else str(file)
    listing = " and ".join(f"{name}='{value}'" for name, value in named.items())
    ways = f"pass --trust={modules} (or set {VARIABLE}={modules})"
    if not _state.in_command:
        ways = f"{'' if kind else f'import {them} first, '}pass trust={names!r} (or set {VARIABLE}={modules})"
    is_not = f"is not {kind}" if kind else "is not imported" if len(names) == 1 else "are not imported"
    return UntrustedError(
        f"{where} names {listing}, code that is not part of this package. {'It' if len(names) == 1 else 'They'} "
        f"{is_not}. If you trust {them}, {ways}"
    )


def _names(given: Iterable[str], where: str) -> set[str]:
    names = {name.strip() for text in given for name in text.split(",")} - {""}
    for name in sorted(names):
        if not all(part.isidentifier() for part in name.split(".")):
            module = name.partition(":")[0]
            is_object = ":" in name and all(part.isidentifier() for part in module.split("."))
            hint = f"; write {where}={module}" if is_object else ", such as mypackage or mypackage.tasks"
            raise ConfigError(f"{where}={name}: expected the name of a module{hint}")
    return names


@functools.lru_cache(maxsize=4)
def _of_environment(text: str) -> frozenset[str]:
    return frozenset(_names([text], VARIABLE))
