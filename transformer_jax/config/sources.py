"""The source of every value of a config, and the derived defaults that overrides move."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from transformer_jax.config.experiment import ExperimentConfig
from transformer_jax.config.fields import is_from_outside
from transformer_jax.config.problems import unread_by
from transformer_jax.config.sections import walk
from transformer_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class ValueSource:
    """The source of a value.

    fields: dotted names of the fields from which a derived default is computed; empty for other sources, and for a
    field from outside the package that does not name them.
    """

    kind: Literal["default", "file", "flag", "data", "derived"]
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} from {_together(self.fields)}" if self.fields else self.kind


@dataclasses.dataclass(frozen=True)
class MovedDefault:
    """A derived default with another value than in the file, because overrides set fields that it follows from.

    causes: dotted names of these fields; empty if the field does not name them.
    """

    name: str
    value: Any
    before: Any
    causes: tuple[str, ...]

    def __str__(self) -> str:
        causes = _together(self.causes) or "other fields"
        return f"{self.name}={short(self.value)} follows from {causes} ({short(self.before)} in the file)"


@dataclasses.dataclass(frozen=True)
class ReadConfig:
    """A config that was read from a file, with overrides.

    Attributes:
      config: validated and resolved.
      unresolved: the same config, with None for derived defaults.
      given: the values of the file without overrides, as nested mappings.
      overridden: dotted names of the fields that overrides have set.
      fitted: dotted names of the fields that the config file has set according to the user's data.
    """

    config: ExperimentConfig
    unresolved: ExperimentConfig
    given: Mapping[str, Any]
    overridden: frozenset[str]
    fitted: frozenset[str] = frozenset()

    def sources(self) -> dict[str, ValueSource]:
        """Return the source of every field, by dotted name.

        A field that the file sets to its default has the source `default`, since the file's values do not tell.
        """
        derived = derived_fields(self.unresolved, self.config)
        sources = {}
        for name, field, value in walk(self.unresolved):
            if name in derived:
                sources[name] = ValueSource("derived", derived[name])
            elif name in self.overridden:
                sources[name] = ValueSource("flag")
            elif name in self.fitted:
                sources[name] = ValueSource("data")
            else:
                sources[name] = ValueSource("default" if value == field.default else "file")
        return sources

    def moved_defaults(self) -> list[MovedDefault]:
        """Return the derived defaults whose values changed because of overrides.

        The list is also empty if the file is valid only with the overrides."""
        with contextlib.suppress(ConfigError):
            return moved_defaults(ExperimentConfig.unresolved(self.given), self.unresolved)
        return []


def derived_fields(unresolved: ExperimentConfig, resolved: ExperimentConfig) -> dict[str, tuple[str, ...]]:
    """Return the fields whose values are derived, and for each the fields that it follows from, by dotted name.

    Args:
      resolved: the same config with its derived values.
    """
    values = _values(resolved)
    return {
        name: tuple(field.metadata.get("derived_from", ()))
        for name, field, value in walk(unresolved)
        if value is None and values[name] is not None
    }


def is_derived(resolved: ExperimentConfig, name: str) -> bool:
    """Return whether a field has the value that is derived if it is not set; `name` is dotted."""
    section, _, leaf = name.rpartition(".")
    unset = dataclasses.replace(getattr(resolved, section), **{leaf: None})
    try:
        return dataclasses.replace(resolved, **{section: unset}).resolved() == resolved
    except ConfigError:
        return False


def causes_of(name: str, derived: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the fields that a derived default follows from, directly or through another derived default.

    Args:
      derived: as in `derived_fields`.
    """
    direct = derived.get(name, ())
    return tuple(dict.fromkeys([*direct, *(cause for field in direct for cause in causes_of(field, derived))]))


def without_effect(resolved: ExperimentConfig) -> set[str]:
    """Return the dotted names of the fields that the config does not read, or whose `used_with` it does not meet."""
    values = _values(resolved)
    choosers = {name: field for name, field, _ in walk(resolved) if field.metadata.get("outside")}
    outside = {name for name, field in choosers.items() if is_from_outside(field, values[name])}  # may use any field
    unused = {
        name
        for name, field, _ in walk(resolved)
        if any(by not in outside and values[by] not in used for by, used in field.metadata.get("used_with", {}).items())
    }
    return unused | set(unread_by(resolved))


def moved_defaults(before: ExperimentConfig, after: ExperimentConfig) -> list[MovedDefault]:
    """Return the derived defaults that differ between two unresolved configs, in the order of the fields.

    Only fields that both configs derive and the second one reads.

    Raises: ConfigError if a config is not valid.
    """
    old_config, new_config = before.resolved(), after.resolved()
    old, new, unused = _values(old_config), _values(new_config), without_effect(new_config)
    was_derived, derived = derived_fields(before, old_config), derived_fields(after, new_config)
    changed = {name for name in new if name not in derived and old.get(name) != new[name]}
    return [
        MovedDefault(name, new[name], old[name], tuple(c for c in causes_of(name, derived) if c in changed))
        for name in derived
        if name in was_derived and name not in unused and new[name] != old[name]
    ]


def short(value: Any) -> str:
    """Return a value as text; a float has three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _values(config: ExperimentConfig) -> dict[str, Any]:
    return {name: value for name, _, value in walk(config)}


def _together(names: Sequence[str]) -> str:
    """Return "a", "a and b", or "a, b and c"."""
    *others, last = names or ("",)
    return f"{', '.join(others)} and {last}" if others else last
