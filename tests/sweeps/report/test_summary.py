"""The numbers of a report, and the files that contain them."""

import csv
import dataclasses
import io
import json
import math

import numpy as np
import pytest
from report_support import CROSSED, NAMES, metrics_of, write_workdir
from scipy import stats

from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.measurements import measurements_csv, read_study
from transformer_jax.sweeps.report.summary import (
    contrasts_csv,
    results_csv,
    summarise,
    summary_csv,
    summary_json,
)
from transformer_jax.sweeps.statistics import holm
from transformer_jax.sweeps.study import RESERVED_NAMES

METRIC = "test/loss"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


def rows_of(results, metric=METRIC):
    return [row for row in summarise(results) if row.metric == metric]


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def values_of(index, seeds=(0, 1, 2)):
    return np.array([metrics_of(index, seed)[METRIC] for seed in seeds])


def test_means_intervals_and_paired_tests(results):
    rows, p_values = rows_of(results), []
    assert [row.variant.name for row in rows] == NAMES
    assert rows[0].difference is None
    for index, row in enumerate(rows):
        seeds = (0, 2) if index == 2 else (0, 1, 2)  # one of its trials diverged
        values = values_of(index, seeds)
        low, high = stats.t.interval(0.95, len(seeds) - 1, loc=values.mean(), scale=stats.sem(values))
        assert (row.estimate.mean, row.estimate.half_width) == pytest.approx((values.mean(), (high - low) / 2))
        if index:
            test = stats.ttest_rel(values, values_of(0, seeds))
            p_values.append(test.pvalue)
            assert (row.difference.p_value, row.difference.count) == (pytest.approx(test.pvalue), len(seeds))
    assert [row.corrected for row in rows[1:]] == pytest.approx(holm(p_values))


@pytest.mark.parametrize("status", ["diverged", "failed", "pruned", None])
def test_the_best_variant_has_all_its_trials(results, status):
    assert [row.best for row in rows_of(results)] == [True, False, False, False, False]
    assert [row.best for row in rows_of(results, "test/exact_match")] == [True, False, False, False, False]
    assert not any(row.best for row in rows_of(results, "test[1-5]/exact_match"))  # the metric has no direction
    first = results.variants[0]
    result = None if status is None else dataclasses.replace(first.trials[1].result, status=status)
    lost = dataclasses.replace(first.trials[1], result=result)
    variant = dataclasses.replace(first, trials=(first.trials[0], lost, first.trials[2]))
    without = dataclasses.replace(results, variants=(variant, *results.variants[1:]))
    assert [row.best for row in rows_of(without)] == [False, True, False, False, False]


def test_none_is_best_if_all_are_equal(results):
    first = results.variants[0]
    same = dataclasses.replace(first, labels={"num_heads": "2"})
    rows = rows_of(dataclasses.replace(results, variants=(first, same)))
    assert [row.best for row in rows] == [False, False]
    assert rows[1].difference.mean == 0
    assert math.isnan(rows[1].corrected)


def test_without_a_reference_there_are_no_differences(results):
    rows = rows_of(dataclasses.replace(results, variants=results.variants[1:]))
    assert all(row.difference is None and math.isnan(row.corrected) for row in rows)


def test_contrasts_are_between_variants_that_differ_in_one_axis(tmp_path):
    crossed = collect(*write_workdir(tmp_path, text=CROSSED))
    assert crossed.reference is None
    assert all(row.difference is None for row in summarise(crossed))
    losses = [contrast for contrast in effects(crossed) if contrast.metric == METRIC]
    assert [contrast.name for contrast in losses] == [
        *(f"num_heads: {heads} minus 1, where norm={norm}" for heads in (2, 4) for norm in ("pre", "post")),
        *(f"norm: pre minus post, where num_heads={heads}" for heads in (1, 2, 4)),
    ]
    index = {variant.name: number for number, variant in enumerate(crossed.variants)}
    pairs = [("num_heads=4, norm=pre", "num_heads=1, norm=pre"), ("num_heads=2, norm=pre", "num_heads=2, norm=post")]
    for contrast, (of, other) in zip((losses[2], losses[5]), pairs, strict=True):
        test = stats.ttest_rel(values_of(index[of]), values_of(index[other]))
        assert (contrast.difference.p_value, contrast.difference.count) == (pytest.approx(test.pvalue), 3)
    assert [c.corrected for c in losses] == pytest.approx(holm([c.difference.p_value for c in losses]))


def test_json_of_a_study_with_contrasts_has_both(tmp_path):
    crossed = collect(*write_workdir(tmp_path, text=CROSSED))
    rows, found = summarise(crossed), effects(crossed)
    both = json.loads(summary_json(rows, found))
    assert both["variants"] == json.loads(summary_json(rows))
    for record, line in zip(both["contrasts"], read(contrasts_csv(found)), strict=True):
        labels = record.pop("variant")
        assert {name: "" if v is None else str(v) for name, v in (labels | record).items()} == line
        assert line["against"] != line[line["axis"]]


def test_every_trial_is_a_line(results):
    lines = read(results_csv(results))
    assert len(lines) == 15
    for line, trial in zip(lines, results.trials, strict=True):
        assert (line["num_heads"], int(line["seed"])) == (trial.trial.labels["num_heads"], trial.trial.seed)
        assert {name: line[name] for name in ("status", "steps", "seconds", "parameters")} == {
            "status": trial.status,
            "steps": str(trial.result.steps),
            "seconds": "7.5",
            "parameters": str(trial.result.parameters),
        }
        for metric in results.metrics:  # bit for bit
            assert line[metric] == (str(trial.metrics[metric]) if metric in trial.metrics else "")


def test_a_trial_without_a_result_is_a_line(results):
    first = results.variants[0]
    begun = dataclasses.replace(first.trials[0], result=None)
    variants = (dataclasses.replace(first, trials=(begun,)), *results.variants[1:])
    line = read(results_csv(dataclasses.replace(results, variants=variants)))[0]
    assert (line["status"], line["steps"], line["test/loss"]) == ("none yet", "", "")


def test_every_variant_and_metric_is_a_line(results):
    rows = summarise(results)
    lines = read(summary_csv(rows))
    assert len(lines) == 5 * len(results.metrics)
    for line, row in zip(lines, rows, strict=True):
        assert (line["num_heads"], line["metric"]) == (row.variant.labels["num_heads"], row.metric)
        assert (float(line["mean"]), float(line["half_width"])) == row.estimate[:2]
        assert int(line["seeds"]) == row.estimate.count
        assert (line["diverged"], line["trials"]) == ("1" if line["num_heads"] == "4" else "0", "3")
        found = [line[name] for name in ("difference", "difference_half_width", "p_value", "pairs")]
        if row.difference is None:
            assert [*found, line["p_value_holm"]] == [""] * 5
        else:
            expected = ["" if math.isnan(value) else str(value) for value in (*row.difference, row.corrected)]
            assert [*found, line["p_value_holm"]] == expected


def test_names_of_columns_are_reserved(results, tmp_path):
    crossed = collect(*write_workdir(tmp_path, text=CROSSED))
    columns = {*read(results_csv(results))[0], *read(summary_csv(summarise(results)))[0]}
    columns |= set(read(contrasts_csv(effects(crossed)))[0]) - {"norm"}
    columns |= set(read(measurements_csv(results))[0])
    columns.add("not_reached")  # only with a metric of `StepsTo`
    assert columns == RESERVED_NAMES | {"num_heads", *results.metrics}


def test_json_has_the_same_numbers(results):
    rows = summarise(results)
    records = json.loads(summary_json(rows))
    for record, line in zip(records, read(summary_csv(rows)), strict=True):
        labels = record.pop("variant")
        assert {name: "" if v is None else str(v) for name, v in (labels | record).items()} == line


def test_every_number_of_a_study_is_in_tidy_form(results):
    data = read_study(results.workdir)
    by_key = {(row.trial, row.of, row.step, row.metric): row for row in data.measurements}
    assert len(by_key) == len(data.measurements)
    for trial in data.results.trials:
        name = trial.folder.name
        for line in trial.log_lines:
            for metric in ("loss", "accuracy"):
                if metric in line:
                    row = by_key[name, "log", line["step"], f"{line['split']}/{metric}"]
                    assert (row.value, row.seed, row.labels) == (line[metric], trial.trial.seed, trial.trial.labels)
        scores = {row.metric: row.value for row in data.measurements if (row.trial, row.of) == (name, "score")}
        assert scores == trial.metrics
    lines = read(measurements_csv(results))
    assert list(lines[0]) == ["trial", "num_heads", "seed", "of", "step", "metric", "value"]
    assert [line["value"] for line in lines] == ["" if r.value is None else str(r.value) for r in data.measurements]
