"""Tuning of a field for every variant: the grid and its extensions, chosen values, the sweep and the page."""

import csv
import dataclasses
import io
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from run_support import ROOT, run_main, write_corpus

from transformer_jax.cli import sweep_stages
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config
from transformer_jax.data.sources import load_source
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.metrics_file import digest, format_line
from transformer_jax.sweeps import dry_run
from transformer_jax.sweeps import sweep as sweep_module
from transformer_jax.sweeps.rebased_study import with_baseline
from transformer_jax.sweeps.report import write
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import draw_figures
from transformer_jax.sweeps.report.latex import tables_tex
from transformer_jax.sweeps.report.response_curves import described
from transformer_jax.sweeps.report.sentences import asked
from transformer_jax.sweeps.report.style_file import read_style
from transformer_jax.sweeps.report.tuning import responses, sentences
from transformer_jax.sweeps.results import RESULT, SPEC, TRIALS, Result, read_result, read_spec
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.search.tuning import TuningGrid
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, over
from transformer_jax.sweeps.study_json import declaration_of, declared_study
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import grid, groups
from transformer_jax.sweeps.tuning import TUNING, GoodRange, Tuned, best_factor, factor_label, from_record, good_range

RATE = "optimizer.learning_rate"
NORM = over("model.norm_position", "post", "pre", name="norm")
TUNED = Tuned(RATE, factors=(0.5, 1, 2))
METRICS = (Metric("test/loss", "min"),)
OWN = 1e-3


def study(*axes, tuned=TUNED, metrics=METRICS, **fields):
    return Study("Why?", "configs/quickstart.py", axes or (NORM,), metrics, settings={RATE: OWN}, tuned=tuned, **fields)


class Done:
    def poll(self):
        return 0

    def stop(self):
        pass


class Executor:
    """Gives every trial a whole result at once; its validation loss is a function of its config and seed."""

    def __init__(self, loss):
        self.num_workers, self.started, self._loss = 1, [], loss

    def jobs(self, trials):
        return [[folder] for _, folder in trials]

    def start(self, folders, slot):
        [folder] = folders
        self.started.append(folder.name)
        spec = read_spec(folder)
        trial, loss = spec.trial, self._loss(spec.trial.config, spec.trial.seed)
        log = folder / "metrics.jsonl"
        log.write_text(format_line(8, "valid", {"loss": loss if math.isfinite(loss) else 9.0}))
        metrics = {metric.name: loss for metric in spec.metrics} if math.isfinite(loss) else {}
        status, why = ("finished", "") if metrics else ("diverged", "loss is nan")
        corpus = load_source(trial.config.data).fingerprint()["sha256"] if trial.config.data.dir else "c"
        of = trial.labels, trial.seed, status, why, metrics, 8, 1.0, 10, "cpu", {}, digest(log), corpus
        Result(*of).write(folder)
        return Done()

    def close(self):
        pass


def bowl(best):
    """Return a loss with its minimum at a factor by norm, in powers of two from OWN; NaN above a limit, if given."""

    def loss(config, seed):
        at, *limit = best[config.model.norm_position]
        step = math.log2(config.optimizer.learning_rate / OWN)
        return math.nan if limit and step > limit[0] else 1 + (step - at) ** 2 + 0.001 * seed

    return loss


def tune(workdir, asked_study, loss, show=lambda _: None):
    executor, search = Executor(loss), TuningGrid(Space(asked_study, {}))
    complete = Sweep(search, search.study.metrics, workdir, executor).run(show)
    return executor, search, complete


def chosen(search):
    return {name.removeprefix("norm="): of[RATE] for name, of in search.tuned_study().chosen.items()}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch, request):
    """Nor figures, which take seconds, unless a test asks for `figures`."""
    monkeypatch.setattr(sweep_module, "_POLL_SECONDS", 0.0)
    if "figures" not in request.fixturenames:
        monkeypatch.setattr(write, "draw_figures", lambda results: [])


@pytest.fixture
def figures():
    """Reports have their figures."""


@pytest.mark.parametrize(
    ("best", "factors", "expected"),
    [
        ((0, 0), "0.5 1 2", (0, 0)),
        ((1, 0), "0.5 1 2 4", (1, 0)),
        ((2, 0), "0.5 1 2 4 8", (2, 0)),
        ((-1, 0), "0.25 0.5 1 2", (-1, 0)),
        ((0, -9), "0.125 0.25 0.5 1 2", (0, -3)),
        ((9, -9), "0.125 0.25 0.5 1 2 4 8", (3, -3)),
        ((9, 9), "0.5 1 2 4 8", (3, 3)),
    ],
)
def test_a_best_value_at_the_edge_extends_the_grid_for_all(tmp_path, best, factors, expected):
    """And never by more than two steps on a side."""
    found, search, complete = tune(tmp_path, study(), bowl({"post": best[:1], "pre": best[1:]}))
    assert complete
    names = {f"norm={norm},factor={of},seed=1000" for norm in ("post", "pre") for of in factors.split()}
    assert sorted(found.started) == sorted(names)
    assert chosen(search) == {norm: OWN * 2.0**at for norm, at in zip(("post", "pre"), expected, strict=True)}


def expected_grid(optima, extensions):
    """Return the factors and the best of each variant by the rule, in powers of two."""
    low = high = 1
    while True:
        steps = range(-low, high + 1)
        best = [min(steps, key=lambda step, at=at: ((step - at) ** 2, abs(step), step)) for at in optima]
        more = (-low in best and low <= extensions, high in best and high <= extensions)
        if not any(more):
            return [2.0**step for step in steps], best
        low, high = low + more[0], high + more[1]


def test_any_response_gives_the_grid_of_the_rule(tmp_path):
    draws = random.Random(0)
    for number in range(12):
        optima, extensions = [draws.uniform(-5, 5) for _ in range(2)], draws.randrange(4)
        tuned = dataclasses.replace(TUNED, extensions=extensions)
        found, search, _ = tune(
            tmp_path / str(number), study(tuned=tuned), bowl({"post": optima[:1], "pre": optima[1:]})
        )
        factors, best = expected_grid(optima, extensions)
        assert len(found.started) == 2 * len(factors)
        assert {re.search("factor=([^,]*)", name)[1] for name in found.started} == {*map(factor_label, factors)}
        assert chosen(search) == {n: pytest.approx(OWN * 2.0**at) for n, at in zip(("post", "pre"), best, strict=True)}


@pytest.mark.parametrize("stop_after", [1, 5, 6, 7, 9])
def test_a_stopped_tuning_comes_to_the_same_values(tmp_path, stop_after):
    loss = bowl({"post": (2.2,), "pre": (-1.4,)})

    def show(standings):
        if sum(standing.has_ended for standing in standings) >= stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    _, whole, _ = tune(tmp_path / "whole", study(), loss)
    first, _, complete = tune(tmp_path / "stopped", study(), loss, show)
    assert not complete
    then, search, _ = tune(tmp_path / "stopped", study(), loss)
    assert chosen(search) == chosen(whole)
    assert not {*first.started} & {*then.started}
    assert {path.name for path in (tmp_path / "stopped" / TRIALS).iterdir()} == {*first.started, *then.started}


def test_diverged_trials_are_the_worst(tmp_path):
    """Of a variant whose trials all diverge, the own value stays; the grid follows the others."""
    _, search, _ = tune(tmp_path / "a", study(), bowl({"post": (3, 0), "pre": (0,)}))
    assert chosen(search) == {"post": OWN, "pre": OWN}
    found, search, _ = tune(tmp_path / "b", study(), bowl({"post": (0, -99), "pre": (1,)}))
    assert chosen(search) == {"post": OWN, "pre": 2 * OWN}
    assert len(found.started) == 2 * 4
    assert "norm=post (all of its tuning trials diverged: its own value)" in search.outcome


def test_the_mean_over_the_tuning_seeds_counts(tmp_path):
    """With one seed 0.5 is best, with both 1; a value that diverges with one seed is not chosen."""
    losses = {1000: {-1: 1.0, 0: 2.0, 1: 9.0}, 1001: {-1: 9.0, 0: 2.0, 1: 0.0}}

    def loss(config, seed):
        step = round(math.log2(config.optimizer.learning_rate / OWN))
        return math.nan if (seed, step) == (1001, 1) else losses[seed][step]

    for seeds, step in ((1, -1), (2, 0)):
        tuned = dataclasses.replace(TUNED, seeds=seeds, extensions=0)
        found, search, _ = tune(tmp_path / str(seeds), study(tuned=tuned), loss)
        assert set(chosen(search).values()) == {OWN * 2.0**step}
        assert len(found.started) == 2 * 3 * seeds


def test_best_factor():
    assert best_factor({0.5: 1.0, 1: 2.0, 2: 3.0}, "min") == 0.5
    assert best_factor({0.5: 1.0, 1: 2.0, 2: 3.0}, "max") == 2
    assert best_factor({0.25: 1.0, 0.5: 1.0, 2: 1.0, 4: 1.0}, "min") == 0.5  # as near to 1 as 2
    assert best_factor({0.5: math.nan, 1: math.inf, 2: 7.0}, "min") == 2
    assert best_factor({1: math.nan}, "min") is None


def test_good_range():
    scores = {0.25: 1.05, 0.5: 1.3, 1: 1.1, 2: 1.0, 4: 1.1, 8: math.nan}
    assert good_range(scores, 2, 0.15) == GoodRange(1, 4, False, False)
    assert good_range(scores, 2, 0.35) == GoodRange(0.25, 4, True, False)
    assert good_range(scores, 2, 0.0) == GoodRange(2, 2, False, False)
    assert TUNED.margin_of(-2.0) == pytest.approx(0.02)
    assert dataclasses.replace(TUNED, margin=0.5).margin_of(2.0) == 0.5


def test_extended_grids_keep_the_ratio_of_their_edge():
    tuned = Tuned(RATE, factors=(0.1, 1, 3))
    assert tuned.grid(2, 1) == pytest.approx((0.001, 0.01, 0.1, 1, 3, 9))
    assert tuned.reached(tuned.grid(2, 1)) == (2, 1)
    assert tuned.widest == tuned.grid(2, 2)


def test_values_are_factors_of_the_own_ones():
    """The derived default, an override and the steps of equal operations are the own value; others stay."""
    warmup = Axis("warmup", {"100": {"optimizer.warmup_steps": 100}, "400": {"optimizer.warmup_steps": 400}})
    derived = dataclasses.replace(study(warmup), settings={}, baseline="configs/multi30k.py")
    own = {trial.labels["warmup"]: trial.config.optimizer.learning_rate for trial in grid(derived).trials}
    assert own["100"] == pytest.approx(2 * own["400"])
    for overrides, of in ({}, own), ({RATE: "0.02"}, {"100": 0.02, "400": 0.02}):
        for trial in TuningGrid(Space(derived, overrides)).next([]):
            factor = float(trial.labels["factor"])
            value = of[trial.labels["warmup"]] * factor
            assert trial.config.optimizer.learning_rate == pytest.approx(value, rel=1e-5)
            assert trial.config.optimizer.warmup_steps == int(trial.labels["warmup"])


def test_a_value_of_an_axis_may_have_a_grid_around_another_rate():
    rules = Axis("rule", {"adam": {}, "lion": {"optimizer.name": "lion", RATE: OWN / 5}})
    rates = {}
    for trial in TuningGrid(Space(study(rules), {})).next([]):
        rates.setdefault(trial.labels["rule"], []).append(trial.config.optimizer.learning_rate)
    assert rates["adam"] == pytest.approx([OWN * factor for factor in TUNED.factors])
    assert rates["lion"] == pytest.approx([rate / 5 for rate in rates["adam"]])


def test_integers_are_rounded_and_stay_apart():
    search = TuningGrid(Space(study(tuned=Tuned("optimizer.warmup_steps", (0.5, 1, 2))), {}))
    own = read_config("quickstart").optimizer.warmup_steps
    assert {t.config.optimizer.warmup_steps for t in search.next([])} == {round(own / 2), own, 2 * own}
    for tuned, message in (
        (Tuned("model.num_encoder_layers", (0.9, 1)), "two factors make the same integer"),
        (Tuned("model.num_encoder_layers", (0.1, 1)), "is rounded to 0"),
        (Tuned("training.label_smoothing", (0.5, 1)), r"label_smoothing with norm=post is 0\.0, and the factors need"),
    ):
        with pytest.raises(ConfigError, match=message):
            TuningGrid(Space(study(tuned=tuned), {"training.label_smoothing": "0.0"}))


def test_a_grid_that_cannot_grow_stays(tmp_path):
    """Beyond the edge the config is invalid: a dropout rate above 1."""
    tuned = Tuned("model.dropout_rate", (1, 2, 4))
    asked_study = study(tuned=tuned)
    search = TuningGrid(Space(asked_study, {"model.dropout_rate": "0.2"}))
    executor = Executor(lambda config, seed: -config.model.dropout_rate)
    assert Sweep(search, search.study.metrics, tmp_path, executor).run(lambda _: None)
    assert len(executor.started) == 2 * 3
    assert "the grid has no valid further value" in search.outcome
    assert {of["model.dropout_rate"] for of in search.tuned_study().chosen.values()} == {0.8}


def test_sizes_are_equal_before_the_tuning(tmp_path):
    glu = over("model.activation", "relu", "swiglu")
    asked_study = study(glu, equal_parameters="model.mlp_dim")
    first = grid(asked_study).trials
    widths = {trial.variant: trial.config.model.mlp_dim for trial in first}
    assert len({*widths.values()}) == 2
    executor = Executor(lambda config, seed: -config.optimizer.learning_rate)
    search = TuningGrid(Space(asked_study, {}))
    assert Sweep(search, search.study.metrics, tmp_path, executor).run(lambda _: None)
    for file in tmp_path.glob(f"{TRIALS}/*/{SPEC}"):
        trial = read_spec(file.parent).trial
        assert trial.config.model.mlp_dim == widths[f"activation={trial.labels['activation']}"]
    for trial in grid(search.tuned_study()).trials:
        assert trial.config.model.mlp_dim == widths[trial.variant]
        assert trial.config.optimizer.learning_rate == pytest.approx(8 * OWN)


def test_variants_that_are_the_same_experiment_are_tuned_once(tmp_path):
    heads = Axis("heads", {"one": {"model.num_heads": 1}, "two": {"model.num_heads": 2}, "2": {"model.num_heads": 2}})
    executor, search = (
        Executor(bowl({"post": (1.6,)})),
        TuningGrid(Space(study(heads), {"model.norm_position": "post"})),
    )
    assert Sweep(search, search.study.metrics, tmp_path, executor).run(lambda _: None)
    assert len(executor.started) == 2 * 5
    assert not any("heads=2" in name for name in executor.started)
    assert {of[RATE] for of in search.tuned_study().chosen.values()} == {4 * OWN}
    assert grid(search.tuned_study(), {"model.norm_position": "post"}).same == {"heads=2": "heads=two"}


def test_decoders_of_one_training_share_their_tuning():
    beams = Axis("beam", {"1": {}, "4": {"decode.beam_size": 4}})
    found = TuningGrid(Space(study(beams), {})).next([])
    assert [trial.trained_by for trial in found[3:]] == [trial.name for trial in found[:3]]


def test_all_rates_of_a_variant_are_one_program():
    assert [len(group) for group in groups(TuningGrid(Space(study(), {})).next([]))] == [3, 3]


def test_the_tuning_does_not_score_the_test_set():
    of = TuningGrid(Space(study(measure=lambda scorer: {}, precision={"test/loss": 1}), {})).study
    assert of.metrics == (Metric("valid/loss", "min"),)
    assert (of.measure, of.seeds, dict(of.precision)) == (None, (1000,), {})


@pytest.mark.parametrize(
    ("metrics", "given", "expected"),
    [
        (["test/loss", "valid/chrf"], "", "valid/loss"),
        (["valid/sacrebleu", "test/loss"], "", "valid/sacrebleu"),
        (["valid/sacrebleu"], "valid/accuracy", "valid/accuracy"),
    ],
)
def test_the_metric_of_the_tuning(metrics, given, expected):
    tuned = dataclasses.replace(TUNED, metric=given)
    assert study(tuned=tuned, metrics=tuple(map(Metric, metrics))).tuning_metric.name == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: study(over(RATE, 1e-3, 1e-2)), f"axis 'learning_rate' compares values of {RATE}, which is tuned"),
        (lambda: study(tuned=Tuned("optimizer.learning_rat", (0.5, 1))), "did you mean 'optimizer.learning_rate'"),
        (lambda: study(tuned=Tuned("optimizer.schedule", (0.5, 1))), "'optimizer.schedule' is not a number"),
        (lambda: study(tuned=Tuned("seed", (0.5, 1))), "the seed cannot be tuned"),
        (lambda: study(tuned=Tuned(RATE, (0.5, 2))), r"factors=\(0.5, 2\): 1, the variant's own value, is missing"),
        (lambda: study(tuned=Tuned(RATE, (2, 1))), "expected ascending numbers"),
        (lambda: study(tuned=Tuned(RATE, (1, 1, 2))), "expected ascending numbers"),
        (lambda: study(tuned=Tuned(RATE, (-1, 1))), "expected finite numbers above 0"),
        (lambda: study(tuned=Tuned(RATE, (1, math.nan))), "expected finite numbers above 0"),
        (lambda: study(tuned=Tuned(RATE, (1,))), r"1 factor\(s\); a grid has at least two"),
        (lambda: study(tuned=Tuned(RATE, (1, 1.00001))), "two are equal to four digits"),
        (lambda: study(tuned=Tuned(RATE, (1, 2), extensions=-1)), "extensions=-1"),
        (lambda: study(tuned=Tuned(RATE, (1, 2), margin=-0.1)), "margin=-0.1: expected a number of at least 0"),
        (lambda: study(tuned=Tuned(RATE, (1, 2), metric="test/loss")), "'test/loss' is not one of the split 'valid'"),
        (lambda: study(seeds=(999, 1000)), "the study has the seed 1000 too"),
        (
            lambda: study(seeds=(0, 990), precision={"test/loss": 1}, max_seeds=15),
            "the study has the seed 1000 too, or may add it; set first_seed to one above 1003",
        ),
        (lambda: study(Axis("factor", NORM.values)), "axis 'factor': a tuning has a column of this name"),
        (
            lambda: study(Range("model.dropout_rate", 0.1, 0.2)),
            "cannot be had in a study with a pretraining or a range",
        ),
        (
            lambda: study(pretraining=Study("?", "configs/quickstart.py", (NORM,), (Metric("test/loss"),))),
            "cannot be had in a study with a pretraining or a range",
        ),
        (
            lambda: study(tuned=Tuned("model.mlp_dim", (0.5, 1)), equal_parameters="model.mlp_dim"),
            "model.mlp_dim is computed, so that variants are equal; it cannot be tuned",
        ),
    ],
)
def test_bad_declarations(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("metric", "message"),
    [("valid/tokens", "metric 'valid/tokens' has no direction"), ("valid/los", "did you mean 'loss'")],
)
def test_metrics_that_cannot_choose(metric, message):
    from transformer_jax.tasks.task import TASKS

    tuned = dataclasses.replace(TUNED, metric=metric)
    with pytest.raises(ConfigError, match=message):
        study(tuned=tuned).for_task(TASKS["translation"], ("train", "valid", "test"))


def test_the_declaration_has_the_tuning(tmp_path):
    values = json.loads(json.dumps(declaration_of(study())))
    assert declared_study(values, tmp_path).tuned == TUNED
    del values["tuned"]  # of an earlier version
    assert declared_study(values, tmp_path).tuned is None


@pytest.mark.parametrize("record", [5, [], {}, {"field": RATE}, {"field": RATE, "factors": [1, 2], "more": 1}])
def test_a_damaged_record(record, tmp_path):
    with pytest.raises(ConfigError, match="not the record of a tuning"):
        from_record(record)
    with pytest.raises(DataError, match="does not declare a study"):
        declared_study({**declaration_of(study()), "tuned": record}, tmp_path)


def test_another_baseline_that_does_not_read_the_field():
    axes = over("training.label_smoothing", 0.0, 0.1, name="smoothing")
    config = read_config("recurrent")
    splits = ("train", "valid", "test")
    found = with_baseline(study(axes, tuned=Tuned("model.mlp_dim", (0.5, 1))), "recurrent", config, splits)
    assert found.study.tuned is None
    assert "left out: tuning of model.mlp_dim" in found.notes
    assert with_baseline(study(axes), "recurrent", config, splits).study.tuned == TUNED


TEXT = """
from transformer_jax.sweeps.study import *
from transformer_jax.sweeps.tuning import Tuned

STUDY = Study(
    question="Which norm?",
    baseline="tiny.py",
    axes=(over("model.norm_position", "post", "pre", name="norm"),),
    metrics=(Metric("test/loss"),),
    seeds=(0, 1),
    contrasts=("norm",),
    settings={"optimizer.learning_rate": 1e-3},
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
)
"""
LOSS = bowl({"post": (2.2,), "pre": (0.3, 2)})


@pytest.fixture
def folder(tmp_path):
    place = write_corpus(tmp_path / "experiments" / "which")
    (place / "study.py").write_text(TEXT)
    return place


@pytest.fixture
def run(folder, monkeypatch):
    """Return a function that runs a sweep with made-up losses, and returns its exit code and the trials it started."""

    def run(*flags, workdir="w", loss=LOSS):
        started = []

        def executor(*_):
            made = Executor(loss)
            made.started = started
            return made

        monkeypatch.setattr(sweep_stages, "_executor", executor)
        return main(["sweep", *command(folder, workdir), *flags]), started

    return run


def command(folder, workdir="w"):
    return [f"--study={folder}", f"--workdir={folder / workdir}", f"--config.data.dir={folder}"]


def report(folder, *flags, workdir="w"):
    assert main(["report", f"--workdir={folder / workdir}", *flags]) == 0
    return (folder / workdir / "report" / "report.md").read_text()


def test_a_sweep_tunes_and_then_trains_with_the_chosen_values(folder, run, capsys, figures):
    code, started = run()
    assert code == 0
    assert "tuned: optimizer.learning_rate is 0.004 with norm=post, 0.001 with norm=pre" in capsys.readouterr().err
    assert [name.rpartition("=")[2] for name in started] == ["1000"] * 10 + ["0", "1"] * 2
    for path in (folder / "w" / TRIALS).iterdir():
        assert read_spec(path).trial.config.optimizer.learning_rate == (0.004 if "post" in path.name else 0.001)
    text = report(folder)
    rows = list(csv.DictReader(io.StringIO((folder / "w" / "report" / "tuning.csv").read_text())))
    assert len(rows) == 10
    for row in rows:
        expected = by_hand(row["norm"], round(math.log2(float(row["factor"]))))
        assert (float(row["mean"]) if row["mean"] else None) == expected
        assert row["diverged"] == str(int(expected is None))
        assert float(row["value"]) == pytest.approx(OWN * float(row["factor"]))
    assert [(row["norm"], row["factor"]) for row in rows if row["chosen"]] == [("post", "4"), ("pre", "1")]
    assert "so the grid was extended for all variants: twice to larger values." in text
    assert "In the end no best value lies at the edge of the grid." in text
    assert "with seed 1000, which no trial of the study has" in text
    assert "1 of 10 diverged; a diverged trial is worse than all others." in text
    assert "the best one and its neighbours that differ from it by at most 1 % of the best valid loss." in text
    assert "| post | 0.004 | 4 |" in text
    page = (folder / "w" / "report" / "report.html").read_text()
    assert "<h2>Tuning</h2>" in page
    for row in rows:
        assert row["chosen"] != "yes" or f">{float(row['value']):g}</td>" in page
    assert r"0.004 & 4 &" in (folder / "w" / "report" / "tables.tex").read_text()
    assert list((folder / "w" / "report" / "figures").glob("*_tuning_valid_loss_by_learning_rate.svg"))
    assert run() == (0, [])


def by_hand(norm, step):
    """Return the loss of LOSS with seed 1000; None if it diverges."""
    config = read_config("quickstart", {"model.norm_position": norm, RATE: str(OWN * 2.0**step)})
    return found if math.isfinite(found := LOSS(config, 1000)) else None


def test_the_page_says_where_the_best_lies(folder, run):
    run(loss=bowl({"post": (9,), "pre": (0, -99)}))
    results = collect(folder / "w")
    text = " ".join(sentences(results))
    assert "the best value of norm=post still lies at the upper edge of the grid: a larger one may be better" in text
    assert "All tuning trials of norm=pre diverged, so it keeps its own value." in text
    assert [response.edge for response in responses(results)] == ["upper", ""]
    assert "5 tuning trials diverged, marked by crosses" in described(results)
    assert r"$\times$" in tables_tex(results, [], []) or "0.008" in tables_tex(results, [], [])


def test_the_curves_have_the_words_of_the_style(folder, run):
    run()
    results, file = collect(folder / "w"), folder / "style.json"
    words = {RATE: "peak rate", "valid/loss": "nats", "norm=post": "Post-LN"}
    file.write_text(json.dumps({"font_size": 7, "labels": words}))
    *_, figure = draw_figures(dataclasses.replace(results, style=read_style(file, results)))
    assert figure.title == "Tuning: nats by peak rate"
    assert figure.alt.startswith("nats against peak rate, a line for each of 2 variants.")
    assert "0.004 with Post-LN; 0.001 with norm pre." in figure.alt


def test_a_results_folder_has_the_tuning(folder, run, capsys):
    run()
    report(folder)
    results = folder / "w" / "report"
    assert main(["report", f"--results={results}", f"--output={folder / 'again'}"]) == 0
    files = [path.relative_to(results) for path in results.rglob("*") if path.is_file()]
    assert all((folder / "again" / file).read_bytes() == (results / file).read_bytes() for file in files)
    code, started = run(f"--results={results}", workdir="other")
    assert (code, started) == (0, [])
    assert "10 tuning trials count as finished here" in capsys.readouterr().err
    report(folder, workdir="other")
    for name in ("tuning.csv", "summary.csv", "tuning_measurements.csv"):
        assert (folder / "other" / "report" / name).read_bytes() == (results / name).read_bytes()
    code, started = run(f"--results={results}", "--verify=1", workdir="check")
    assert code == 0
    assert len(started) == 1


def test_trials_that_were_tuned_under_other_settings(folder, run, capsys):
    run()
    report(folder)
    changes = {
        "factors=(0.5, 1, 4)": "factors ((0.5, 1, 2) before, (0.5, 1, 4) now)",
        'factors=(0.5, 1, 2), metric="valid/accuracy"': "metric (valid/loss before, valid/accuracy now)",
        "factors=(0.5, 1, 2), extensions=1": "extensions (2 before, 1 now)",
        "factors=(0.5, 1, 2), first_seed=50": "first_seed (1000 before, 50 now)",
    }
    for change, message in changes.items():
        (folder / "study.py").write_text(TEXT.replace("factors=(0.5, 1, 2)", change))
        for flags, workdir in ([], "w"), ([f"--results={folder / 'w' / 'report'}"], "other"):
            assert run(*flags, workdir=workdir) == (2, [])
            assert f"its trials were tuned under other settings: {message}" in capsys.readouterr().err
    report(folder, f"--study={folder}")  # as they were tuned
    assert len(responses(collect(folder / "w", folder))) == 2


def test_trials_with_and_without_tuning_do_not_mix(folder, run, capsys):
    without = TEXT.replace('    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),\n', "")
    (folder / "study.py").write_text(without)
    assert run()[0] == 0
    (folder / "study.py").write_text(TEXT)
    assert run() == (2, [])
    assert "without tuning, and the study is tuned now" in capsys.readouterr().err
    assert run(workdir="tuned")[0] == 0
    (folder / "study.py").write_text(without)
    assert run(workdir="tuned") == (2, [])
    assert "with tuning, and the study has none" in capsys.readouterr().err


def test_a_margin_may_change_and_the_page_says_so(folder, run):
    run()
    (folder / "study.py").write_text(TEXT.replace("factors=(0.5, 1, 2)", "factors=(0.5, 1, 2), margin=0.5"))
    assert run() == (0, [])
    results = collect(folder / "w", folder)
    assert asked(results).startswith("Changed after the first trial: tuning.")
    assert "at most 0.5 nats per token in valid loss" in " ".join(sentences(results))


def test_the_pilot_comes_after_the_tuning(folder, run):
    code, started = run("--until=test/loss: 0.5", "--max_seeds=6")
    assert code == 0
    assert [name.rpartition("=")[2] for name in started[:10]] == ["1000"] * 10
    assert {name.rpartition("=")[2] for name in started[10:]} == set("01234")


def test_searches_and_dry_runs(folder, run, capsys, monkeypatch):
    assert run("--search=random", "--num_trials=2") == (2, [])
    assert "a study that is tuned needs --search=grid" in capsys.readouterr().err
    cost = dry_run.Cost(10, 1.0, 1, 1, 1.0, 1.0)
    monkeypatch.setattr(
        dry_run, "programs_of", lambda trials: [dry_run.Program(tuple(of), cost) for of in groups(trials)]
    )
    assert run("--dry_run") == (0, [])
    out = capsys.readouterr().out
    assert "6 trials of 6 variants, 6 of them trained, in 2 programs" in out
    assert "each extension of the grid adds 2 trials" in out
    assert "4 trials of 2 variants, 4 of them trained, in 2 programs" in out
    assert out.index("6 trials of 6") < out.index("4 trials of 2")


def test_the_command_of_the_page_has_the_rate_that_was_tuned_around(folder, run):
    run("--config.optimizer.learning_rate=0.01")
    assert "--config.optimizer.learning_rate=0.01" in report(folder)


def test_a_tuning_is_reported_with_its_study(folder, run, capsys):
    run()
    assert main(["report", f"--workdir={folder / 'w' / TUNING}"]) == 2
    assert "is the tuning of a study; report the study" in capsys.readouterr().err


def test_a_trial_of_another_tuning_is_named(folder, run):
    run()
    first = folder / "w" / TUNING / TRIALS / "norm=pre,factor=2,seed=1000"
    other = first.with_name("norm=pre,factor=3,seed=1000")
    shutil.copytree(first, other)
    for name in (SPEC, RESULT):
        values = without_checksum(json.loads((first / name).read_text()))
        values["labels"]["factor"] = "3"
        (other / name).write_text(json.dumps(with_checksum(values)))
    with pytest.raises(DataError, match=r"factor=3,seed=1000: is not a trial of the tuning as it was recorded"):
        collect(folder / "w")


SHORT = ["--config.training.num_train_steps=4", "--config.training.eval_every_steps=4"]


@pytest.mark.slow
def test_all_executors_choose_alike(folder):
    """One process for each trial, or one program for a variant: equal to rounding, and the test set is not scored."""
    found = {}
    for name in ("local", "vmap"):
        assert run_main(["sweep", *command(folder, name), f"--executor={name}", *SHORT]) == 0
        paths = sorted((folder / name).rglob(RESULT))
        results = {path.parent.name: read_result(path.parent).metrics for path in paths}
        assert {metric.partition("/")[0] for n, of in results.items() if "factor" in n for metric in of} == {
            *("train", "valid")
        }
        found[name] = {trial: metrics.get("valid/loss", metrics.get("test/loss")) for trial, metrics in results.items()}
    assert found["local"].keys() == found["vmap"].keys()
    assert list(found["local"].values()) == pytest.approx(list(found["vmap"].values()), rel=1e-4)


@pytest.mark.slow
def test_a_sweep_that_is_killed_while_it_tunes_has_the_same_page(folder):
    """kill -9 of the sweep and of its worker, once after some trials and once within the extensions."""
    arguments = ["sweep", *command(folder, "killed"), "--executor=local", "--num_workers=1", *SHORT]
    program = f"import sys; from transformer_jax.cli.main import main; sys.exit(main({arguments!r}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for count in (2, 7):
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, start_new_session=True)
        while len(list((folder / "killed" / TUNING).rglob(RESULT))) < count and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert run_main(arguments) == 0
    assert run_main(["sweep", *command(folder, "whole"), "--executor=local", "--num_workers=1", *SHORT]) == 0
    tables = []
    for name in ("killed", "whole"):
        report(folder, workdir=name)
        tables.append([(folder / name / "report" / file).read_text() for file in ("tuning.csv", "summary.csv")])
    assert tables[0] == tables[1]
    assert len(list(itertools.chain((folder / "killed" / TUNING).rglob(SPEC)))) >= 8
