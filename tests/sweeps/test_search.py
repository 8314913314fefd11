"""Random search, and searches that are refused."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sweep_support import HEADS, RATE, ROOT, FakeExecutor, study

from transformer_jax.cli import sweep_stages
from transformer_jax.cli.main import main
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.sweeps import sweep as sweep_module
from transformer_jax.sweeps.results import claim_sweep, read_result
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.best import best
from transformer_jax.sweeps.search.random import drawn_value, random_search
from transformer_jax.sweeps.search.search import SearchOptions, Space, check_options, label, rounded
from transformer_jax.sweeps.search.storage import recorded
from transformer_jax.sweeps.study import Axis, Range, over
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import groups

LAYERS = Range("model.num_encoder_layers", 2, 5)


def space(*axes, **fields):
    return Space(study(*axes, **fields), {})


def draws(axis, count=4000):
    generator = np.random.default_rng(0)
    return [drawn_value(axis, generator) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("log", [False, True])
def test_numbers_are_uniform_or_their_logarithms_are(log):
    axis = Range("optimizer.learning_rate", 1e-5, 1e-1, log)
    on_scale = [math.log(value) if log else value for value in draws(axis)]
    low, high = (math.log(axis.low), math.log(axis.high)) if log else (axis.low, axis.high)
    assert stats.kstest(on_scale, stats.uniform(low, high - low).cdf).pvalue > 0.01
    assert stats.kstest(draws(axis), stats.uniform(axis.low, axis.high).cdf).pvalue > 0.01 or log


@pytest.mark.parametrize("log", [False, True])
def test_integers_within_the_range_have_their_share(log):
    axis = Range("optimizer.warmup_steps", 2, 6, log)
    values, counts = np.unique(draws(axis), return_counts=True)
    assert list(values) == [2, 3, 4, 5, 6]
    edges = np.log(np.arange(1.5, 7)) if log else np.arange(1.5, 7)
    assert stats.chisquare(counts, 4000 * np.diff(edges) / (edges[-1] - edges[0])).pvalue > 0.01


def test_names_are_drawn_equally_often():
    axis = over("model.norm_position", "post", "pre")
    assert stats.binomtest(draws(axis).count("pre"), 4000).pvalue > 0.01


@pytest.mark.parametrize(
    ("axis", "value", "name", "number"),
    [
        (RATE, 0.00123456, "0.001235", 0.001235),
        (RATE, 1.00004e-5, "1e-05", 1e-5),
        (Range("optimizer.learning_rate", 0.0, 0.123456), 0.1234559, "0.123456", 0.123456),
        (Range("optimizer.clip_norm", 1.0, 1e17), 1e17, "1e17", 1e17),
        (Range("optimizer.clip_norm", 1, 10), 3.0, "3", 3.0),
        (LAYERS, 3, "3", 3),
    ],
)
def test_the_name_of_a_number_converts_back_to_it(axis, value, name, number):
    value = rounded(axis, value)
    assert (label(value), value, float(name)) == (name, number, number)
    assert axis.low <= value <= axis.high
    assert isinstance(value, int) == axis.is_integer


def test_draws_follow_from_the_seed_and_more_draws_begin_with_the_same():
    found = random_search(space(RATE, HEADS), 6, 1).next([])
    assert found == random_search(space(RATE, HEADS), 6, 1).next([])
    assert found[:8] == random_search(space(RATE, HEADS), 4, 1).next([])
    assert not {t.name for t in found} & {t.name for t in random_search(space(RATE, HEADS), 6, 2).next([])}
    assert [trial.seed for trial in found] == [3, 5] * 6
    for trial in found:
        assert trial.config.optimizer.learning_rate == float(trial.labels["learning_rate"])
        assert trial.config.model.num_heads == int(trial.labels["num_heads"])
        assert trial.config.seed == trial.seed
        assert set(trial.name) <= set("abcdefghijklmnopqrstuvwxyz_0123456789.-,=")
    assert len({trial.name for trial in found}) == len(found)


def test_a_repeated_draw_is_trained_once_and_reported():
    found = random_search(space(LAYERS), 9, 0)
    trials = found.next([])
    assert {trial.config.model.num_encoder_layers for trial in trials} == {2, 3, 4, 5}
    assert len(trials) == 4 * 2
    assert len(found.notes) == 5
    assert all(", is the same experiment as num_encoder_layers=" in note for note in found.notes)


def test_drawn_rates_train_as_one_program():
    assert [len(group) for group in groups(random_search(space(RATE), 5, 0).next([]))] == [10]


def test_a_sweep_of_random_draws(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module, "_POLL_SECONDS", 0.0)
    claim_sweep(tmp_path, Path("rates"))
    options = SearchOptions("random", 5)
    for expected in (10, 0):
        executor = FakeExecutor(num_workers=2)
        search = make_search(study(), {}, options, tmp_path, 2)
        sweep = Sweep(search, study().metrics, tmp_path, executor)
        assert sweep.run(lambda standings: None)
        assert len(executor.started) == expected
    line = best(sweep.standings, study())
    assert line.startswith("best of 5 variants: learning_rate=")
    assert line.endswith(", mean of 2 seeds")
    with pytest.raises(ConfigError, match=r"belongs to --search=random --search_seed=0; choose another"):
        make_search(study(), {}, dataclasses.replace(options, seed=1), tmp_path, 2)


def test_the_search_is_recorded_with_the_largest_number_of_trials(tmp_path):
    assert recorded(tmp_path) == SearchOptions()
    for asked, noted in ((3, 3), (5, 5), (2, 5)):
        make_search(study(), {}, SearchOptions("random", asked, 4), tmp_path, 1)
        assert recorded(tmp_path) == SearchOptions("random", noted, 4)
    for text in ("[]", "{", '{"search": "tpe"}'):
        (tmp_path / "search.json").write_text(text)
        with pytest.raises(DataError, match=r"search.json: "):
            recorded(tmp_path)


def test_a_grid_cannot_become_a_search(tmp_path):
    claim_sweep(tmp_path, Path("rates"))
    (tmp_path / "trials").mkdir()
    with pytest.raises(ConfigError, match="belongs to --search=grid"):
        make_search(study(), {}, SearchOptions("random", 2), tmp_path, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SearchOptions("bayes"), "--search=bayes: expected one of grid, random, tpe"),
        (SearchOptions("random"), "needs --num_trials=N, the number"),
        (SearchOptions("tpe", 0), "at least 1"),
        (SearchOptions("grid", 3), "a grid runs all variants"),
        (SearchOptions("random", 3, pruner="median"), "--pruner=median: only --search=tpe has pruners, not random"),
        (SearchOptions("tpe", 3, pruner="hyperband"), "expected one of none, median, successive_halving"),
    ],
)
def test_options_that_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        check_options(options)


@pytest.mark.parametrize(
    ("axes", "overrides", "message"),
    [
        ((Range("model.emb_dim", 128, 130),), {}, "emb_dim=130: .*num_heads"),
        ((RATE,), {"optimizer.learning_rate": "0.1"}, "the axis 'learning_rate' sets it in every variant"),
        ((RATE, Axis("nothing", {"a": {}, "b": {}})), {}, "axis 'nothing' changes nothing"),
        ((Range("model.dropout_rate", 0.0, 1.5),), {}, "dropout_rate=1.5: "),
    ],
)
def test_spaces_that_are_refused(axes, overrides, message):
    with pytest.raises(ConfigError, match=message):
        random_search(Space(study(*axes), overrides), 3, 0)


def test_every_invalid_draw_is_named():
    with pytest.raises(ConfigError, match=r"draw 0: [^\0]*emb_dim[^\0]*\ndraw 1: "):
        random_search(space(Range("model.emb_dim", 128, 256)), 4, 0)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--search=bayes"], "--search=bayes: value should be one of"),
        (["--search=random"], "--num_trials=N"),
        (["--search=random", "--num_trials=0"], "--num_trials=0: expected at least 1"),
        (["--pruner=median"], "only --search=tpe has pruners, not grid"),
        (["--slurm_minutes=5"], "--slurm_minutes is for --executor=slurm, not for local"),
        (["--executor=slurm", "--ray_cpus=2"], "--ray_cpus is for --executor=ray, not for slurm"),
    ],
)
def test_flags_that_are_refused(tmp_path, capsys, flags, message):
    assert main(["sweep", "--study=experiments/positions", f"--workdir={tmp_path / 'w'}", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


STUDY = """
from transformer_jax.sweeps.study import Metric, Range, Study

STUDY = Study(
    "Which?", "configs/quickstart.py", (Range("optimizer.learning_rate", 1e-5, 1e-1, log=True),),
    (Metric("valid/loss", "min"),), seeds=(0,),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("search", ["random", "tpe"])
def test_the_command_prints_the_best_variant(tmp_path, capsys, monkeypatch, search):
    if search == "tpe":
        pytest.importorskip("optuna")
    monkeypatch.setattr(sweep_stages, "make_executor", lambda *_: FakeExecutor(num_workers=2))
    (tmp_path / "experiments" / "rates").mkdir(parents=True)
    (tmp_path / "experiments" / "rates" / "study.py").write_text(STUDY)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    flags = [f"--study={tmp_path / 'experiments/rates'}", f"--workdir={tmp_path / 'w'}", f"--search={search}"]
    assert main(["sweep", *flags, "--num_trials=4"]) == 0
    lines = capsys.readouterr().err.splitlines()
    results = {folder.name: read_result(folder) for folder in (tmp_path / "w" / "trials").iterdir()}
    name = min(results, key=lambda name: results[name].metrics["valid/loss"])
    assert len(results) == 4
    assert lines[-1].startswith(f"best of 4 variants: {name.removesuffix(',seed=0')}: valid/loss ")
