"""Numbers by place and token or head, as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.inspection.pictures import SIGNED, WEIGHTS, label_ticks, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL = 0.3  # inches
_LEFT, _TOP, _RIGHT = 3.0, 1.6, 1.0


def effect_map(rows: Mapping[str, np.ndarray], columns: Sequence[str], signed: bool) -> Figure:
    """Return a figure with a row [C] for each name, and a cell for each of the C columns.

    Args: signed: colours around 0, up to the largest size; else from 0 to 1.
    """
    values = np.stack([np.atleast_1d(row) for row in rows.values()])
    cells = max(len(columns), 4) * _CELL, len(rows) * _CELL
    width, height = _LEFT + cells[0] + _RIGHT, _TOP + cells[1] + 0.2
    figure = new_figure(width, height)
    panel = _LEFT / width, 0.2 / height, cells[0] / width, cells[1] / height
    axes = figure.add_axes(panel)
    most = float(np.abs(values).max()) or 1.0
    limits = (-most, most) if signed else (0.0, 1.0)
    colours = SIGNED if signed else WEIGHTS
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto", interpolation="nearest")
    label_ticks(axes, list(rows), columns)
    bar = figure.colorbar(
        image, cax=figure.add_axes((panel[0] + panel[2] + 0.1 / width, panel[1], 0.12 / width, panel[3]))
    )
    bar.ax.tick_params(labelsize=8)
    return figure
