"""The loop of a sweep, with an executor that does not train."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.sweeps import sweep as sweep_module
from transformer_jax.sweeps.results import OUTPUT, RESULT, TRIALS, Result, held, read_spec
from transformer_jax.sweeps.search.search import Listed
from transformer_jax.sweeps.study import Metric
from transformer_jax.sweeps.sweep import MAX_DEATHS, Sweep
from transformer_jax.sweeps.trials import Trial

METRICS = [Metric("test/loss", "min")]
TRIALS_OF_IT = [
    Trial({"heads": name}, seed, dataclasses.replace(ExperimentConfig().resolved(), seed=seed))
    for name in ("one", "two")
    for seed in (0, 1)
]

MORE = [Trial({"heads": name}, 0, dataclasses.replace(ExperimentConfig().resolved(), seed=0)) for name in "abcdefgh"]


def finish(folder: Path, status: str = "finished", why: str = "") -> None:
    trial = read_spec(folder).trial
    metrics = {"test/loss": 1.0} if status == "finished" else {}
    Result(trial.labels, trial.seed, status, why, metrics, 8, 1.0, 10, "cpu", {}).write(folder)


class Job:
    """Runs for a few polls, then ends as given."""

    def __init__(self, executor, folders, end):
        self._executor, self.folders, self._end, self._polls = executor, folders, end, 2
        self.stopped = False

    def poll(self):
        self._polls -= 1
        if self._polls > 0:
            return None
        self._executor.running -= 1
        if self.stopped:
            return 143
        return self._end(self.folders)

    def stop(self):
        self.stopped = True


class Executor:
    """`ends`: by trial name, how its jobs end, one after the other; by default they finish."""

    def __init__(self, num_workers=2, together=1, **ends):
        self.num_workers, self._together = num_workers, together
        self.ends = {name: list(todo) for name, todo in ends.items()}
        self.started, self.running, self.most = [], 0, 0
        self.closed = False

    def jobs(self, trials):
        folders = [folder for _, folder in trials]
        return [folders[first : first + self._together] for first in range(0, len(folders), self._together)]

    def start(self, folders, slot):
        assert 0 <= slot < self.num_workers
        self.started.append([folder.name for folder in folders])
        self.running += 1
        self.most = max(self.most, self.running)
        todo = self.ends.get(folders[0].name, [])
        return Job(self, folders, todo.pop(0) if todo else finish_all)

    def close(self):
        self.closed = True


def finish_all(folders):
    for folder in folders:
        if not (folder / RESULT).exists():
            finish(folder)
    return 0


def exits(code, checkpoint=None, output=""):
    def end(folders):
        (folders[0] / OUTPUT).write_text(output)
        if checkpoint is not None:
            (folders[0] / "checkpoints" / str(checkpoint)).mkdir(parents=True)
        return code

    return end


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(sweep_module, "_POLL_SECONDS", 0.0)


def run(workdir, executor, show=lambda standings: None):
    sweep = Sweep(Listed(TRIALS_OF_IT), METRICS, workdir, executor)
    return sweep.run(show), {standing.trial.name: (standing.status, standing.why) for standing in sweep.standings}


NAMES = [trial.name for trial in TRIALS_OF_IT]


def test_every_trial_runs_once_and_no_more_at_once_than_there_are_workers(tmp_path):
    executor = Executor()
    complete, statuses = run(tmp_path, executor)
    assert complete
    assert statuses == dict.fromkeys(NAMES, ("finished", ""))
    assert executor.started == [[name] for name in NAMES]
    assert executor.most == 2
    assert executor.closed
    again = Executor()
    assert run(tmp_path, again)[0]
    assert again.started == []


def test_trials_that_run_together(tmp_path):
    executor = Executor(num_workers=1, together=3)
    assert run(tmp_path, executor)[0]
    assert executor.started == [NAMES[:3], NAMES[3:]]


def test_a_dead_job_is_started_again(tmp_path):
    executor = Executor(**{NAMES[1]: [exits(-9), exits(1)]})
    complete, statuses = run(tmp_path, executor)
    assert complete
    assert set(statuses.values()) == {("finished", "")}
    assert executor.started.count([NAMES[1]]) == 3


def test_a_job_that_keeps_dying_is_given_up_unless_it_makes_progress(tmp_path):
    executor = Executor(
        **{
            NAMES[0]: [exits(-9)] * 20,
            NAMES[2]: [exits(-9, checkpoint=step) for step in range(2 * MAX_DEATHS)],
        }
    )
    _, statuses = run(tmp_path, executor)
    assert executor.started.count([NAMES[0]]) == MAX_DEATHS
    assert statuses[NAMES[0]][0] == "failed"
    assert "died 5 times without a new checkpoint, last with exit code -9" in statuses[NAMES[0]][1]
    assert [statuses[name][0] for name in NAMES[1:]] == ["finished"] * 3
    assert executor.started.count([NAMES[2]]) == 2 * MAX_DEATHS + 1


def test_a_permanent_error_is_not_tried_again(tmp_path):
    executor = Executor(**{NAMES[3]: [exits(2, output="training\nerror: no such file")]})
    _, statuses = run(tmp_path, executor)
    assert statuses[NAMES[3]][0] == "failed"
    assert statuses[NAMES[3]][1].startswith("error: no such file (")
    assert executor.started.count([NAMES[3]]) == 1
    # After a repair, the same command tries it again.
    assert run(tmp_path, Executor())[1][NAMES[3]] == ("finished", "")


def test_a_trial_that_diverges_is_a_result(tmp_path):
    executor = Executor(**{NAMES[0]: [lambda folders: finish(folders[0], "diverged", "loss is nan") or 0]})
    complete, statuses = run(tmp_path, executor)
    assert complete
    assert statuses[NAMES[0]] == ("diverged", "loss is nan")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_makes_the_jobs_save_and_end(tmp_path, number):
    executor, before, sent = Executor(), signal.getsignal(number), []

    def show(standings):
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    complete, statuses = run(tmp_path, executor, show)
    assert not complete
    assert executor.started == [[name] for name in NAMES[:2]]
    assert {status for status, _ in statuses.values()} == {"waiting"}
    assert signal.getsignal(number) == before
    assert run(tmp_path, Executor())[0]


def test_a_signal_during_the_start_of_a_job_stops_it_and_starts_no_other(tmp_path):
    class Signalled(Executor):
        def start(self, folders, slot):
            job = super().start(folders, slot)
            os.kill(os.getpid(), signal.SIGTERM)
            return job

    executor = Signalled()
    complete, _ = run(tmp_path, executor)
    assert not complete
    assert executor.started == [[NAMES[0]]]


def test_a_trial_of_another_process_is_waited_for(tmp_path):
    executor = Executor()
    Sweep(Listed(TRIALS_OF_IT), METRICS, tmp_path, executor)
    folder = tmp_path / TRIALS / NAMES[0]
    turns = []

    def show(standings):
        turns.append([name for [name] in executor.started])
        if len(turns) == 20:  # the other process has finished it
            finish(folder)
            stack.__exit__(None, None, None)

    stack = held([folder])
    assert stack.__enter__()
    complete, statuses = run(tmp_path, executor, show)
    assert complete
    assert set(statuses.values()) == {("finished", "")}
    assert [NAMES[0]] not in executor.started


def test_a_truncated_result_is_named(tmp_path):
    run(tmp_path, Executor())
    file = tmp_path / TRIALS / NAMES[2] / RESULT
    file.write_text(file.read_text()[:40])
    with pytest.raises(DataError, match=str(file)):
        run(tmp_path, Executor())


def test_a_changed_study_is_refused_even_after_all_its_trials(tmp_path):
    run(tmp_path, Executor())
    optimizer = dataclasses.replace(TRIALS_OF_IT[0].config.optimizer, warmup_steps=7)
    changed = [dataclasses.replace(t, config=dataclasses.replace(t.config, optimizer=optimizer)) for t in TRIALS_OF_IT]
    with pytest.raises(ConfigError, match=r"optimizer.warmup_steps \(4000 before, 7 now\)"):
        Sweep(Listed(changed), METRICS, tmp_path, Executor())


def test_another_token_cache_folder_is_not_a_change(tmp_path):
    run(tmp_path, Executor())
    data = dataclasses.replace(TRIALS_OF_IT[0].config.data, cache_dir="elsewhere")
    moved = [dataclasses.replace(t, config=dataclasses.replace(t.config, data=data)) for t in TRIALS_OF_IT]
    executor = Executor()
    assert Sweep(Listed(moved), METRICS, tmp_path, executor).run(lambda standings: None)
    assert executor.started == []


def test_a_trial_without_a_measured_metric_is_scored_again(tmp_path):
    run(tmp_path, Executor())
    sweep = Sweep(Listed(TRIALS_OF_IT), [*METRICS, Metric("test/chrf", "max")], tmp_path, Executor())
    assert {standing.status for standing in sweep.standings} == {"waiting"}


def test_deaths_of_a_job_that_makes_progress_do_not_count_for_its_trials(tmp_path):
    """Each attempt finishes one more of the trials that run together."""

    def finish_one_and_die(folders):
        finish(next(folder for folder in folders if not (folder / RESULT).exists()))
        return -9

    executor = Executor(num_workers=1, together=4)
    executor.start = lambda folders, slot: Job(executor, folders, finish_one_and_die)
    sweep = Sweep(Listed([*TRIALS_OF_IT, *MORE]), METRICS, tmp_path, executor)
    assert sweep.run(lambda standings: None)
    assert {standing.status for standing in sweep.standings} == {"finished"}
