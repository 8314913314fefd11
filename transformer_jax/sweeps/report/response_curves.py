"""The figure of a tuning: the metric against the tuned value, a line for each variant."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.sweeps.figures import CustomFigure
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.labels import metric_text, short_metric_text
from transformer_jax.sweeps.report.line_panels import Line, LinePanels, point_style
from transformer_jax.sweeps.report.tuning import Response, number, responses

_MOST_TICKS = 9
_WIDEST_LINEAR = 5.0
"""Largest ratio of scores with a linear scale."""


def response_figure(results: StudyResults) -> CustomFigure | None:
    """Return the figure of a study's tuning; None if it has none."""
    if not results.tuning or results.study.tuned is None:
        return None
    field, metric = results.study.tuned.field, short_metric_text(results.study.tuning_metric.name, results)
    title = f"Tuning: {metric} by {results.style.labels.get(field) or field.rpartition('.')[2]}"
    return CustomFigure(draw, title, described)


def draw(axes: Any, results: StudyResults) -> None:
    """Draw the curves; a ring marks the chosen value, a cross below the curve a value whose training diverged."""
    assert results.study.tuned is not None
    found = responses(results)
    lines = [
        Line(of.variant.labels, "", list(zip(*_finite(of), strict=True)), functools.partial(_draw_line, of, at))
        for at, of in enumerate(found)
    ]
    panels = LinePanels(axes, lines, results, _style)
    _scales(panels.all, found, results.style.font_size)
    field = results.study.tuned.field
    panels.label(results.style.axis(field), metric_text(results.study.tuning_metric.name, results), "")


def described(results: StudyResults) -> str:
    """Return the alt text, with the chosen values."""
    assert results.study.tuned is not None
    label, style = metric_text(results.study.tuning_metric.name, results), results.style
    chosen = [f"{number(of.chosen.value)} with {style.words(of.variant.labels)}" for of in responses(results)]
    diverged = sum(point.diverged for of in responses(results) for point in of.points)
    lost = f" {diverged} tuning trials diverged, marked by crosses." if diverged else ""
    return (
        f"{label} against {style.axis(results.study.tuned.field)}, a line for each of {len(chosen)} variants. A ring "
        f"marks the chosen value: {'; '.join(chosen)}.{lost}"
    )


def _style(colour: str, index: int) -> dict[str, Any]:
    return {name: value for name, value in point_style(colour, index).items() if name != "capsize"} | {"ms": 4}


def _draw_line(response: Response, at: int, axes: Any, style: Mapping[str, Any], _shift: float) -> Any:
    (handle,) = axes.plot(*_finite(response), **style)
    chosen = response.chosen
    if math.isfinite(chosen.score):
        axes.plot([chosen.value], [chosen.score], "o", ms=10, mfc="none", mec=style["color"], mew=1.5)
    lost = [point.value for point in response.points if not math.isfinite(point.score)]
    height = 0.03 + 0.04 * (at % 8)  # of the axes, so that crosses of several variants do not hide each other
    axes.plot(lost, [height] * len(lost), "x", color=style["color"], transform=axes.get_xaxis_transform())
    return handle


def _finite(response: Response) -> tuple[list[float], list[float]]:
    points = [point for point in response.points if math.isfinite(point.score)]
    return [point.value for point in points], [point.score for point in points]


def _scales(panels: Sequence[Any], found: Sequence[Response], size: float) -> None:
    """Scale the values logarithmically, and the metric too if its numbers are far apart. Args: size: of the font."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    values = sorted({point.value for response in found for point in response.points})
    scores = [point.score for response in found for point in response.points if math.isfinite(point.score)]
    is_wide = bool(scores) and min(scores) > 0 and max(scores) > _WIDEST_LINEAR * min(scores)
    is_single = len(panels) == 1
    ticks = values if is_single else [values[0], values[len(values) // 2], values[-1]]
    for panel in panels:
        panel.set_xscale("log")
        if len(values) <= _MOST_TICKS:
            panel.xaxis.set_major_locator(FixedLocator(ticks))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
            panel.xaxis.set_minor_locator(NullLocator())
            if is_single:
                panel.tick_params(axis="x", labelsize=0.8 * size, rotation=0 if len(values) <= 5 else 45)
        panel.xaxis.set_minor_formatter(NullFormatter())
        if is_wide:
            panel.set_yscale("log")
