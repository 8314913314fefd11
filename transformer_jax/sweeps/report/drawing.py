"""Draw the figures of a study with matplotlib, as SVG and PDF files whose bytes depend only on the results.

Ground, ink and grid of an SVG follow the theme of its page; a PDF is light. The other colours, unless the style has
others, are those of Okabe and Ito 2008 ("Color universal design"), which people with any colour vision can tell apart.
Markers and line styles differ as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.readers import read_bytes
from transformer_jax.sweeps.figures import (
    COSTS,
    Curves,
    CurvesByLayer,
    CustomFigure,
    Figure,
    HeatMap,
    MetricByAxis,
    MetricByBin,
    MetricByVariant,
)
from transformer_jax.sweeps.report import plots
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.report.forest import CAPTION, draw_forest
from transformer_jax.sweeps.report.formatting import metric_name
from transformer_jax.sweeps.report.heat_map import heat_map
from transformer_jax.sweeps.report.labels import short_metric_text
from transformer_jax.sweeps.report.layer_curves import layer_curves
from transformer_jax.sweeps.report.response_curves import response_figure
from transformer_jax.sweeps.results_folder import FIGURES, KeptFigure
from transformer_jax.tasks.task import TRAIN

logger = logging.getLogger(__name__)
STREAM = "monitor/stream_rms"
"""The beginning of the names of the sizes of the outputs of layers; see training/monitor.py."""
OPENING = 0
"""Number of the figure that opens the page."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure: SVG for light and dark pages, PDF for papers, title and alt text.

    number: its place among the study's figures, from 1; 0 for the one that opens the page. file: name of the SVG.
    is_kept: it is from an earlier report, which may lack the PDF. caption: below the figure, if not the alt text.
    """

    number: int
    file: str
    title: str
    alt: str
    svg: bytes
    pdf: bytes
    is_kept: bool = False
    caption: str = ""

    @property
    def opens_page(self) -> bool:
        """Whether it is shown before the tables."""
        return self.number == OPENING

    @property
    def pdf_file(self) -> str:
        """Name of the PDF."""
        return self.file.removesuffix(".svg") + ".pdf"


_METADATA = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Without times and versions, so that the bytes depend only on the results."""
GROUND, INK, GRID = "#ffffff", "#1a1a1a", "#d9d9d9"
IN_THE_DARK = {GROUND: "#181a1f", INK: "#e6e6e6", GRID: "#3c3f46"}
"""The colours on a dark page by those on a light one."""


def default_figures(results: StudyResults) -> tuple[Figure, ...]:
    """Return the figures of a study that declares none."""
    streams = {name.rpartition("_")[0] for name in results.logged if re.fullmatch(rf"{STREAM}_\w+_\d+", name)}
    by_layer = [CurvesByLayer(f"{name}_*") for name in sorted(streams)]
    return (MetricByVariant(results.study.metrics[0].name), Curves("valid/loss"), *by_layer)


def draw_opening(results: StudyResults, effects: Sequence[Effect]) -> Iterator[Drawn]:
    """Yield the forest plot of the contrasts; nothing if there are none."""
    if not effects:
        return
    files, alt = _saved(functools.partial(draw_forest, effects, results=results), results, results.style.height)
    title = "Differences: mean, 95 % interval and seeds"
    svg = _with_dark_colours(files["svg"])
    yield Drawn(OPENING, f"{OPENING}_differences.svg", title, alt, svg, files["pdf"], caption=CAPTION)


def draw_figures(results: StudyResults) -> Iterator[Drawn]:
    """Yield every figure of a study, in its order, and that of its tuning.

    Curves against a cost that no trial has logged, such as operations of an architecture that does not count them, are
    left out with a warning. If a results folder lacks the numbers of a figure, a warning names it, and it stays as the
    earlier report has drawn it.

    Raises: ConfigError for a metric or quantity that no trial has, and if the function of a `CustomFigure` raises.
    """
    for number, figure in _numbered_figures(results):
        if isinstance(figure, KeptFigure):
            yield from _kept(figure, results)
        elif problem := _problem(figure, results):
            if not results.is_committed:
                raise ConfigError(problem)
            logger.warning("%s", problem)
            if number in results.kept:
                yield from _kept(results.kept[number], results)
        elif isinstance(figure, Curves) and figure.x != "step" and f"{TRAIN}/{figure.x}" not in results.logged:
            cost = f"{TRAIN}/{figure.x}"
            logger.warning("figure Curves of '%s' is not drawn: no trial has logged '%s'", figure.quantity, cost)
            if number in results.kept:
                yield from _kept(results.kept[number], results)
        else:
            yield _drawn(number, figure, results)
    if (figure := response_figure(results)) is not None:
        yield _drawn(len(_numbered_figures(results)) + 1, figure, results)


def _drawn(number: int, figure: Figure, results: StudyResults) -> Drawn:
    title = figure.title or _default_title(figure, results)
    slug = re.sub(r"\W+", "_", title.lower()).strip("_")[:40].strip("_")
    draw = functools.partial(_draw, figure, results=results)
    with _named_errors(figure):
        files, alt = _saved(draw, results, _height(figure, results))
    return Drawn(number, f"{number}_{slug}.svg", title, alt, _with_dark_colours(files["svg"]), files["pdf"])


def undrawable(results: StudyResults) -> list[str]:
    """Return for each figure that cannot be drawn anew from a results folder, why; empty for a work directory."""
    if not results.is_committed:
        return []
    found = [
        f"figure '{figure.title}': the code of the study draws it; pass --study=FOLDER"
        if isinstance(figure, KeptFigure)
        else _problem(figure, results)
        for _, figure in _numbered_figures(results)
    ]
    return list(filter(None, found))


def _numbered_figures(results: StudyResults) -> list[tuple[int, Figure | KeptFigure]]:
    """Return the figures with their numbers; those that the study draws itself are kept ones if its code is not run."""
    own = {number: figure for number, figure in results.kept.items() if figure.is_own}
    figures: list[Figure | KeptFigure] = list(results.study.figures or ([] if own else default_figures(results)))
    for number in sorted(own):
        figures.insert(number - 1, own[number])
    return list(enumerate(figures, start=1))


def _kept(figure: KeptFigure, results: StudyResults) -> Iterator[Drawn]:
    """Yield a figure as an earlier report has drawn it; nothing, with a warning, if its files are missing."""
    file = results.workdir / FIGURES / figure.file
    try:
        svg, paper = read_bytes(file), file.with_suffix(".pdf")
        pdf = read_bytes(paper) if paper.is_file() else b""
    except (OSError, ValueError) as error:
        logger.warning("figure '%s' is left out: %s: %s", figure.title, file, error)
        return
    yield Drawn(figure.number, figure.file, figure.title, figure.alt, svg, pdf, True)


def _problem(figure: Figure, results: StudyResults) -> str:
    """Return why a figure cannot be drawn: no trial has its metric or quantity; empty if it can be."""
    name, known = "", []
    if isinstance(figure, MetricByVariant | MetricByAxis | HeatMap):
        name, known = figure.metric, results.metrics
    elif isinstance(figure, Curves):
        name, known = figure.quantity, results.logged
    elif isinstance(figure, CurvesByLayer) and not figure.layers(results.logged):
        return (
            f"figure CurvesByLayer: no trial has logged '{figure.quantity}'; set training.monitor_every_steps. There "
            f"are {', '.join(results.logged)}"
        )
    elif isinstance(figure, MetricByBin) and not figure.bins(results.metrics):
        return (
            f"figure MetricByBin: no trial has measured a metric '{figure.metric}'; there are "
            f"{', '.join(results.metrics)}"
        )
    if not name or name in known:
        return ""
    verb = "logged" if isinstance(figure, Curves) else "measured"
    there = f"; there are {', '.join(known)}{nearest(name, known)}" if known else ""
    return f"figure {type(figure).__name__}: no trial has {verb} '{name}'{there}"


def _default_title(figure: Figure, results: StudyResults) -> str:
    if isinstance(figure, CustomFigure):
        return figure.title
    style = results.style
    if isinstance(figure, Curves):
        title = f"{short_metric_text(figure.quantity, results)} by {COSTS[figure.x]}"
    elif isinstance(figure, CurvesByLayer):
        title = f"{short_metric_text(figure.name, results)} by layer"
    elif isinstance(figure, MetricByBin):
        name = style.labels.get(figure.name) or metric_name(figure.name, results.task)
        title = f"{name} by {figure.label}"
    else:
        by = f" by {style.axis(figure.x)}" if isinstance(figure, MetricByAxis | HeatMap) else ""
        by += f" and {style.axis(figure.y)}" if isinstance(figure, HeatMap) else ""
        title = short_metric_text(figure.metric, results) + by
    return title[0].upper() + title[1:]


def _with_dark_colours(svg: bytes) -> bytes:
    """Return an SVG that has the colours of `IN_THE_DARK` where dark pages are preferred.

    A program that knows no media queries shows the light ones.
    """
    rules = " ".join(
        f'[style*="{kind}: {light}"] {{{kind}: {dark} !important}}'
        for light, dark in IN_THE_DARK.items()
        for kind in ("fill", "stroke")
    )
    before, end, after = svg.partition(b"</style>")
    return before + f"\n@media (prefers-color-scheme: dark) {{{rules}}}".encode() + end + after


def _saved(draw: Callable[[Any], str], results: StudyResults, height: float) -> tuple[dict[str, bytes], str]:
    """Return the files of a figure by format, in the colours of a light page, and its alt text.

    Args:
      draw: draws on an empty canvas, and returns the alt text.
      height: of the canvas in inches, which `draw` may change.
    """
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's matplotlibrc
        matplotlib.rcParams.update(_rc(results.style))
        canvas = Canvas(figsize=(results.style.width, height), layout="constrained")
        alt = draw(canvas)
        files = {format: io.BytesIO() for format in _METADATA}
        for format, file in files.items():
            canvas.savefig(file, format=format, metadata=_METADATA[format])
    return {format: file.getvalue() for format, file in files.items()}, alt


@contextlib.contextmanager
def _named_errors(figure: Figure) -> Generator[None]:
    """Turn any error of a custom figure into a ConfigError with its title.

    Saving belongs to the body, since bad labels fail only then.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(figure, CustomFigure):
            raise
        message = f"figure '{figure.title}': its function raised {type(error).__name__}: {error}"
        raise ConfigError(message) from error


def _draw(figure: Figure, canvas: Any, results: StudyResults) -> str:
    axes = canvas.subplots()
    if isinstance(figure, CustomFigure):
        figure.draw(axes, results)
        alt = figure.alt if isinstance(figure.alt, str) else figure.alt(results)
        if not alt:
            raise ValueError("an empty alt text")
        return alt
    if isinstance(figure, MetricByVariant):
        return plots.dots(figure, axes, results)
    if isinstance(figure, Curves):
        return plots.curves(figure, axes, results)
    if isinstance(figure, CurvesByLayer):
        return layer_curves(figure, axes, results)
    if isinstance(figure, MetricByAxis):
        return plots.lines(figure, axes, results)
    if isinstance(figure, HeatMap):
        return heat_map(figure, axes, results)
    return plots.profile(figure, axes, results)


def _height(figure: Figure, results: StudyResults) -> float:
    return plots.dots_height(results) if isinstance(figure, MetricByVariant) else results.style.height


def _rc(style: Style) -> dict[Any, Any]:
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor")
    return {
        **dict.fromkeys(inks, INK),
        **dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), GROUND),
        "axes.prop_cycle": plots.cycle(style.colours, INK),
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "font.size": style.font_size,
        **({"font.family": [style.font, "DejaVu Sans"]} if style.font else {}),
        "legend.frameon": False,
        "svg.hashsalt": "transformer_jax",
        "pdf.fonttype": 42,  # TrueType, which publishers accept
    }
