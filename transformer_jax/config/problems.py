"""Checks of a config: its values, the relations between them, and fields that nothing reads; no field is named here."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.config.fields import chosen_names, is_from_outside
from transformer_jax.config.sections import base_type, extending, field_types, section_class, sections, values_of, walk
from transformer_jax.config.similar_names import nearest
from transformer_jax.errors import ConfigError

_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
_INT32_MAX = 2**31 - 1  # of sizes, steps and ids
_LIKE_THE_UNREAD = 0.8  # the name of an unread field is correct, so only a very similar one can be meant


def problems_of(config: Any) -> list[str]:
    """Return every problem of a config, as messages that name the field, the value and what was expected."""
    problems = []
    for name, section in [("", config), *sections(config)]:
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if not dataclasses.is_dataclass(value):
                problem = value_problem(field, field_types(type(section))[field.name], value)
                if problem:
                    problems.append(f"{name and f'{name}.'}{field.name}={value!r}: {problem}")
    # Check relations between fields only if each value is valid.
    wrong, choosers = {problem.partition("=")[0].rpartition(".")[0] for problem in problems}, _choosers(config)
    for name, section in sections(config):
        if name not in wrong:
            problems += _class_problems(config, name, section)
            unread = _unread(
                config, name, section, {n: c for n, c in choosers.items() if n.rpartition(".")[0] not in wrong}
            )
            own = _own_problems(section, field_types(type(config))[name], unread)
            problems += [f"{name}.{problem}" for problem in own]
    return problems if wrong else [*problems, *unread_fields(config), *config.problems()]


def _own_problems(section: Any, declared: Any, unread: Collection[str]) -> list[str]:
    """Return the messages of a section's method `problems`.

    Args:
      declared: the class that the config declares for the section. Its messages give fields as NAME=VALUE. A message
        with a field in `unread` is left out, because nothing reads that field.
    Raises: ConfigError if the method of a class from outside the package raises anything.
    """
    if not hasattr(section, "problems"):
        return []
    try:
        shared = set(declared.problems(section)) if unread else set()
        return [p for p in section.problems() if p not in shared or not {*re.findall(r"(\w+)=", p)} & {*unread}]
    except Exception as error:
        if type(section) is declared:
            raise
        what = f"{type(section).__module__}.{type(section).__name__}"
        raise ConfigError(f"config: {what}.problems() raised {type(error).__name__}: {error}") from error


def _class_problems(config: Any, name: str, section: Any) -> Iterator[str]:
    expected = section_class(field_types(type(config))[name], values_of(section))
    if type(section) is not expected:
        chosen = ", ".join(f"{name}.{f.name}='{getattr(section, f.name)}'" for f in extending(expected))
        yield f"{name}: is a {type(section).__name__}, but with {chosen} it is a {expected.__name__}"


def unread_fields(config: Any) -> Iterator[str]:
    """Yield a problem for every field that is set although the choices of the config do not read it.

    Built-in choices use `read_by`, see `fields.field`. Architectures and tasks from outside use their method
    `reads_field`.
    """
    choosers = _choosers(config)
    for section_name, section in sections(config):
        shared = [field for field, _ in _read_by(type(config), section_name, type(section))]
        unread = _unread(config, section_name, section, choosers)
        for field in shared:
            if field.name in unread and _is_set(section, field):
                first, *others = unread[field.name]
                place, value = first.chooser.removeprefix(f"{section_name}."), getattr(section, field.name)
                yield (
                    f"{section_name}.{field.name}={value!r} has no effect with {place}='{first.chosen}'"
                    + (f", only with {_listed([*map(repr, first.readers)])}" if first.readers else "")
                    + "".join(
                        f", or with {other.chooser.removeprefix(f'{section_name}.')}="
                        f"{_listed([*map(repr, other.readers)])}"
                        for other in others
                        if other.readers and other.chooser != first.chooser
                    )
                    + ("" if field.default in (None, dataclasses.MISSING) else f"; its default is {field.default!r}")
                    + _read_instead(field.name, [f.name for f in shared if f.name not in unread])
                )


def _read_instead(unread: str, read: Sequence[str]) -> str:
    """Return a hint at the field that may be meant: the more general one, such as dropout_rate, or a similar one."""
    general = [name for name in read if unread.endswith(f"_{name}")]
    return nearest(unread, general) or nearest(unread, read, _LIKE_THE_UNREAD)


def _listed(words: Sequence[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def unread_by(config: Any) -> dict[str, str]:
    """Return every field that the choices of the config do not read, and the choice, by dotted names."""
    choosers = _choosers(config)
    return {
        f"{section_name}.{name}": first.chooser
        for section_name, section in sections(config)
        for name, (first, *_) in _unread(config, section_name, section, choosers).items()
    }


def _choosers(config: Any) -> dict[str, tuple[dataclasses.Field, Any]]:
    """Return every field with a choice of values, and its value, by dotted name."""
    return {name: (field, value) for name, field, value in walk(config) if "choices" in field.metadata}


class _Unread(NamedTuple):
    """A choice that keeps a field from being read: its name, its value, and the values that would read the field."""

    chooser: str
    chosen: str
    readers: Collection[str]


def _unread(
    config: Any, section_name: str, section: Any, choosers: Mapping[str, tuple[dataclasses.Field, Any]]
) -> dict[str, list[_Unread]]:
    """Return the unread fields of a section by name, each with what `read_by` and all of `or_read_by` lack."""
    unread = {}
    asked = {name for name, (field, chosen) in choosers.items() if is_from_outside(field, chosen)}
    for field, ways in _read_by(type(config), section_name, type(section)):
        found = [_lacking(config, f"{section_name}.{field.name}", way, choosers, asked) for way in ways]
        lacking = [one for one in found if one is not None]
        if len(lacking) == len(ways):
            unread[field.name] = lacking
    return unread


def _lacking(
    config: Any,
    name: str,
    read_by: Mapping[str, Any],
    choosers: Mapping[str, tuple[dataclasses.Field, Any]],
    asked: Collection[str],
) -> _Unread | None:
    """Return the first choice whose value does not read the field with a dotted name; None if there is none.

    Args: read_by: the values that read it, by choice. asked: choices whose objects from outside are asked too.
    """
    for chooser in (name for name in choosers if name in read_by or name in asked):
        chooser_field, chosen = choosers[chooser]
        values = _in_layers(config, chooser, chooser_field, chosen)
        asked_first = next((value for value in values if is_from_outside(chooser_field, value)), chosen)
        readers = _readers(name, read_by.get(chooser), chooser, chooser_field, asked_first)
        if readers is not None and not {*readers} & {*values}:
            return _Unread(chooser, values[0], readers)
    return None


def _in_layers(config: Any, chooser: str, field: dataclasses.Field, chosen: Any) -> list[Any]:
    """Return the values of a choice, at least one: several where layers differ in it."""
    section, _, leaf = chooser.rpartition(".")
    return getattr(config, section).values_in_layers(leaf) if field.metadata.get("per_layer") else [chosen]


@functools.cache
def _read_by(config: Any, section_name: str, section: Any) -> list[tuple[dataclasses.Field, list[Mapping[str, Any]]]]:
    """Return the fields that a class of configs declares for a section, and the values that read each, by choice.

    A field with `or_read_by` has several such mappings, of which one is enough.
    """
    declared = field_types(field_types(config)[section_name])
    of_section = config.__dataclass_fields__[section_name].metadata.get("read_by", {})
    found: list[tuple[dataclasses.Field, list[Mapping[str, Any]]]] = []
    for field in dataclasses.fields(section):
        if field.name in declared:
            ways = field.metadata.get("read_by", {}), *field.metadata.get("or_read_by", ())
            found.append((field, [{**of_section, **way} for way in ways]))
    return found


def _readers(
    name: str, readers: Collection[str] | None, chooser: str, chooser_field: dataclasses.Field, chosen: str
) -> Collection[str] | None:
    """Return the values of a choice with which a field is read; None if the choice does not restrict the field.

    Args:
      readers: the built-in values of the choice that read the field, by its `read_by`; None if it names none.
    """
    if not is_from_outside(chooser_field, chosen):
        return readers
    if "extends" not in chooser_field.metadata:
        return None  # the object may read any field
    table = chooser_field.metadata["choices"].table
    # An outside object is asked about fields that only some built-in ones read, and about those in `extends`.
    section, _, leaf = name.rpartition(".")
    is_its_business = readers is not None or {name, section} & {*chooser_field.metadata["extends"]}
    if name in (chooser, *chooser_field.metadata["always_read"]) or not is_its_business:
        return None
    names = {name, section}
    if section == chooser.rpartition(".")[0]:
        names.add(leaf)
    return None if table[chosen].reads_field(names) else readers or ()


def _is_set(section: Any, field: dataclasses.Field) -> bool:
    """Return whether a field differs from its default, or from the value derived for an unset field."""
    value = getattr(section, field.name)
    if value == field.default:
        return False
    if field.default is None and hasattr(section, "resolved"):
        return value != getattr(dataclasses.replace(section, **{field.name: None}).resolved(), field.name)
    return True


def value_problem(field: dataclasses.Field, annotation: Any, value: Any) -> str | None:
    """Return what is wrong with one value by itself, or None."""
    meta = field.metadata
    if value is None and base_type(annotation) is not annotation:
        return None
    expected = base_type(annotation)
    if type(value) is not expected:
        return f"expected {expected.__name__}, got {type(value).__name__}"
    if "choices" in meta and value != field.default:
        # The default needs no check, so a table is imported only for other values.
        for name in chosen_names(field, value):
            if problem := _name_problem(field, name):
                return problem
    if expected is float and not math.isfinite(value):
        return "expected a finite number"
    if expected is float and abs(value) > _FLOAT32_MAX:
        return f"expected at most {_FLOAT32_MAX:.4g}, the largest float32"
    if expected is int and meta.get("maximum") is None and value > _INT32_MAX:
        return f"expected at most {_INT32_MAX}"
    if meta.get("minimum") is not None and value < meta["minimum"]:
        return f"expected at least {meta['minimum']}"
    if meta.get("maximum") is not None and value > meta["maximum"]:
        return f"expected at most {meta['maximum']}"
    if meta.get("above") is not None and value <= meta["above"]:
        return f"expected more than {meta['above']}"
    if meta.get("below") is not None and value >= meta["below"]:
        return f"expected less than {meta['below']}"
    return None


def _name_problem(field: dataclasses.Field, name: str) -> str | None:
    """Return why a choice cannot have a name, or None if it can."""
    choices, outside = field.metadata["choices"], field.metadata.get("outside")
    if name in choices:
        return None
    if outside and ":" in name:
        return choices.table.problem(name)
    of_several = f"'{name}': " if field.metadata.get("several") else ""
    more = ", or MODULE:OBJECT" if outside else ""
    return f"{of_several}expected one of {', '.join(choices)}{more}{nearest(name, choices)}"


def config_error(problems: list[str]) -> ConfigError:
    """Return one error that lists every problem."""
    if len(problems) == 1:
        return ConfigError(f"config: {problems[0]}")
    return ConfigError(f"config: {len(problems)} problems\n" + "\n".join(f"  - {p}" for p in problems))
