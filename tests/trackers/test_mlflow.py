"""MLflow on a local SQLite store; `make test-trackers` installs it."""

import json
import re

import pytest
from log_support import log_of, with_trackers
from run_support import subprocess_main, write_corpus
from tracker_support import alone, in_process, logged, trained, without_clock

from transformer_jax.checkpoints.workdir import STUDY, TRIALS
from transformer_jax.trackers.notes import recall
from transformer_jax.trackers.results import track_report

pytest.importorskip("mlflow", reason="the extra mlflow")

TRACKERS = "jsonl,tensorboard,mlflow"
STILL = "gets nothing more from this process"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    alone(monkeypatch, tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def store(home):
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=f"sqlite:///{home}/mlflow.db")


def runs_of(home):
    """Return every run by its name and experiment."""
    client = store(home)
    experiments = client.search_experiments()
    return {(run.info.run_name, of.name): run for of in experiments for run in client.search_runs([of.experiment_id])}


def numbers_of(home, run):
    """Return the numbers of a run by (step, name); every step of a metric is there once."""
    client, found = store(home), {}
    for name in client.get_run(run.info.run_id).data.metrics:
        history = client.get_metric_history(run.info.run_id, name)
        assert len({metric.step for metric in history}) == len(history)
        found |= {(metric.step, name): metric.value for metric in history}
    return found


def test_a_killed_and_resumed_training_has_the_curve_of_an_uninterrupted_one(tmp_path):
    folder = write_corpus(tmp_path / "corpus")
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    trained(folder, plain, "jsonl,tensorboard")
    trained(folder, killed, TRACKERS, kill_at="inside_save:8")
    assert STILL not in trained(folder, killed, TRACKERS)
    leaves = [json.loads((run / "checkpoints/8/record.json").read_text())["leaves"] for run in (plain, killed)]
    assert leaves[0] == leaves[1]
    [(key, run)] = runs_of(killed).items()
    assert (key, run.info.status) == (("killed", "transformer_jax"), "FINISHED")
    assert run.info.run_id == recall(killed, "mlflow")["id"]
    assert without_clock(numbers_of(killed, run)) == logged(killed) == logged(plain)
    assert (run.data.params["model.emb_dim"], run.data.params["training.trackers"]) == ("16", TRACKERS)
    assert "--workdir" in run.data.tags["command"]
    assert run.data.tags["version.jax"]
    scored = subprocess_main(["evaluate", f"--checkpoint={killed}", "--splits=test"])
    assert (scored.returncode, STILL in scored.stderr) == (0, False), scored.stderr
    [run] = runs_of(killed).values()
    score = json.loads((killed / "evaluation" / "test.json").read_text())["sacrebleu"]
    assert (run.info.status, numbers_of(killed, run)[8, "evaluation/test/sacrebleu"]) == ("FINISHED", score)


def write(folder, start, *steps):
    with log_of(folder, start, TRACKERS) as log:
        for step in steps:
            log.write(step, "train", {"loss": float(step)})


def test_the_life_of_a_run(tmp_path, caplog):
    """Steps that it has are not repeated; deleted, it is written again; without a checkpoint, another one begins."""
    write(tmp_path, 0, 2, 4, 6)
    [first] = runs_of(tmp_path).values()
    write(tmp_path, 3, 4, 6, 8)
    [run] = runs_of(tmp_path).values()
    curve = {(step, "train/loss"): step for step in (2, 4, 6, 8)}
    assert (run.info.run_id, numbers_of(tmp_path, run)) == (first.info.run_id, curve)
    assert not caplog.records

    store(tmp_path).delete_run(run.info.run_id)
    write(tmp_path, 8, 10)
    [again] = runs_of(tmp_path).values()
    assert f"its run {run.info.run_id} in MLflow was deleted; it gets a new one" in caplog.text
    assert numbers_of(tmp_path, again) == curve | {(10, "train/loss"): 10}

    (tmp_path / "metrics.jsonl").unlink()
    write(tmp_path, 0, 1)
    client = store(tmp_path)
    assert client.get_run(again.info.run_id).info.status == "KILLED"
    latest = client.get_run(recall(tmp_path, "mlflow")["id"])
    assert numbers_of(tmp_path, latest) == {(1, "train/loss"): 1}

    with log_of(tmp_path, 1, TRACKERS) as log:
        client.delete_run(latest.info.run_id)
        log.write(2, "train", {"loss": 6.0})
    assert len(logged(tmp_path)) == 2


@pytest.mark.parametrize(("ending", "status"), [("failed", "FAILED"), ("interrupted", "KILLED")])
def test_the_status_says_how_a_run_has_ended(tmp_path, ending, status):
    with log_of(tmp_path, 0, TRACKERS) as log:
        log.finish(ending)
    assert [run.info.status for run in runs_of(tmp_path).values()] == [status]


def test_a_changed_config_is_a_tag(tmp_path):
    write(tmp_path, 0, 2)
    with log_of(tmp_path, 2, "jsonl,mlflow"):
        pass
    [run] = runs_of(tmp_path).values()
    assert run.data.params["training.trackers"] == TRACKERS
    assert {name: value for name, value in run.data.tags.items() if name.startswith("resumed")} == {
        "resumed with training.trackers": "jsonl,mlflow"
    }


def test_a_sweep_has_one_store_and_one_experiment_with_its_report(tmp_path):
    sweep = tmp_path / "norms"
    trials = [sweep / TRIALS / name for name in ("norm=pre,seed=0", "norm=post,seed=0")]
    for trial in trials:
        trial.mkdir(parents=True)
    (sweep / STUDY).touch()
    page = sweep / "report.html"
    page.write_text("<p>Pre is better.</p>")
    with log_of(trials[0], 0, TRACKERS) as first, log_of(trials[1], 0, TRACKERS) as second:
        for log in (first, second):
            log.write(1, "train", {"loss": 1.0})
    track_report(with_trackers(TRACKERS), sweep, {"report.html": page, "figures/1.html": page})
    found = runs_of(sweep)
    assert set(found) == {(name, "norms") for name in (trials[0].name, trials[1].name, "norms report")}
    report = found["norms report", "norms"]
    paths = [path.relative_to(sweep).as_posix() for path in sweep.glob("mlartifacts/**/*.html")]
    assert sorted(re.sub(r"^mlartifacts/[0-9a-f]+/artifacts/", "", path) for path in paths) == [
        "figures/1.html",
        "report.html",
    ]
    assert all(report.info.run_id in path for path in paths)


def test_a_store_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "mlflow.db").mkdir()
    write(tmp_path, 0, 1)
    [warning] = [record for record in caplog.records if record.name.startswith("transformer_jax")]
    assert f"mlflow {STILL}: " in warning.getMessage()
    assert "unable to open database file" in warning.getMessage()
    assert len(logged(tmp_path)) == 1


def test_a_server_that_cannot_be_reached_is_one_warning(tmp_path):
    code = (
        f"from log_support import log_of\nwith log_of(__import__('pathlib').Path({str(tmp_path)!r}), 0, {TRACKERS!r}) "
    )
    code += "as log: log.write(1, 'train', {'loss': 1.0})"
    environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    assert in_process(code, **environment).count(f"mlflow {STILL}: ") == 1
    assert len(logged(tmp_path)) == 1
