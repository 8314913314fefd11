"""The derived defaults that the axes of a study move, such as the peak rate along an axis of warm-ups."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from transformer_jax.config import ReadConfig, causes_of, derived_fields, short, walk, without_effect
from transformer_jax.config_file import read_with_sources
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.search.search import label, rounded
from transformer_jax.sweeps.study import Axis, Range, Study
from transformer_jax.sweeps.trials import fields_of_variant


def notes_on_axes(study: Study, overrides: Mapping[str, Any]) -> list[str]:
    """Return a note for every axis that moves derived defaults, with their value for every value of the axis.

    The other axes have their first value; a range has its two ends. An axis of which a variant is invalid has no note.

    Args:
      overrides: config fields by dotted name, for every trial.
    """
    notes = []
    for axis in study.axes:
        with contextlib.suppress(ConfigError):  # the search reports it
            if moved := _moved(axis, _variants(study, axis, overrides)):
                notes.append(f"axis '{axis.name}': {'; '.join(moved)}")
    return notes


def _variants(study: Study, axis: Axis | Range, overrides: Mapping[str, Any]) -> dict[str, ReadConfig]:
    """Return the config of every value of an axis, by the name of the value."""
    first = {other.name: _values(other)[0] for other in study.axes}
    variants = {}
    for value in _values(axis):
        chosen = {**first, axis.name: value}
        drawn = {other.field: chosen[other.name] for other in study.axes if isinstance(other, Range)}
        labels = {name: label(of_axis) for name, of_axis in chosen.items()}
        fields = fields_of_variant(study, labels, drawn, overrides)
        variants[label(value)] = read_with_sources(study.find_baseline(), fields)
    return variants


def _values(axis: Axis | Range) -> list[Any]:
    return [rounded(axis, end) for end in (axis.low, axis.high)] if isinstance(axis, Range) else list(axis.values)


def _moved(axis: Axis | Range, variants: Mapping[str, ReadConfig]) -> list[str]:
    """Return a text for every default that all variants derive and read, and that differs between them."""
    fields = {axis.field} if isinstance(axis, Range) else set().union(*axis.values.values())
    derived = [derived_fields(read.unresolved, read.config) for read in variants.values()]
    unused = set().union(*(without_effect(read.config) for read in variants.values()))
    configs = [{name: value for name, _, value in walk(read.config)} for read in variants.values()]
    alike: dict[tuple[str, str], list[str]] = {}
    for name in derived[0]:
        causes = [cause for cause in causes_of(name, derived[0]) if cause in fields]
        if not causes or name in unused or not all(name in of_variant for of_variant in derived):
            continue
        values = [values[name] for values in configs]
        if len(set(values)) > 1:
            listed = ", ".join(f"{short(value)} with {of}" for of, value in zip(variants, values, strict=True))
            alike.setdefault((" and ".join(causes), listed), []).append(name)
    return [
        f"{' and '.join(names)} {'follows' if len(names) == 1 else 'follow'} from {causes}: {listed}"
        for (causes, listed), names in alike.items()
    ]
