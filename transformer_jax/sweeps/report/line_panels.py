"""Lines in panels by one rule: the first axis in which they differ is their colour, the second their line style and
marker, and each combination of all further ones has a panel. All panels have the same scales.

Lines that differ in one axis only, and are more than MOST_TOGETHER, have a panel each, with the others in grey behind
it; so have lines whose axes have too many values. If the first two axes have more than MOST_IN_PANEL lines, the second
has panels too.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.sweeps.figures import number_of
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.figure_style import GREY, Style
from transformer_jax.sweeps.report.labels import legend, literal, plain_label, say, wrapped_note
from transformer_jax.sweeps.study import Axis

MOST_TOGETHER = 4
"""Most lines in one panel if they differ in one axis only."""
MOST_IN_PANEL, MOST_PANELS = 8, 12
"""If two axes have more lines than fit in a panel, the second has a panel for each value too."""
_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_COLUMNS, _PANEL_TITLE = 3, 22  # of panels: columns, characters
_ROW = {1: 2.5, 2: 2.0, 3: 1.45}  # inches, by number of columns
_LONGEST_END = 16  # characters of a label at the end of a line
_SPREAD = 0.24  # of shifted lines, in units of their x


class Line(NamedTuple):
    """A line of a figure.

    labels: by axis; of several values, their names with " and " between them. lost: the trials that have not finished.
    points: x and mean. draw: draws the line with its intervals on axes, in a style, shifted along x.
    """

    labels: Mapping[str, str]
    lost: str
    points: Sequence[tuple[float, float]]
    draw: Callable[[Any, Mapping[str, Any], float], Any]


class Plan(NamedTuple):
    """Which axis is shown how. values: of these axes, in order. is_apart: every line has a panel of its own."""

    values: Mapping[str, Sequence[str]]
    colour: str = ""
    style: str = ""
    panels: Sequence[str] = ()
    is_apart: bool = False


def plan(labels: Sequence[Mapping[str, str]], results: StudyResults) -> Plan:
    """Return how lines with these labels are shown."""
    known = {axis.name: list(axis.values) for axis in results.study.axes if isinstance(axis, Axis)}
    values: dict[str, list[str]] = {}
    for axis in labels[0] if labels else ():
        there = list(dict.fromkeys(of[axis] for of in labels))
        in_order = [value for value in known.get(axis, ()) if value in there]
        values[axis] = in_order + [value for value in there if value not in in_order]
    varying = [axis for axis in values if len(values[axis]) > 1]
    if len(varying) < 2:
        return Plan(values, "".join(varying), is_apart=len(labels) > MOST_TOGETHER)
    colour, style, *panels = varying
    if len(values[style]) > len(_STYLES) or len(values[colour]) * len(values[style]) > MOST_IN_PANEL:
        style, panels = "", varying[1:]
    count = len({tuple(of[axis] for axis in panels) for of in labels})
    is_apart = len(values[colour]) > len(_colours()) or count > MOST_PANELS or count == len(labels)
    return Plan(values, colour, style, panels, is_apart)


def joined_labels(all_labels: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the labels of several variants that are one line."""
    return {axis: " and ".join(dict.fromkeys(of[axis] for of in all_labels)) for axis in all_labels[0]}


class LinePanels:
    """Lines on axes. all: the axes, those of the first row first. columns: of panels."""

    def __init__(
        self,
        axes: Any,
        lines: Sequence[Line],
        results: StudyResults,
        style: Callable[[str, int], Mapping[str, Any]],
        is_shifted: bool = False,
    ) -> None:
        """Draw the lines.

        Args:
          axes: replaced by a grid of axes with common scales if there is more than one panel.
          style: returns the style of a line from its colour and the index of its line style and marker.
          is_shifted: whether lines of one panel are a little apart, so that their intervals do not hide each other.
        """
        self._results, self._lines, self._style = results, lines, style
        self._canvas = axes.figure
        self._plan = plan([line.labels for line in lines], results)
        if self._plan.is_apart:
            groups = [[line] for line in lines]
        else:
            keys = [tuple(line.labels[axis] for axis in self._plan.panels) for line in lines]
            places = {
                key: [self._plan.values[a].index(v) for a, v in zip(self._plan.panels, key, strict=True)]
                for key in keys
            }
            groups = [
                [line for line, of in zip(lines, keys, strict=True) if of == key]
                for key in sorted(places, key=lambda key: places[key])
            ]
        self.columns = self._columns(len(groups))
        self.all = [axes] if len(groups) < 2 else self._grid(axes, len(groups))
        for panel, group in zip(self.all, groups, strict=False):
            for at, line in enumerate(group):
                shift = _SPREAD * (at / max(len(group) - 1, 1) - 0.5) if is_shifted and len(group) > 1 else 0.0
                line.draw(panel, self._style_of(line), shift)
            if len(groups) > 1:
                self._title(panel, group)

    def label(self, x: str, y: str, note: str) -> None:
        """Label the axes and the lines, and show a note above all panels. Call it when the scales are set."""
        plan, lost = self._plan, [line for line in self._lines if line.lost]
        if not plan.is_apart and (plan.style or plan.panels or len(self._lines) == 1) and lost:
            of = [f"{self._results.style.words(line.labels)}{line.lost}" for line in lost[:3]]
            more = f", and {len(lost) - 3} others" if len(lost) > 3 else ""
            note = "; ".join(filter(None, [note, ", ".join(of) + more]))
        if len(self.all) == 1:
            self.all[0].set_xlabel(literal(x))
            self.all[0].set_ylabel(literal(y))
            say(self.all[0], note, self._results.style)
        else:
            size = self._results.style.font_size
            below = (
                f"\n{wrapped_note(note, self._results.style)}" if note and not plan.is_apart else ""
            )  # the legend is above
            self._canvas.supxlabel(literal(x) + below, fontsize=size)
            self._canvas.supylabel(literal(y), fontsize=size)
            if note and plan.is_apart:
                self._canvas.suptitle(wrapped_note(note, self._results.style), fontsize=0.9 * size, x=0.01, ha="left")
        if plan.colour and not plan.is_apart and not (len(self.all) == 1 and not plan.style and self._label_ends()):
            self._legend()

    def _columns(self, count: int) -> int:
        last = self._plan.panels[-1:]
        if not self._plan.is_apart and len(self._plan.panels) > 1 and len(self._plan.values[last[0]]) <= _COLUMNS:
            return len(self._plan.values[last[0]])
        return min(count, _COLUMNS) if count != 4 else 2

    def _grid(self, axes: Any, count: int) -> list[Any]:
        axes.remove()
        rows = math.ceil(count / self.columns)
        scale = self._results.style.height / Style.height
        self._canvas.set_figheight(scale * (0.7 + _ROW[self.columns] * rows))
        grid = self._canvas.subplots(rows, self.columns, sharex=True, sharey=True, squeeze=False)
        for unused in list(grid.flat)[count:]:
            unused.remove()
        panels = list(grid.flat)[:count]
        for at, panel in enumerate(panels):
            panel.tick_params(labelsize=0.75 * self._results.style.font_size, labelbottom=at + self.columns >= count)
        return panels

    def _title(self, panel: Any, group: Sequence[Line]) -> None:
        words = self._results.style.words
        if self._plan.is_apart:
            for other in self._lines:
                if other is not group[0] and other.points:
                    panel.plot(*zip(*other.points, strict=True), lw=0.7, color=GREY, zorder=1)
            text = words(self._varying(group[0].labels)) + group[0].lost
        else:
            text = words({axis: group[0].labels[axis] for axis in self._plan.panels})
        width = self._results.style.fits(_PANEL_TITLE) * _COLUMNS // self.columns
        name = textwrap.shorten(text, 4 * width, placeholder="…")
        size = 0.8 * self._results.style.font_size
        panel.set_title(plain_label("\n".join(textwrap.wrap(name, width))), fontsize=size, loc="left")

    def _varying(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {axis: value for axis, value in labels.items() if len(self._plan.values[axis]) > 1}

    def _style_of(self, line: Line) -> Mapping[str, Any]:
        plan = self._plan
        if plan.is_apart or not plan.colour:
            return self._style(_colours()[0], 0)
        index = self._place(plan.colour, line.labels[plan.colour])
        colour = _colours()[index % len(_colours())]
        if plan.style:
            return self._style(colour, plan.values[plan.style].index(line.labels[plan.style]))
        return self._style(colour, 0 if plan.panels else index)

    def _place(self, axis: str, value: str) -> int:
        """Return the place of a value among all of the study, so that it has one colour in all figures."""
        for of in self._results.study.axes:
            if of.name == axis and isinstance(of, Axis) and len(of.values) <= len(_colours()) and value in of.values:
                return list(of.values).index(value)
        return self._plan.values[axis].index(value)

    def _label_ends(self) -> bool:
        """Write names at the ends of the lines; return False, and write nothing, where they would not fit."""
        names, axes = [self._end(line) for line in self._lines], self.all[0]
        if not all(line.points for line in self._lines) or max(map(len, names)) > self._results.style.fits(
            _LONGEST_END
        ):
            return False
        ends = [line.points[-1] for line in self._lines]
        if len({x for x, _ in ends}) > 1:
            return False
        size = 0.9 * self._results.style.font_size
        texts = [
            axes.annotate(plain_label(name), end, (7, 0), textcoords="offset points", va="center", fontsize=size)
            for name, end in zip(names, ends, strict=True)
        ]
        self._canvas.draw_without_rendering()
        boxes = sorted((text.get_window_extent() for text in texts), key=lambda box: box.y0)
        if all(one.y1 <= other.y0 for one, other in itertools.pairwise(boxes)):
            return True
        for text in texts:
            text.remove()
        return False

    def _end(self, line: Line) -> str:
        axis, style = self._plan.colour, self._results.style
        value = line.labels[axis]
        name = style.value(axis, value) if math.isnan(number_of(value)) else style.words({axis: value})
        return name + line.lost

    def _legend(self) -> None:
        from matplotlib.lines import Line2D

        plan, style = self._plan, self._results.style
        if not plan.style and not plan.panels:
            handles = [Line2D([], [], **self._plain(self._style_of(line))) for line in self._lines]
            names = [f"{style.value(plan.colour, line.labels[plan.colour])}{line.lost}" for line in self._lines]
            legend(self._canvas, handles, names, self._results.style, style.axis(plan.colour))
            return
        import matplotlib

        ink, handles, names = matplotlib.rcParams["text.color"], [], []
        for value in plan.values[plan.colour]:
            colour = _colours()[self._place(plan.colour, value) % len(_colours())]
            handles.append(Line2D([], [], color=colour, lw=3))
            names.append(style.words({plan.colour: value}))
        styles = plan.values[plan.style] if plan.style else ()
        for _ in styles[len(names) :]:  # so that each axis has a column
            handles.append(Line2D([], [], ls=""))
            names.append("")
        for index, value in enumerate(styles):
            handles.append(Line2D([], [], **self._plain(self._style(ink, index))))
            names.append(style.words({plan.style: value}))
        legend(self._canvas, handles, names, style, columns=2 if styles else None, is_above=len(self.all) > 1)

    @staticmethod
    def _plain(style: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in style.items() if name != "capsize"}


def line_style(colour: str, index: int) -> dict[str, Any]:
    """Return the style of a line without markers."""
    return {"color": colour, "ls": _STYLES[index % len(_STYLES)]}


def point_style(colour: str, index: int) -> dict[str, Any]:
    """Return the style of a line with markers and error bars."""
    marker, ls = _MARKERS[index % len(_MARKERS)], _STYLES[index % len(_STYLES)]
    return {"color": colour, "marker": marker, "ls": ls, "ms": 5, "capsize": 3, "lw": 1.4}


def _colours() -> list[str]:
    import matplotlib

    return matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
