"""A logged quantity of every layer against the step: a panel per variant, a line per layer, and a scale of their
colours."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from transformer_jax.sweeps.figures import CurvesByLayer
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.report.labels import literal, metric_text, missing, plain_label, variant_words, wrapped_note
from transformer_jax.sweeps.report.number_text import number_text
from transformer_jax.sweeps.report.variants import Variant

MOST_PANELS = 12
_COLUMNS = 3  # of panels
_ROW = 1.9  # inches
_PANEL_TITLE = 20  # characters
_LIGHTEST = 0.9  # of the colour map: its last colours are hard to see on a light ground

Curve = dict[int, float]


def layer_curves(figure: CurvesByLayer, axes: Any, results: StudyResults) -> str:
    """Draw a figure in place of axes, which become one or more panels; return the alt text."""
    layers = figure.layers(results.logged)
    variants = results.variants[:MOST_PANELS]
    found = [{layer: _mean(variant, name) for layer, name in layers.items()} for variant in variants]
    canvas, style = axes.figure, results.style
    axes.remove()
    across = min(len(variants), _COLUMNS)
    down = math.ceil(len(variants) / across)
    canvas.set_figheight(style.height / Style.height * max(0.9 + _ROW * down, 3.0))
    grid = canvas.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for unused in list(grid.flat)[len(variants) :]:
        unused.remove()
    panels = list(grid.flat)[: len(variants)]
    colours = _colours(style, len(layers))
    width = style.fits(_PANEL_TITLE) * _COLUMNS // across
    for at, (panel, variant, curves) in enumerate(zip(panels, variants, found, strict=True)):
        panel.tick_params(labelsize=0.8 * style.font_size, labelbottom=at + across >= len(variants))
        for colour, curve in zip(colours, curves.values(), strict=True):
            panel.plot(list(curve), list(curve.values()), color=colour, lw=1.3, marker="o" if len(curve) == 1 else "")
        if len(variants) > 1:
            name = textwrap.shorten(variant_words(variant, results) + missing([variant]), 4 * width, placeholder="…")
            panel.set_title(
                plain_label("\n".join(textwrap.wrap(name, width))), fontsize=0.8 * style.font_size, loc="left"
            )
        if figure.log_y:
            panel.set_yscale("log", nonpositive="mask")
    _scale(canvas, panels, colours, list(layers), style)
    quantity = metric_text(figure.name, results)
    note = f"the first {len(variants)} of {len(results.variants)} variants" if variants != results.variants else ""
    canvas.supxlabel("step" + (f"\n{wrapped_note(note, style)}" if note else ""), fontsize=style.font_size)
    canvas.supylabel(literal(quantity), fontsize=style.font_size)
    return _described(quantity, variants, found, results, note)


def _mean(variant: Variant, name: str) -> Curve:
    """Return the mean over seeds by step, where all of them have a value."""
    finished = [trial for trial in variant.trials if trial.status == "finished"]
    logs = [log for trial in finished or variant.trials if (log := trial.logged(name))]
    if not logs:
        return {}
    steps = sorted(set(logs[0]).intersection(*logs[1:]))
    return {step: math.fsum(log[step] for log in logs) / len(logs) for step in steps}


def _colours(style: Style, count: int) -> list[str]:
    import matplotlib
    from matplotlib.colors import to_hex

    colours = matplotlib.colormaps[style.colour_map]
    return [to_hex(colours(_LIGHTEST * at / max(count - 1, 1))) for at in range(count)]


def _scale(canvas: Any, panels: list[Any], colours: list[str], layers: list[int], style: Style) -> None:
    """Draw the colours of the layers beside all panels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    edges = [at - 0.5 for at in range(len(layers) + 1)]
    mapped = ScalarMappable(BoundaryNorm(edges, len(layers)), ListedColormap(colours))
    step = math.ceil(len(layers) / 12)
    bar = canvas.colorbar(mapped, ax=panels, ticks=list(range(0, len(layers), step)), aspect=30, pad=0.02)
    bar.set_ticklabels([str(layer) for layer in layers[::step]])
    bar.set_label("layer", fontsize=style.font_size)
    bar.ax.tick_params(which="both", labelsize=0.8 * style.font_size, length=0)
    bar.outline.set_visible(False)


def _described(quantity: str, variants: Any, found: list[dict[int, Curve]], results: StudyResults, note: str) -> str:
    said = []
    for variant, curves in zip(variants, found, strict=True):
        ends = {layer: curve[max(curve)] for layer, curve in curves.items() if curve}
        numbers = [
            f"layer {layer}, {number_text(ends[layer])}" for layer in sorted(ends) if layer in (min(ends), max(ends))
        ]
        of = f"{variant_words(variant, results)}{missing([variant])}: " if len(variants) > 1 else ""
        said.append(of + ("; ".join(numbers) or "no value"))
    return (
        f"{quantity} against the step, a line for each layer, of {note or _count(len(variants))}, means over "
        f"seeds. At the end: {'. '.join(said)}."
    )


def _count(variants: int) -> str:
    return f"{variants} variant{'s'[: variants != 1]}"
