"""The numbers of a report: those of every trial, and those of every variant with their uncertainty."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.host.files import json_text
from transformer_jax.sweeps.contrasts import Term
from transformer_jax.sweeps.report.collect import StudyResults
from transformer_jax.sweeps.report.effects import Effect, measured_difference
from transformer_jax.sweeps.report.number_text import digits_apart
from transformer_jax.sweeps.report.order import order
from transformer_jax.sweeps.report.variants import NO_RESULT, NOT_BEGUN, Variant
from transformer_jax.sweeps.statistics import Difference, Estimate, estimate, holm
from transformer_jax.sweeps.steps_to import target_of

RESULTS, SUMMARY, CONTRASTS = "results.csv", "summary.csv", "contrasts.csv"
_UNFINISHED = ("diverged", "failed", "pruned", NO_RESULT, NOT_BEGUN)


@dataclasses.dataclass(frozen=True)
class Row:
    """A metric of a variant.

    Attributes:
      direction: max or min; empty if the study does not name the metric, or neither is better.
      difference: paired, to the reference; None for the reference itself, and if there is no reference.
      corrected: p-value of the difference after Holm's correction for the number of variants compared in this metric.
      best: whether the variant is ahead of every other; False for all in a study with contrasts.
      digits: of the half-width, as `number_text.interval` shows them: enough that the best and any other mean differ.
    """

    variant: Variant
    metric: str
    direction: str
    estimate: Estimate
    difference: Difference | None
    corrected: float
    best: bool
    digits: int = 2


def summarise(results: StudyResults) -> list[Row]:
    """Return a row per variant and metric, sorted by variant."""
    columns = [_rows_of_metric(results, metric) for metric in results.metrics]
    return [row for rows in zip(*columns, strict=True) for row in rows]


def _rows_of_metric(results: StudyResults, metric: str) -> list[Row]:
    reference, direction = results.reference, results.direction(metric)
    estimates = [estimate(list(variant.values(metric).values())) for variant in results.variants]
    differences: list[Difference | None] = [
        None
        if reference is None or variant is reference
        else measured_difference(
            results, metric, (Term(1, variant.labels), Term(-1, reference.labels)), (variant, reference)
        )[0]
        for variant in results.variants
    ]
    corrected = holm([math.nan if d is None else d.p_value for d in differences])
    means = [
        found.mean if variant.is_complete else math.nan
        for variant, found in zip(results.variants, estimates, strict=True)
    ]
    known = [mean for mean in means if not math.isnan(mean)]
    first = {"max": max, "min": min}[direction](known) if direction and known else math.nan
    digits = digits_apart(estimates, means.index(first)) if len(set(known)) > 1 and direction else [2] * len(means)
    winner = order(results, metric).winner if direction and not results.study.contrasts else None
    return [
        Row(variant, metric, direction, found, difference, p_value, variant is winner, places)
        for variant, found, difference, p_value, places in zip(
            results.variants, estimates, differences, corrected, digits, strict=True
        )
    ]


def results_csv(results: StudyResults) -> str:
    """Return one CSV line per trial of any status."""
    names, axes = results.metrics, [axis.name for axis in results.study.axes]
    lines = []
    for trial in results.trials:
        ran = trial.ran
        lines.append(
            [*(trial.trial.labels[axis] for axis in axes), trial.trial.seed, trial.status]
            + [None if trial.limit(name) is not None else trial.metrics.get(name) for name in names]
            + ([None] * 3 if ran is None else [ran.steps, ran.seconds, ran.parameters])
        )
    return csv_text([*axes, "seed", "status", *names, "steps", "seconds", "parameters"], lines)


def summary_records(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows as records for --json and summary.csv; missing numbers are None.

    `not_reached`, only if the study has a metric of `StepsTo`: the number of trials that have not reached its value.
    """
    has_targets = any(target_of(row.metric) for row in rows)
    return [
        {
            "variant": dict(row.variant.labels),
            "metric": row.metric,
            "direction": row.direction,
            "mean": finite(row.estimate.mean),
            "half_width": finite(row.estimate.half_width),
            "seeds": row.estimate.count,
            "trials": sum(row.variant.counts.values()),
            **{status.replace(" ", "_"): row.variant.counts.get(status, 0) for status in _UNFINISHED},
            **({"not_reached": len(row.variant.limits(row.metric))} if has_targets else {}),
            "best": row.best,
            **_difference(row.difference, row.corrected),
        }
        for row in rows
    ]


def contrast_records(found: Sequence[Effect]) -> list[dict[str, Any]]:
    """Return the contrasts as records for --json and contrasts.csv; missing numbers are None."""
    return [
        {
            "variant": dict(effect.labels),
            "axis": effect.axis,
            "against": effect.against,
            "metric": effect.metric,
            **_difference(effect.difference, effect.corrected),
            "verdict": effect.verdict,
            "declared_width": finite(effect.width),
            "seeds_to_decide": effect.seeds_to_decide if effect.verdict == "undecided" else None,
            "smallest_effect": finite(effect.smallest),
            "seed_error": finite(effect.seed_error),
            "test_error": finite(effect.test_error),
        }
        for effect in found
    ]


def summary_json(rows: Sequence[Row], found: Sequence[Effect] = (), ascii: bool = False) -> str:
    """Return the records of the variants as JSON, or an object of variants and contrasts if there are contrasts.

    Args: ascii: as in `json_text`.
    """
    records: Any = summary_records(rows)
    if found:
        records = {"variants": records, "contrasts": contrast_records(found)}
    return json_text(records, indent=2, ascii=ascii)


def summary_csv(rows: Sequence[Row]) -> str:
    """Return one CSV line per variant and metric, with a column for every axis."""
    return _csv_of(summary_records(rows))


def contrasts_csv(found: Sequence[Effect]) -> str:
    """Return one CSV line per contrast and metric; the columns of the axes are for the first of the two variants."""
    return _csv_of(contrast_records(found))


def _csv_of(records: Sequence[dict[str, Any]]) -> str:
    header, lines = [], []
    for record in records:
        labels = record.pop("variant")
        header = [*labels, *record]
        lines.append([*labels.values(), *record.values()])
    return csv_text(header, lines)


def _difference(found: Difference | None, corrected: float) -> Mapping[str, Any]:
    difference = found or Difference(math.nan, math.nan, math.nan, 0)
    return {
        "difference": finite(difference.mean),
        "difference_half_width": finite(difference.half_width),
        "pairs": None if found is None else difference.count,
        "p_value": finite(difference.p_value),
        "p_value_holm": finite(corrected),
    }


def finite(value: float) -> float | None:
    """Return a number; None if it is not finite, as a CSV file and JSON have it."""
    return value if math.isfinite(value) else None


def csv_text(header: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Return CSV by RFC 4180, except that lines end in `\\n`; numbers have full precision."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    return file.getvalue()
