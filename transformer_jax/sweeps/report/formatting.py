"""Text of names and of results, the same in the page, the Markdown file, the LaTeX tables and the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from transformer_jax.sweeps.contrasts import Contrast
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.number_text import NOTHING, interval, number_text, p_value
from transformer_jax.sweeps.report.summary import Row
from transformer_jax.sweeps.report.variants import NO_RESULT, TrialResult, Variant
from transformer_jax.sweeps.steps_to import WORDS, target_of
from transformer_jax.tasks.task import Task, declared


def metric_name(metric: str, task: Task) -> str:
    """Return `test exact match` for `test/exact_match`, as the task declares it; `steps to valid loss 1.5`."""
    if (target := target_of(metric)) is not None:
        return f"{WORDS[target.cost]} to {metric_name(target.quantity, task)} {target.value:g}"
    return f"{metric.rpartition('/')[0]} {declared(task, metric).label}".strip()


def metric_label(metric: str, task: Task) -> str:
    """Return name and unit, as in the label of an axis."""
    unit = "" if target_of(metric) else declared(task, metric).unit
    return f"{metric_name(metric, task)} ({unit})" if unit else metric_name(metric, task)


def amount(number: str, metric: str, task: Task) -> str:
    """Return a number with the unit and the name of its metric: `8.2 ± 8.0 points in test exact match`."""
    unit, name = "" if target_of(metric) else declared(task, metric).unit, metric_name(metric, task)
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
    """Return mean and interval; `> 700` if no trial has reached the value of `StepsTo`, `1 of 3 > 700` if one has not.

    Numbers of the trials that have reached it are not averaged without the others.
    """
    if limits := row.variant.limits(row.metric):
        count = len(row.variant.values(row.metric))
        return (f"{len(limits)} of {count} " if len(limits) < count else "") + more_than(limits.values())
    return interval(row.estimate.mean, row.estimate.half_width, digits=row.digits)


def more_than(limits: Iterable[float]) -> str:
    """Return `> 700`, or `> 650 to 700` for different limits; `not reached` if they are not known."""
    known = sorted({limit for limit in limits if not math.isnan(limit)})
    if not known:
        return "not reached"
    return f"> {' to '.join(map(_short, dict.fromkeys((known[0], known[-1]))))}"


def _short(number: float) -> str:
    return str(round(number)) if number < 1e6 else f"{number:.3g}"


def value_of(trial: TrialResult, metric: str) -> str:
    """Return the number of a trial; `> 700` if it did not reach the value of `StepsTo`."""
    if metric not in trial.metrics:
        return NOTHING
    limit = trial.limit(metric)
    return number_text(trial.metrics[metric]) if limit is None else more_than([limit])


def without_number(variant: Variant, metric: str, task: Task) -> str:
    """Return why a variant whose trials have all finished has no mean: `not reached by 2 of 3 seeds`."""
    if limits := variant.limits(metric):
        return f"not reached by {len(limits)} of {len(variant.values(metric))} seeds"
    return f"{metric_name(metric, task)} is not finite"


def difference_of(row: Row | Effect) -> str:
    if row.difference is None:
        return NOTHING
    return interval(row.difference.mean, row.difference.half_width, sign=True)


def p_value_of(row: Row | Effect) -> str:
    return p_value(row.corrected)


def verdict_of(effect: Effect) -> str:
    """Return `pre ahead`, `equal`, `undecided, needs 7 seeds` with those that would decide, or `1 of 6 diverged`.

    An interaction has `pre gains`: whether it is ahead depends on the value of the other axis.
    """
    if effect.verdict == "ahead":
        ahead = effect.labels if effect.first_is_ahead else effect.comparison.against
        verb = "ahead" if isinstance(effect.comparison.declared, Contrast) else "gains"
        return f"{ahead[effect.comparison.axes[0]]} {verb}"
    if effect.verdict == "undecided":
        can_be_tested = not math.isnan(effect.corrected)
        return "undecided" + (f", needs {effect.seeds_to_decide or '> 100'} seeds" if can_be_tested else "")
    if effect.verdict == "not compared":
        counts = sum((Counter(variant.counts) for variant in effect.variants), Counter())
        limits = any(variant.limits(effect.metric) for variant in effect.variants)
        return ", ".join(unfinished(counts)) or ("not reached" if limits else effect.verdict)
    return effect.verdict or NOTHING
