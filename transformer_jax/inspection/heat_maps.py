"""Attention weights as heat maps: one figure per attention and layer, its heads side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.inspection.attention import KINDS, AttentionMaps, Selection
from transformer_jax.inspection.pictures import (
    MASKED,
    ROW_CHARACTERS,
    WEIGHTS,
    label_ticks,
    new_figure,
    save,
    shortened,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL = 0.16  # inches: a line of 8-point text
_SMALLEST = 1.6  # inches: room for the name of a head
_NARROWEST = 4.2  # inches: room for the title
_CHARACTER = 0.068  # inches: width of most letters at 8 points
_HEADS_IN_A_ROW = 4


def write_heat_maps(maps: AttentionMaps, shown: Selection, folder: Path) -> list[Path]:
    """Write KIND_layer_LAYER.png for the selected layers, remove files of an earlier text, and return the new paths."""
    for kind in KINDS:
        for old in folder.glob(f"{kind}_layer_*.png"):
            old.unlink()
    return [
        save(heat_map(maps, kind, layer, shown.heads), folder / f"{kind}_layer_{layer}.png")
        for kind, layers in shown.layers.items()
        for layer in layers
    ]


def heat_map(maps: AttentionMaps, kind: str, layer: int = 0, heads: Sequence[int] | None = None) -> Figure:
    """Return the figure of one layer: a row per query, a column per key, colours from white (0) to dark blue (1).

    Args:
      kind: a name of `KINDS`.
      layer, heads: from 0; default all heads.
    """
    weights = maps.weights[kind][layer]
    heads = range(len(weights)) if heads is None else heads
    queries, keys = maps.queries(kind), maps.keys(kind)
    layout = _Layout(queries, keys, len(heads))
    figure = new_figure(layout.width, layout.height)
    image = None
    for place, head in enumerate(heads):
        axes = figure.add_axes(layout.panel(place))
        shown = np.ma.masked_array(weights[head], mask=_masked(kind, *weights[head].shape))
        image = axes.imshow(shown, cmap=WEIGHTS, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
        axes.set_facecolor(MASKED)
        label_ticks(axes, queries if place % layout.columns == 0 else None, keys)
        axes.set_xlabel(f"head {head}")
    figure.text(0.1 / layout.width, 1 - 0.3 / layout.height, f"{KINDS[kind]}, layer {layer}", size=12)
    assert image is not None, "there is a head to show"
    bar = figure.colorbar(image, cax=figure.add_axes(layout.colour_bar))
    bar.ax.tick_params(labelsize=8)
    return figure


def _masked(kind: str, queries: int, keys: int) -> np.ndarray:
    """Return the mask of keys that a query may not attend to, [T, S]; a single sentence has no padding."""
    everything = np.ones((queries, keys), bool)
    return np.triu(everything, 1) if kind == "decoder_self_attention" else ~everything


class _Layout:
    """The places of panels, in inches and fractions; computed here, because layout by drawing takes seconds."""

    def __init__(self, queries: Sequence[str], keys: Sequence[str], heads: int) -> None:
        self.columns = min(heads, _HEADS_IN_A_ROW)
        rows = math.ceil(heads / self.columns)
        self._panel = max(len(keys) * _CELL, _SMALLEST), max(len(queries) * _CELL, _SMALLEST)
        self._left = 0.25 + _CHARACTER * max(len(shortened(label, ROW_CHARACTERS)) for label in queries)
        self._top = 0.15 + _CHARACTER * max(len(shortened(label)) for label in keys)
        self._below = 0.3
        self.width = max(self._left + self.columns * (self._panel[0] + 0.2) + 0.6, _NARROWEST)
        self.height = 0.45 + rows * (self._top + self._panel[1] + self._below)

    def panel(self, place: int) -> tuple[float, float, float, float]:
        row, column = divmod(place, self.columns)
        left = self._left + column * (self._panel[0] + 0.2)
        bottom = self.height - 0.45 - row * (self._top + self._panel[1] + self._below) - self._top - self._panel[1]
        return self._fractions(left, bottom, *self._panel)

    @property
    def colour_bar(self) -> tuple[float, float, float, float]:
        bottom = self.height - 0.45 - self._top - self._panel[1]
        return self._fractions(self._left + self.columns * (self._panel[0] + 0.2), bottom, 0.12, self._panel[1])

    def _fractions(self, left: float, bottom: float, width: float, height: float) -> tuple[float, float, float, float]:
        return left / self.width, bottom / self.height, width / self.width, height / self.height


def entropy_rows(entropies: Mapping[str, np.ndarray], shown: Selection) -> list[tuple[str, int, list[float]]]:
    """Return (attention, layer, entropy of every selected head) in the order of the pictures.

    Args:
      entropies: by name of `KINDS`, [L, N].
    """
    return [
        (KINDS[kind], layer, [float(entropies[kind][layer, head]) for head in shown.heads])
        for kind, layers in shown.layers.items()
        for layer in layers
    ]
