"""The answer of a study in sentences: one for each contrast under each condition, or an order of the variants."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from transformer_jax.sweeps.contrasts import Contrast
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.formatting import (
    amount,
    estimate_of,
    metric_name,
    p_value_of,
    unfinished,
    without_number,
)
from transformer_jax.sweeps.report.number_text import interval, p_value
from transformer_jax.sweeps.report.order import Order, order
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.study import Metric

_MOST_NAMED = 12


def answer(results: StudyResults, rows: Sequence[Row], effects: Sequence[Effect]) -> list[str]:
    """Return sentences in the study's first metric; the first is the headline.

    With contrasts: one for each contrast and condition that shows a difference, one for all that are equal, and one for
    each that is undecided or cannot be compared. Without: the variants in order, in groups that the seeds cannot tell
    apart. If nothing differs in this metric with any seed, they go on with the next metric.
    """
    said: list[str] = []
    for metric in results.study.metrics:
        if not metric.direction:
            continue
        if results.study.contrasts:
            own = [effect for effect in effects if effect.metric == metric.name]
            said += _of_contrasts(results, metric, own)
            is_flat = bool(own) and all(effect.is_exact and not effect.difference.mean for effect in own)
        else:
            own_rows = [row for row in rows if row.metric == metric.name]
            said += _of_order(results, metric, own_rows)
            means = [row.estimate.mean for row in own_rows if row.variant.is_complete]
            is_flat = len(means) > 1 and len(set(means)) == 1
        if not is_flat:
            break
    return said


def _of_contrasts(results: StudyResults, metric: Metric, effects: Sequence[Effect]) -> list[str]:
    if not effects:
        return ["No two variants of a contrast have trials yet."]
    by_verdict = {of: [effect for effect in effects if effect.verdict == of] for of in ("ahead", "equal", "undecided")}
    said = [_ahead(effect, results) for effect in by_verdict["ahead"]]
    said += _equal(by_verdict["equal"], metric, results)
    said += [_undecided(effect, results) for effect in by_verdict["undecided"]]
    said += [_not_compared(effect, results) for effect in effects if effect.verdict == "not compared"]
    if by_verdict["undecided"] and not by_verdict["ahead"]:
        seeds = max(effect.difference.count for effect in by_verdict["undecided"])
        said.insert(0, f"No difference was found in {metric_name(metric.name, results.task)} with {_seeds(seeds)}.")
    return said


def _ahead(effect: Effect, results: StudyResults) -> str:
    mean, half_width = abs(effect.difference.mean), effect.difference.half_width
    size = amount(interval(mean, half_width), effect.metric, results.task)
    if effect.is_exact:
        size = f"{amount(interval(mean, math.nan), effect.metric, results.task)} with every seed"
    else:
        size += f" (p = {p_value_of(effect)})"
    first, other = _sides(effect) if effect.first_is_ahead else reversed(_sides(effect))
    if isinstance(effect.comparison.declared, Contrast):
        frame = effect.comparison.declared.says or "{a} is ahead of {b}"
        said = f"{frame.format(a=first, b=other)} by {size}"
    else:
        said = f"{first} gains on {other} by {size}"
    if effect.is_within_width:
        said += f", less than the declared {effect.width:g}"
    return f"{_where(effect)}{said}{_wider(effect)}."


def _equal(effects: Sequence[Effect], metric: Metric, results: StudyResults) -> Iterator[str]:
    exact = [effect for effect in effects if effect.is_exact and not effect.difference.mean]
    if exact:
        pairs = "; ".join(f"{_where(effect, begins=False)}{_pair(effect)}" for effect in exact)
        yield f"The same {metric_name(metric.name, results.task)} with every seed: {pairs}."
    if within := [effect for effect in effects if effect not in exact]:
        width = amount(f"{within[0].width:g}", metric.name, results.task)
        pairs = "; ".join(f"{_where(effect, begins=False)}{_pair(effect)} ({_signed(effect)})" for effect in within)
        yield f"Equal within {width}: {pairs}."


def _undecided(effect: Effect, results: StudyResults) -> str:
    said = f"{_where(effect)}{_pair(effect)}: undecided, {amount(_signed(effect), effect.metric, results.task)}"
    if math.isnan(effect.corrected):
        return f"{said}; {_seeds(effect.difference.count)} cannot be tested."
    said += f" (p = {p_value_of(effect)})"
    seeds = effect.seeds_to_decide
    many = "more than 100 seeds" if seeds is None else f"about {_seeds(seeds)}"
    return f"{said}; {many} would decide an effect of this size{_wider(effect)}."


def _wider(effect: Effect) -> str:
    wider = f"; the interval is wider than the ± {effect.width:g} asked for"
    return wider if effect.is_wider else ""


def _not_compared(effect: Effect, results: StudyResults) -> str:
    lost = {variant.name: unfinished(variant.counts) for variant in effect.variants if not variant.is_complete}
    why = "; ".join(f"{name}: {', '.join(of)}" for name, of in lost.items())
    unknown = [of for of in effect.variants if not all(map(math.isfinite, of.values(effect.metric).values()))]
    why = why or "; ".join(f"{of.name}: {without_number(of, effect.metric, results.task)}" for of in unknown)
    return f"{_where(effect)}{_pair(effect)}: not compared ({why})."


def _where(effect: Effect, begins: bool = True) -> str:
    """Return the condition; empty if there is none. begins: whether a sentence begins with it."""
    said = f"with {_and(_words(effect.comparison.condition))}, " if effect.comparison.condition else ""
    if not isinstance(effect.comparison.declared, Contrast):
        (_, by), against = effect.comparison.axes, effect.comparison.against
        said += f"from {by} {against[by]} to {by} {effect.labels[by]}, "
    return said[:1].upper() + said[1:] if begins else said


def _pair(effect: Effect) -> str:
    first, other = _sides(effect, framed=False)
    return f"{first} against {other}"


def _sides(effect: Effect, framed: bool = True) -> list[str]:
    """Return the names of the two values; without the axis if a sentence's frame is to have it."""
    axis = effect.comparison.axes[0]
    values = [effect.labels[axis], effect.comparison.against[axis]]
    declared = effect.comparison.declared
    if framed and isinstance(declared, Contrast) and declared.says:
        return values
    return [f"{axis} {value}" for value in values]


def _signed(effect: Effect) -> str:
    return interval(effect.difference.mean, effect.difference.half_width, sign=True)


def _of_order(results: StudyResults, metric: Metric, rows: Sequence[Row]) -> list[str]:
    name = metric_name(metric.name, results.task)
    found = order(results, metric.name)
    by_variant = {row.variant.name: row for row in rows}
    ranked = {variant.name for variant in found.variants}
    lost = [variant for variant in results.variants if variant.name not in ranked]
    left_out = (
        [f"Not compared: {'; '.join(_why_not(of, metric.name, results) for of in lost[:_MOST_NAMED])}."] if lost else []
    )
    # Some have finished with every seed, and lack a number: StepsTo was not reached, or it is not finite.
    has = f"a mean of {name} over all seeds" if any(of.is_complete for of in lost) else "finished with every seed"
    if not found.variants:
        return [f"No variant has {has}.", *left_out]

    def shown(index: int) -> str:
        variant = found.variants[index]
        return f"{_name(variant)} ({estimate_of(by_variant[variant.name])})"

    def listed(indices: Sequence[int]) -> str:
        more = f" and {len(indices) - _MOST_NAMED} others" if len(indices) > _MOST_NAMED else ""
        return ", ".join(map(shown, indices[:_MOST_NAMED])) + more

    everyone = range(len(found.variants))
    seeds = max(by_variant[variant.name].estimate.count for variant in found.variants)
    if len(everyone) == 1:
        (only,) = found.variants
        number = estimate_of(by_variant[only.name])
        return [f"Only {_name(only)} has {has}: {number if name in has else f'{name} {number}'}.", *left_out]
    if not found.apart:
        said = f"No difference was found in {name}: {_seeds(seeds)} cannot tell the {len(everyone)} variants apart."
        return [said, f"Best mean first: {listed(everyone)}.", *_would_decide(found), *left_out]
    groups = found.groups
    if found.winner is None:
        said = f"No variant is ahead of all others in {name} with {_seeds(seeds)}."
    else:
        largest = max((p for pair, p in found.p_values.items() if 0 in pair and not math.isnan(p)), default=math.nan)
        known = "" if math.isnan(largest) else f" (p = {p_value(largest)} or less)"
        others = "all others that were compared" if lost else "all others"
        said = f"{_name(found.winner)} is ahead of {others} in {name}{known}."
    return [
        said,
        *(f"Group {number} of {len(groups)}: {listed(group)}." for number, group in enumerate(groups, start=1)),
        *_across_groups(found),
        *_would_decide(found),
        *left_out,
    ]


def _would_decide(found: Order) -> Iterator[str]:
    """Yield how many seeds would decide whether the first variant is ahead of those that it is not told apart from.

    If no two are told apart, it is about the first and the last, whose difference is the largest.
    """
    others = range(1, len(found.variants)) if found.apart else [len(found.variants) - 1]
    pairs = [(0, other) for other in others if (0, other) not in found.apart]
    by_pair = {pair: found.seeds_to_decide(pair) for pair in pairs if not math.isnan(found.p_values[pair])}
    first = _name(found.variants[0])

    def those(are_known: bool) -> str:
        named = [_name(found.variants[at]) for (_, at), seeds in by_pair.items() if (seeds is not None) == are_known]
        return _and(named[:_MOST_NAMED]) if named else ""

    known = [seeds for seeds in by_pair.values() if seeds is not None]
    said = [f"about {_seeds(max(known))} would decide whether {first} is ahead of {those(True)}"] if known else []
    if beyond := those(False):
        said.append(f"more than 100 {'' if said else 'seeds would decide '}whether {first} is ahead of {beyond}")
    if said:
        text = "; ".join(said)
        yield f"If the measured effects are the true ones, {text}."


def _across_groups(found: Order) -> Iterator[str]:
    """Yield the pairs that are not told apart although no group has both."""
    groups = [set(group) for group in found.groups]
    pairs = [
        pair for pair in found.p_values if pair not in found.apart and not any({*pair} <= group for group in groups)
    ]
    if pairs:
        named = [" and ".join(_name(found.variants[of]) for of in pair) for pair in pairs[:_MOST_NAMED]]
        more = f"; and {len(pairs) - _MOST_NAMED} other pairs" if len(pairs) > _MOST_NAMED else ""
        yield f"Not told apart either: {'; '.join(named)}{more}."


def _name(variant: Variant) -> str:
    """Return the labels in words; of one axis only the value, unless it is a number."""
    alone = len(variant.labels) == 1 and not variant.short_name.replace(".", "").isdigit()
    return variant.short_name if alone else _and(_words(variant.labels))


def _why_not(variant: Variant, metric: str, results: StudyResults) -> str:
    why = ", ".join(unfinished(variant.counts)) or without_number(variant, metric, results.task)
    return f"{_name(variant)} ({why})"


def _words(labels: Mapping[str, str]) -> list[str]:
    return [f"{axis} {value}" for axis, value in labels.items()]


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _seeds(count: int) -> str:
    return f"{count} {'seed' if count == 1 else 'seeds'}"
