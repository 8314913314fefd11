"""Text of names and of results, the same in the page, the Markdown file, the LaTeX tables and the figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.number_text import NOTHING, interval, p_value
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.variants import NO_RESULT, Variant
from transformer_jax.tasks.task import Task, declared


def metric_name(metric: str, task: Task) -> str:
    """Return `test exact match` for `test/exact_match`, as the task declares it."""
    return f"{metric.rpartition('/')[0]} {declared(task, metric).label}".strip()


def metric_label(metric: str, task: Task) -> str:
    """Return name and unit, as in the label of an axis."""
    unit = declared(task, metric).unit
    return f"{metric_name(metric, task)} ({unit})" if unit else metric_name(metric, task)


def amount(number: str, metric: str, task: Task) -> str:
    """Return a number with the unit and the name of its metric: `8.2 ± 8.0 points in test exact match`."""
    unit, name = declared(task, metric).unit, metric_name(metric, task)
    return f"{number} {'points' if unit == '%' else unit} in {name}" if unit else f"{number} {name}"


def trials_of(variant: Variant) -> str:
    """Return the counts of trials by status: `3 finished` or `2 finished, 1 of 3 diverged`."""
    counts = variant.counts
    finished = [f"{count} finished"] if (count := counts.get("finished")) else []
    return ", ".join([*finished, *unfinished(counts)])


def unfinished(counts: Mapping[str, int]) -> list[str]:
    """Return `1 of 3 diverged` for every status except finished."""
    of = sum(counts.values())
    return [f"{count} of {of} {status_words(status)}" for status, count in counts.items() if status != "finished"]


def status_words(status: str) -> str:
    return "without a result yet" if status == NO_RESULT else status


def estimate_of(row: Row) -> str:
    return interval(row.estimate.mean, row.estimate.half_width, digits=row.digits)


def difference_of(row: Row | Effect) -> str:
    if row.difference is None:
        return NOTHING
    return interval(row.difference.mean, row.difference.half_width, sign=True)


def p_value_of(row: Row | Effect) -> str:
    return p_value(row.corrected)


def verdict_of(effect: Effect) -> str:
    """Return `pre ahead`, `equal`, `undecided (7 seeds)` with the seeds that would decide, or `1 of 6 diverged`."""
    if effect.verdict == "ahead":
        ahead = effect.labels if effect.first_is_ahead else effect.comparison.against
        return f"{ahead[effect.comparison.axes[0]]} ahead"
    if effect.verdict == "undecided":
        seeds = effect.seeds_to_decide
        return "undecided" + (f" ({seeds} seeds)" if seeds else "")
    if effect.verdict == "not compared":
        counts = sum((Counter(variant.counts) for variant in effect.variants), Counter())
        return ", ".join(unfinished(counts)) or effect.verdict
    return effect.verdict or NOTHING
