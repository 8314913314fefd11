"""A file with the style of figures."""

from __future__ import annotations

import dataclasses
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.readers import read_json_object
from transformer_jax.sweeps.figures import MetricByBin
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.drawing import IN_THE_DARK
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.study import Axis

_FAMILIES = ("serif", "sans-serif", "monospace")
_MOST_COLOURS, _LONGEST = 12, 54  # characters of a label


def read_style(file: Path, results: StudyResults) -> Style:
    """Return the style in a JSON file, whose keys are the fields of `Style`.

    Args: results: with the axes and metrics that labels name.
    Raises: ConfigError for a file that cannot be read, a key that is unknown, a value that is invalid, or a label of
      something that the study does not have.
    """
    try:
        values = read_json_object(file)
    except OSError as error:
        raise ConfigError(f"--style={file}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--style={file}: {error}") from error
    known = [field.name for field in dataclasses.fields(Style)]
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"--style={file}: no key '{name}'{nearest(name, known)}; there are {', '.join(known)}")
        if problem := _CHECKS[name](value):
            raise ConfigError(f"--style={file}: {name}={reprlib.repr(value)}: {problem}")
    names = _names(results)
    for name in values.get("labels", {}):
        if name not in names:
            raise ConfigError(
                f"--style={file}: labels: no axis, value or metric '{name}'{nearest(name, names)}; name an axis, a "
                "value, axis=value, SPLIT/METRIC or the tuned field"
            )
    if "colours" in values:
        values["colours"] = tuple(values["colours"])
    return Style(**values)


def _names(results: StudyResults) -> set[str]:
    """Return what a label can be for."""
    pairs = [pair for variant in results.variants for pair in variant.labels.items()]
    pairs += [(axis.name, value) for axis in results.study.axes if isinstance(axis, Axis) for value in axis.values]
    of_axes = {name for axis, value in pairs for name in (axis, value, f"{axis}={value}")}
    of_bins = {figure.name for figure in results.study.figures if isinstance(figure, MetricByBin)}
    tuned = set() if results.study.tuned is None else {results.study.tuned.field, results.study.tuning_metric.name}
    return of_axes | of_bins | tuned | {*results.metrics, *results.logged}


def _number(low: float, high: float) -> Callable[[Any], str]:
    def problem(value: Any) -> str:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return "" if is_number and low <= value <= high else f"expected a number from {low:g} to {high:g}"

    return problem


def _font(value: Any) -> str:
    from matplotlib import font_manager

    known = [*_FAMILIES, *font_manager.get_font_names()]
    if isinstance(value, str) and value in known:
        return ""
    near = nearest(value, known) if isinstance(value, str) else ""
    return f"expected {', '.join(_FAMILIES)} or the name of an installed font{near}"


def _colours(value: Any) -> str:
    if not isinstance(value, list) or not 2 <= len(value) <= _MOST_COLOURS:
        return f"expected a list of 2 to {_MOST_COLOURS} colours"
    for colour in value:
        if not isinstance(colour, str) or not re.fullmatch("#[0-9a-fA-F]{6}", colour):
            return f"{reprlib.repr(colour)}: expected a colour such as #0072B2"
        if colour.lower() in IN_THE_DARK:
            return f"{colour} is that of ground, text or grid, which changes on a dark page"
    return "" if len({colour.lower() for colour in value}) == len(value) else "has a colour twice"


def _colour_map(value: Any) -> str:
    import matplotlib

    if isinstance(value, str) and value in matplotlib.colormaps:
        return ""
    near = nearest(value, matplotlib.colormaps) if isinstance(value, str) else ""
    return f"expected a colour map of matplotlib, such as cividis or viridis{near}"


def _labels(value: Any) -> str:
    if not isinstance(value, Mapping):
        return "expected an object of words by name"
    for name, words in value.items():
        if not isinstance(words, str) or not words.strip() or not words.isprintable() or len(words) > _LONGEST:
            return f"{name}: expected 1 to {_LONGEST} characters in one line"
    return ""


_CHECKS: dict[str, Callable[[Any], str]] = {
    "width": _number(2, 20),
    "height": _number(1, 20),
    "font": _font,
    "font_size": _number(4, 40),
    "colours": _colours,
    "colour_map": _colour_map,
    "labels": _labels,
}
