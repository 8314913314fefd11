"""The forest plot of a study's contrasts: for each, its difference with the 95 % interval, and a dot per seed."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from transformer_jax.sweeps.contrasts import Interaction
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.differences import differences_of
from transformer_jax.sweeps.report.effects import Effect, Verdict
from transformer_jax.sweeps.report.figure_style import GREY, Style
from transformer_jax.sweeps.report.formatting import difference_of, verdict_of
from transformer_jax.sweeps.report.labels import literal, metric_text

MOST_ROWS, MOST_ROWS_IN_ALL = 40, 16
"""Most rows of the first metric; most rows with which further metrics are shown."""
CAPTION = (
    "Mean of the paired differences with its 95 % interval, and a dot for each seed, which has the same height in all "
    "rows. Filled diamond: ahead. Square: equal. Empty diamond: undecided. Verdicts are corrected for the number of "
    "contrasts and intervals are not, so one beside 0 may be undecided. Numbers: contrasts.csv and differences.csv."
)
_MARKERS: dict[Verdict, str] = {"ahead": "D", "equal": "s", "undecided": "D", "": "o"}
_LABEL, _SIDE, _TITLE = 22, 18, 48  # characters that fit
_LINE = 1.3 / 72  # height of a line of text, in inches per point of its size
_JITTER = 0.618034  # of the golden ratio, whose multiples are spread evenly


class _Row(NamedTuple):
    """A contrast, or, without an effect, the head of those below it.

    sides: who is ahead left and right of zero, on two lines, since both may not fit on one.
    """

    text: str
    effect: Effect | None = None
    sides: tuple[str, str] = ("", "")

    @property
    def lines(self) -> int:
        return max(self.text.count("\n") + 1, 2)


def panels(effects: Sequence[Effect], results: StudyResults) -> list[tuple[str, list[Effect]]]:
    """Return the effects by metric: of the first metric, of which some may not fit, and of others if all of theirs do.

    Other metrics need a direction.
    """
    first = results.study.metrics[0].name
    shown: list[tuple[str, list[Effect]]] = []
    for metric in results.study.metrics:
        own = [effect for effect in effects if effect.metric == metric.name]
        count = len(own) * (len(shown) + 1)
        if own and (metric.name == first or (metric.direction and count <= MOST_ROWS_IN_ALL)):
            shown.append((metric.name, own))
    return shown


def draw_forest(effects: Sequence[Effect], canvas: Any, results: StudyResults) -> str:
    """Draw the contrasts on a canvas, whose height becomes what they need; return the alt text.

    A panel per metric, a row per contrast and condition. The vertical axis is in inches.
    """
    shown = panels(effects, results)
    size = results.style.font_size
    rows = [list(_rows(own[:MOST_ROWS], results)) for _, own in shown]
    heights = [[row.lines * _LINE * size + 0.1 for row in of] for of in rows]
    more_lines = sum(_title(metric, own, results).count("\n") for metric, own in shown)
    canvas.set_figheight(math.fsum(map(math.fsum, heights)) + (len(shown) * 4.4 + more_lines) * _LINE * size + 0.1)
    all_axes = canvas.subplots(len(shown), squeeze=False, height_ratios=list(map(math.fsum, heights)))[:, 0]
    for axes, (metric, own), of, height in zip(all_axes, shown, rows, heights, strict=True):
        _panel(axes, metric, own, list(zip(of, height, strict=True)), size, results)
    canvas.align_xlabels(all_axes)
    left_out = [metric.name for metric in results.study.metrics if metric.name not in dict(shown)]
    return " ".join(itertools.chain(*(_described(metric, own, results) for metric, own in shown))) + (
        f" Not shown here: {', '.join(metric_text(name, results) for name in left_out)}." if left_out else ""
    )


def _panel(
    axes: Any, metric: str, effects: Sequence[Effect], rows: Sequence[tuple[_Row, float]], size: float, results: Any
) -> None:
    height = math.fsum(of for _, of in rows)
    axes.set_ylim(height, 0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0, labelsize=size)
    width = effects[0].width
    if math.isfinite(width):
        axes.axvspan(-width, width, color=GREY, alpha=0.22, lw=0, zorder=0)
    axes.axvline(0, color=_ink(), lw=1, zorder=1)
    seeds = sorted({seed for effect in effects for seed in differences_of(effect)})
    spread = 1.4 * _LINE * size
    lifts = {seed: spread * (((index + 1) * _JITTER) % 1 - 0.5) for index, seed in enumerate(seeds)}
    at, places = 0.0, []
    for row, space in rows:
        y = at + space / 2
        places.append(y)
        at += space
        if row.effect is None:
            lift = 0.5 * _LINE * size
            for side, x, align, sign in zip(row.sides, (0, 1), ("left", "right"), (-1, 1), strict=True):
                place = x, y + sign * lift
                words = axes.text(*place, literal(side), transform=axes.get_yaxis_transform(), ha=align, va="center")
                words.set(size=size, bbox={"fc": _ground(), "ec": "none", "pad": 1})
            if at > space:
                axes.axhline(at - space, color=GREY, lw=0.6)
        else:
            _draw_row(axes, row.effect, y, lifts, results)
            said = literal(_verdict(row.effect, results).replace(", ", ",\n"))
            axes.text(1.02, y, said, transform=axes.get_yaxis_transform(), ha="left", va="center", size=size)
    axes.set_yticks(places, [literal(row.text) for row, _ in rows])
    for label, (row, _) in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.effect is None else "normal")
    band = f"shaded: within the declared ± {width:g}" if math.isfinite(width) else ""
    axes.set_title(_title(metric, effects, results), loc="left", size=size, weight="bold")
    axes.set_xlabel(band)
    axes.margins(x=0.06)


def _draw_row(axes: Any, effect: Effect, y: float, lifts: dict[int, float], results: Any) -> None:
    dots = {seed: value for seed, value in differences_of(effect).items() if math.isfinite(value)}
    axes.plot(*([*dots.values()], [y + lifts[seed] for seed in dots]), "o", ms=3.2, color=GREY, mew=0, zorder=2)
    mean, half_width, *_ = effect.difference
    if effect.verdict == "not compared" or not math.isfinite(mean):
        return
    colour = results.style.colours[0]
    axes.errorbar(
        mean,
        y,
        xerr=half_width if math.isfinite(half_width) else None,
        fmt=_MARKERS[effect.verdict],
        mfc=_ground() if effect.verdict == "undecided" else colour,
        color=colour,
        ms=5.5,
        capsize=3,
        zorder=3,
    )


def _rows(effects: Sequence[Effect], results: StudyResults) -> Iterator[_Row]:
    """Yield a head for each contrast, and a row for each of its conditions.

    Contrasts of an axis without conditions are rows below one head.
    """
    groups: dict[tuple[str, ...], list[Effect]] = {}
    for effect in effects:
        pair = (*effect.comparison.against.values(), *_values(effect)) if effect.comparison.condition else ()
        groups.setdefault((effect.axis, *pair), []).append(effect)
    for group in groups.values():
        has_condition = bool(group[0].comparison.condition)
        head = _pair(group[0], results) if has_condition else results.style.axis(group[0].comparison.axes[0])
        yield _Row(_wrapped(head, results.style), None, _sides(group, results))
        for effect in group:
            condition = results.style.words(effect.comparison.condition)
            text = _wrapped(condition if has_condition else _pair(effect, results, is_long=False), results.style)
            yield _Row(f"{text}\n{_size_of(effect)}", effect)


def _values(effect: Effect) -> list[str]:
    return [effect.labels[axis] for axis in effect.comparison.axes]


def _title(metric: str, effects: Sequence[Effect], results: StudyResults) -> str:
    """Return the title of a panel, in as many lines as it needs beside the labels of the rows."""
    text = f"Difference in {_unit_text(metric, results)}{_cut_note(effects)}"
    return literal(_wrapped(text, results.style, _TITLE))


def _wrapped(text: str, style: Style, characters: int = _LABEL) -> str:
    return "\n".join(textwrap.wrap(text, style.fits(characters), break_on_hyphens=False))


def _names(effect: Effect, results: StudyResults) -> tuple[str, str]:
    """Return the words for the two values of the first axis."""
    axis, style = effect.comparison.axes[0], results.style
    return style.value(axis, effect.labels[axis]), style.value(axis, effect.comparison.against[axis])


def _pair(effect: Effect, results: StudyResults, is_long: bool = True) -> str:
    """Return `norm: pre against post`, and of an interaction also `, from depth 2 to 6`; without axis if not long."""
    style, axes, against = results.style, effect.comparison.axes, effect.comparison.against
    first, other = _names(effect, results)
    of = f"{axes[0]}={effect.labels[axes[0]]}"
    said = (
        f"{first} against {other}"
        if of in style.labels or not is_long
        else f"{style.axis(axes[0])}: {first} against {other}"
    )
    return said + "".join(
        f", from {style.axis(axis)} {style.value(axis, against[axis])} to {style.value(axis, effect.labels[axis])}"
        for axis in axes[1:]
    )


def _sides(group: Sequence[Effect], results: StudyResults) -> tuple[str, str]:
    """Return who is ahead where the difference is negative, and where it is positive."""
    firsts, others = zip(*(_names(effect, results) for effect in group), strict=True)
    first = firsts[0] if len(set(firsts)) == 1 else "first named"
    other = others[0] if len(set(others)) == 1 else "second named"
    direction = group[0].direction
    verb = "higher" if not direction else "gains" if _is_interaction(group[0]) else "ahead"
    left, right = (first, other) if direction == "min" else (other, first)
    return f"◀ {_cut(left)} {verb}", f"{_cut(right)} {verb} ▶"


def _cut(text: str) -> str:
    return text if len(text) <= _SIDE else f"{text[: _SIDE - 1]}…"


def _is_interaction(effect: Effect) -> bool:
    return isinstance(effect.comparison.declared, Interaction)


def _verdict(effect: Effect, results: StudyResults) -> str:
    if effect.verdict != "ahead":
        return verdict_of(effect) if effect.verdict else ""
    name = _names(effect, results)[not effect.first_is_ahead]
    return f"{_cut(name)} {'gains' if _is_interaction(effect) else 'ahead'}"


def _size_of(effect: Effect) -> str:
    return "not compared" if effect.verdict == "not compared" else difference_of(effect)


def _unit_text(metric: str, results: StudyResults) -> str:
    """Return name and unit of a difference; that of percentages is points."""
    text = metric_text(metric, results)
    return text if metric in results.style.labels else text.replace(" (%)", " (points)")


def _cut_note(effects: Sequence[Effect]) -> str:
    return f", the first {MOST_ROWS} of {len(effects)}" if len(effects) > MOST_ROWS else ""


def _described(metric: str, effects: Sequence[Effect], results: StudyResults) -> Iterator[str]:
    """Yield the alt text of a panel."""
    yield f"Paired differences in {_unit_text(metric, results)}{_cut_note(effects)}, mean ± 95 %:"
    said = []
    for effect in effects[:MOST_ROWS]:
        where = results.style.words(effect.comparison.condition)
        verdict = _verdict(effect, results)
        said.append(
            f"{_pair(effect, results)}{f', with {where}' if where else ''}: {_size_of(effect)}"
            + (f", {verdict}" if verdict else "")
        )
    yield f"{'; '.join(said)}."
    if math.isfinite(effects[0].width):
        yield f"The declared width is ± {effects[0].width:g}."


def _ink() -> str:
    import matplotlib

    return matplotlib.rcParams["text.color"]


def _ground() -> str:
    import matplotlib

    return matplotlib.rcParams["axes.facecolor"]
