"""Sentences of a report, shared by its page and its Markdown file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from transformer_jax.sweeps.contrasts import Interaction
from transformer_jax.sweeps.equal_notes import sentences_on_equal
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect
from transformer_jax.sweeps.report.formatting import amount, metric_name, status_words
from transformer_jax.sweeps.report.number_text import rounded
from transformer_jax.sweeps.report.summary import CONTRASTS, SUMMARY, Row
from transformer_jax.sweeps.report.variants import NOT_BEGUN, STATUSES
from transformer_jax.sweeps.study import Range

STAR = "★"
NOT_SHOWN = "Not shown:"
_PAIRED = (
    "the mean over the seeds that both have, since trials with the same seed share data order and initial draws. p is "
    "the p-value of the two-sided paired t-test, corrected by the method of Holm 1979"
)
_SEEDS_ONLY = "include the noise of the seeds only, not that of a finite test set"
_OF_MEANS = "those of means include the noise of the seeds only"
_MOST_NAMED = 8
_UNDECIDED = "is not decided: the other seeds are a selection."
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


def interval_note(results: StudyResults, rows: Sequence[Row], effects: Sequence[Effect]) -> str:
    """Return what the numbers after ± in the answer are; empty if no number has an interval."""
    metric = next((metric.name for metric in results.study.metrics if metric.direction), "")
    of_effects = [effect.difference for effect in effects if effect.metric == metric and not effect.is_exact]
    of_means = [row.estimate for row in rows if row.metric == metric]
    shown = of_effects if results.study.contrasts else of_means
    counts = sorted({of.count for of in shown if math.isfinite(of.half_width)})
    if not counts:
        return ""
    return f"± is half of a 95 % interval, over {' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} seeds."


def asked(results: StudyResults) -> str:
    """Return a sentence if what the study asks was changed after the first trial; else nothing."""
    if results.asked is None or not results.asked.changes:
        return ""
    names = {"contrasts": "contrasts", "metrics": "metrics", "precision": "widths", "tuned": "tuning"}
    changed = " and ".join(names[name] for name in results.asked.changes)
    return f"Changed after the first trial: {changed}. The answer may depend on results that were known by then."


def notes(results: StudyResults, rows: Sequence[Row], effects: Sequence[Effect]) -> list[str]:
    """Return sentences that explain the answer and the tables."""
    fewest = min((len(variant.trials) for variant in results.variants), default=0)
    reference = results.reference
    said = [
        "mean ± 95 % is the mean over the seeds that have finished, with half the width of its 95 % confidence "
        "interval (Student's t).",
    ]
    if any(row.best for row in rows):
        said.append(f"{STAR} marks the variant that is ahead of every other one whose trials have all finished.")
    if not results.study.contrasts:
        said.append(
            "Two variants of one group are not told apart: the interval of their paired difference has 0 in it, or its "
            "p-value, corrected for the number of pairs, is not below 0.05. A variant can be in two groups."
        )
    if any(isinstance(axis, Range) for axis in results.study.axes):
        said.append("A search over a range has no reference, so there are no differences.")
    elif results.study.contrasts:
        said.append(
            f"Differences are between variants that differ only in {_axes_of(results)}: {_PAIRED} "
            f"for the number of such contrasts in the metric; the uncorrected p-value is in {CONTRASTS}. {_COMMONLY}"
        )
        said += _verdicts(results, effects)
    elif reference is None:
        wanted = ", ".join(f"{axis}={value}" for axis, value in results.study.reference_variant.items())
        said.append(f"The reference, {wanted}, has no trial here, so there are no differences.")
    else:
        said.append(
            f"Differences are relative to the reference, {reference.name}: {_PAIRED} for the number of variants "
            f"compared in the metric; the uncorrected p-value is in {SUMMARY}. {_COMMONLY}"
        )
    said += sentences_on_equal(results.study)
    said += _stages(results, rows)
    if results.asked is not None and not results.asked.changes:
        what = (
            "Contrasts, metrics and widths" if results.study.tuned is None else "Contrasts, metrics, widths and tuning"
        )
        said.append(f"{what} are those declared before the first trial (sha256 {results.asked.sha256[:12]}).")
    if results.asked is not None and (added := results.asked.added(results.study.seeds)):
        said.append(
            f"{_seeds(added).capitalize()} {'was' if len(added) == 1 else 'were'} added to the study after its first "
            "trial. If results were the reason, intervals are too short and p-values too small. Seeds that a precision "
            "asks for have neither fault."
        )
    said += _noise(results, effects)
    few = f"{fewest} {'seed says' if fewest == 1 else 'seeds say'} little" if fewest < 5 else "Few seeds say little"
    said.append(
        f"{few} about small effects: intervals are wide. Intervals and p-values assume normally distributed values, "
        f"and {_SEEDS_ONLY if not _has_noise(effects) else _OF_MEANS}. A difference that is not significant may still "
        "exist."
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


def _stages(results: StudyResults, rows: Sequence[Row]) -> list[str]:
    study = results.study
    if not study.precision:
        return []
    widths = "; ".join(amount(f"± {width:g}", name, results.task) for name, width in study.precision.items())
    wider = [
        f"{row.variant.name} in {metric_name(row.metric, results.task)} (± {rounded(row.difference.half_width)})"
        for row in rows
        if row.difference is not None and row.difference.half_width > study.precision.get(row.metric, math.inf)
    ]
    said = [
        f"The study asks for intervals of {widths}. The number of seeds is that of Stein's rule: it follows from the "
        f"spread of the first {len(study.seeds)} seeds alone, and is at most {study.max_seeds}. Intervals and p-values "
        "of these metrics use this spread. Where the seeds do not suffice, they are Student's, of all seeds."
    ]
    if wider:
        said.append(f"The intervals of these differences to the reference are wider than asked: {'; '.join(wider)}.")
    return said


def _has_noise(effects: Sequence[Effect]) -> bool:
    return any(effect.noise is not None for effect in effects)


def _noise(results: StudyResults, effects: Sequence[Effect]) -> list[str]:
    """Return sentences on the noise of the test set, if it is known for a contrast: where it is the larger one."""
    if not _has_noise(effects):
        return []
    said = []
    for metric in results.study.metrics:
        own = [effect for effect in effects if effect.metric == metric.name]
        name = metric_name(metric.name, results.task)
        if unknown := [effect.name for effect in own if effect.noise is None]:
            of = "" if len(unknown) == len(own) else f" in {_listed(unknown)}"
            said.append(f"The noise of the test set is not known for {name}{of}.")
        known = [effect for effect in own if effect.noise is not None]
        larger = {
            "the seeds": [effect.name for effect in known if effect.seed_error >= effect.test_error],
            "the test set": [effect.name for effect in known if effect.seed_error < effect.test_error],
        }
        if parts := [f"{of} in {_listed(names)}" for of, names in larger.items() if names]:
            said.append(f"The larger noise of a difference in {name} is that of {'; that of '.join(parts)}.")
    first = (
        "Intervals of differences include the noise of the seeds and, where it is known, that of the test set, whose "
        f"examples are the same for all seeds. {CONTRASTS} has both as standard errors."
    )
    return [" ".join([first, *said[:1]]), *said[1:]]


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} contrasts"


def _axes_of(results: StudyResults) -> str:
    names = [one if isinstance(one, str) else one.axis for one in results.study.contrasts]
    crossed = [one.by for one in results.study.contrasts if isinstance(one, Interaction)]
    return " or ".join(dict.fromkeys([*names, *crossed]))


def _verdicts(results: StudyResults, effects: Sequence[Effect]) -> list[str]:
    """Return sentences on the verdicts, and on the effects that the seeds find."""
    said = [
        "A value is ahead if the interval excludes 0 and p is below 0.05. Otherwise the contrast is undecided, unless "
        "the study declares a width and both ends of the interval are within it: then the values are equal."
    ]
    not_compared = [effect for effect in effects if effect.verdict == "not compared"]
    is_whole = [all(variant.is_complete for variant in effect.variants) for effect in not_compared]
    if not all(is_whole):
        said.append(f"A contrast with a trial that has not finished {_UNDECIDED}")
    if any(is_whole):
        said.append(f"A contrast with a trial that has no number in the metric {_UNDECIDED}")
    smallest = []
    for metric in results.study.metrics:
        known = [effect.smallest for effect in effects if effect.metric == metric.name and effect.smallest > 0]
        if known:
            low, high = (rounded(of) for of in (min(known), max(known)))
            sizes = low if low == high else f"{low} to {high}"
            smallest.append(amount(sizes, metric.name, results.task))
    if smallest:
        found = "The smallest effects that these seeds find with a probability of 80 %, by contrast"
        said.append(f"{found}: {'; '.join(smallest)}.")
    if any(effect.verdict == "undecided" for effect in effects):
        said.append(
            "The number of seeds that would decide is the smallest with which a paired t-test, at 5 % divided by the "
            "number of contrasts in the metric, finds the measured effect with a probability of 80 %, if the measured "
            "spread is the true one."
        )
    return said


def _seeds(seeds: list[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
