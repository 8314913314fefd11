"""Sentences of a report, shared by its page and its Markdown file."""

from __future__ import annotations

import math
from collections import Counter

from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.formatting import estimate_of, metric_label, status_words
from transformer_jax.sweeps.report.summary import CONTRASTS, SUMMARY, Row
from transformer_jax.sweeps.report.variants import NOT_BEGUN, STATUSES, Variant
from transformer_jax.sweeps.study import Metric, Range

STAR = "★"
NOT_SHOWN = "Not shown:"
_PAIRED = (
    "the mean over the seeds that both have, since trials with the same seed share data order and initial draws. p is "
    "the p-value of the two-sided paired t-test, corrected by the method of Holm 1979"
)
_COMMONLY = "A difference with p below 0.05 is commonly called significant."


def subject(results: StudyResults) -> str:
    """Return a sentence with the numbers of variants, seeds and trials."""
    seeds = {trial.trial.seed for trial in results.trials}.union(*(variant.seeds for variant in results.variants))
    counts = sum((Counter(variant.counts) for variant in results.variants), Counter())
    statuses = [f"{counts[status]} {status_words(status)}" for status in (*STATUSES, NOT_BEGUN) if counts[status]]
    return (
        f"{len(results.variants)} variants of {results.study.baseline} with {_seeds(sorted(seeds))}: "
        f"{counts.total()} trials, {', '.join(statuses)}."
    )


def answer(results: StudyResults, rows: list[Row]) -> str:
    """Return sentences on the best variant in the study's first metric; with conditions, on the best within each.

    If all are equal in it, they say so and name the best in the next metric that differs.
    """
    metric = results.study.metrics[0]
    whole = [row for row in rows if row.metric == metric.name and row.variant.is_complete]
    if not whole:
        return "No variant has finished with every seed."
    if len(whole) == 1 < len(results.variants):
        return (
            f"Only {whole[0].variant.name} has finished with every seed: {metric_label(metric.name, results.task)} "
            f"{estimate_of(whole[0])}."
        )
    conditions = results.study.conditions
    best = _best_by_condition if conditions else _best
    first, *others = (best(other, rows, results) for other in results.study.metrics)
    if first:
        return first
    if conditions:
        compared = max(map(len, _by_condition(metric, rows, results).values()))
    else:
        compared = sum(math.isfinite(row.estimate.mean) for row in whole)
    equal = _none_is_best(compared, f" with the same {' and '.join(conditions)}" if conditions else "")
    equal += f" in {metric_label(metric.name, results.task)}."
    return " ".join([equal, *list(filter(None, others))[:1]])


def _best(metric: Metric, rows: list[Row], results: StudyResults) -> str:
    """Return a sentence on the best variants in a metric; empty if there is none."""
    best = [row for row in rows if row.metric == metric.name and row.best]
    if not best:
        return ""
    names = " and ".join(row.variant.name for row in best)
    highest = f"{_superlative(metric)} {metric_label(metric.name, results.task)}"
    number = f"{estimate_of(best[0])} ({_number_of_seeds(best[0])})"
    return f"{names} {'has' if len(best) == 1 else 'have'} the {highest}: {number}."


def _best_by_condition(metric: Metric, rows: list[Row], results: StudyResults) -> str:
    """Return a sentence on the best variants in a metric within each condition; empty if there is none in any."""
    if not metric.direction:
        return ""
    better = {"max": max, "min": min}[metric.direction]
    clauses, seeds = [], ""
    for condition, candidates in _by_condition(metric, rows, results).items():
        means = {row.estimate.mean for _, row in candidates}
        if len(means) > 1:
            best = [(name, row) for name, row in candidates if row.estimate.mean == better(means)]
            said = f"{' and '.join(name for name, _ in best)} with {estimate_of(best[0][1])}"
            seeds = _number_of_seeds(best[0][1])
        else:
            said = _none_is_best(len(candidates)).lower()
        clauses.append(f"where {condition}, {said}")
    if not seeds:
        return ""
    return f"The {_superlative(metric)} {metric_label(metric.name, results.task)}: {'; '.join(clauses)} ({seeds} each)."


def _by_condition(metric: Metric, rows: list[Row], results: StudyResults) -> dict[str, list[tuple[str, Row]]]:
    """Return the complete variants with a finite mean, by condition: name without the condition, and row."""
    found: dict[str, list[tuple[str, Row]]] = {}
    for variant in results.everywhere:  # a variant may be the same experiment as one of another condition
        held = {axis: variant.labels[axis] for axis in results.study.conditions}
        compared = {axis: value for axis, value in variant.labels.items() if axis not in held}
        condition = found.setdefault(Variant(held, ()).name, [])
        condition += [
            (Variant(compared, ()).name, row)
            for row in rows
            if row.metric == metric.name
            and row.variant.trials is variant.trials
            and variant.is_complete
            and math.isfinite(row.estimate.mean)
        ]
    return found


def _superlative(metric: Metric) -> str:
    return "highest" if metric.direction == "max" else "lowest"


def _number_of_seeds(row: Row) -> str:
    return f"{row.estimate.count} {'seed' if row.estimate.count == 1 else 'seeds'}"


def _none_is_best(num_compared: int, alike: str = "") -> str:
    differ = "differ" if num_compared > 1 else "can be compared"
    return f"No two variants{alike} whose trials have all finished {differ}"


def notes(results: StudyResults) -> list[str]:
    """Return sentences that explain the tables."""
    fewest = min((len(variant.trials) for variant in results.variants), default=0)
    reference = results.reference
    said = [
        "mean ± 95 % is the mean over the seeds that have finished, with half the width of its 95 % confidence "
        "interval (Student's t).",
        f"{STAR} marks the best mean among all variants whose trials have all finished. It is not a statement on "
        "significance.",
    ]
    if any(isinstance(axis, Range) for axis in results.study.axes):
        said.append("A search over a range has no reference, so there are no differences.")
    elif results.study.contrasts:
        said.append(
            f"Differences are between variants that differ only in {' or '.join(results.study.contrasts)}: {_PAIRED} "
            f"for the number of such contrasts in the metric; the uncorrected p-value is in {CONTRASTS}. {_COMMONLY}"
        )
    elif reference is None:
        wanted = ", ".join(f"{axis}={value}" for axis, value in results.study.reference_variant.items())
        said.append(f"The reference, {wanted}, has no trial here, so there are no differences.")
    else:
        said.append(
            f"Differences are relative to the reference, {reference.name}: {_PAIRED} for the number of variants "
            f"compared in the metric; the uncorrected p-value is in {SUMMARY}. {_COMMONLY}"
        )
    few = f"{fewest} {'seed says' if fewest == 1 else 'seeds say'} little" if fewest < 5 else "Few seeds say little"
    said.append(
        f"{few} about small effects: intervals are wide. Intervals and p-values assume normally distributed values. A "
        "difference that is not significant may still exist."
    )
    if not all(variant.is_complete for variant in results.variants):
        said.append(
            "A trial has diverged if its loss became NaN or infinite. The mean covers only the trials that have "
            "finished. The table counts all others: diverged, failed, pruned, without a result yet or not begun."
        )
    for variant, same in results.absent.items():
        if not same and results.search.name != "grid":  # the search has not drawn it
            continue
        said.append(f"{variant} {f'is the same experiment as {same}' if same else 'has no trial here'}.")
    return said


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
