"""As many seeds as a width needs: Stein's rule, its coverage, and the sweep that follows it."""

import dataclasses
import json
import math
import os
import shutil
import signal

import numpy as np
import pytest
from run_support import write_corpus
from scipy import stats
from sweep_support import FakeExecutor, needing_seven_seeds, run_two_stages, tiny_study, trained

from transformer_jax.cli import sweep_stages
from transformer_jax.cli.main import main
from transformer_jax.data.sources import load_source
from transformer_jax.errors import ConfigError
from transformer_jax.host.files import without_checksum
from transformer_jax.sweeps import sweep as sweep_module
from transformer_jax.sweeps.contrasts import Contrast, Interaction
from transformer_jax.sweeps.executors import make_executor
from transformer_jax.sweeps.executors.executor import Options
from transformer_jax.sweeps.precision import extended, parse_precision, with_pilot
from transformer_jax.sweeps.report.answer import answer
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.reproduction import sweep_command
from transformer_jax.sweeps.report.sentences import asked, notes
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import STUDY, TRIALS, claim_sweep, read_result, read_spec
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.search import SearchOptions
from transformer_jax.sweeps.statistics import mean_difference, stein_seeds, two_stage_difference
from transformer_jax.sweeps.study import Metric, Range, Study, load_study, over
from transformer_jax.sweeps.study_json import declaration_of, declared_study
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import grid
from transformer_jax.tasks.task import TASKS

METRIC = "valid/loss"
AXES = (over("model.norm_position", "post", "pre", name="norm"), over("model.num_heads", 1, 2, name="heads"))


def study(**fields):
    given = {"contrasts": (Contrast("norm", "pre", "post"),), "precision": {METRIC: 0.1}} | fields
    return with_pilot(Study("Why?", "configs/quickstart.py", AXES, (Metric(METRIC, "min"),), **given))


def noise(config, seed):
    """Return a number without order, of a variant and a seed."""
    of = (config.model.norm_position == "pre", config.model.num_heads, seed)
    return float(np.random.default_rng(list(map(int, of))).normal())


def loss(config, seed, spread=0.08, effect=0.02):
    return 3 + effect * (config.model.norm_position == "pre") + spread * noise(config, seed)


def swept(workdir, asked_study, of_trial=loss, **options):
    """Run a sweep with made-up losses; return the executor and whether it came to its end."""
    claim_sweep(workdir, workdir.parent / "why", declaration_of(asked_study))
    executor = FakeExecutor(of_trial)
    search = make_search(asked_study, {}, SearchOptions(), workdir, 1)
    return executor, Sweep(search, asked_study.metrics, workdir, executor).run(options.get("show", lambda _: None))


def seeds_in(workdir):
    return sorted({int(path.name.rpartition("=")[2]) for path in (workdir / TRIALS).iterdir()})


def expected_seeds(asked_study, spread, most=10):
    """Return the number by Stein's formula, from the losses themselves."""
    width, needed = asked_study.precision[METRIC], 5
    for heads in (1, 2):
        numbers = {}
        for norm in ("pre", "post"):
            config = type("C", (), {"model": type("M", (), {"norm_position": norm, "num_heads": heads})})
            numbers[norm] = np.array([loss(config, seed, spread) for seed in range(5)])
        s = np.std(numbers["pre"] - numbers["post"], ddof=1)
        needed = max(needed, math.ceil((stats.t.ppf(0.975, 4) * s / width) ** 2))
    return min(needed, most), needed


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(sweep_module, "_POLL_SECONDS", 0.0)


def test_the_number_of_seeds_is_that_of_steins_formula():
    pilots = [[0.3, 0.1, -0.2, 0.4, 0.0], [0.1, 0.1, 0.2, 0.0, 0.1]]
    needed = math.ceil((stats.t.ppf(0.975, 4) * np.std(pilots[0], ddof=1) / 0.2) ** 2)
    assert needed > 5
    assert stein_seeds(pilots, 0.2) == stein_seeds(pilots[:1], 0.2) == needed
    assert stein_seeds(pilots[1:], 0.2) == 5
    assert stein_seeds([], 0.2) == 0


def test_the_interval_has_the_spread_of_the_pilot():
    values = [0.3, 0.1, -0.2, 0.4, 0.0, 0.9, -0.6, 0.2]
    s, n = np.std(values[:5], ddof=1), len(values)
    half_width = stats.t.ppf(0.975, 4) * s / math.sqrt(n)
    found = two_stage_difference(values, 5, half_width * 1.001, 1.0)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.half_width == pytest.approx(half_width)
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(np.mean(values)) / (s / math.sqrt(n)), 4))
    assert found.count == n
    assert two_stage_difference(values, 5, half_width * 0.9, 1.0) == mean_difference(values, 1.0)  # too few
    assert two_stage_difference(values[:5], 5, 9.0, 1.0) == mean_difference(values[:5], 1.0)
    flat = [1.0] * 5 + [2.0]  # a pilot without spread knows nothing of it
    assert two_stage_difference(flat, 5, 0.1, 1.0) == mean_difference(flat, 1.0)


DRAWS = {
    "normal": lambda random, count: random.normal(size=count),
    "exponential": lambda random, count: random.exponential(size=count) - 1,
    "lognormal": lambda random, count: random.lognormal(size=count) - math.exp(0.5),
}


def coverage(draw, width, most, repeats=8000):
    """Return how often, in per cent, the interval after both stages contains the true difference, 0."""
    random, hits = np.random.default_rng(0), 0
    for _ in range(repeats):
        pilot = draw(random, 5).tolist()
        more = min(stein_seeds([pilot], width), most) - 5
        found = two_stage_difference([*pilot, *draw(random, more).tolist()], 5, width, 1e-6)
        hits += abs(found.mean) <= found.half_width
    return 100 * hits / repeats


@pytest.mark.slow
@pytest.mark.parametrize(("width", "most"), [(5.0, 10), (1.5, 10), (1.0, 10), (1.0, 1000), (0.7, 1000)])
def test_intervals_of_normal_differences_cover_what_they_say(width, most):
    assert 94 <= coverage(DRAWS["normal"], width, most) <= 97


@pytest.mark.parametrize(("width", "low", "high"), [(1.0, 0.27, 0.36), (1.5, 0.51, 0.60), (2.0, 0.78, 0.86)])
def test_how_often_no_difference_is_called_equal(width, low, high):
    """The shares in docs/studies.md, within three standard errors of 1500 studies."""
    draw = np.random.default_rng(0).normal
    equal = 0
    for _ in range(1500):
        pilot = list(draw(size=5))
        found = pilot + list(draw(size=min(stein_seeds([pilot], width), 10) - 5))
        difference = two_stage_difference(found, 5, width, 1.0)
        equal += abs(difference.mean) + difference.half_width <= width
    assert low < equal / 1500 < high


@pytest.mark.slow
@pytest.mark.parametrize(("name", "low", "high"), [("exponential", 86, 90), ("lognormal", 80, 85)])
def test_intervals_of_skewed_differences_cover_less(name, low, high):
    """The figures of docs/studies.md."""
    for width, most in ((1.0, 10), (1.0, 1000)):
        found = coverage(DRAWS[name], width, most)
        print(f"{name}, width {width}, at most {most} seeds: {found:.1f} %")
        assert low <= found <= high


@pytest.mark.parametrize("spread", [0.01, 0.06, 0.3])
def test_a_sweep_trains_a_pilot_and_exactly_the_seeds_that_it_needs(tmp_path, spread):
    count, needed = expected_seeds(study(), spread)
    executor, complete = swept(tmp_path / "w", study(), lambda config, seed: loss(config, seed, spread))
    assert complete
    assert seeds_in(tmp_path / "w") == list(range(count))
    assert len(executor.started) == 4 * count
    assert {name.rpartition("=")[2] for name in executor.started[:20]} == set("01234")
    results = collect(tmp_path / "w")
    assert all(variant.is_complete and variant.seeds == tuple(range(count)) for variant in results.variants)
    for effect in effects(results):
        assert effect.difference.count == count
        assert effect.is_wider == (effect.difference.half_width > 0.1)
    if needed <= 10:
        assert not any(effect.is_wider for effect in effects(results))
    else:
        assert any(
            "wider than the ± 0.1 asked for" in said for said in answer(results, summarise(results), effects(results))
        )
    again, _ = swept(tmp_path / "w", study(), lambda config, seed: loss(config, seed, spread))
    assert again.started == []


def test_the_seeds_do_not_depend_on_means_or_signs(tmp_path):
    found = []
    for number, effect in enumerate((-1.0, 0.0, 0.02, 5.0)):
        workdir = tmp_path / str(number)
        swept(workdir, study(), lambda config, seed, effect=effect: loss(config, seed, 0.06, effect))
        found.append(seeds_in(workdir))
    assert found == found[:1] * 4


@pytest.mark.parametrize("stop_after", [3, 19, 20, 22])
def test_a_stopped_sweep_comes_to_the_same_seeds(tmp_path, stop_after):
    def of_trial(config, seed):
        return loss(config, seed, 0.06)

    count, _ = expected_seeds(study(), 0.06)
    assert count > 5

    def show(standings):
        if sum(standing.has_ended for standing in standings) >= stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    swept(tmp_path / "whole", study(), of_trial)
    executor, complete = swept(tmp_path / "stopped", study(), of_trial, show=show)
    assert not complete
    assert len(executor.started) < 4 * count
    swept(tmp_path / "stopped", study(), of_trial)
    assert seeds_in(tmp_path / "stopped") == seeds_in(tmp_path / "whole") == list(range(count))
    one, other = (effects(collect(tmp_path / name)) for name in ("whole", "stopped"))
    assert [effect.difference for effect in one] == [effect.difference for effect in other]


def test_a_contrast_with_a_diverged_trial_asks_for_no_seeds(tmp_path):
    """With heads 1 the spread is large, and one trial diverges; with heads 2 the pilot suffices."""

    def of_trial(config, seed):
        if config.model.num_heads == 1 and seed == 3 and config.model.norm_position == "post":
            return math.nan
        return loss(config, seed, 1.0 if config.model.num_heads == 1 else 0.001)

    swept(tmp_path / "w", study(), of_trial)
    assert seeds_in(tmp_path / "w") == list(range(5))
    results = collect(tmp_path / "w")
    said = answer(results, summarise(results), effects(results))
    assert said[-1] == ("With heads 1, norm pre against norm post: not compared (norm=post, heads=1: 1 of 5 diverged).")


def test_a_failed_trial_of_the_pilot_is_run_again_before_the_second_stage(tmp_path):
    workdir = tmp_path / "w"
    swept(workdir, study(), lambda config, seed: loss(config, seed, 0.06))
    count = len(seeds_in(workdir))
    for path in (workdir / TRIALS).iterdir():
        if int(path.name.rpartition("=")[2]) > 4 or path.name == "norm=pre,heads=2,seed=1":
            for file in sorted(path.rglob("*"), reverse=True):
                file.unlink()
            path.rmdir()
    results = collect(workdir)
    assert all(variant.seeds == (0, 1, 2, 3, 4) for variant in results.variants)
    assert [effect.verdict for effect in effects(results)].count("not compared") == 1
    swept(workdir, study(), lambda config, seed: loss(config, seed, 0.06))
    assert len(seeds_in(workdir)) == count


def test_without_contrasts_the_differences_to_the_reference_count(tmp_path):
    asked_study = study(contrasts=())
    swept(tmp_path / "w", asked_study, lambda config, seed: loss(config, seed, 0.06))
    results = collect(tmp_path / "w")
    assert len(seeds_in(tmp_path / "w")) > 5
    rows = [row for row in summarise(results) if row.difference is not None and row.metric == METRIC]
    assert all(row.difference.half_width <= 0.1 for row in rows)
    assert not any("wider than asked" in note for note in notes(results, rows, []))
    swept(tmp_path / "wide", asked_study, lambda config, seed: loss(config, seed, 1.0))
    results = collect(tmp_path / "wide")
    (note,) = (note for note in notes(results, summarise(results), []) if "wider than asked" in note)
    assert "norm=pre, heads=2 in valid loss (± " in note


def test_the_page_says_what_was_asked_first(tmp_path):
    workdir = tmp_path / "w"
    swept(workdir, study())
    results = collect(workdir)
    assert asked(results) == ""
    digest = without_checksum(json.loads((workdir / STUDY).read_text()))["asked_first"]["sha256"]
    assert any(f"declared before the first trial (sha256 {digest[:12]})" in note for note in notes(results, [], []))
    command = sweep_command(results)
    assert "'--until=valid/loss: 0.1' --max_seeds=10" in command
    claim_sweep(workdir, tmp_path / "why", declaration_of(study(precision={METRIC: 0.2})))
    changed = collect(workdir)
    assert asked(changed).startswith("Changed after the first trial: widths.")
    claim_sweep(workdir, tmp_path / "why", declaration_of(study(contrasts=("norm", Interaction("norm", "heads")))))
    assert asked(collect(workdir)).startswith("Changed after the first trial: contrasts.")
    claim_sweep(workdir, tmp_path / "why", declaration_of(study()))
    assert asked(collect(workdir)) == ""
    worded = study(contrasts=(Contrast("norm", "pre", "post", says="{a}-LN is ahead of {b}-LN"),))
    claim_sweep(workdir, tmp_path / "why", declaration_of(worded))
    assert asked(collect(workdir)) == ""  # the same contrast in other words


def test_seeds_that_are_added_by_hand_are_named(tmp_path):
    workdir = tmp_path / "w"
    listed = study(precision={}, seeds=(0, 1))
    swept(workdir, listed)
    assert not any("added" in note for note in notes(collect(workdir), [], []))
    claim_sweep(workdir, tmp_path / "why", declaration_of(dataclasses.replace(listed, seeds=(0, 1, 2, 7))))
    assert any(
        note.startswith("Seeds 2, 7 were added to the study after its first trial.")
        for note in notes(collect(workdir), [], [])
    )
    swept(tmp_path / "two_stages", study())  # the seeds of a second stage are not chosen by hand
    assert len(seeds_in(tmp_path / "two_stages")) > 5
    assert not any("added" in note for note in notes(collect(tmp_path / "two_stages"), [], []))


def test_precision_is_recorded(tmp_path):
    recorded = declared_study(json.loads(json.dumps(declaration_of(study(max_seeds=7)))), tmp_path)
    assert (recorded.precision, recorded.max_seeds, recorded.seeds) == ({METRIC: 0.1}, 7, (0, 1, 2, 3, 4))


def test_the_pilot_has_at_least_five_seeds():
    assert study(seeds=(7, 3)).seeds == (7, 3, 8, 9, 10)
    assert study(seeds=tuple(range(6)), max_seeds=6).seeds == tuple(range(6))
    assert study(precision={}).seeds == (0, 1, 2)
    assert extended((1,), 1) == (1,)


def test_widths_of_the_command_line():
    assert parse_precision("test/loss: 0.015") == {"test/loss": 0.015}
    assert parse_precision("test/loss:1e-2, test/chrf : 3") == {"test/loss": 0.01, "test/chrf": 3.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: study(precision={"test/loss": 0.1}), "precision: the study has no metric 'test/loss' .did you"),
        (lambda: study(precision={METRIC: 0.0}), "0.0 is not a width above 0"),
        (lambda: study(precision={METRIC: math.nan}), "nan is not a width above 0"),
        (lambda: study(max_seeds=4), "max_seeds=4: the first stage has 5 seeds already"),
        (lambda: study(seeds=tuple(range(12))), "max_seeds=10: the first stage has 12 seeds"),
        (
            lambda: Study(
                "Why?",
                "configs/quickstart.py",
                (Range("optimizer.learning_rate", 1e-4, 1e-2),),
                (Metric(METRIC),),
                precision={METRIC: 1.0},
            ),
            "precision: cannot be had in a study with a pretraining or a range",
        ),
        (
            lambda: Study(
                "Why?",
                "configs/quickstart.py",
                AXES,
                (Metric(METRIC), Metric("train/gradient_norm")),
                precision={"train/gradient_norm": 1.0},
            ).for_task(TASKS["translation"]),
            "precision: metric 'train/gradient_norm' has no direction",
        ),
        *(
            (lambda text=text: parse_precision(text), "expected METRIC: WIDTH")
            for text in ("", "test/loss", "test/loss: x", "test/loss: 1, test/loss: 2", ": 1", "test/loss: 1-2")
        ),
    ],
)
def test_wrong_precisions_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_fewer_seeds_than_there_are(tmp_path, capsys):
    """And a number of seeds without a width, and a search."""
    folder, workdir = tmp_path / "experiments" / "why", tmp_path / "w"
    folder.mkdir(parents=True)
    (folder / "study.py").write_text(
        "from transformer_jax.sweeps.study import *\n"
        "NORM = over('model.norm_position', 'post', 'pre', name='norm')\n"
        "AXES = (NORM, over('model.num_heads', 1, 2, name='heads'))\n"
        "STUDY = Study('Why?', 'configs/quickstart.py', AXES, (Metric('valid/loss'),))\n"
    )
    claim_sweep(workdir, folder)
    swept(workdir, study(max_seeds=9), lambda config, seed: loss(config, seed, 1.0))
    command, before = ["sweep", f"--study={folder}", f"--workdir={workdir}"], (workdir / STUDY).read_bytes()
    for flags, message in (
        (["--until=valid/loss: 0.1", "--max_seeds=8"], f"--max_seeds=8: {workdir} has trials with 9 seeds already"),
        (["--until=valid/loss: 0.1", "--max_seeds=3"], "max_seeds=3: the first stage has 5 seeds already"),
        (["--max_seeds=8"], "--max_seeds: the study lists its seeds"),
        (["--until=valid/loss: 0.1", "--search=random", "--num_trials=2"], "--until: needs --search=grid, not random"),
        (["--until=valid/loss: 0.1", "--search=random", "--num_trials=2", "--dry_run"], "--until: needs --search=grid"),
        (["--until=valid/los: 0.1"], "precision: the study has no metric 'valid/los'"),
    ):
        assert main([*command, *flags]) == 2
        assert message in capsys.readouterr().err
        assert (workdir / STUDY).read_bytes() == before


OF_STUDY = """
from transformer_jax.sweeps.study import *

NORM = over("model.norm_position", "post", "pre", name="norm")
AXES = (NORM, over("model.num_heads", 1, 2, name="heads"))
CONTRAST = Contrast("norm", "pre", "post")
STUDY = Study("Why?", "configs/quickstart.py", AXES, (Metric("valid/loss", "min"),), contrasts=(CONTRAST,), PRECISION)
"""


@pytest.mark.parametrize("lost", ["nothing", "a seed of the second stage", "a seed of the pilot"])
def test_seeds_of_the_second_stage_count_from_results(tmp_path, monkeypatch, capsys, lost):
    """What is missing, and nothing else, is trained; the report is that of the first sweep."""
    workdir, results, folder = tmp_path / "one", tmp_path / "results", tmp_path / "why"
    folder.mkdir()
    (folder / "study.py").write_text(OF_STUDY.replace("PRECISION", "precision={'valid/loss': 0.1}"))
    count, _ = expected_seeds(study(), 0.06)
    swept(workdir, study(), lambda config, seed: loss(config, seed, 0.06))
    before = effects(collect(workdir))
    corpus = load_source(grid(study()).trials[0].config.data).fingerprint()["sha256"]
    for path in (workdir / TRIALS).iterdir():
        dataclasses.replace(read_result(path), corpus=corpus, steps=100).write(path)
    missing = {
        "a seed of the second stage": "norm=pre,heads=2,seed=5",
        "a seed of the pilot": "norm=pre,heads=2,seed=1",
    }
    if lost in missing:
        shutil.rmtree(workdir / TRIALS / missing[lost])
    there = collect(workdir)
    write_report(there, summarise(there), effects(there), results)
    executor = FakeExecutor(lambda config, seed: loss(config, seed, 0.06))
    monkeypatch.setattr(sweep_stages, "_executor", lambda *arguments: executor)
    assert main(["sweep", f"--study={folder}", f"--workdir={tmp_path / 'two'}", f"--results={results}"]) == 0
    assert executor.started == ([missing[lost]] if lost in missing else [])
    err = capsys.readouterr().err
    assert f"{20 - (lost == 'a seed of the pilot')} trials count as finished here" in err
    second = 4 * (count - 5) - (lost == "a seed of the second stage")
    assert f"{results}: {second} trials of the second stage count as finished here" in err
    assert "does not count" not in err
    assert seeds_in(tmp_path / "two") == list(range(count))
    assert [effect.difference for effect in effects(collect(tmp_path / "two"))] == [of.difference for of in before]


@pytest.mark.slow
def test_both_executors_add_the_same_seeds(tmp_path):
    """With real trainings, and a width that needs seven seeds; the noise of the test set is known for the new seeds."""
    corpus = tiny_study(tmp_path, (0, 1, 2, 3, 4))
    losses, _ = trained(corpus, tmp_path / "local", make_executor("local", Options(2, 8, None, None), tmp_path))
    asked_study = needing_seven_seeds(corpus, [metrics["test/loss"] for metrics in losses])
    found = {}
    for name in ("local", "vmap"):
        workdir = tmp_path / name
        executor = make_executor(name, Options(2, 8, "map" if name == "vmap" else None, None), workdir)
        found[name], outcome = run_two_stages(asked_study, workdir, executor)
        assert seeds_in(workdir) == list(range(7))
        assert "the widths need 7 seeds" in outcome
        assert found[name].of_seeds.half_width <= asked_study.precision["test/loss"]
    assert (found["local"].noise.seeds, found["vmap"].noise.seeds) == (2, 7)  # its pilot was trained without a contrast
    assert found["local"].difference.mean == pytest.approx(found["vmap"].difference.mean, rel=1e-2)
    assert found["local"].seed_error == pytest.approx(found["vmap"].seed_error, rel=1e-2)


COMMAND_STUDY = """
from transformer_jax.sweeps.study import *
AXES = (over("model.norm_position", "post", "pre", name="norm"),)
STUDY = Study("Why?", "tiny.py", AXES, (Metric("valid/loss"),), contrasts=(CONTRAST,), precision={"valid/loss": 0.1})
"""


def test_results_have_the_seeds_of_both_stages(tmp_path, capsys):
    """Another sweep counts them all, trains nothing, and knows what was asked before them."""
    folder, workdir, again, results = (tmp_path / name for name in ("why", "w", "again", "results"))
    write_corpus(folder)
    (folder / "study.py").write_text(COMMAND_STUDY.replace("CONTRAST", 'Contrast("norm", "pre", "post")'))
    of = with_pilot(load_study(folder))
    claim_sweep(workdir, folder, declaration_of(of.for_task(TASKS["translation"])))
    search = make_search(of, {"data.dir": str(folder)}, SearchOptions(), workdir, 1)
    executor = FakeExecutor(lambda config, seed: loss(config, seed, 0.1))
    assert Sweep(search, of.metrics, workdir, executor).run(lambda _: None)
    count = len(seeds_in(workdir))
    assert count > 5
    places = list((workdir / TRIALS).iterdir())
    corpus = load_source(read_spec(places[0]).trial.config.data).fingerprint()["sha256"]
    for place in places:
        dataclasses.replace(read_result(place), corpus=corpus, steps=100).write(place)
    assert main(["report", f"--workdir={workdir}", f"--output={results}"]) == 0
    command = ["sweep", f"--study={folder}", f"--results={results}", f"--config.data.dir={folder}"]
    assert main([*command, f"--workdir={again}"]) == 0
    err = capsys.readouterr().err
    assert "10 trials count as finished here" in err
    assert f"{2 * (count - 5)} trials of the second stage count as finished here" in err
    assert "does not count" not in err
    assert seeds_in(again) == list(range(count))
    assert asked(collect(again)) == ""
    assert effects(collect(workdir))[0].difference == effects(collect(again))[0].difference

    (folder / "study.py").write_text(COMMAND_STUDY.replace("CONTRAST", 'Contrast("norm", "post", "pre")'))
    assert main([*command, f"--workdir={tmp_path / 'changed'}"]) == 0
    assert asked(collect(tmp_path / "changed")).startswith("Changed after the first trial: contrasts.")
