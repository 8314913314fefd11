"""Numbers by place and token or head, as a heat map."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from transformer_jax.inspection.pictures import (
    COLUMN_CHARACTERS,
    ROW_CHARACTERS,
    SIGNED,
    WEIGHTS,
    label_ticks,
    new_figure,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 32
"""Columns up to which cells are as wide as their words; of more, cells are narrow and have none."""
_CELL = 0.3  # inches
_CHARACTER, _TITLE_CHARACTER, _TITLE_LINE = 0.072, 0.084, 0.18  # inches: of 8 and of 10 points
_MARGIN, _BAR, _RIGHT = 0.15, 0.12, 0.8
_NARROWEST = 5.0
_WORD = 12  # characters of a word in a cell
_DARK = 0.18  # relative luminance at which black and white have the same contrast, about 4.6


def effect_map(
    rows: Mapping[str, np.ndarray],
    columns: Sequence[str],
    signed: bool,
    title: str = "",
    words: Sequence[Sequence[str]] | None = None,
) -> Figure:
    """Return a figure with a row [C] for each name, and a cell for each of the C columns.

    Args:
      signed: colours around 0, up to the largest size; else from 0 to 1.
      title: says what the numbers are.
      words: of the cells, a row of C for each name.
    """
    values = np.stack([np.atleast_1d(row) for row in rows.values()])
    words = words if words is not None and len(columns) <= MOST_COLUMNS else None
    cell = _CELL
    if words is not None:
        longest = max(len(word) for row in words for word in row)
        cell = max(cell, min(longest, _WORD) * _CHARACTER + 0.12)
    is_upright = max(map(len, columns)) * _CHARACTER > cell
    names = min(max(map(len, columns)), COLUMN_CHARACTERS) * _CHARACTER if is_upright else 0.14
    left = _MARGIN + min(max(map(len, rows)), ROW_CHARACTERS) * _CHARACTER + 0.1
    inner = len(columns) * cell, len(rows) * _CELL
    width = max(left + inner[0] + _RIGHT, _NARROWEST)
    lines = textwrap.wrap(title, int((width - 2 * _MARGIN) / _TITLE_CHARACTER))
    top = _MARGIN + len(lines) * _TITLE_LINE + (0.1 if lines else 0) + names + 0.1
    height = top + inner[1] + _MARGIN
    figure = new_figure(width, height)
    panel = left / width, _MARGIN / height, inner[0] / width, inner[1] / height
    axes = figure.add_axes(panel)
    most = float(np.abs(values).max()) or 1.0
    limits = (-most, most) if signed else (0.0, 1.0)
    colours = SIGNED if signed else WEIGHTS
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    label_ticks(axes, list(rows), columns)
    if not is_upright:
        axes.tick_params(axis="x", rotation=0)
    if words is not None:
        _write(axes, words, image)
    for line, text in enumerate(lines):
        y = 1 - (_MARGIN + line * _TITLE_LINE) / height
        figure.text(_MARGIN / width, y, text, size=10, va="top", parse_math=False)
    beside = panel[0] + panel[2] + 0.1 / width
    bar = figure.colorbar(image, cax=figure.add_axes((beside, panel[1], _BAR / width, panel[3])))
    ticks = [limits[0], sum(limits) / 2, limits[1]]
    bar.set_ticks(ticks, labels=[f"{tick:.2g}" for tick in ticks])
    bar.ax.tick_params(labelsize=8)
    return figure


def _write(axes: Axes, words: Sequence[Sequence[str]], image: Any) -> None:
    """Write words into the cells, black on light colours and white on dark ones."""
    colours = image.to_rgba(image.get_array())
    for y, row in enumerate(words):
        for x, word in enumerate(row):
            is_dark = colours[y, x, :3] ** 2.2 @ (0.2126, 0.7152, 0.0722) < _DARK
            ink = "white" if is_dark else "black"
            axes.text(x, y, shortened(word, _WORD), ha="center", va="center", size=8, color=ink, parse_math=False)
