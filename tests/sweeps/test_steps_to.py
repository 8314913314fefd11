"""The cost until a validation first reaches a value, and reports of trials that do not reach it."""

import dataclasses
import json
import math
import re

import pytest
from report_support import write_study, write_trial
from run_support import run_main
from sweep_support import tiny_study

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.report.answer import answer
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.formatting import estimate_of, metric_label
from transformer_jax.sweeps.report.order import order
from transformer_jax.sweeps.report.sentences import notes
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.results import RESULT, TRIALS, claim_sweep, read_result, write_spec
from transformer_jax.sweeps.steps_to import Target, target_of
from transformer_jax.sweeps.study import Metric, StepsTo, Study, load_study, over
from transformer_jax.sweeps.study_json import declaration_of
from transformer_jax.sweeps.trials import grid
from transformer_jax.sweeps.worker import run_trials
from transformer_jax.tasks.task import TASKS

LOSSES = {100: 3.0, 200: 2.0, 300: 2.1, 400: 1.5, 500: 1.4}


def lines(losses=None):
    """Return a log with five times 1e9 operations; the training loss stays."""
    result = []
    for step, loss in (losses or LOSSES).items():
        result.append({"step": step, "split": "train", "loss": 9.0, "flops": 1e9, "seconds": 0.5})
        result.append({"step": step, "split": "valid", "loss": loss, "accuracy": 100 - 10 * loss})
    return result


@pytest.mark.parametrize(
    ("quantity", "value", "cost", "direction", "expected"),
    [
        ("valid/loss", 3.5, "steps", "min", 100),  # at once: at most the first validation
        ("valid/loss", 2.05, "steps", "min", 200),  # the first time, although it rises again
        ("valid/loss", 1.5, "steps", "min", 400),  # equal is reached
        ("valid/loss", 1.39, "steps", "min", math.nan),
        ("valid/loss", 1.5, "flops", "min", 4e9),
        ("valid/loss", 1.5, "seconds", "min", 2.0),
        ("valid/accuracy", 80, "steps", "max", 200),
        ("valid/accuracy", 99, "steps", "max", math.nan),
        ("valid/nothing", 1, "steps", "min", math.nan),
    ],
)
def test_the_first_validation_that_reaches_a_value(quantity, value, cost, direction, expected):
    target = target_of(StepsTo(quantity, value, cost).name)
    assert target == Target(quantity, value, cost)
    assert target.cost_of(lines(), direction) == pytest.approx(expected, nan_ok=True)


def test_what_is_not_reached_is_more_than_the_last_validation():
    assert Target("valid/loss", 1.0, "steps").limit(lines()) == 500
    assert Target("valid/loss", 1.0, "flops").limit(lines()) == 5e9
    assert math.isnan(Target("valid/loss", 1.0, "steps").limit([]))
    assert math.isnan(Target("valid/loss", 1.0, "flops").limit([{"step": 9, "split": "valid", "loss": 2.0}]))


@pytest.mark.parametrize("value", [1.5, 2, -0.25, 1e-7, 123456.789, 1e9])
def test_a_name_is_read_back(value):
    metric = StepsTo("valid/loss", value)
    assert target_of(metric.name).value == value
    assert Metric(**dataclasses.asdict(metric)) == metric


@pytest.mark.parametrize("name", ["test/loss", "test[1-5]/exact_match", "test[6-10]/steps", "valid[loss:x]/steps"])
def test_other_metrics_are_no_targets(name):
    assert target_of(name) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StepsTo("loss", 1.5), "StepsTo('loss', 1.5, 'steps'): expected SPLIT/NAME"),
        (lambda: StepsTo("valid/loss", math.nan), "a finite number"),
        (lambda: StepsTo("valid/loss", 1.0, "step"), "one of steps, flops, seconds (did you mean 'steps'?)"),
        (lambda: for_task(StepsTo("test/loss", 1.5)), "'test/loss' is not a quantity that validations log"),
        (lambda: for_task(StepsTo("valid/lss", 1.5)), "(did you mean 'valid/loss'?)"),
        (
            lambda: for_task(Metric("valid[loss:1.5]/steps", "max")),
            "metric 'valid[loss:1.5]/steps', 'max': fewer steps are better",
        ),
    ],
    ids=range(6),
)
def test_bad_targets(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def for_task(*metrics):
    study = Study("?", "quickstart", (over("model.num_heads", 1, 2),), metrics)
    return study.for_task(TASKS["translation"], ("train", "valid", "test"))


def test_fewer_steps_are_better():
    assert for_task(Metric("valid[loss:1.5]/steps")).metrics[0].direction == "min"


def write(tmp_path, values):
    """Write a study of heads; values: steps to the loss by number of heads and seed, None if it is not reached."""
    target = StepsTo("valid/loss", 0.5)
    folder = write_study(tmp_path, 'contrasts=("num_heads",),' if values.get("contrasts") else "")
    text = (folder / "study.py").read_text().replace("1, 2, 4, 8, 16", ", ".join(map(str, values["steps"])))
    metrics = '(StepsTo("valid/loss", 0.5), Metric("test/loss"))'
    text = re.sub(r"metrics=\(.*\),\n", f"metrics={metrics},\n", text)
    (folder / "study.py").write_text(text)
    workdir, study = tmp_path / "runs" / "heads", load_study(folder)
    claim_sweep(workdir, folder, declaration_of(study))
    for trial in grid(study, {"data.cache_dir": str(workdir / "c")}).trials:
        steps = values["steps"][int(trial.labels["num_heads"])][trial.seed]
        place = workdir / TRIALS / trial.name
        write_trial(trial, study.metrics, place, 0)
        result = read_result(place)
        number = math.nan if steps is None else float(steps)
        dataclasses.replace(result, metrics={**result.metrics, target.name: number}).write(place)
    return workdir, target.name


def test_trials_that_do_not_reach_it_are_never_averaged(tmp_path, capsys):
    steps = {1: (10, 20, 30), 2: (10, None, 20), 4: (None, None, None)}
    workdir, name = write(tmp_path, {"steps": steps})
    results = collect(workdir)
    shown = {row.variant.short_name: estimate_of(row) for row in summarise(results) if row.metric == name}
    assert shown == {"1": "20 ± 25", "2": "1 of 3 > 50", "4": "> 50"}
    assert metric_label(name, results.task) == "steps to valid loss 0.5"
    first, *_ = sentences = answer(results, summarise(results), effects(results))
    # The others have finished too.
    assert first == "Only num_heads 1 has a mean of steps to valid loss 0.5 over all seeds: 20 ± 25."
    said = " ".join(sentences)
    assert "num_heads 2 (not reached by 1 of 3 seeds)" in said
    assert "num_heads 4 (not reached by 3 of 3 seeds)" in said
    assert run_main(["report", f"--workdir={workdir}"]) == 0
    capsys.readouterr()
    page = (workdir / "report" / "report.html").read_text()
    assert "&gt; 50" in page
    assert "nan" not in page.replace("nance", "").lower().split("<body>")[1].split("<svg")[0]
    summary = (workdir / "report" / "summary.csv").read_text().splitlines()
    columns = summary[0].split(",")
    at = {row.split(",")[0]: row.split(",") for row in summary[1:] if name in row}
    assert [at[heads][columns.index("not_reached")] for heads in ("1", "2", "4")] == ["0", "1", "3"]
    assert [at[heads][columns.index("mean")] for heads in ("1", "2", "4")] == ["20.0", "", ""]
    results_csv = (workdir / "report" / "results.csv").read_text()
    assert "nan" not in results_csv
    assert "4,0,finished,," in results_csv
    assert "nan" not in (workdir / "report" / "measurements.csv").read_text()


@pytest.mark.parametrize(
    ("reached", "wins"),
    [((10, 10, None), False), ((40, 40, None), True), ((None, None, None), True)],
)
def test_a_variant_is_only_ahead_of_what_is_surely_slower(tmp_path, reached, wins):
    """The mean of the other is more than (10 + 10 + 50) / 3 = 23, which may be less than 25."""
    workdir, name = write(tmp_path, {"steps": {1: (25, 25, 25), 2: reached, 4: (30, 30, 30)}})
    found = order(collect(workdir), name)
    assert (found.winner is not None) == wins


def test_a_contrast_with_trials_that_do_not_reach_it_is_not_compared(tmp_path):
    workdir, name = write(tmp_path, {"steps": {1: (10, 20, 30), 2: (10, None, 20)}, "contrasts": True})
    results = collect(workdir)
    (effect,) = (of for of in effects(results) if of.metric == name)
    assert effect.verdict == "not compared"
    assert math.isnan(effect.difference.mean)
    (said,) = answer(results, summarise(results), effects(results))
    assert said == "num_heads 2 against num_heads 1: not compared (num_heads=2: not reached by 1 of 3 seeds)."
    explained = " ".join(notes(results, [], effects(results)))
    assert "with a trial that has no number in the metric is not decided: the other seeds are a selection" in explained
    assert "not finished is" not in explained


@pytest.mark.slow
def test_a_worker_measures_it(tmp_path):
    """One loss that the first validation reaches, and one that none does."""
    study = tiny_study(tmp_path, seeds=(0,))
    metrics = (StepsTo("valid/loss", 100.0), StepsTo("valid/loss", 100.0, "flops"), StepsTo("valid/loss", 0.001))
    settings = {"training.eval_every_steps": 2, "training.log_every_steps": 2, "training.num_train_steps": 4}
    study = dataclasses.replace(study, metrics=metrics, settings={**study.settings, **settings})
    trial = grid(study).trials[0]
    folder = tmp_path / "w" / TRIALS / trial.name
    write_spec(folder, trial, metrics)
    assert run_trials([folder]) == 0
    result = read_result(folder)
    steps, flops, never = (result.metrics[metric.name] for metric in metrics)
    assert (result.status, steps) == ("finished", 2)
    assert flops > 1e5
    assert math.isnan(never)
    assert json.loads((folder / RESULT).read_text())["metrics"][metrics[2].name] is None
