"""The figures of a study: what each shows, in the terms of the study. `report` draws them.

A study without figures of its own gets `MetricByVariant` of its first metric and `Curves` of valid/loss.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclasses.dataclass(frozen=True)
class MetricByVariant:
    """A metric by variant: the mean over seeds with its 95 % interval, and every trial as a small dot.

    metric: SPLIT/METRIC. title: default says what is shown, as for every figure.
    """

    metric: str
    title: str = ""

    def __post_init__(self) -> None:
        _check_name("MetricByVariant", self.metric)


@dataclasses.dataclass(frozen=True)
class Curves:
    """A logged quantity against the step, by variant: the mean over the seeds that have finished, in a band of its 95 %
    interval. A trial that has not finished is a thin line of its own, which ends in a cross if it has diverged.

    quantity: SPLIT/NAME of metrics.jsonl, as in train/gradient_norm.
    """

    quantity: str
    title: str = ""
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        _check_name("Curves", self.quantity)


@dataclasses.dataclass(frozen=True)
class MetricByAxis:
    """A metric against an axis whose values are numbers, with the 95 % interval over seeds.

    by: an axis; there is a line for each of its values, and all other axes stand at the reference's values. Without it
      every combination of the other axes has a line.
    """

    metric: str
    x: str
    by: str = ""
    title: str = ""
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        _check_name("MetricByAxis", self.metric)


@dataclasses.dataclass(frozen=True)
class MetricByBin:
    """Metrics of bins, such as test[6-8]/exact_match, in the order of their numbers: a line by variant, with the 95 %
    interval over seeds.

    metric: the metrics' name with `*` for the bin, as in test[*]/exact_match. label: what the bins are of.
    """

    metric: str
    label: str = "bin"
    title: str = ""

    def __post_init__(self) -> None:
        _check_name("MetricByBin", self.metric)
        if self.metric.count("*") != 1:
            raise ConfigError(
                f"figure MetricByBin: metric '{self.metric}': expected one '*', where the names have the bin"
            )

    @property
    def name(self) -> str:
        """The metric's, without a bin."""
        return self.metric.replace("[*]", "").replace("*", "")

    def bins(self, metrics: Iterable[str]) -> dict[str, str]:
        """Metric by bin, in numeric order."""
        before, _, after = self.metric.partition("*")
        pattern = re.compile(f"{re.escape(before)}(.+){re.escape(after)}")
        found = {match[1]: name for name in metrics if (match := pattern.fullmatch(name))}
        return dict(sorted(found.items(), key=lambda item: ([float(n) for n in re.findall(r"\d+", item[0])], item[0])))


@dataclasses.dataclass(frozen=True)
class CustomFigure:
    """A figure that a study draws by a function of its own.

    draw: is called with matplotlib's Axes and the study's results, once for a light page and once for a dark one, under
      rcParams of the page's colours; it labels its axes.
    alt: what the figure shows, for readers who cannot see it: text, or a function of the results that returns it.

    The results are a `sweeps.report.collect.StudyResults`. Its type is not named here: reports read the study that this
    figure is part of, and a declaration that imported them would close a circle.
    """

    draw: Callable[[Any, Any], None]
    title: str
    alt: str | Callable[[Any], str]

    def __post_init__(self) -> None:
        if not self.title or not self.alt:
            raise ConfigError(f"figure CustomFigure '{self.title}': needs a title and an alt text")


Figure = MetricByVariant | Curves | MetricByAxis | MetricByBin | CustomFigure


def number_of(label: str) -> float:
    """What the name of a value means as a number; NaN if it is none."""
    return float(label) if _NUMBER.fullmatch(label) else math.nan


def check_figures(figures: Iterable[Any], axes: Mapping[str, Iterable[str]]) -> None:
    """Raises ConfigError for what is no figure, and for an axis that there is not or whose values are no numbers.

    Args:
      axes: names of values by name of axis; none for what a search draws.
    """
    for figure in figures:
        if not isinstance(figure, Figure):
            raise ConfigError(
                f"figures: expected MetricByVariant, Curves, MetricByAxis, MetricByBin or CustomFigure, not {figure!r}"
            )
        if not isinstance(figure, MetricByAxis):
            continue
        for name in (figure.x, *([figure.by] if figure.by else [])):
            if name not in axes:
                raise ConfigError(f"figure MetricByAxis of '{figure.metric}': no axis '{name}'{nearest(name, axes)}")
        if figure.x == figure.by:
            raise ConfigError(f"figure MetricByAxis of '{figure.metric}': x and by are both '{figure.x}'")
        if words := [label for label in axes[figure.x] if math.isnan(number_of(label))]:
            raise ConfigError(
                f"figure MetricByAxis of '{figure.metric}': the axis '{figure.x}' has values that are no numbers: "
                f"{', '.join(words)}"
            )
        if figure.log_x and (low := [label for label in axes[figure.x] if number_of(label) <= 0]):
            raise ConfigError(
                f"figure MetricByAxis of '{figure.metric}': log_x needs values above 0, not {', '.join(low)}"
            )


def _check_name(kind: str, name: str) -> None:
    if not re.fullmatch(r"\S+/\w+", name):
        raise ConfigError(f"figure {kind}: '{name}': expected SPLIT/NAME")
