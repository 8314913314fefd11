"""The diagram of a model: its stacks side by side, from the input at the bottom to the output at the top.

It shows what the fields of the config choose, so that another value gives another picture. Fields without a place in it
change no block: initial values, number types, implementations, and constants of normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.config import ExperimentConfig
from transformer_jax.inspection.diagram_parts import (
    Box,
    Column,
    Part,
    Repeat,
    Residual,
    outside_column,
    stack_parts,
    transformer_columns,
)
from transformer_jax.inspection.diagram_recurrent import recurrent_columns
from transformer_jax.inspection.drawing import SIZE, Drawing, Line, Rect, Shape, Sum, Text, moved, text_width
from transformer_jax.models.architecture import ARCHITECTURES

_TITLE = 12.0
_LINE, _PAD = 15.0, 6.0  # height of a line of text; around the text of a box
_GAP = 18.0  # between parts, room for an arrow
_SKIP = 14.0  # from a box to the connection around it
_FRAME = 14.0  # from the connection to the frame of repeated layers
_GUTTER = 30.0  # between columns
_MARGIN = 10.0


def model_columns(config: ExperimentConfig) -> list[Column]:
    """Return the columns of a resolved config: one for every stack, or one box for an architecture from outside."""
    architecture = config.model.architecture
    if not ARCHITECTURES.is_built_in(architecture):
        return [outside_column(config)]
    if ARCHITECTURES[architecture].recurrent_stacks(config.model):
        return recurrent_columns(config)
    return transformer_columns(config)


def model_diagram(config: ExperimentConfig) -> Drawing:
    """Return the diagram of a resolved config."""
    columns = model_columns(config)
    title = f"{config.model.architecture}, {config.task.name}"
    return _drawing(columns, title, f"Diagram of a model. {described(columns)}")


def layers_diagram(configs: Mapping[str, ExperimentConfig], title: str, stack: str = "encoder") -> Drawing:
    """Return the layers of one stack of several resolved configs side by side, by their titles."""
    columns = [Column(name, "x", tuple(stack_parts(config, stack, False))) for name, config in configs.items()]
    return _drawing(columns, title, f"{title}. {described(columns)}")


def described(columns: Iterable[Column]) -> str:
    """Return the parts of a diagram in words, from the input to the output."""
    return " ".join(f"{column.name}: {', '.join(map(_words, column.parts))}." for column in columns)


def _words(part: Part) -> str:
    if isinstance(part, Box):
        return f"{part.title} ({', '.join(part.lines)})" if part.lines else part.title
    if isinstance(part, Residual):
        return f"[{', '.join(map(_words, part.blocks))}] with a residual connection"
    return f"{part.label} of ({', '.join(map(_words, part.parts))})"


def boxes(parts: Iterable[Part]) -> list[Box]:
    """Return all boxes of parts."""
    found: list[Box] = []
    for part in parts:
        if isinstance(part, Box):
            found.append(part)
        else:
            found += boxes(part.blocks if isinstance(part, Residual) else part.parts)
    return found


def _has_residual(part: Part) -> bool:
    return isinstance(part, Residual) or (isinstance(part, Repeat) and any(map(_has_residual, part.parts)))


class _Placed:
    """The shapes of one column. (0, 0) is its upper end, in the middle; y grows downwards."""

    def __init__(self, column: Column) -> None:
        texts = [(box.title, _TITLE, True) for box in boxes(column.parts)]
        texts += [(line, SIZE, False) for box in boxes(column.parts) for line in box.lines]
        self.width = 20.0 * math.ceil((max(text_width(*text) for text in texts) + 2 * _PAD) / 20)
        self.skip = _SKIP if any(map(_has_residual, column.parts)) else 0.0
        self.frames: list[Shape] = []
        self.shapes: list[Shape] = []
        self.readers: list[float] = []
        """Heights of the boxes that read the memory."""
        y = self._chain(column.parts, 0.0)
        self.shapes.append(Line(((0, y + _GAP), (0, y)), has_head=isinstance(column.parts[0], Box)))
        self.shapes.append(Text(0, y + _GAP + _LINE, column.reads))
        self.shapes.append(Text(0, y + _GAP + 2 * _LINE + 3, column.name, _TITLE, is_bold=True))
        self.height = y + _GAP + 2 * _LINE + 8
        below = math.ceil(max(text_width(column.reads), text_width(column.name, _TITLE, True)) / 2)
        self.left = max(self.width / 2 + _FRAME, below)
        self.right = max(self.width / 2 + self.skip + _FRAME, below)

    @property
    def all(self) -> list[Shape]:
        return [*self.frames, *self.shapes]

    def _chain(self, parts: Sequence[Part], y: float) -> float:
        """Place parts below y, the last at the top, and return the lower end."""
        is_box = False
        for number, part in enumerate(reversed(parts)):
            if number:
                self.shapes.append(Line(((0, y + _GAP), (0, y)), has_head=is_box))
                y += _GAP
            is_box = isinstance(part, Box)  # in other parts the line goes on
            y = self._place(part, y)
        return y

    def _place(self, part: Part, y: float) -> float:
        if isinstance(part, Box):
            return self._box(part, y)
        return self._residual(part, y) if isinstance(part, Residual) else self._repeat(part, y)

    def _box(self, box: Box, y: float) -> float:
        is_low = box.kind == "dropout"
        height = _LINE * (1 + len(box.lines)) + (4 if is_low else 2 * _PAD)
        self.shapes.append(Rect(-self.width / 2, y, self.width, height, box.kind))
        baseline = y + (2 if is_low else _PAD) + 0.78 * _LINE
        self.shapes.append(Text(0, baseline, box.title, SIZE if is_low else _TITLE, is_bold=not is_low))
        for number, line in enumerate(box.lines, start=1):
            self.shapes.append(Text(0, baseline + number * _LINE, line))
        if box.reads_memory:
            self.readers.append(y + height / 2)
        return y + height

    def _residual(self, part: Residual, y: float) -> float:
        circle = Sum(0, y + Sum(0, 0).radius, Sum(0, 0).radius)
        top = circle.y + circle.radius
        self._arrow(top + _GAP, top)
        below = self._chain(part.blocks, top + _GAP)
        fork = below + _GAP
        self._arrow(fork, below)
        side = self.width / 2 + self.skip
        self.shapes.append(Line(((0, fork), (side, fork), (side, circle.y), (circle.radius, circle.y)), True))
        self.shapes.append(circle)
        return fork

    def _repeat(self, part: Repeat, y: float) -> float:
        first = len(self.shapes)
        inside = y + _LINE + 10
        self.shapes.append(Line(((0, inside), (0, y))))
        end = self._chain(part.parts, inside) + 14
        self.shapes.append(Line(((0, end), (0, end - 14)), has_head=isinstance(part.parts[0], Box)))
        left = -self.width / 2 - _FRAME
        width = self.width + 2 * _FRAME + self.skip
        self.frames.append(Rect(left, y, width, end - y, "frame", 8))
        self.shapes.insert(first, Text(left + 8, y + _LINE, part.label, SIZE, "start", True))
        return end

    def _arrow(self, start: float, end: float) -> None:
        self.shapes.append(Line(((0, start), (0, end)), True))


class _At(NamedTuple):
    """A column on the page, with its upper end at (x, y), in the middle of the column."""

    column: _Placed
    x: float
    y: float


def _drawing(columns: Sequence[Column], title: str, alt: str) -> Drawing:
    """Return a drawing of columns side by side, with their lower ends at one height, and a title above them."""
    placed = [_Placed(column) for column in columns]
    content = sum(column.left + column.right for column in placed) + _GUTTER * (len(placed) - 1)
    width = max(content, math.ceil(text_width(title, _TITLE + 1, True))) + 2 * _MARGIN
    bottom = _MARGIN + _TITLE + 2 * _GAP + max(column.height for column in placed)
    x, all_at = (width - content) / 2, []
    for column in placed:
        all_at.append(_At(column, x + column.left, bottom - column.height))
        x += column.left + column.right + _GUTTER
    shapes = [moved(shape, at.x, at.y) for at in all_at for shape in at.column.all]
    shapes.append(Text(width / 2, _MARGIN + _TITLE, title, _TITLE + 1, is_bold=True))
    if all_at[-1].column.readers:
        shapes += _memory(all_at[0], all_at[-1])
        all_at = all_at[-1:]
    shapes += [Line(((at.x, at.y), (at.x, at.y - _GAP)), has_head=True) for at in all_at]
    return Drawing(width, bottom + _MARGIN, title, alt, tuple(shapes))


def _memory(encoder: _At, decoder: _At) -> list[Shape]:
    """Return the lines from the end of the encoder, between the columns, to the boxes that read it."""
    level, gutter = encoder.y - _GAP / 2, decoder.x - decoder.column.left - _GUTTER / 2
    start = ((encoder.x, encoder.y), (encoder.x, level), (gutter, level))
    edge = decoder.x - decoder.column.width / 2
    heights = [decoder.y + height for height in decoder.column.readers]
    return [Line((*start, (gutter, height), (edge, height)), has_head=True) for height in heights]
