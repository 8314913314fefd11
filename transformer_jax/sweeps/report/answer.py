"""The answer of a study in sentences: one for each contrast under each condition, or an order of the variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.sweeps.contrasts import Contrast
from transformer_jax.sweeps.figures import number_of
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
from transformer_jax.sweeps.report.number_text import interval, number_text, p_value
from transformer_jax.sweeps.report.order import Order, order
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.study import Metric

_MOST_NAMED = 12
_MOST_SINGLE = 4
"""Contrasts and conditions that have a sentence each; of more, those with the same verdict are together."""


class Part(NamedTuple):
    """A sentence of the answer. details: the sentences that it sums up."""

    sentence: str
    details: Sequence[str] = ()


def answer(results: StudyResults, rows: Sequence[Row], effects: Sequence[Effect]) -> list[str]:
    """Return the sentences of `answer_parts` without their details; the first is the headline."""
    return [part.sentence for part in answer_parts(results, rows, effects)]


def answer_parts(results: StudyResults, rows: Sequence[Row], effects: Sequence[Effect]) -> list[Part]:
    """Return sentences in the study's first metric.

    With contrasts: one for each contrast and condition that shows a difference, one for all that are equal, and one for
    each that is undecided or cannot be compared. If there are many, one for all conditions under which the same value
    is ahead, one for all that are undecided and one for all that cannot be compared.

    Without contrasts: the variants in order, in groups that the seeds cannot tell apart. If nothing differs in this
    metric with any seed, they go on with the next metric.
    """
    said: list[Part] = []
    for metric in results.study.metrics:
        if not metric.direction:
            continue
        if results.study.contrasts:
            own = [effect for effect in effects if effect.metric == metric.name]
            said += _of_contrasts(results, metric, own)
            is_flat = bool(own) and all(effect.is_exact and not effect.difference.mean for effect in own)
        else:
            own_rows = [row for row in rows if row.metric == metric.name]
            said += map(Part, _of_order(results, metric, own_rows))
            means = [row.estimate.mean for row in own_rows if row.variant.is_complete]
            is_flat = len(means) > 1 and len(set(means)) == 1
        if not is_flat:
            break
    return said


def _of_contrasts(results: StudyResults, metric: Metric, effects: Sequence[Effect]) -> list[Part]:
    if not effects:
        return [Part("No two variants of a contrast have trials yet.")]
    by_verdict: dict[str, list[Effect]] = {"ahead": [], "equal": [], "undecided": [], "not compared": []}
    for effect in effects:
        by_verdict[effect.verdict].append(effect)
    ahead, equal, undecided, lost = by_verdict.values()
    is_many = len(effects) > _MOST_SINGLE
    said = [Part(_ahead(together, results)) for together in (_alike(ahead) if is_many else [[of] for of in ahead])]
    said += map(Part, _equal(equal, metric, results))
    singles = [_undecided(effect, results) for effect in undecided]
    said += _together(singles, _all_undecided(undecided, len(effects), results) if undecided else "", is_many)
    singles = [_not_compared(effect, results) for effect in lost]
    said += _together(singles, f"Not compared: {len(lost)} of {len(effects)} contrasts.", is_many)
    said += map(Part, _wider(effects))
    if undecided and not ahead:
        seeds = max(effect.difference.count for effect in undecided)
        said.insert(
            0, Part(f"No difference could be shown in {metric_name(metric.name, results.task)} with {_seeds(seeds)}.")
        )
    return said


def _together(sentences: Sequence[str], summary: str, is_many: bool) -> list[Part]:
    if is_many and len(sentences) > 1:
        return [Part(summary, sentences)]
    return [Part(sentence) for sentence in sentences]


def _alike(effects: Sequence[Effect]) -> list[list[Effect]]:
    """Return effects in lists of those in which the same value is ahead of the same other."""
    found: dict[object, list[Effect]] = {}
    for effect in effects:
        of = effect.comparison
        values = tuple((effect.labels[axis], of.against[axis]) for axis in of.axes)
        found.setdefault((of.declared, values, effect.first_is_ahead), []).append(effect)
    return list(found.values())


def _ahead(effects: Sequence[Effect], results: StudyResults) -> str:
    """Return a sentence on effects of the same two values; what their conditions share comes first."""
    effect, *others = effects
    first, other = _sides(effect) if effect.first_is_ahead else reversed(_sides(effect))
    if isinstance(effect.comparison.declared, Contrast):
        said = (effect.comparison.declared.says or "{a} is ahead of {b}").format(a=first, b=other)
    else:
        said = f"{first} gains on {other}"
    said += f" by {_size(effect, lambda number: amount(number, effect.metric, results.task))}"
    if not others:
        return f"{_where(effect)}{said}."
    shared = dict(set.intersection(*(set(of.comparison.condition.items()) for of in effects)))
    shared = {axis: value for axis, value in effect.comparison.condition.items() if axis in shared}
    ends = [f" with {_and(_words(_without(of.comparison.condition, shared)))}" for of in effects]
    more = (f"; by {_size(of, lambda number: number)}{end}" for of, end in zip(others, ends[1:], strict=True))
    return f"{_where(effect, condition=shared)}{said}{ends[0]}{''.join(more)}."


def _without(labels: Mapping[str, str], axes: Mapping[str, str]) -> dict[str, str]:
    return {axis: value for axis, value in labels.items() if axis not in axes}


def _size(effect: Effect, named: Callable[[str], str]) -> str:
    """Return the size of a difference and its p-value; named: adds unit and metric to a number."""
    mean, half_width = abs(effect.difference.mean), effect.difference.half_width
    if effect.is_exact:
        size = f"{named(interval(mean, math.nan))} with every seed"
    else:
        size = f"{named(interval(mean, half_width))} (p = {p_value_of(effect)})"
    if effect.is_within_width:
        size += f", less than the declared {effect.width:g}"
    return size


def _all_undecided(effects: Sequence[Effect], count: int, results: StudyResults) -> str:
    """Return a sentence on several contrasts of `count` that are undecided."""
    counts = sorted({effect.difference.count for effect in effects})
    seeds = _seeds(counts[-1]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    largest = max(effects, key=lambda effect: abs(effect.difference.mean))
    size = amount(_signed(largest), largest.metric, results.task)
    said = f"Undecided with {seeds}, corrected for {count} contrasts: {len(effects)} of them"
    said += f"; the largest: {_where(largest, begins=False)}{_pair(largest)}, {size}"
    tested = [effect.seeds_to_decide for effect in effects if not math.isnan(effect.corrected)]
    if not tested:
        return f"{said}."
    known = sorted(seeds for seeds in tested if seeds is not None)
    ends = [*map(str, [*known[:1], *known[-1:]]), *(["more than 100"] if None in tested else [])]
    return f"{said}; {' to '.join(dict.fromkeys([ends[0], ends[-1]]))} seeds would decide effects of these sizes."


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
    if seeds is None and effect.noise is not None and effect.noise.variance:
        many += f", or more than {effect.noise.examples:,} test examples,"
    return f"{said}; {many} would decide an effect of this size."


def _wider(effects: Sequence[Effect]) -> Iterator[str]:
    """Yield a sentence on intervals that are wider than the study asks, and why, where the test set is the reason."""
    effects = [effect for effect in effects if effect.verdict != "not compared"]
    if not (wider := [effect for effect in effects if effect.is_wider]):
        return
    verb = "is" if len(wider) == 1 else "are"
    which = "The interval is" if len(effects) == 1 else f"{len(wider)} of {len(effects)} intervals {verb}"
    said = f"{which} wider than the ± {wider[0].width:g} asked for"
    of_examples = [effect.noise for effect in wider if effect.noise is not None and effect.is_test_set_too_small]
    if of_examples:
        largest = number_text(max(noise.half_width for noise in of_examples))
        said += f"; the noise of the test set alone is up to ± {largest}, which more seeds do not lower"
    elif all(effect.of_seeds.half_width <= effect.width for effect in wider):
        said += ", because of the noise of the test set"
    yield f"{said}."


def _not_compared(effect: Effect, results: StudyResults) -> str:
    lost = {variant.name: unfinished(variant.counts) for variant in effect.variants if not variant.is_complete}
    why = "; ".join(f"{name}: {', '.join(of)}" for name, of in lost.items())
    unknown = [of for of in effect.variants if not all(map(math.isfinite, of.values(effect.metric).values()))]
    why = why or "; ".join(f"{of.name}: {without_number(of, effect.metric, results.task)}" for of in unknown)
    return f"{_where(effect)}{_pair(effect)}: not compared ({why})."


def _where(effect: Effect, begins: bool = True, condition: Mapping[str, str] | None = None) -> str:
    """Return the condition; empty if there is none. begins: whether a sentence begins with it."""
    condition = effect.comparison.condition if condition is None else condition
    said = f"with {_and(_words(condition))}, " if condition else ""
    if not isinstance(effect.comparison.declared, Contrast):
        (_, by), against = effect.comparison.axes, effect.comparison.against
        said += f"from {by} {against[by]} to {by} {effect.labels[by]}, "
    return said[:1].upper() + said[1:] if begins else said


def _pair(effect: Effect) -> str:
    first, other = _sides(effect, framed=False)
    return f"{first} against {other}"


def _sides(effect: Effect, framed: bool = True) -> list[str]:
    """Return the names of the two values; without the axis if it is the only one, or a sentence's frame has it."""
    axis = effect.comparison.axes[0]
    values = [effect.labels[axis], effect.comparison.against[axis]]
    declared = effect.comparison.declared
    if framed and isinstance(declared, Contrast) and declared.says:
        return values
    return [_named(axis, value, is_alone=len(effect.labels) == 1) for value in values]


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
        apart = f"{_seeds(seeds)} cannot tell the {len(everyone)} variants apart"
        said = f"No difference could be shown in {name}: {apart}."
        return [said, f"Best mean first: {listed(everyone)}.", *_would_decide(found), *left_out]
    groups = found.groups
    if found.winner is None:
        said = f"No variant is ahead of all others in {name} with {_seeds(seeds)}."
    else:
        largest = max((p for pair, p in found.p_values.items() if 0 in pair and not math.isnan(p)), default=math.nan)
        known = "" if math.isnan(largest) else f" (p = {p_value(largest)} or less)"
        others = "all others that were compared" if lost else "all others"
        said = f"{_name(found.winner)} is ahead of {others} in {name}{known}."
    if len(groups) == len(everyone):
        return [said, f"Best mean first, each apart from the next: {listed(everyone)}.", *left_out]
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
    labels = variant.labels
    return _and([_named(axis, value, is_alone=len(labels) == 1) for axis, value in labels.items()])


def _named(axis: str, value: str, is_alone: bool) -> str:
    """Return `norm pre`, or `pre` if the study has no other axis and the value is not a number."""
    return value if is_alone and math.isnan(number_of(value)) else f"{axis} {value}"


def _why_not(variant: Variant, metric: str, results: StudyResults) -> str:
    why = ", ".join(unfinished(variant.counts)) or without_number(variant, metric, results.task)
    return f"{_name(variant)} ({why})"


def _words(labels: Mapping[str, str]) -> list[str]:
    return [f"{axis} {value}" for axis, value in labels.items()]


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _seeds(count: int) -> str:
    return f"{count} {'seed' if count == 1 else 'seeds'}"
