"""Searches by Optuna with fake trials: its proposals, pruning and resuming."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_support import HEADS, RATE, ROOT, FakeExecutor, loss_of, study

from transformer_jax.errors import ConfigError, DataError
from transformer_jax.sweeps import sweep as sweep_module
from transformer_jax.sweeps.results import TRIALS, claim_sweep, read_result
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.random import random_search
from transformer_jax.sweeps.search.search import SearchOptions, Space
from transformer_jax.sweeps.sweep import Sweep

optuna = pytest.importorskip("optuna")
sqlalchemy = pytest.importorskip("sqlalchemy")
STATE = optuna.trial.TrialState


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Do not wait, neither between two looks at the trials nor for the disk."""

    def connected(connection, record):
        connection.execute("pragma synchronous = off")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", connected)
    monkeypatch.setattr(sweep_module, "_POLL_SECONDS", 0.0)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", connected)


def make(workdir, what, num_trials, num_workers=1, **options):
    claim_sweep(workdir, Path("rates"))
    return make_search(what, {}, SearchOptions("tpe", num_trials, **options), workdir, num_workers)


def run(workdir, executor, num_trials, what=None, show=lambda standings: None, **options):
    what = what or study()
    sweep = Sweep(make(workdir, what, num_trials, executor.num_workers, **options), what.metrics, workdir, executor)
    assert sweep.run(show)
    return sweep


def in_database(workdir):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.load_study(study_name="rates", storage=f"sqlite:///{workdir / 'search.db'}").trials


def names(workdir):
    return sorted(folder.name for folder in (workdir / TRIALS).iterdir())


@pytest.mark.slow
def test_it_finds_the_least_loss_sooner_than_random_draws(tmp_path):
    what = study(RATE, seeds=(0,))
    chosen, drawn = [], []
    for seed in range(2):
        run(tmp_path / str(seed), FakeExecutor(), 24, what, seed=seed)
        values = [trial.value for trial in in_database(tmp_path / str(seed))]
        assert len(values) == 24
        chosen += values[12:]
        drawn += [loss_of(trial.config) for trial in random_search(Space(what, {}), 24, seed).next([])[12:]]
    assert sum(chosen) < 0.5 * sum(drawn)
    assert min(chosen) < min(drawn)


def test_a_value_is_the_mean_over_seeds_and_the_worst_one_if_a_variant_diverges(tmp_path):
    def loss(config, seed):
        return math.nan if config.model.num_heads == 2 and seed == 5 else loss_of(config, seed)

    run(tmp_path, FakeExecutor(loss, num_workers=3), 6)
    trials = in_database(tmp_path)
    assert {trial.state for trial in trials} == {STATE.COMPLETE}
    assert {trial.params["num_heads"] for trial in trials} == {"1", "2"}
    for trial in trials:
        results = [read_result(tmp_path / TRIALS / f"{trial.user_attrs['variant']},seed={seed}") for seed in (3, 5)]
        if trial.params["num_heads"] == "2":
            assert [result.status for result in results] == ["finished", "diverged"]
            assert trial.value == math.inf
        else:
            assert trial.value == pytest.approx(sum(result.metrics["valid/loss"] for result in results) / 2)


@pytest.mark.slow
def test_a_metric_may_be_maximised(tmp_path):
    what = study(RATE, seeds=(0,), direction="max")
    run(tmp_path, FakeExecutor(lambda config, seed: -loss_of(config)), 25, what)
    values = [trial.value for trial in in_database(tmp_path)]
    assert sum(values[15:]) / 10 > sum(values[:10]) / 10
    diverging = study(RATE, seeds=(0,), direction="max")
    run(tmp_path / "nan", FakeExecutor(lambda config, seed: math.nan), 2, diverging)
    assert [trial.value for trial in in_database(tmp_path / "nan")] == [-math.inf] * 2


def test_a_variant_that_is_proposed_again_is_not_trained_again(tmp_path):
    executor = FakeExecutor(num_workers=2)
    run(tmp_path, executor, 5, study(HEADS))
    trials = in_database(tmp_path)
    assert len(trials) == 5
    assert len(executor.started) == 2 * len({trial.params["num_heads"] for trial in trials}) == 4
    assert len({(trial.params["num_heads"], trial.value) for trial in trials}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "successive_halving"])
def test_a_pruner_ends_bad_trials_and_does_not_start_their_other_seeds(tmp_path, pruner):
    what = study(RATE, settings={"training.eval_every_steps": 100, "training.num_train_steps": 1000})
    executor = FakeExecutor(validations=8)
    sweep = run(tmp_path, executor, 12, what, pruner=pruner)
    trials = in_database(tmp_path)
    pruned = [trial for trial in trials if trial.state == STATE.PRUNED]
    complete = [trial for trial in trials if trial.state == STATE.COMPLETE]
    assert pruned
    assert len(pruned) + len(complete) == 12
    assert min(trial.value for trial in complete) < min(trial.value for trial in pruned)
    for trial in pruned:
        first, second = (tmp_path / TRIALS / f"{trial.user_attrs['variant']},seed={seed}" for seed in (3, 5))
        result = read_result(first)
        assert result.status == "pruned"
        assert result.why.startswith(f"{pruner}: valid/loss ")
        assert not second.exists()
    statuses = [standing.status for standing in sweep.standings]
    assert statuses.count("pruned") == len(pruned)
    assert statuses.count("finished") == 2 * len(complete)


_CHILD = """
import os, signal, sys
from pathlib import Path
from sweep_support import ROOT, FakeExecutor, study
from transformer_jax.sweeps import sweep
from transformer_jax.sweeps.results import claim_sweep
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.search import SearchOptions

workdir, num_workers = Path(sys.argv[1]), int(sys.argv[2])
sweep._POLL_SECONDS = 0.0
claim_sweep(workdir, Path("rates"))

def show(standings):
    if sum(standing.has_ended for standing in standings) >= 5 and any(s.status == "running" for s in standings):
        os.kill(os.getpid(), signal.SIGKILL)

search = make_search(study(), {}, SearchOptions("tpe", 6), workdir, num_workers)
sweep.Sweep(search, study().metrics, workdir, FakeExecutor(num_workers=num_workers, validations=3)).run(show)
"""


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 4])
def test_a_killed_sweep_resumes_with_the_same_folders(tmp_path, num_workers):
    killed = tmp_path / "killed"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    ended = subprocess.run(
        [sys.executable, "-c", _CHILD, killed, str(num_workers)], env=environment, capture_output=True, check=False
    )
    assert ended.returncode == -9, ended.stderr.decode()
    before = names(killed)
    unfinished = {t.user_attrs["variant"] for t in in_database(killed) if t.state == STATE.RUNNING}
    assert unfinished
    run(killed, FakeExecutor(num_workers=num_workers, validations=3), 6)
    trials = in_database(killed)
    assert [trial.state for trial in trials] == [STATE.COMPLETE] * 6
    assert set(before) <= set(names(killed))
    assert len(names(killed)) == 12
    assert unfinished <= {trial.user_attrs["variant"] for trial in trials}
    if num_workers == 1:  # several workers ask while others are running, so the order is chance
        run(tmp_path / "undisturbed", FakeExecutor(validations=3), 6)
        assert names(tmp_path / "undisturbed") == names(killed)


def test_a_search_can_be_enlarged_and_shows_its_trials(tmp_path):
    run(tmp_path, FakeExecutor(), 3)
    executor = FakeExecutor()
    sweep = run(tmp_path, executor, 5)
    assert len(executor.started) == 4
    assert len(sweep.standings) == 10
    assert len(in_database(tmp_path)) == 5
    nothing = FakeExecutor()
    run(tmp_path, nothing, 5)
    assert nothing.started == []


def test_failed_trials_are_tried_again_by_the_next_sweep(tmp_path):
    class Failing(FakeExecutor):
        def start(self, folders, slot):
            (folders[0] / "output.txt").write_text("error: disk full")
            job = super().start(folders, slot)
            job.poll = lambda: 2
            return job

    sweep = run(tmp_path, Failing(), 2)
    assert {standing.status for standing in sweep.standings} == {"failed"}
    assert [trial.state for trial in in_database(tmp_path)] == [STATE.FAIL] * 2
    before = names(tmp_path)
    run(tmp_path, FakeExecutor(), 2)
    assert names(tmp_path) == before
    assert [trial.state for trial in in_database(tmp_path)] == [STATE.FAIL] * 2 + [STATE.COMPLETE] * 2


def test_two_sweeps_do_not_search_in_one_work_directory(tmp_path):
    first = make(tmp_path, study(), 2)
    with pytest.raises(ConfigError, match="another sweep is searching there"):
        make(tmp_path, study(), 2)
    first.close()
    make(tmp_path, study(), 2).close()


def test_a_damaged_database_can_be_moved_away(tmp_path):
    run(tmp_path, FakeExecutor(), 2)
    file = tmp_path / "search.db"
    file.write_bytes(b"SQLite format 3" + b"\0" * 1000)
    with pytest.raises(DataError, match=rf"{file}: the search's database failed: .* move it away"):
        make(tmp_path, study(), 2)
    file.unlink()
    again = FakeExecutor()
    run(tmp_path, again, 2)
    assert again.started == []


def test_a_database_of_another_study_is_refused(tmp_path):
    make(tmp_path, study(), 2).close()
    with pytest.raises(ConfigError, match="the study 'rates' there has another baseline, axes, seeds or metric"):
        make(tmp_path, study(RATE), 2)


def test_a_work_directory_may_move(tmp_path):
    """Its token cache is not part of what is searched."""

    def search(name):
        claim_sweep(tmp_path / name, Path("rates"))
        return make_search(study(), {"data.cache_dir": name}, SearchOptions("tpe", 2), tmp_path / name, 1)

    first = search("one")
    before = first.next([])
    first.close()
    (tmp_path / "one").rename(tmp_path / "two")
    moved = search("two")
    assert [trial.name for trial in moved.next([])] == [trial.name for trial in before]
    moved.close()


def test_a_metric_that_is_not_logged_during_training_cannot_prune(tmp_path):
    what = study(metric="test/sacrebleu", direction="max")
    with pytest.raises(ConfigError, match=r"'sacrebleu' is not logged .* or set training.best_metric=sacrebleu"):
        make(tmp_path, what, 2, pruner="median")
    logged = study(metric="test/sacrebleu", direction="max", settings={"training.best_metric": "chrf"})
    make(tmp_path, logged, 2, pruner="median").close()


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'transformer-jax\[sweep\]'"):
        make(tmp_path, study(), 2)
