"""Config files: load `configs/FILE.py:ARGUMENT` or `WORKDIR/config.json`, and apply overrides by dotted name.

A config file defines `get_config(arg="")`, which returns `ExperimentConfig(...).to_config_dict()`. Overrides are set
on that ConfigDict before it is validated, so that values that a file derives with a FieldReference follow them.

A config file may also define `fit(config, given)`: it is called with the overridden ConfigDict and the names of the
overridden fields, and returns further values by dotted name, such as sizes that follow from the user's files.

The config.json of a work directory is a config too. Values that are equal to their derived defaults follow overrides.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.builtin import config_file
from transformer_jax.config import (
    EXTENSIBLE,
    ExperimentConfig,
    ReadConfig,
    base_type,
    config_error,
    field_types,
    flat,
    leaf_fields,
    nearest,
    outside_parts,
)
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import CHECKSUM, without_checksum
from transformer_jax.readers import read_bytes, read_json, read_stream
from transformer_jax.tasks.task import best_metric
from transformer_jax.trust import UntrustedError, own, reading, trust_modules

if TYPE_CHECKING:
    import ml_collections

Fit = Callable[["ml_collections.ConfigDict", frozenset[str]], Mapping[str, Any]]
"""Returns values that follow from others, by dotted name."""

_CONFIG_FILE = "config file"
_MAX_SOURCE = 1 << 24  # bytes of a Python file
_BOOLS = {"true": True, "false": False, "1": True, "0": False}
_EXPECTED: dict[type, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def read_config(
    spec: Path | str, overrides: Mapping[str, Any] | None = None, trust: str | Sequence[str] = ()
) -> ExperimentConfig:
    """Return the config of a file with overrides, validated and resolved.

    Args:
      spec: `PATH.py` or `PATH.py:ARGUMENT`, the name of a built-in config in place of the path, or `PATH.json`.
      overrides: dotted field name -> value; text is parsed as on the command line.
      trust: modules outside this package that `PATH.json` may name.
    Raises: ConfigError, which names the file, every field that cannot be used, or a metric that the task lacks.
    """
    return read_with_sources(str(spec), overrides, trust).config


def read_with_sources(
    spec: str, overrides: Mapping[str, Any] | None = None, trust: str | Sequence[str] = ()
) -> ReadConfig:
    """Return a config and where its values are from; arguments and errors as `read_config`."""
    trust_modules(trust)
    own(outside_parts(overrides or {}).values())  # before the file is read, which may name the same
    path = config_file(spec.partition(":")[0])
    config, fit = _load(spec)
    return _overridden(config, overrides or {}, path if path.suffix == ".json" else None, fit)


def config_of_values(values: Mapping[str, Any], where: Path, overrides: Mapping[str, Any]) -> ReadConfig:
    """Return the config with these values, such as those of a config.json, with overrides; errors as `read_config`.

    Args:
      where: the file that has the values, for messages.
    """
    own(outside_parts(overrides).values())
    return _overridden(_from_values(values, where).lock(), overrides, where)


def _overridden(
    given: ml_collections.ConfigDict,
    overrides: Mapping[str, Any],
    file: Path | None = None,
    fit: Fit | None = None,
) -> ReadConfig:
    """Return the config with overrides.

    Args:
      file: the JSON file that the values are from, whose modules are not trusted. fit: the function of the config file.
    """
    before, fitted = given.copy_and_resolve_references(), {}
    with contextlib.nullcontext() if file is None else reading(file):
        problems = override(given, overrides)
        if fit is not None and not problems:
            fitted = fit(given, frozenset(overrides))
            problems = override(given, fitted)
            override(before, fitted)
        unresolved = ExperimentConfig.unresolved(given, problems)
        config = unresolved.resolved()
        best_metric(config)
    return ReadConfig(config, unresolved, before.to_dict(), frozenset(overrides), frozenset(fitted))


def load_config_dict(spec: str) -> ml_collections.ConfigDict:
    """Return what `get_config` of `PATH.py[:ARGUMENT]` returns, or the config in `PATH.json`; locked.

    Raises: ConfigError if that fails.
    """
    return _load(spec)[0]


def _load(spec: str) -> tuple[ml_collections.ConfigDict, Fit | None]:
    """Return what `load_config_dict` does, and the function `fit` of the file, if it has one."""
    import ml_collections

    name, _, arg = spec.partition(":")
    path = config_file(name)
    if path.suffix == ".json":
        return _load_json(path, arg).lock(), None
    module = run_file(path)
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise ConfigError(f"{path}: has no function get_config(arg=''), which a config file must define")
    try:
        config = get_config(arg) if arg else get_config()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{path}: get_config({arg!r}) raised {_described(error, path)}") from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ConfigError(
            f"{path}: get_config({arg!r}) returned {type(config).__name__}; "
            "expected ExperimentConfig(...).to_config_dict()"
        )
    for name, values in config.items():
        if dataclasses.is_dataclass(field_types(ExperimentConfig).get(name)) and not isinstance(
            values, ml_collections.ConfigDict
        ):
            raise ConfigError(f"{path}: {name}={values!r}: expected a section of fields")
    own(outside_parts(flat(config.to_dict())).values())
    return config.lock(), getattr(module, "fit", None)


def _load_json(path: Path, arg: str) -> ml_collections.ConfigDict:
    if arg:
        raise ConfigError(f"{path}: takes no argument, but ':{arg}' was given")
    try:
        values = read_json(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected the config.json of a work directory, an object with a section per key")
    try:
        values = without_checksum(values) if CHECKSUM in values else values
    except ValueError:
        raise ConfigError(
            f"{path}: does not match its checksum, so it was edited or is damaged; change fields by flags, "
            f"--config.FIELD=VALUE, or remove '{CHECKSUM}' from a copy that is yours"
        ) from None
    return _from_values(values, path)


def _from_values(values: Mapping[str, Any], path: Path) -> ml_collections.ConfigDict:
    try:
        with reading(path):
            return ExperimentConfig.from_config_dict(values).with_derived_unset().to_config_dict()
    except UntrustedError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def check_argument(arg: str, valid: Iterable[str] = ()) -> None:
    """Raise ConfigError if the argument of a config file, `PATH.py:ARGUMENT`, is not among the valid ones."""
    if arg and arg not in (names := list(valid)):
        expected = f"expected one of {', '.join(names)}{nearest(arg, names)}" if names else "this config has none"
        raise ConfigError(f"argument '{arg}': {expected}")


def leaf_types(values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the annotation of every field by its dotted name, as in `model.num_heads`.

    Args:
      values: a config as nested mappings; the result has the fields that its architecture and task add. Default: the
        fields of all architectures and tasks that are registered or imported so far.
    Raises: ConfigError for an architecture or a task that cannot be used.
    """
    return {name: annotation for name, (annotation, _) in leaf_fields(values).items()}


def is_switch(name: str) -> bool:
    """Return whether a dotted name belongs to a true-or-false field."""
    return leaf_types().get(name) is bool


def override(config: ml_collections.ConfigDict, overrides: Mapping[str, Any]) -> list[str]:
    """Set fields of a config by their dotted names; return the problems of those that cannot be set.

    Overrides may select another architecture or task and set the fields that it adds. The fields that the previous one
    added are dropped, unless they are set.

    Raises: ConfigError if the config lacks a whole section.
    """
    before = _fields_of(config, {})
    after = _fields_of(config, overrides)
    if after is None:  # validation reports that the architecture or task cannot be used
        after = leaf_types({})
        overrides = {name: value for name, value in overrides.items() if name in after or not may_be_own(name)}
    values, problems = _parse(overrides, after)
    # The dataclasses check types. A ConfigDict would refuse 0.5 for a field that the file sets to 1.
    with config.unlocked(), config.ignore_type():
        for name in set(before or ()) - set(after):
            section, _, leaf = name.partition(".")
            if leaf in config.get(section, {}) and config[section][leaf] == leaf_fields()[name][1].default:
                del config[section][leaf]
        for name, value in values.items():
            *sections, leaf = name.split(".")
            try:
                section = functools.reduce(operator.getitem, sections, config)
            except KeyError:
                raise ConfigError(f"config: {name}: the config file returns no section '{sections[0]}'") from None
            section[leaf] = value
    return problems


def _fields_of(config: ml_collections.ConfigDict, overrides: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of a config after overrides; None if its architecture or its task cannot be used."""
    values = {name: dict(config.get(name, {})) for name in EXTENSIBLE}
    for name, value in overrides.items():
        section, _, leaf = name.partition(".")
        if section in values:
            values[section][leaf] = value
    try:
        return leaf_types(values)
    except ConfigError:
        return None


def may_be_own(name: str) -> bool:
    """Return whether a dotted name is in a section to which architectures or tasks may add fields."""
    return name.partition(".")[0] in EXTENSIBLE


def parse_overrides(overrides: Mapping[str, Any], allowed: Iterable[str] | None = None) -> dict[str, Any]:
    """Return overrides with texts converted to the types of their fields.

    Args:
      overrides: dotted field name -> text as on the command line, or a value as in Python.
      allowed: names that may be overridden; default all.
    Raises: ConfigError with every name that is not a field, and every text that is not a value of its field's type.
    """
    known = leaf_types()
    values, problems = _parse(overrides, known, known if allowed is None else allowed)
    if problems:
        raise config_error(problems)
    return values


def _parse(
    overrides: Mapping[str, Any], known: Mapping[str, Any], allowed: Iterable[str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the valid overrides, and the problems of the others.

    Args: known: annotations of fields by name. allowed: names that may be overridden; default all.
    """
    names = list(known if allowed is None else allowed)
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
    of_section = [n for n in names if n.partition(".")[0] == name.partition(".")[0]]
    return f"no such field{nearest(name, of_section) or nearest(name, names)}"


def _similar(name: str, names: Iterable[str]) -> list[str]:
    """Return fields of any section whose last name contains every word of `name`, or a word that begins with it.

    Fields with the fewest additional words win, and among these the fields of the named section. For example,
    `model.num_head` and `num_heads` both give model.num_heads; `num_layers` gives the encoder's and the decoder's.
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
    # `none` in lower case may be the name of a choice.
    if expected is not annotation and (text == "None" or (text.lower() == "none" and expected is not str)):
        return None
    if expected is bool:
        if text.lower() not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text.lower()]
    return expected(text)


def run_file(path: Path, what: str = _CONFIG_FILE) -> types.ModuleType:
    """Execute a Python file and return its module.

    The file is not imported, so that no cache is written beside it and equal names do not clash.

    Args:
      what: kind of the file, for messages.
    Raises: ConfigError, which names the file and the line, if the file cannot be read or raises an error.
    """
    try:
        # The user names a config file, which may be a pipe: --config=<(...). A study's file is one of a folder.
        source = read_stream(path, _MAX_SOURCE) if what == _CONFIG_FILE else read_bytes(path, _MAX_SOURCE)
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
    except (Exception, SystemExit) as error:  # sys.exit() must not end the command as if it were done
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


def _described(error: BaseException, path: Path) -> str:
    """Return an exception as text: type, message, and line in the config file."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")
