"""From `configs/FILE.py:ARGUMENT` and overrides by dotted name to a config that is ready to run.

A config file defines `get_config(arg="")`, which returns `ExperimentConfig(...).to_config_dict()`. Overrides are set
on that ConfigDict before it is validated, so that what a file derives by a FieldReference follows them.
"""

from __future__ import annotations

import functools
import operator
import traceback
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig, base_type, config_error, field_types, nearest, walk
from transformer_jax.errors import ConfigError

if TYPE_CHECKING:
    import ml_collections

_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_EXPECTED: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def read_config(spec: str, overrides: Mapping[str, Any] | None = None) -> ExperimentConfig:
    """The validated and resolved config of a file, after overrides.

    Args:
      spec: `PATH.py` or `PATH.py:ARGUMENT`.
      overrides: dotted field name -> value; text is parsed as on the command line.
    Raises: ConfigError naming the file or every field that cannot be used.
    """
    config = load(spec)
    return ExperimentConfig.from_config_dict(config, override(config, overrides or {}))


def load(spec: str) -> ml_collections.ConfigDict:
    """What `get_config` of `PATH.py[:ARGUMENT]` returns, locked; raises ConfigError if it cannot be had."""
    import ml_collections

    name, _, arg = spec.partition(":")
    path = Path(name).expanduser()
    get_config = getattr(run_file(path), "get_config", None)
    if not callable(get_config):
        raise ConfigError(f"{path}: has no function get_config(arg=''), which a config file must define")
    try:
        config = get_config(arg) if arg else get_config()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{path}: get_config({arg!r}) raised {_described(error, path)}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"{path}: get_config({arg!r}) returned {type(config).__name__}; "
            "expected ExperimentConfig(...).to_config_dict()"
        )
    return config.lock()


def check_argument(arg: str, valid: Iterable[str] = ()) -> None:
    """Raises ConfigError if a config file is given an argument, `PATH.py:ARGUMENT`, that is not among its own."""
    if arg and arg not in (names := list(valid)):
        expected = f"expected one of {', '.join(names)}{nearest(arg, names)}" if names else "this config has none"
        raise ConfigError(f"argument '{arg}': {expected}")


@functools.cache
def leaf_types() -> dict[str, Any]:
    """The annotation of every field by its dotted name, as in `model.num_heads`."""
    result = {}
    for name, _, _ in walk(ExperimentConfig()):
        section, _, leaf = name.rpartition(".")
        cls = field_types(ExperimentConfig)[section] if section else ExperimentConfig
        result[name] = field_types(cls)[leaf]
    return result


def is_switch(name: str) -> bool:
    """Whether a dotted name is that of a true-or-false field."""
    return leaf_types().get(name) is bool


def override(config: ml_collections.ConfigDict, overrides: Mapping[str, Any]) -> list[str]:
    """Sets fields of a config by their dotted names; returns what is wrong with those that cannot be set.

    Raises: ConfigError if the config lacks a whole section.
    """
    values, problems = _parse(overrides, leaf_types())
    # Types are checked already, and by the dataclasses: a ConfigDict refuses 0.5 where a file has written 1.
    with config.unlocked(), config.ignore_type():
        for name, value in values.items():
            *sections, leaf = name.split(".")
            try:
                section = functools.reduce(operator.getitem, sections, config)
            except KeyError:
                raise ConfigError(f"config: {name}: the config file returns no section '{sections[0]}'") from None
            section[leaf] = value
    return problems


def parse_overrides(overrides: Mapping[str, Any], allowed: Iterable[str] | None = None) -> dict[str, Any]:
    """Overrides with text as values of the fields' types.

    Args:
      overrides: dotted field name -> text as on the command line, or a value as in Python.
      allowed: names that may be overridden; default all.
    Raises: ConfigError with every name that is no field, and every text that is no value of its type.
    """
    values, problems = _parse(overrides, leaf_types() if allowed is None else allowed)
    if problems:
        raise config_error(problems)
    return values


def _parse(overrides: Mapping[str, Any], allowed: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """What `parse_overrides` returns of the overrides that are valid, and what is wrong with the others."""
    known, names = leaf_types(), list(allowed)
    values, problems = {}, []
    for name, value in overrides.items():
        if name not in names:
            problems.append(f"{name}: {'cannot be overridden here' if name in known else _unknown(name, names)}")
            continue
        try:
            values[name] = _parsed(value, known[name]) if isinstance(value, str) else value
        except ValueError:
            problems.append(f"{name}={value}: expected {_EXPECTED[base_type(known[name])]}")
    return values, problems


def _unknown(name: str, names: list[str]) -> str:
    inside = [n for n in names if n.startswith(f"{name}.")]
    if inside:
        return f"is a section; set one of its fields, such as {inside[0]}"
    if similar := _similar(name, names):
        return f"no such field (did you mean {' or '.join(repr(n) for n in similar)}?)"
    return f"no such field{nearest(name, names)}"


def _similar(name: str, names: Iterable[str]) -> list[str]:
    """Fields whose own name, whatever their section, has every word of this one's, or words that begin with them.

    Those with the fewest words more, and of them those in the section that was named: `model.num_head` and `num_heads`
    both mean model.num_heads, and `num_layers` the encoder's or the decoder's.
    """
    section, _, leaf = name.rpartition(".")
    words = [word for word in leaf.split("_") if word]
    more = {}
    for known in names:
        others = known.rpartition(".")[2].split("_")
        if words and all(any(other.startswith(word) for other in others) for word in words):
            more[known] = (len(others), known.rpartition(".")[0] != section)
    return [known for known, distance in more.items() if distance == min(more.values())]


def _parsed(text: str, annotation: Any) -> Any:
    expected = base_type(annotation)
    # Of a choice, `none` may be a name like others.
    if expected is not annotation and (text == "None" or (text.lower() == "none" and expected is not str)):
        return None
    if expected is bool:
        if text.lower() not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text.lower()]
    return expected(text)


def run_file(path: Path, what: str = "config file") -> types.ModuleType:
    """Executes a Python file; not imported, so that nothing is cached beside it and equal names do not clash.

    Raises: ConfigError if it cannot be read, or raises something; it names the file as a `what`, and the line.
    """
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such {what}{_files_near(path)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder, not a {what}{_files_near(path / ' ')}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise ConfigError(f"{path}: raised {_described(error, path)}") from error
    return module


def _files_near(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"; there is no folder {folder}"
    names = sorted(p.name for p in folder.glob("*.py"))
    if not names:
        return f"; {folder} has no Python file"
    return nearest(path.name, names) or f"; {folder} has {', '.join(names[:20])}"


def _described(error: Exception, path: Path) -> str:
    """Type, message and line in the config file of an exception."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")
