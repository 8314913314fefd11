"""Drawings of rectangles, lines and text, written as SVG, PDF or PNG by the ending of the file.

The text of an SVG is text, and its colours follow the theme of the page. PDF and PNG are light. Equal drawings give
equal files.
"""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.sax.saxutils import escape

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 11.0
"""Size of text in pixels."""


class Shade(NamedTuple):
    """The colour of a surface on light and on dark pages; ink is readable on both."""

    light: str
    dark: str


GROUND, INK = Shade("#ffffff", "#181a1f"), Shade("#1a1a1a", "#e6e6e6")
EDGE = Shade("#7d828c", "#8a909b")
SHADES = {
    "plain": Shade("#f3f4f6", "#262a31"),
    "frame": Shade("#fafafa", "#1e2127"),
    "embedding": Shade("#fbe3ee", "#4d2a3c"),
    "attention": Shade("#fde5d0", "#553718"),
    "feed_forward": Shade("#dbeaf8", "#1d3d59"),
    "norm": Shade("#fbf3c6", "#4d4515"),
    "output": Shade("#dcf1e3", "#1c4733"),
    "recurrent": Shade("#e6e1f7", "#3a3263"),
    "dropout": Shade("#ffffff", "#181a1f"),
    "on": Shade("#0072B2", "#56B4E9"),
    "off": Shade("#e9eaed", "#2b2f36"),
}
"""Colours of rectangles by their kind."""


class Rect(NamedTuple):
    """A rectangle with its upper left corner at (x, y), in a colour of `SHADES`."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    radius: float = 4.0


class Line(NamedTuple):
    """Segments through points (x, y); with an arrow at the last one if it has a head."""

    points: tuple[tuple[float, float], ...]
    has_head: bool = False


class Sum(NamedTuple):
    """A circle with a plus sign, with its centre at (x, y)."""

    x: float
    y: float
    radius: float = 8.0


class Text(NamedTuple):
    """A line of text; x is its `anchor` (start, middle or end), y its baseline.

    is_vertical: whether it is turned around (x, y), and is read upwards.
    """

    x: float
    y: float
    text: str
    size: float = SIZE
    anchor: str = "middle"
    is_bold: bool = False
    is_vertical: bool = False

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the text in the font of PDF and PNG, which is a wide one."""
        width = text_width(self.text, self.size, self.is_bold)
        before = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor] * width
        above, below = 0.8 * self.size, 0.25 * self.size
        if self.is_vertical:
            return self.x - above, self.y + before - width, self.x + below, self.y + before
        return self.x - before, self.y - above, self.x - before + width, self.y + below


Shape = Rect | Line | Sum | Text


@dataclasses.dataclass(frozen=True)
class Drawing:
    """Shapes on a page of width x height pixels, the later ones above. title, alt: for readers who do not see it."""

    width: float
    height: float
    title: str
    alt: str
    shapes: tuple[Shape, ...]


def moved(shape: Shape, dx: float, dy: float) -> Shape:
    """Return a shape at another place."""
    if isinstance(shape, Line):
        return shape._replace(points=tuple((x + dx, y + dy) for x, y in shape.points))
    return shape._replace(x=shape.x + dx, y=shape.y + dy)


@functools.cache
def _font(is_bold: bool) -> Any:
    import matplotlib
    from matplotlib.font_manager import FontProperties

    name = "DejaVuSans-Bold.ttf" if is_bold else "DejaVuSans.ttf"
    return FontProperties(fname=str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name))


@functools.cache
def text_width(text: str, size: float = SIZE, is_bold: bool = False) -> float:
    """Return the width of a text in pixels, in DejaVu Sans, which is wider than most fonts of browsers."""
    from matplotlib.textpath import text_to_path

    font = _font(is_bold).copy()
    font.set_size(100)
    return text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] * size / 100


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _points(line: Line) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in line.points)


def _head(line: Line) -> tuple[tuple[float, float], ...]:
    """Return the triangle at the end of a line of horizontal and vertical segments."""
    (x0, y0), (x, y) = line.points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    back, side = 6.0, 3.0
    return (
        (x, y),
        (x - back * dx - side * dy, y - back * dy - side * dx),
        (x - back * dx + side * dy, y - back * dy + side * dx),
    )


def _style() -> str:
    def rules(index: int) -> str:
        fills = "".join(f".{kind}{{fill:{shade[index]}}}" for kind, shade in SHADES.items())
        return (
            f".ground{{fill:{GROUND[index]}}}text,.head{{fill:{INK[index]}}}{fills}"
            f".box,.sum{{stroke:{EDGE[index]}}}.line{{stroke:{INK[index]}}}.sum{{fill:{GROUND[index]}}}"
        )

    return (
        'text{font-family:"DejaVu Sans",Verdana,Helvetica,Arial,sans-serif}.line{fill:none}.bold{font-weight:bold}'
        f"{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}"
    )


def svg(drawing: Drawing) -> bytes:
    """Return a drawing as SVG."""
    width, height = _number(drawing.width), _number(drawing.height)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(drawing.title)}</title>',
        f'<desc id="desc">{escape(drawing.alt)}</desc>',
        f"<style>{_style()}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
    ]
    for shape in drawing.shapes:
        lines += _elements(shape)
    return "\n".join([*lines, "</svg>", ""]).encode()


def _elements(shape: Shape) -> list[str]:
    if isinstance(shape, Rect):
        place = " ".join(
            f'{name}="{_number(value)}"'
            for name, value in zip(("x", "y", "width", "height", "rx"), (*shape[:4], shape.radius), strict=True)
        )
        dashes = ' stroke-dasharray="3 2"' if shape.kind == "dropout" else ""
        return [f'<rect class="box {shape.kind}" {place}{dashes}/>']
    if isinstance(shape, Line):
        path = f'<polyline class="line" points="{_points(shape)}"/>'
        return [path, *([f'<polygon class="head" points="{_points(Line(_head(shape)))}"/>'] if shape.has_head else [])]
    x, y = _number(shape.x), _number(shape.y)
    if isinstance(shape, Sum):
        return [
            f'<circle class="sum" cx="{x}" cy="{y}" r="{_number(shape.radius)}"/>',
            *(f'<polyline class="line" points="{_points(line)}"/>' for line in _plus(shape)),
        ]
    bold = ' class="bold"' if shape.is_bold else ""
    turned = f' transform="rotate(-90 {x} {y})"' if shape.is_vertical else ""
    return [
        f'<text{bold}{turned} x="{x}" y="{y}" font-size="{_number(shape.size)}" text-anchor="{shape.anchor}">'
        f"{escape(shape.text)}</text>"
    ]


def _plus(shape: Sum) -> tuple[Line, Line]:
    x, y, arm = shape.x, shape.y, shape.radius - 3
    return Line(((x - arm, y), (x + arm, y))), Line(((x, y - arm), (x, y + arm)))


_METADATA: dict[str, Callable[[Drawing], dict[str, str | None]]] = {
    "pdf": lambda drawing: {
        "Title": drawing.title,
        "Subject": drawing.alt,
        **dict.fromkeys(("CreationDate", "Creator", "Producer")),
    },
    "png": lambda drawing: {"Title": drawing.title, "Description": drawing.alt, "Software": None},
}


def _picture(drawing: Drawing, ending: str) -> bytes:
    """Return a drawing as PDF or PNG, in light colours."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        matplotlib.rcParams["pdf.fonttype"] = 42  # TrueType, which publishers accept
        figure = Figure(figsize=(drawing.width / 96, drawing.height / 96), dpi=192, facecolor=GROUND.light)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))
        axes.set_axis_off()
        for order, shape in enumerate(drawing.shapes):
            _draw(axes, shape, order)
        file = io.BytesIO()
        figure.savefig(file, format=ending, metadata=_METADATA[ending](drawing))
    return file.getvalue()


_ALIGNMENT = {"start": "left", "middle": "center", "end": "right"}


def _draw(axes: Axes, shape: Shape, order: int) -> None:
    from matplotlib.patches import Circle, FancyBboxPatch, Polygon

    above: dict[str, Any] = {"zorder": order}
    if isinstance(shape, Rect):
        radius = min(shape.radius, shape.width / 2, shape.height / 2)
        box = FancyBboxPatch(
            (shape.x, shape.y),
            shape.width,
            shape.height,
            boxstyle=f"round,pad=0,rounding_size={radius}",
            linestyle=(0, (3, 2)) if shape.kind == "dropout" else "solid",
            edgecolor=EDGE.light,
            facecolor=SHADES[shape.kind].light,
            linewidth=0.75,
        )
        box.set_zorder(order)
        axes.add_patch(box)
    elif isinstance(shape, Line):
        axes.plot(*zip(*shape.points, strict=True), color=INK.light, linewidth=0.75, **above)
        if shape.has_head:
            axes.add_patch(Polygon(_head(shape), facecolor=INK.light, edgecolor="none", **above))
    elif isinstance(shape, Sum):
        circle = Circle((shape.x, shape.y), shape.radius, facecolor=GROUND.light, edgecolor=EDGE.light, linewidth=0.75)
        circle.set_zorder(order)
        axes.add_patch(circle)
        for line in _plus(shape):
            _draw(axes, line, order)
    else:
        font = _font(shape.is_bold).copy()
        font.set_size(shape.size * 0.75)  # points
        axes.text(
            shape.x,
            shape.y,
            shape.text,
            fontproperties=font,
            ha=_ALIGNMENT[shape.anchor],
            va="baseline",
            rotation=90 if shape.is_vertical else 0,
            rotation_mode="anchor",
            color=INK.light,
            parse_math=False,
            **above,
        )


ENDINGS: dict[str, Callable[[Drawing], bytes]] = {
    ".svg": svg,
    ".pdf": functools.partial(_picture, ending="pdf"),
    ".png": functools.partial(_picture, ending="png"),
}
"""Functions that return the bytes of a drawing, by the ending of the file."""


def check_ending(path: Path, flag: str) -> None:
    """Raise ConfigError if no drawing has the ending of a path, which `flag` gives."""
    if path.suffix.lower() not in ENDINGS:
        hint = nearest(path.suffix.lower(), ENDINGS) if path.suffix else ""
        raise ConfigError(f"--{flag}={path}: expected a file that ends in {', '.join(ENDINGS)}{hint}")


def write_drawing(drawing: Drawing, path: Path) -> Path:
    """Write a drawing in the format of the path's ending, one of `ENDINGS`, and return the path.

    Raises: CheckpointError if writing fails.
    """
    write_atomically(path, ENDINGS[path.suffix.lower()](drawing))
    return path
