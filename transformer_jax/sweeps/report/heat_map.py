"""A metric by two axes of numbers, as cells with the number in each."""

from __future__ import annotations

import itertools
import math
from typing import Any

from transformer_jax.sweeps.figures import HeatMap, number_of
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.figure_style import GREY, Style
from transformer_jax.sweeps.report.labels import metric_text, missing, plain_label, say, wrapped_note
from transformer_jax.sweeps.report.number_text import NOTHING, number_text
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.statistics import Estimate, estimate

MOST_PANELS = 12
_BLACK, _WHITE = "#000000", "#fffffe"  # neither is a colour that changes on a dark page
_COLUMNS = 2  # of panels
_CELL, _AROUND = 0.42, 1.0  # inches: height of a cell, and of the labels of a panel


def heat_map(figure: HeatMap, axes: Any, results: StudyResults) -> str:
    """Draw a figure in place of axes, which become one or more panels; return the alt text."""
    x_values, y_values = (
        sorted({variant.labels[name] for variant in results.everywhere}, key=number_of) for name in (figure.x, figure.y)
    )
    panels: dict[tuple[tuple[str, str], ...], dict[tuple[str, str], Variant]] = {}
    for variant in results.everywhere:
        others = tuple((n, v) for n, v in variant.labels.items() if n not in (figure.x, figure.y))
        panels.setdefault(others, {})[variant.labels[figure.x], variant.labels[figure.y]] = variant
    shown = dict(itertools.islice(panels.items(), MOST_PANELS))
    found = {
        others: {place: estimate([*variant.values(figure.metric).values()]) for place, variant in cells.items()}
        for others, cells in shown.items()
    }
    means = [of.mean for cells in found.values() for of in cells.values() if math.isfinite(of.mean)]
    canvas, style = axes.figure, results.style
    axes.remove()
    across = min(len(shown), _COLUMNS if len(x_values) <= 5 else 1)
    down = math.ceil(len(shown) / across)
    canvas.set_figheight(down * (_AROUND + style.height / Style.height * max(_CELL * len(y_values), 0.8)))
    grid = canvas.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    varying = {name for others in shown for name, value in others if any((name, value) not in of for of in shown)}
    for unused in list(grid.flat)[len(shown) :]:
        unused.remove()
    for panel, (others, cells) in zip(grid.flat, shown.items(), strict=False):
        size = style.font_size * (0.9 if len(x_values) * across <= 6 else 0.75)
        _panel(
            panel,
            (x_values, y_values),
            cells,
            found[others],
            (min(means, default=0), max(means, default=0)),
            size,
            style,
        )
        if varying:
            title = style.words({name: value for name, value in others if name in varying})
            panel.set_title(plain_label(title), fontsize=0.9 * style.font_size, loc="left")
    metric, lost = metric_text(figure.metric, results), any(missing([v]) for of in shown.values() for v in of.values())
    note = f"{metric}, mean over seeds" + ("; *: not all trials have finished" if lost else "")
    if len(panels) > len(shown):
        note += f"; the first {len(shown)} of {len(panels)} panels"
    if len(shown) == 1:
        say(grid.flat[0], note, style)
    else:
        canvas.suptitle(wrapped_note(note, style), fontsize=0.9 * style.font_size, x=0.01, ha="left")
    for panel in grid[-1]:
        panel.set_xlabel(plain_label(style.axis(figure.x)))
    for panel in grid[:, 0]:
        panel.set_ylabel(plain_label(style.axis(figure.y)))
    return _described(figure, found, shown, metric, results)


def _panel(
    axes: Any,
    values: tuple[list[str], list[str]],
    cells: dict[tuple[str, str], Variant],
    found: dict[tuple[str, str], Estimate],
    ends: tuple[float, float],
    size: float,
    style: Style,
) -> None:
    import matplotlib
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    x_values, y_values = values
    colours = matplotlib.colormaps[style.colour_map]
    low, high = ends
    for place in itertools.product(x_values, y_values):
        x, y = x_values.index(place[0]), y_values.index(place[1])
        mark = "*" if place in cells and missing([cells[place]]) else ""
        of = found.get(place)
        if of is None or not math.isfinite(of.mean):
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc="none", ec=GREY, lw=0.6))
            if place in cells:
                axes.text(x, y, NOTHING + mark, ha="center", va="center", fontsize=size)
            continue
        colour = to_hex(colours((of.mean - low) / (high - low) if high > low else 0.5))
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc=colour, ec="none"))
        ink = max((_BLACK, _WHITE), key=lambda ink: contrast(ink, colour))
        axes.text(x, y, number_text(of.mean) + mark, color=ink, ha="center", va="center", fontsize=size)
    axes.set_xlim(-0.5, len(x_values) - 0.5)
    axes.set_ylim(-0.5, len(y_values) - 0.5)
    axes.set_xticks(range(len(x_values)), [plain_label(name) for name in x_values])
    axes.set_yticks(range(len(y_values)), [plain_label(name) for name in y_values])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.2)."""
    dim, bright = sorted(map(_luminance, (one, other)))
    return (bright + 0.05) / (dim + 0.05)


def _luminance(colour: str) -> float:
    from matplotlib.colors import to_rgb

    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return math.fsum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _described(figure: HeatMap, found: Any, shown: Any, metric: str, results: StudyResults) -> str:
    words, said = results.style.words, []
    for others, cells in found.items():
        numbers = [
            f"{words({figure.x: x, figure.y: y})}: {number_text(of.mean)}{missing([shown[others][x, y]])}"
            for (x, y), of in cells.items()
        ]
        where = f"{words(dict(others))}: " if others else ""
        said.append(f"{where}{'; '.join(numbers)}.")
    by = " and ".join(map(results.style.axis, (figure.x, figure.y)))
    return f"{metric}, means over seeds, by {by}. {' '.join(said)}"
