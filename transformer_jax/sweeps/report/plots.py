"""Functions that draw the figures of a study on matplotlib's axes. Each returns the alt text, with the same numbers.

Figures of a metric show means over seeds with 95 % intervals. Trials without a value are counted in the label of their
variant.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.report.formatting import metric_label, trials_of
from transformer_jax.sweeps.report.labels import (
    axis_of,
    literal,
    metric_text,
    missing,
    plain_label,
    row_label,
    say,
    short_metric_text,
    variant_words,
)
from transformer_jax.sweeps.report.line_panels import Line, LinePanels, joined_labels, line_style, plan, point_style
from transformer_jax.sweeps.report.number_text import number_text
from transformer_jax.sweeps.report.variants import TrialResult, Variant
from transformer_jax.sweeps.statistics import Estimate, estimate

MOST_DOTS, MOST_LINES = 40, 12
"""Most variants in a figure; of lines, if each has a panel. If there are more, it shows the best in the study's first
metric, and says so."""

_FEW_POINTS = 12
_ROW, _LABEL_LINE = 0.44, 0.16  # inches
_UPRIGHT_BINS = {1: 8, 2: 6, 3: 4}  # fewer names than these fit below a panel, by number of columns


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
    axes.set_yticks(range(len(shown)), [row_label(variant, results) for variant in shown])
    axes.tick_params(axis="y", labelsize=0.9 * results.style.font_size)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    better = {"max": "\n(higher is better)", "min": "\n(lower is better)"}.get(direction, "")
    metric = metric_text(figure.metric, results)
    axes.set_xlabel(literal(metric) + better)
    axes.set_ylabel(axis_of(results))
    say(axes, note, results.style)
    means = [
        (variant_words(variant, results), e.mean)
        for variant, e in zip(shown, found, strict=True)
        if variant.is_complete
    ]
    return (
        f"{metric} of {_count(shown, note)}, means over seeds with 95 % intervals: "
        f"{_extremes(means, direction)}{_lost(shown, results)}"
    )


def dots_height(results: StudyResults) -> float:
    """Return the height in inches at which labels of neighbouring rows do not touch."""
    lines = [row_label(variant, results).count("\n") + 1 for variant in _shown(results, MOST_DOTS)[0]]
    scale = results.style.font_size / Style.font_size
    return scale * (1.1 + max(_ROW, _LABEL_LINE * max(lines) + 0.1) * max(len(lines), 2))


def curves(figure: Curves, axes: Any, results: StudyResults) -> str:
    trainings = _trainings(results.variants, results)
    shown, note = _shown_lines([joined_labels([v.labels for v in alike]) for alike in trainings], results)
    if note:
        trainings = _trainings(shown, results)
    drawn, last, costs = [], [], []
    for alike in trainings:
        curve = _mean_curve(alike[0], figure)
        labels = joined_labels([v.labels for v in alike])
        points = [(cost, found.mean) for cost, found in curve.items()]
        drawn.append(Line(labels, missing(alike[:1]), points, functools.partial(_draw_curve, alike[0], curve, figure)))
        if curve:
            last.append((results.style.words(labels), curve[max(curve)].mean))
            costs += curve
    panels = LinePanels(axes, drawn, results, line_style)
    for panel in panels.all:
        _scales(panel, figure)
    quantity = metric_text(figure.quantity, results)
    panels.label(COSTS[figure.x], quantity, note)
    span = f" from {min(costs):.4g} to {max(costs):.4g}" if costs else ""
    return (
        f"{quantity} against the {COSTS[figure.x]}{span}, of {_count(shown, note)}: "
        "means over the seeds that "
        f"have finished, in bands of the 95 % interval. At the end: {_extremes(last, '')}{_lost(shown, results)}"
    )


def lines(figure: MetricByAxis, axes: Any, results: StudyResults) -> str:
    groups, note = _groups_of_lines(figure, results)
    drawn, means = [], []
    x_name, words = results.style.axis(figure.x), results.style.words
    for labels, variants in groups:
        in_order = sorted(variants, key=lambda variant: number_of(variant.labels[figure.x]))
        measured = [(v, number_of(v.labels[figure.x]), estimate([*v.values(figure.metric).values()])) for v in in_order]
        drawn.append(_line_of_estimates(labels, missing(variants), [(x, found) for _, x, found in measured]))
        of = f"{words(labels)}, " if labels else ""
        means += [(f"{of}{x_name} {x:g}", e.mean) for v, x, e in measured if v.is_complete]
    panels = LinePanels(axes, drawn, results, point_style)
    everything = [v for _, variants in groups for v in variants]
    for panel in panels.all:
        _scales(panel, figure)
        _number_ticks(panel, sorted({number_of(variant.labels[figure.x]) for variant in everything}))
    metric = metric_text(figure.metric, results)
    panels.label(x_name, metric, note)
    return (
        f"{metric} against {x_name}, "
        f"{len(groups)} line{'s'[: len(groups) != 1]}, means over "
        f"seeds with 95 % intervals: {_extremes(means, results.direction(figure.metric))}{_lost(everything, results)}"
    )


def profile(figure: MetricByBin, axes: Any, results: StudyResults) -> str:
    shown, note = _shown_lines([variant.labels for variant in results.variants], results)
    bins = figure.bins(results.metrics)
    few = [bin for bin in bins if any(figure.has_few(bin, trial.metrics) for trial in results.trials)]
    found = [[estimate([*v.values(metric).values()]) for metric in bins.values()] for v in shown]
    drawn = [
        _line_of_estimates(variant.labels, missing([variant]), list(enumerate(estimates)), crosses=False)
        for variant, estimates in zip(shown, found, strict=True)
    ]
    panels = LinePanels(axes, drawn, results, point_style, is_shifted=True)
    for panel in panels.all:
        names = [plain_label(name) + ("*" if name in few else "") for name in bins]
        upright = _UPRIGHT_BINS[panels.columns]
        step = math.ceil(len(bins) / (2 * upright))
        ticks = [name if at % step == 0 else "" for at, name in enumerate(names)]
        panel.set_xticks(range(len(bins)), ticks, rotation=0 if len(bins) < upright else 45)
    label = f"{figure.label} (*: fewer than {FEW_EXAMPLES} examples)" if few else figure.label
    metric = results.style.labels.get(figure.name) or metric_label(figure.name, results.task)
    panels.label(label, metric, note)
    marked = f" With fewer than {FEW_EXAMPLES} examples: {', '.join(few)}." if few else ""
    names = [variant_words(variant, results) for variant in shown]
    ends = [
        f"In {bin}: {_extremes([(name, of[at].mean) for name, of in zip(names, found, strict=True)], '')}"
        for at, bin in enumerate(bins)
        if at in (0, len(bins) - 1)
    ]
    return (
        f"{metric} in {len(bins)} bins by {figure.label}, of {_count(shown, note)}, "
        "means over "
        f"seeds with 95 % intervals. {' '.join(ends)}{marked}{_lost(shown, results)}"
    )


def _draw_curve(
    variant: Variant,
    curve: Mapping[float, Estimate],
    figure: Curves,
    axes: Any,
    style: Mapping[str, Any],
    shift: float = 0.0,
) -> None:
    _line(axes, curve, style)
    for trial in variant.trials:
        if trial.status != "finished":
            _thin_line(axes, trial, figure, style)


def _line_of_estimates(
    labels: Mapping[str, str], lost: str, measured: Sequence[tuple[float, Estimate]], crosses: bool = True
) -> Line:
    """Return a line of means with intervals; `crosses` mark places without a value, at the lower edge."""
    points = [(x, found) for x, found in measured if found.count]
    empty = [x for x, found in measured if not found.count]

    def draw(axes: Any, style: Mapping[str, Any], shift: float) -> None:
        bars = [_bar(found) or 0.0 for _, found in points]
        axes.errorbar([x + shift for x, _ in points], [found.mean for _, found in points], yerr=bars, **style)
        if crosses:
            axes.plot(empty, [0.04] * len(empty), "x", color=style["color"], transform=axes.get_xaxis_transform())

    return Line(labels, lost, [(x, found.mean) for x, found in points], draw)


def _groups_of_lines(
    figure: MetricByAxis, results: StudyResults
) -> tuple[list[tuple[dict[str, str], list[Variant]]], str]:
    """Return the variants of each line after the labels that they share, and a note on those that are left out."""
    groups: dict[tuple[tuple[str, str], ...], list[Variant]] = {}
    fixed = {n: v for n, v in results.study.reference_variant.items() if figure.by and n not in (figure.x, figure.by)}
    for variant in results.everywhere:
        if all(variant.labels[name] == value for name, value in fixed.items()):
            others = {n: v for n, v in variant.labels.items() if n != figure.x and (not figure.by or n == figure.by)}
            groups.setdefault(tuple(others.items()), []).append(variant)
    note = f"other axes: {results.style.words(fixed)}" if fixed else ""
    found = [(dict(labels), variants) for labels, variants in groups.items()]
    if len(found) > MOST_LINES and plan([labels for labels, _ in found], results).is_apart:
        return found[:MOST_LINES], f"the first {MOST_LINES} of {len(found)} lines"
    return found, note


def _shown_lines(labels: Sequence[Mapping[str, str]], results: StudyResults) -> tuple[Sequence[Variant], str]:
    """Return the variants of a figure with lines of these labels, and a note if these are not all."""
    is_apart = plan(labels, results).is_apart
    return _shown(results, MOST_LINES) if is_apart else (results.variants, "")


def _shown(results: StudyResults, most: int) -> tuple[Sequence[Variant], str]:
    """Return the variants of a figure, and a note if these are not all."""
    variants = results.variants
    if len(variants) <= most:
        return variants, ""
    metric = results.study.metrics[0]
    sign = -1 if metric.direction == "max" else 1
    means = [estimate([*variant.values(metric.name).values()]).mean for variant in variants]
    ranked = sorted(range(len(variants)), key=lambda i: (math.isnan(means[i]), sign * means[i], i))
    note = f"the {most} best of {len(variants)} variants by {short_metric_text(metric.name, results)}"
    return [variants[i] for i in sorted(ranked[:most])], note


def _trainings(variants: Sequence[Variant], results: StudyResults) -> list[list[Variant]]:
    """Return the variants of each line: together if their trials have the same logs, as with other decoding.

    If lines differ in several axes, and some of them are of two values of such an axis, every variant has its own line.
    """
    alike: dict[Any, list[Variant]] = {}
    for variant in variants:
        alike.setdefault(tuple((trial.log_file, trial.status) for trial in variant.trials), []).append(variant)
    trainings = list(alike.values())
    values = plan([joined_labels([v.labels for v in of]) for of in trainings], results).values
    varying = [axis for axis in values if len(values[axis]) > 1]
    is_partly_joined = any({variant.labels[axis] for variant in variants} != {*values[axis]} for axis in varying)
    return [[variant] for variant in variants] if len(varying) > 1 and is_partly_joined else trainings


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


def _count(shown: Sequence[Variant], note: str) -> str:
    return note or f"{len(shown)} variants"


def _lost(variants: Sequence[Variant], results: StudyResults) -> str:
    """Return a sentence on the trials that have not finished; empty if all have."""
    lost = [f"{variant_words(of, results)}: {trials_of(of)}" for of in variants if missing([of])]
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
