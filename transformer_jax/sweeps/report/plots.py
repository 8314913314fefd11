"""Functions that draw the figures of a study on matplotlib's axes. Each returns the alt text, with the same numbers.

Figures of a metric show means over seeds with 95 % intervals. Trials without a value are counted in the label of their
variant.
"""

from __future__ import annotations

import functools
import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.sweeps.figures import (
    COSTS,
    FEW_EXAMPLES,
    Curves,
    MetricByAxis,
    MetricByBin,
    MetricByVariant,
    number_of,
)
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.formatting import metric_label, metric_name, trials_of
from transformer_jax.sweeps.report.labels import (
    axis_of,
    legend,
    legend_of_variants,
    literal,
    missing,
    plain_label,
    row_label,
)
from transformer_jax.sweeps.report.number_text import number_text
from transformer_jax.sweeps.report.variants import TrialResult, Variant
from transformer_jax.sweeps.statistics import Estimate, estimate

MOST_DOTS, MOST_LINES = 40, 12
"""Most variants in a figure. If there are more, it shows the best in the study's first metric, and says so."""
MOST_TOGETHER = 4
"""Most lines in one panel. If there are more, each has a panel of its own, with the others in grey behind it."""

_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_FEW_POINTS = 12
_ROW, _LABEL_LINE = 0.44, 0.16  # inches
_NOTE = 64  # characters that fit
_COLUMNS, _PANEL_ROW, _PANEL_TITLE = 3, 1.45, 22  # of small multiples: columns, inches, characters
_GREY = "#9298a3"  # visible on light and dark pages


def cycle(colours: Sequence[str], ink: str) -> Any:
    """Return the colours in order, with that of text last, for rcParams["axes.prop_cycle"]."""
    from matplotlib.rcsetup import cycler

    return cycler(color=[*colours, ink])


def dots(figure: MetricByVariant, axes: Any, results: StudyResults) -> str:
    shown, note = _shown(results, MOST_DOTS)
    direction = results.direction(figure.metric)
    found = [estimate(list(variant.values(figure.metric).values())) for variant in shown]
    colours = _colours()
    for row, (variant, e) in enumerate(zip(shown, found, strict=True)):
        values = list(variant.values(figure.metric).values())
        axes.plot(values, [row + 0.22] * len(values), "o", ms=3.5, color=colours[1], mew=0)
        if values:
            axes.errorbar(e.mean, row, xerr=_bar(e), fmt="D", ms=5, capsize=3, color=colours[0])
    axes.set_yticks(range(len(shown)), [row_label(variant, results) for variant in shown], fontsize=9)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    better = {"max": "\n(higher is better)", "min": "\n(lower is better)"}.get(direction, "")
    axes.set_xlabel(metric_label(figure.metric, results.task) + better)
    axes.set_ylabel(axis_of(results))
    _say(axes, note)
    means = [(variant.name, e.mean) for variant, e in zip(shown, found, strict=True) if variant.is_complete]
    return (
        f"{metric_label(figure.metric, results.task)} of {_count(shown, note)}, means over seeds with 95 % intervals: "
        f"{_extremes(means, direction)}{_lost(shown)}"
    )


def dots_height(results: StudyResults) -> float:
    """Return the height in inches at which labels of neighbouring rows do not touch."""
    lines = [row_label(variant, results).count("\n") + 1 for variant in _shown(results, MOST_DOTS)[0]]
    return 1.1 + max(_ROW, _LABEL_LINE * max(lines) + 0.1) * max(len(lines), 2)


class _Line(NamedTuple):
    """A line of a figure.

    name: in a panel's title. points: x and mean. draw: draws the line with its intervals on axes, in a style, and
    returns its handle for a legend.
    """

    name: str
    points: Sequence[tuple[float, float]]
    draw: Callable[[Any, Mapping[str, Any]], Any]


class _Panels:
    """All lines on the same axes, or, if they are many, small multiples."""

    def __init__(self, axes: Any, lines: Sequence[_Line], styles: Sequence[Mapping[str, Any]]) -> None:
        """axes: replaced by a grid of axes with common scales if there are more than MOST_TOGETHER lines."""
        self.handles: list[Any] = []
        if len(lines) <= MOST_TOGETHER:
            self.all = [axes]
            self.handles = [line.draw(axes, style) for line, style in zip(lines, styles, strict=True)]
            return
        self._canvas = axes.figure
        axes.remove()
        rows = math.ceil(len(lines) / _COLUMNS)
        self._canvas.set_figheight(0.7 + _PANEL_ROW * rows)
        grid = self._canvas.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
        self.all = list(grid.flat)[: len(lines)]
        for unused in list(grid.flat)[len(lines) :]:
            unused.remove()
        for at, panel in enumerate(self.all):
            for other in [*lines[:at], *lines[at + 1 :]]:
                panel.plot(
                    *zip(*other.points, strict=True) if other.points else ([], []), lw=0.7, color=_GREY, zorder=1
                )
            lines[at].draw(panel, styles[0])
            name = textwrap.shorten(lines[at].name, 4 * _PANEL_TITLE, placeholder="…")
            panel.set_title(plain_label("\n".join(textwrap.wrap(name, _PANEL_TITLE))), fontsize=8, loc="left")
            panel.tick_params(labelsize=7, labelbottom=at + _COLUMNS >= len(lines))

    def label(self, x: str, y: str, note: str) -> None:
        """Label the axes, and show a note above all panels."""
        if self.handles:
            self.all[0].set_xlabel(x)
            self.all[0].set_ylabel(y)
            _say(self.all[0], note)
            return
        self._canvas.supxlabel(x, fontsize=10)
        self._canvas.supylabel(y, fontsize=10)
        if note:
            self._canvas.suptitle(literal("\n".join(textwrap.wrap(note, _NOTE))), fontsize=9, x=0.01, ha="left")


def curves(figure: Curves, axes: Any, results: StudyResults) -> str:
    shown, note = _shown(results, MOST_LINES)
    drawn, last, costs, styles = [], [], [], []
    trainings = _by_training(shown)
    for index, alike in enumerate(trainings):
        curve = _mean_curve(alike[0], figure)
        name = " and ".join(v.name for v in alike) + missing(alike[:1])
        points = [(cost, found.mean) for cost, found in curve.items()]
        drawn.append(_Line(name, points, functools.partial(_draw_curve, alike[0], curve, figure)))
        styles.append({"color": _colours()[index % len(_colours())], "ls": _STYLES[index % len(_STYLES)]})
        if curve:
            last.append((" and ".join(v.name for v in alike), curve[max(curve)].mean))
            costs += curve
    panels = _Panels(axes, drawn, styles)
    for panel in panels.all:
        _scales(panel, figure)
    if panels.handles:
        legend_of_variants(axes, panels.handles, trainings, results)
    panels.label(COSTS[figure.x], metric_label(figure.quantity, results.task), note)
    span = f" from {min(costs):.4g} to {max(costs):.4g}" if costs else ""
    return (
        f"{metric_label(figure.quantity, results.task)} against the {COSTS[figure.x]}{span}, of {_count(shown, note)}: "
        "means over the seeds that "
        f"have finished, in bands of the 95 % interval. At the end: {_extremes(last, '')}{_lost(shown)}"
    )


def lines(figure: MetricByAxis, axes: Any, results: StudyResults) -> str:
    groups, note = _groups_of_lines(figure, results)
    drawn, means = [], []
    for name, variants in groups.items():
        in_order = sorted(variants, key=lambda variant: number_of(variant.labels[figure.x]))
        measured = [(v, number_of(v.labels[figure.x]), estimate([*v.values(figure.metric).values()])) for v in in_order]
        drawn.append(_line_of_estimates(name + missing(variants), [(x, found) for _, x, found in measured]))
        of = f"{name}, " if name else ""
        means += [(f"{of}{figure.x} {x:g}", e.mean) for v, x, e in measured if v.is_complete]
    panels = _Panels(axes, drawn, [_point_style(index) for index in range(len(drawn))])
    everything = [v for variants in groups.values() for v in variants]
    for panel in panels.all:
        _scales(panel, figure)
        _number_ticks(panel, sorted({number_of(variant.labels[figure.x]) for variant in everything}))
    if len(panels.handles) > 1:
        legend(axes, panels.handles, [name + missing(variants) for name, variants in groups.items()])
    elif panels.handles:
        note += missing(everything)
    panels.label(figure.x, metric_label(figure.metric, results.task), note)
    return (
        f"{metric_label(figure.metric, results.task)} against {figure.x}, "
        f"{len(groups)} line{'s'[: len(groups) != 1]}, means over "
        f"seeds with 95 % intervals: {_extremes(means, results.direction(figure.metric))}{_lost(everything)}"
    )


def profile(figure: MetricByBin, axes: Any, results: StudyResults) -> str:
    shown, note = _shown(results, MOST_LINES)
    bins = figure.bins(results.metrics)
    few = [bin for bin in bins if any(figure.has_few(bin, trial.metrics) for trial in results.trials)]
    found = {v.name: [estimate([*v.values(metric).values()]) for metric in bins.values()] for v in shown}
    drawn, together = [], len(shown) <= MOST_TOGETHER
    for index, (variant, estimates) in enumerate(zip(shown, found.values(), strict=True)):
        # So that intervals do not hide each other.
        shift = 0.24 * (index / max(len(shown) - 1, 1) - 0.5) if together else 0.0
        drawn.append(
            _line_of_estimates(
                variant.name + missing([variant]),
                [(x + shift, e) for x, e in enumerate(estimates)],
                crosses=False,
            )
        )
    panels = _Panels(axes, drawn, [_point_style(index) for index in range(len(drawn))])
    for panel in panels.all:
        names = [plain_label(name) + ("*" if name in few else "") for name in bins]
        panel.set_xticks(range(len(bins)), names, rotation=0 if len(bins) < (8 if together else 4) else 45)
    if panels.handles:
        legend_of_variants(axes, panels.handles, [[variant] for variant in shown], results)
    label = f"{figure.label} (*: fewer than {FEW_EXAMPLES} examples)" if few else figure.label
    panels.label(label, metric_label(figure.name, results.task), note)
    marked = f" With fewer than {FEW_EXAMPLES} examples: {', '.join(few)}." if few else ""
    ends = [
        f"In {bin}: {_extremes([(name, estimates[at].mean) for name, estimates in found.items()], '')}"
        for at, bin in enumerate(bins)
        if at in (0, len(bins) - 1)
    ]
    return (
        f"{metric_label(figure.name, results.task)} in {len(bins)} bins by {figure.label}, of {_count(shown, note)}, "
        "means over "
        f"seeds with 95 % intervals. {' '.join(ends)}{marked}{_lost(shown)}"
    )


def _draw_curve(
    variant: Variant, curve: Mapping[float, Estimate], figure: Curves, axes: Any, style: Mapping[str, Any]
) -> Any:
    (handle,) = _line(axes, curve, style)
    for trial in variant.trials:
        if trial.status != "finished":
            _thin_line(axes, trial, figure, style)
    return handle


def _line_of_estimates(name: str, measured: Sequence[tuple[float, Estimate]], crosses: bool = True) -> _Line:
    """Return a line of means with intervals; `crosses` mark places without a value, at the lower edge."""
    points = [(x, found) for x, found in measured if found.count]
    empty = [x for x, found in measured if not found.count]

    def draw(axes: Any, style: Mapping[str, Any]) -> Any:
        bars = [_bar(found) or 0.0 for _, found in points]
        handle = axes.errorbar([x for x, _ in points], [found.mean for _, found in points], yerr=bars, **style)
        if crosses:
            axes.plot(empty, [0.04] * len(empty), "x", color=style["color"], transform=axes.get_xaxis_transform())
        return handle

    return _Line(name, [(x, found.mean) for x, found in points], draw)


def _groups_of_lines(figure: MetricByAxis, results: StudyResults) -> tuple[dict[str, list[Variant]], str]:
    """Return the variants by the name of their line, and a note on those that are left out."""
    groups: dict[str, list[Variant]] = {}
    fixed = {n: v for n, v in results.study.reference_variant.items() if figure.by and n not in (figure.x, figure.by)}
    for variant in results.everywhere:
        if all(variant.labels[name] == value for name, value in fixed.items()):
            others = {n: v for n, v in variant.labels.items() if n != figure.x and (not figure.by or n == figure.by)}
            groups.setdefault(", ".join(f"{n}={v}" for n, v in others.items()), []).append(variant)
    note = f"other axes: {', '.join(f'{n}={v}' for n, v in fixed.items())}" if fixed else ""
    if len(groups) > MOST_LINES:
        note = f"the first {MOST_LINES} of {len(groups)} lines"
    return dict(itertools.islice(groups.items(), MOST_LINES)), note


def _shown(results: StudyResults, most: int) -> tuple[Sequence[Variant], str]:
    """Return the variants of a figure, and a note if these are not all."""
    variants = results.variants
    if len(variants) <= most:
        return variants, ""
    metric = results.study.metrics[0]
    sign = -1 if metric.direction == "max" else 1
    means = [estimate([*variant.values(metric.name).values()]).mean for variant in variants]
    ranked = sorted(range(len(variants)), key=lambda i: (math.isnan(means[i]), sign * means[i], i))
    note = f"the {most} best of {len(variants)} variants by {metric_name(metric.name, results.task)}"
    return [variants[i] for i in sorted(ranked[:most])], note


def _by_training(variants: Sequence[Variant]) -> list[list[Variant]]:
    """Return lists of variants whose trials have the same logs: they differ only in decoding or evaluation."""
    alike: dict[Any, list[Variant]] = {}
    for variant in variants:
        alike.setdefault(tuple((trial.log_file, trial.status) for trial in variant.trials), []).append(variant)
    return list(alike.values())


def _mean_curve(variant: Variant, figure: Curves) -> dict[float, Estimate]:
    """Return the mean over the finished trials by mean cost, up to the last step of the shortest log."""
    logs = [log for trial in variant.trials if trial.status == "finished" and (log := _points(trial, figure))]
    if not logs:
        return {}
    end = min(max(log) for log in logs)
    steps = sorted({step for log in logs for step in log if step <= end})
    curve = {}
    for step in steps:
        costs, values = zip(*(log[step] for log in logs if step in log), strict=True)
        curve[math.fsum(costs) / len(costs)] = estimate(values)
    return curve


def _points(trial: TrialResult, figure: Curves) -> dict[int, tuple[float, float]]:
    """Return cost and value by step, in order. Steps without a known cost are left out."""
    log = trial.logged(figure.quantity)
    return {step: (cost, log[step]) for step, cost in trial.cost(figure.x, sorted(log)).items()}


def _line(axes: Any, curve: Mapping[float, Estimate], style: Mapping[str, Any]) -> list[Any]:
    costs, means = list(curve), [e.mean for e in curve.values()]
    low, high = ([e.mean + sign * (_bar(e) or 0.0) for e in curve.values()] for sign in (-1, 1))
    axes.fill_between(costs, low, high, color=style["color"], alpha=0.18, lw=0)
    return axes.plot(costs, means, lw=1.6, marker="o" if len(costs) <= _FEW_POINTS else "", ms=3, **style)


def _thin_line(axes: Any, trial: TrialResult, figure: Curves, style: Mapping[str, Any]) -> None:
    points = list(_points(trial, figure).values())
    axes.plot([cost for cost, _ in points], [value for _, value in points], lw=0.7, **style)
    if trial.status == "diverged" and points:
        axes.plot(*points[-1], "x", color=style["color"], ms=7, mew=1.6)


def _point_style(index: int) -> dict[str, Any]:
    colours = _colours()
    marker = _MARKERS[index % len(_MARKERS)]
    return {"color": colours[index % len(colours)], "marker": marker, "ms": 5, "capsize": 3, "lw": 1.4}


def _colours() -> list[str]:
    import matplotlib

    return matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]


def _bar(found: Estimate) -> float | None:
    """Return the half-width of an interval; None if it is not finite."""
    return found.half_width if math.isfinite(found.half_width) else None


def _scales(axes: Any, figure: Curves | MetricByAxis) -> None:
    if figure.log_x:
        axes.set_xscale("log")
    if figure.log_y:
        axes.set_yscale("log", nonpositive="mask")
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def _number_ticks(axes: Any, values: Sequence[float]) -> None:
    """Set ticks at the values of an axis if there are few."""
    if len(values) <= _FEW_POINTS:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)


def _say(axes: Any, note: str) -> None:
    if note:
        axes.set_title(literal("\n".join(textwrap.wrap(note, _NOTE))), fontsize=9, loc="left")


def _count(shown: Sequence[Variant], note: str) -> str:
    return note or f"{len(shown)} variants"


def _lost(variants: Sequence[Variant]) -> str:
    """Return a sentence on the trials that have not finished; empty if all have."""
    lost = [f"{variant.name}: {trials_of(variant)}" for variant in variants if missing([variant])]
    return f" {'; '.join(lost)}." if lost else ""


def _extremes(means: Sequence[tuple[str, float]], direction: str) -> str:
    """Return the end of a sentence: lowest and highest mean, or best and worst if the direction is known."""
    known = sorted(((name, mean) for name, mean in means if math.isfinite(mean)), key=lambda item: item[1])
    if not known:
        return "no value."
    (low, low_mean), (high, high_mean) = known[0], known[-1]
    if direction == "max":
        return f"best {high}, {number_text(high_mean)}; worst {low}, {number_text(low_mean)}."
    if direction == "min":
        return f"best {low}, {number_text(low_mean)}; worst {high}, {number_text(high_mean)}."
    return f"lowest {low}, {number_text(low_mean)}; highest {high}, {number_text(high_mean)}."
