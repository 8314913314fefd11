"""Declarations of a study's figures: the metric or quantity that each shows. `report` draws them.

A study without figures of its own gets `MetricByVariant` of its first metric and `Curves` of valid/loss; and, if its
trials log values of layers, `CurvesByLayer` of the size of their outputs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError

COSTS = {
    "step": "step",
    "flops": "floating-point operations",
    "seconds": "seconds of training, with compilation",
}
"""Labels of the costs of training by name.

- `flops`: of all steps so far; see `tasks.flops`.
- `seconds`: of all steps so far, with compilation, without validation and checkpoints. Trials that train as one program
  log an equal share of its time.
"""
FEW_EXAMPLES = 20
"""A bin with fewer examples is marked in a figure."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class MetricByVariant:
    """A metric by variant: the mean over seeds with its 95 % interval, and every trial as a small dot.

    metric: SPLIT/METRIC. title: by default made from the metric, as for every figure.
    """

    metric: str
    title: str = ""

    def __post_init__(self) -> None:
        _check_name("MetricByVariant", self.metric)


@dataclasses.dataclass(frozen=True)
class Curves:
    """A logged quantity against the cost of training, by variant: the mean over the finished seeds, in a band of its
    95 % interval.

    Every trial that has not finished is a separate thin line, which ends in a cross if the trial has diverged.

    quantity: SPLIT/NAME of metrics.jsonl, as in train/gradient_norm. x: a name of `COSTS`; if seeds have
      different costs at a step, the mean.
    """

    quantity: str
    title: str = ""
    x: str = "step"
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        _check_name("Curves", self.quantity)
        if self.x not in COSTS:
            raise ConfigError(
                f"figure Curves of '{self.quantity}': x='{self.x}': expected {', '.join(COSTS)}{nearest(self.x, COSTS)}"
            )


@dataclasses.dataclass(frozen=True)
class CurvesByLayer:
    """A logged quantity of every layer against the step: a panel per variant, and a line per layer.

    A line is the mean over the finished seeds, or over all seeds if none has finished. Trials have such quantities with
    `training.monitor_every_steps`.

    quantity: SPLIT/NAME of metrics.jsonl with `*` in place of the layer, as in monitor/stream_rms_decoder_*.
    """

    quantity: str
    title: str = ""
    log_y: bool = False

    def __post_init__(self) -> None:
        if self.quantity.count("*") != 1:
            raise ConfigError(
                f"figure CurvesByLayer: quantity '{self.quantity}': expected one '*' in place of the layer, as in "
                "monitor/stream_rms_decoder_*"
            )
        _check_name("CurvesByLayer", self.quantity.replace("*", "0"))

    @property
    def name(self) -> str:
        """Name of the quantity without the layer."""
        return self.quantity.replace("_*", "").replace("*", "")

    def layers(self, logged: Iterable[str]) -> dict[int, str]:
        """Return the names of the logged quantities by layer, in order."""
        found = _by_bin(self.quantity, logged)
        return {int(layer): found[layer] for layer in sorted(filter(str.isdecimal, found), key=int)}


@dataclasses.dataclass(frozen=True)
class MetricByAxis:
    """A metric against an axis whose values are numbers, with the 95 % interval over seeds.

    by: an axis; each of its values has a line, and all other axes have the reference's values. Without it every
      combination of the other axes has a line.
    """

    metric: str
    x: str
    by: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        _check_name("MetricByAxis", self.metric)

    @property
    def axes(self) -> dict[str, str]:
        """Names of the axes by what they are for."""
        return {"x": self.x, "by": self.by} if self.by else {"x": self.x}


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """The mean of a metric over the seeds by two axes whose values are numbers: a cell for each pair, with its number.

    Every combination of the other axes has a panel; the colours of all panels have one scale.

    x, y: the axes along the panel and up.
    """

    metric: str
    x: str
    y: str
    title: str = ""

    def __post_init__(self) -> None:
        _check_name("HeatMap", self.metric)

    @property
    def axes(self) -> dict[str, str]:
        """Names of the axes by what they are for."""
        return {"x": self.x, "y": self.y}


@dataclasses.dataclass(frozen=True)
class MetricByBin:
    """Metrics of bins, such as test[6-8]/exact_match, in numeric order: a line per variant, with the 95 % interval.

    metric: name of the metrics with `*` in place of the bin, as in test[*]/exact_match. label: name of the binned
      quantity.
    counts: name of the metrics that count the examples of a bin, as in test[*]/pairs; bins with few are marked.
    """

    metric: str
    label: str = "bin"
    title: str = ""
    counts: str = ""

    def __post_init__(self) -> None:
        for name in filter(None, (self.metric, self.counts)):
            _check_name("MetricByBin", name)
            if name.count("*") != 1:
                raise ConfigError(
                    f"figure MetricByBin: metric '{name}': expected one '*' in place of the bin, as in test[*]/loss"
                )

    @property
    def name(self) -> str:
        """Name of the metric without the bin."""
        return self.metric.replace("[*]", "").replace("*", "")

    def bins(self, metrics: Iterable[str]) -> dict[str, str]:
        """Return the names of the metrics by bin, in numeric order."""
        found = _by_bin(self.metric, metrics)
        return dict(sorted(found.items(), key=lambda item: ([float(n) for n in re.findall(r"\d+", item[0])], item[0])))

    def has_few(self, bin: str, metrics: Mapping[str, int | float]) -> bool:
        """Return whether a bin has fewer than FEW_EXAMPLES in the metrics of a trial; False if they are not counted."""
        name = _by_bin(self.counts, metrics).get(bin) if self.counts else None
        return name is not None and metrics[name] < FEW_EXAMPLES


def _by_bin(metric: str, metrics: Iterable[str]) -> dict[str, str]:
    """Return the names of metrics by the bin, which a name has in place of `*`."""
    before, _, after = metric.partition("*")
    pattern = re.compile(f"{re.escape(before)}(.+){re.escape(after)}")
    return {match[1]: name for name in metrics if (match := pattern.fullmatch(name))}


@dataclasses.dataclass(frozen=True)
class CustomFigure:
    """A figure that is drawn by a function of the study.

    draw: is called with matplotlib's Axes and the study's results, under rcParams with the colours of a light page; it
      labels its axes. On a dark page the colours of text, ground and grid change, wherever it uses them.
    alt: description of the figure for readers who cannot see it: text, or a function of the results that returns it.

    The results are a `sweeps.report.collect.StudyResults`. The annotation says Any, since importing that class here
    would be a circular import.
    """

    draw: Callable[[Any, Any], None]
    title: str
    alt: str | Callable[[Any], str]

    def __post_init__(self) -> None:
        if not self.title or not self.alt:
            raise ConfigError(f"figure CustomFigure '{self.title}': needs a title and an alt text")


Figure = MetricByVariant | Curves | CurvesByLayer | MetricByAxis | HeatMap | MetricByBin | CustomFigure


def number_of(label: str) -> float:
    """Return the name of a value as a number; NaN if it is not one."""
    return float(label) if _NUMBER.fullmatch(label) else math.nan


def check_figures(figures: Iterable[Any], axes: Mapping[str, Iterable[str]]) -> None:
    """Raise ConfigError for an object that is not a figure, an unknown axis, or an axis whose values are not numbers.

    Args:
      axes: names of values by name of axis; empty for a range.
    """
    for figure in figures:
        if not isinstance(figure, Figure):
            raise ConfigError(
                "figures: expected MetricByVariant, Curves, CurvesByLayer, MetricByAxis, HeatMap, MetricByBin or "
                f"CustomFigure, not {figure!r}"
            )
        if not isinstance(figure, MetricByAxis | HeatMap):
            continue
        where = f"figure {type(figure).__name__} of '{figure.metric}'"
        for name in figure.axes.values():
            if name not in axes:
                raise ConfigError(f"{where}: no axis '{name}'{nearest(name, axes)}")
        if len({*figure.axes.values()}) < len(figure.axes):
            raise ConfigError(f"{where}: {' and '.join(figure.axes)} are both '{figure.x}'")
        for name in figure.axes.values() if isinstance(figure, HeatMap) else (figure.x,):
            if words := [label for label in axes[name] if math.isnan(number_of(label))]:
                raise ConfigError(f"{where}: the axis '{name}' has values that are not numbers: {', '.join(words)}")
            if isinstance(figure, HeatMap) and not list(axes[name]):
                raise ConfigError(f"{where}: the axis '{name}' is a range; a heat map needs an axis of values")
        low = [label for label in axes[figure.x] if number_of(label) <= 0]
        if low and isinstance(figure, MetricByAxis) and figure.log_x:
            raise ConfigError(f"{where}: log_x needs values above 0, not {', '.join(low)}")


def _check_name(kind: str, name: str) -> None:
    if not re.fullmatch(r"\S+/\w+", name):
        raise ConfigError(f"figure {kind}: '{name}': expected SPLIT/NAME")
