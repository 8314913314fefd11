"""The table of trackers, what they are told, and that none of them can disturb a run."""

import json
import logging
import re
import threading
from typing import ClassVar

import pytest
from log_support import CONFIG, log_of, with_trackers
from run_support import argv, run_main, write_corpus

from transformer_jax import trust
from transformer_jax.builtin import parts
from transformer_jax.checkpoints.workdir import STUDY, TRIALS
from transformer_jax.config import ExperimentConfig, TrainingConfig
from transformer_jax.errors import ConfigError
from transformer_jax.metrics_file import format_line, read_lines
from transformer_jax.readers import read_bytes
from transformer_jax.trackers import guarded
from transformer_jax.trackers.notes import COMPLETE, remember
from transformer_jax.trackers.results import track_report, track_scores
from transformer_jax.trackers.tracker import TRACKERS, check_trackers, scalars, tracked_run
from transformer_jax.training.metric_log import catch_up

ALL = "jsonl,tensorboard,memory"
METHODS = ("__init__", "cut", "write", "attach", "finish")


class Memory:
    """A tracker that keeps its calls, shared by all its objects, and fails or hangs in one of its methods."""

    calls: ClassVar[list] = []
    fails_in = ""
    has = 0

    def __init__(self, run):
        self.run = run
        self._called("__init__", run.job)

    def cut(self, step):
        self._called("cut", step)
        return min(step, self.has)

    def write(self, step, split, metrics):
        self._called("write", step, split, metrics)

    def attach(self, file, name):
        self._called("attach", name)

    def finish(self, ending):
        self._called("finish", ending)

    def _called(self, *call):
        self.calls.append(call)
        if call[0] == self.fails_in:
            raise OSError(30, "Read-only file system", "/somewhere")


@pytest.fixture
def memory(monkeypatch):
    class Fresh(Memory):
        calls: ClassVar[list] = []

    monkeypatch.setattr(TRACKERS, "_registered", {"memory": Fresh})
    return Fresh


@pytest.mark.parametrize(
    ("trackers", "problem"),
    [
        ("jsonl,tensorbord", r"'tensorbord': expected one of jsonl, tensorboard.*\(did you mean 'tensorboard'\?\)"),
        ("jsonl,", "'': expected one of jsonl, "),
        ("", "'': expected one of jsonl, "),
        ("jsonl,tensorboard,jsonl", "expected every tracker once"),
        ("tensorboard", r"expected jsonl too: resuming, sweeps and reports read metrics\.jsonl"),
    ],
)
def test_bad_names_are_refused(trackers, problem):
    text = rf"training\.trackers={re.escape(repr(trackers))}: {problem}"
    with pytest.raises(ConfigError, match=text):
        ExperimentConfig(training=TrainingConfig(trackers=trackers)).resolved()


def test_spaces_are_allowed_and_a_tracker_that_is_not_named_writes_nothing(tmp_path):
    with log_of(tmp_path, 0, " jsonl ") as log:
        log.write(1, "train", {"loss": 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_tracker_whose_package_is_missing_names_the_extra(memory):
    memory.package = "surely_not_installed"
    message = r"memory needs the package surely_not_installed; install the extra: pip install 'transformer-jax\[surely_"
    with pytest.raises(ConfigError, match=message):
        check_trackers(with_trackers(ALL))
    memory.package = "json"
    check_trackers(with_trackers(ALL))


def test_a_missing_package_is_an_error_before_anything_is_prepared(tmp_path, memory, capsys):
    memory.package = "surely_not_installed"
    folder = write_corpus(tmp_path / "corpus")
    assert run_main(argv("train", folder, f"--config.training.trackers={ALL}")) == 2
    assert "error: training.trackers: memory needs the package surely_not_installed; " in capsys.readouterr().err
    assert not (folder / "run" / "token_cache").exists()


def test_an_object_without_the_methods_is_refused():
    with pytest.raises(ConfigError, match=r"training\.trackers='half': Half lacks cut, write, attach, finish"):
        TRACKERS.register("half", type("Half", (), {}))


def test_lines_arrive_as_they_are_written(tmp_path, memory):
    metrics = {"loss": 1.5, "worst": float("nan"), "signature": "x", "counts": {"a": 1}}
    with log_of(tmp_path, 0, ALL) as log:
        log.write(3, "train", metrics)
        log.write(4, "valid", {"loss": 2.5})
    start, cut, first, *rest = memory.calls
    assert (start, cut) == (("__init__", "train"), ("cut", 0))
    assert first[:3] == ("write", 3, "train")
    assert scalars(*first[2:]) == {"train/loss": 1.5}
    assert rest == [("write", 4, "valid", {"loss": 2.5}), ("finish", "finished")]


@pytest.mark.parametrize(("has", "sent"), [(0, [2, 4, 4]), (3, [4, 4]), (4, []), (9, [])])
def test_a_resume_cuts_and_sends_the_lines_that_the_tracker_lacks(tmp_path, memory, has, sent):
    lines = [(2, "train"), (4, "train"), (4, "valid"), (6, "train")]
    written = [format_line(step, split, {"loss": step / 2}) for step, split in lines]
    (tmp_path / "metrics.jsonl").write_text("".join([*written[:2], "damaged\n", *written[2:]]))
    memory.has = has
    with log_of(tmp_path, 5, ALL) as log:
        log.write(6, "train", {"loss": 7.0})
    assert memory.calls[1] == ("cut", 5)
    assert [call[1] for call in memory.calls if call[0] == "write"] == [*sent, 6]
    assert all(call[3] == {"loss": call[1] / 2} for call in memory.calls[2:-2])


def test_a_finished_run_gives_what_a_tracker_lacks(tmp_path, memory):
    lines = [(2, "train"), (4, "valid")]
    (tmp_path / "metrics.jsonl").write_text("".join(format_line(*line, {"loss": 1.0}) for line in lines) + "damaged\n")
    memory.has, before = 2, read_bytes(tmp_path / "metrics.jsonl")
    catch_up(with_trackers(ALL), tmp_path, 4)
    expected = [("__init__", "train"), ("cut", 4), ("write", 4, "valid", {"loss": 1.0}), ("finish", "finished")]
    assert memory.calls == expected
    remember(tmp_path, "memory", {COMPLETE: True})
    catch_up(with_trackers(ALL), tmp_path, 4)
    assert memory.calls == expected
    assert read_bytes(tmp_path / "metrics.jsonl") == before
    assert not (tmp_path / "tensorboard").exists()


def test_the_tracker_of_the_page_keeps_the_losses_of_a_run_and_its_resume(tmp_path, monkeypatch):
    """docs/extending.md. A line after the checkpoint at which the run resumes is forgotten."""
    monkeypatch.syspath_prepend(str(parts()["losses"].parent))
    monkeypatch.setattr(trust, "_state", trust._State())
    trust.trust_modules("losses")
    names = "jsonl, losses:Losses"
    with log_of(tmp_path, 0, names) as log:
        log.write(1, "train", {"loss": 3.0})
        log.write(2, "train", {"loss": 9.0})
    with log_of(tmp_path, 1, names) as log:
        log.write(1, "valid", {"accuracy": 0.5})
        log.write(2, "train", {"loss": 2.5})
    assert (tmp_path / "losses.tsv").read_text() == "1\ttrain\t3.0\n2\ttrain\t2.5\n"


@pytest.mark.parametrize(("error", "ending"), [(ZeroDivisionError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_an_error_of_training_is_told(tmp_path, memory, error, ending):
    with pytest.raises(error), log_of(tmp_path, 0, ALL):
        raise error
    assert memory.calls[-1] == ("finish", ending)


def test_a_run_that_ended_before_its_log_is_closed_has_its_own_ending(tmp_path, memory):
    """In one program with other trials, an error of a later one closes the logs of all."""
    log = log_of(tmp_path, 0, ALL)
    log.finish("interrupted")
    with pytest.raises(ZeroDivisionError), log:
        raise ZeroDivisionError
    assert [call for call in memory.calls if call[0] == "finish"] == [("finish", "interrupted")]


@pytest.mark.parametrize("method", METHODS)
def test_a_tracker_that_fails_is_one_warning_and_the_log_is_complete(tmp_path, memory, method, caplog):
    memory.fails_in = method
    with log_of(tmp_path, 0, ALL) as log:
        for step in range(1, 4):
            log.write(step, "train", {"loss": 1.0})
    track_report(with_trackers(ALL), tmp_path, {"report.html": tmp_path / "report.html"})
    assert [line["step"] for line in read_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (1 if method in ("cut", "write", "attach") else 2)  # of training, and of the report
    message = warnings[0].getMessage()
    assert f"{tmp_path}: the tracker memory gets nothing more from this process: OSError: " in message
    assert "Read-only file system: '/somewhere'. " in message
    assert ("The report is complete" if method == "attach" else "metrics.jsonl has every line") in message
    calls = [call[0] for call in memory.calls]
    assert calls.count("write") == {"__init__": 0, "cut": 0, "write": 1}.get(method, 3)


def test_a_tracker_that_hangs_is_left_behind(tmp_path, memory, caplog, monkeypatch):
    over = threading.Event()
    memory.write = lambda *_: over.wait(60)  # bounds a defect
    monkeypatch.setattr(guarded, "FINISH_SECONDS", 0.01)
    with log_of(tmp_path, 0, ALL) as log:
        log.write(1, "train", {})
    over.set()
    [warning] = caplog.records
    assert "it has not finished after 0 s. " in warning.getMessage()


def test_trackers_that_hang_share_the_longest_wait(tmp_path, memory, caplog, monkeypatch):
    over, waited, now = threading.Event(), [], 0.0

    class Thread(threading.Thread):
        def join(self, timeout=None):
            nonlocal now
            waited.append(timeout)
            now += timeout

    memory.write = lambda *_: over.wait(60)  # bounds a defect
    monkeypatch.setattr(TRACKERS, "_registered", {"memory": memory, "other": memory})
    monkeypatch.setattr(guarded.threading, "Thread", Thread)
    monkeypatch.setattr(guarded.time, "monotonic", lambda: now)
    with log_of(tmp_path, 0, f"{ALL},other") as log:
        log.write(1, "train", {})
    over.set()
    assert waited == [120, 0]
    assert len(caplog.records) == 2


def test_scores_and_files_reach_the_further_trackers_only(tmp_path, memory):
    config = with_trackers(ALL)
    track_scores(config, tmp_path, 8, {"test": {"loss": 1.0}, "valid": {"loss": 2.0}})
    track_report(config, tmp_path, {"figures/a.svg": tmp_path / "a.svg"})
    assert memory.calls == [
        *(("__init__", "evaluate"), ("write", 8, "evaluation/test", {"loss": 1.0})),
        *(("write", 8, "evaluation/valid", {"loss": 2.0}), ("finish", "finished")),
        *(("__init__", "report"), ("attach", "figures/a.svg"), ("finish", "finished")),
    ]
    assert not list(tmp_path.iterdir())  # neither metrics.jsonl nor events


def test_trials_share_the_group_and_the_home_of_their_sweep(tmp_path):
    def of(folder, job="train"):
        run = tracked_run(CONFIG, folder, job)
        return run.name, run.group, run.home, run.is_in_sweep

    sweep = tmp_path / "norms"
    trial, tuned = sweep / TRIALS / "norm=pre,seed=0", sweep / "tuning" / TRIALS / "norm=pre,seed=0"
    assert of(trial) == (trial.name, trial.name, trial, False)  # there is no sweep around it
    for folder in (sweep, sweep / "tuning"):
        (folder / TRIALS).mkdir(parents=True)
        (folder / STUDY).touch()
    assert of(trial) == (trial.name, "norms", sweep, True)
    assert of(tuned) == (trial.name, "norms/tuning", sweep, True)
    assert of(sweep, "report") == ("norms", "norms", sweep, True)
    assert of(tmp_path / "run") == ("run", "run", tmp_path / "run", False)


def test_a_run_says_where_it_comes_from(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["transformer-jax", "train", "https://token@host/x"])
    run = tracked_run(CONFIG, tmp_path, "train")
    assert run.config["training.trackers"] == "jsonl,tensorboard"
    assert run.facts["command"] == "transformer-jax train 'https://***@host/x'"
    assert run.facts["version.jax"]
    json.dumps([run.facts, dict(run.config)])
