"""Numbers by layer with their 95 % intervals, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transformer_jax.inspection.pictures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Bounded(NamedTuple):
    """A number and the ends of its interval; NaN for an end that is not known."""

    value: float
    low: float
    high: float


def layer_figure(
    curves: Mapping[str, Sequence[Bounded]], layers: Sequence[str], label: str, level: tuple[str, float] | None = None
) -> Figure:
    """Return a figure with a curve of every name over the layers.

    Args:
      curves: numbers of all layers by name. layers: their names. label: of the vertical axis.
      level: name and height of a dashed line.
    """
    figure = new_figure(max(4.5, 1.8 + 0.45 * len(layers)), 3.6, layout="constrained")
    axes, places = figure.subplots(), np.arange(len(layers))
    for number, (name, bounded) in enumerate(curves.items()):
        values, lows, highs = np.array(bounded, float).T
        axes.plot(places, values, marker="o", markersize=3, color=f"C{number}", label=name)
        axes.fill_between(places, lows, highs, color=f"C{number}", alpha=0.2, linewidth=0)
    if level is not None:
        axes.axhline(level[1], linestyle="--", color="grey", linewidth=1, label=level[0])
    axes.set_xticks(places, layers, rotation=45 if len(layers) > 6 else 0, ha="right" if len(layers) > 6 else "center")
    axes.set_ylabel(label)
    if len(curves) > 1 or level is not None:
        axes.legend(frameon=False)
    return figure
