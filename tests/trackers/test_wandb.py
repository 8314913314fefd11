"""Weights & Biases, offline; `make test-trackers` installs it."""

import json
import os
import shutil
import struct
from types import SimpleNamespace

import pytest
from log_support import log_of, with_trackers
from run_support import subprocess_main, write_corpus
from tracker_support import alone, in_process, logged, trained, without_clock

from transformer_jax.trackers.notes import COMPLETE, recall
from transformer_jax.training.metric_log import catch_up

pytest.importorskip("wandb", reason="the extra wandb")

TRACKERS = "jsonl,tensorboard,wandb"
STILL = "gets nothing more from this process"


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    alone(monkeypatch, tmp_path)


def segments(workdir):
    return sorted((workdir / "wandb").glob("offline-run-*"))


def read(segment):
    """Return ID, group, job, config and numbers by (step, name) of an offline run: a log of LevelDB with Records."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # ends its service, which otherwise may still write; the end of a process does so too
    [file] = segment.glob("*.wandb")
    data, place, parts = file.read_bytes(), 7, []
    run, numbers = None, {}
    assert data[:4] == b":W&B"
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind not in (1, 4):  # complete, or the last part
            continue
        record, parts = Record.FromString(b"".join(parts)), []
        if record.HasField("run"):
            run = record.run
        if record.HasField("history"):
            items = record.history.item
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            numbers |= {(row["_step"], name): value for name, value in row.items() if not name.startswith("_")}
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    return SimpleNamespace(
        id=run.run_id, group=run.run_group, job=run.job_type, config=config, numbers=numbers, project=run.project
    )


def test_a_killed_and_resumed_training_has_the_curve_of_an_uninterrupted_one(tmp_path):
    folder = write_corpus(tmp_path / "corpus")
    whole, killed, plain = (tmp_path / name for name in ("whole", "killed", "plain"))
    trained(folder, plain, "jsonl,tensorboard")
    trained(folder, whole, TRACKERS)
    trained(folder, killed, TRACKERS, kill_at="inside_save:8")
    assert STILL not in trained(folder, killed, TRACKERS)
    leaves = [json.loads((run / "checkpoints/8/record.json").read_text())["leaves"] for run in (plain, whole, killed)]
    assert leaves[0] == leaves[1] == leaves[2]
    assert len(segments(killed)) == len(list((killed / "wandb" / "replaced").iterdir())) == 1
    runs = [read(segments(run)[0]) for run in (whole, killed)]
    assert without_clock(runs[0].numbers) == without_clock(runs[1].numbers) == logged(whole) == logged(plain)
    assert runs[1].id == recall(killed, "wandb")["id"] in segments(killed)[0].name
    assert (runs[1].group, runs[1].job, runs[1].project) == ("killed", "train", "transformer_jax")
    assert runs[1].config["model"]["emb_dim"] == 16
    assert "--workdir" in runs[1].config["run"]["command"]
    assert not list(segments(killed)[0].glob("files/wandb-metadata.json"))  # W&B's own record of the command
    scored = subprocess_main(["evaluate", f"--checkpoint={killed}", "--splits=test"])
    assert (scored.returncode, STILL in scored.stderr) == (0, False), scored.stderr
    evaluation = read(segments(killed)[1])
    assert (evaluation.group, evaluation.job) == ("killed", "evaluate")
    score = json.loads((killed / "evaluation" / "test.json").read_text())["sacrebleu"]
    assert evaluation.numbers[8, "evaluation/test/sacrebleu"] == score


def write(folder, start, *steps):
    with log_of(folder, start, TRACKERS) as log:
        for step in steps:
            log.write(step, "train", {"loss": float(step)})


def test_an_uploaded_run_gets_a_new_id(tmp_path, caplog):
    write(tmp_path, 0, 1, 2)
    [first] = segments(tmp_path)
    (first / f"run-{read(first).id}.wandb.synced").touch()
    write(tmp_path, 1, 2, 3)
    assert "has been uploaded to W&B already, and cannot be continued" in caplog.text
    [second] = [read(segment) for segment in segments(tmp_path) if segment != first]
    assert second.id != read(first).id
    assert second.numbers == {(step, "train/loss"): step for step in (1, 2, 3)}


def test_only_what_a_finished_run_lacks_is_written_again(tmp_path):
    with log_of(tmp_path, 0, TRACKERS) as log:
        log.write(1, "train", {"loss": 1.0})
        log.finish("failed")
    catch_up(with_trackers(TRACKERS), tmp_path, 1)
    [segment] = written = segments(tmp_path)
    assert len(list((tmp_path / "wandb" / "replaced").iterdir())) == 1
    catch_up(with_trackers(TRACKERS), tmp_path, 1)
    assert segments(tmp_path) == written
    assert read(segment).numbers == {(1, "train/loss"): 1.0}
    with log_of(tmp_path, 1, TRACKERS) as log:  # of a longer training
        log.finish("interrupted")
    assert COMPLETE not in recall(tmp_path, "wandb")


def test_a_deleted_run_is_written_again(tmp_path, caplog):
    write(tmp_path, 0, 1, 2)
    shutil.rmtree(tmp_path / "wandb")
    write(tmp_path, 2, 3)
    assert STILL not in caplog.text
    assert read(segments(tmp_path)[0]).numbers == {(step, "train/loss"): step for step in (1, 2, 3)}


def test_a_run_that_is_deleted_meanwhile_does_not_stop_training(tmp_path):
    with log_of(tmp_path, 0, TRACKERS) as log:
        log.write(1, "train", {"loss": 1.0})
        shutil.rmtree(tmp_path / "wandb", ignore_errors=True)
        log.write(2, "train", {"loss": 2.0})
    assert len(logged(tmp_path)) == 2


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, caplog, monkeypatch):
    (tmp_path / "wandb").touch()
    write(tmp_path, 0, 1)
    (tmp_path / "wandb").unlink()
    monkeypatch.setattr(os, "access", lambda path, mode: "wandb" not in str(path))  # root may write everywhere
    write(tmp_path, 1, 2)
    first, second = [record.getMessage() for record in caplog.records if record.name.startswith("transformer_jax")]
    assert f"wandb {STILL}: FileExistsError: " in first
    assert f"wandb {STILL}: PermissionError: [Errno 13] Permission denied: '{tmp_path / 'wandb'}'" in second
    assert len(logged(tmp_path)) == 2


@pytest.mark.parametrize(("key", "problem"), [("", "No API key configured"), ("x" * 40, "connection refused")])
def test_online_without_a_network_or_an_account_is_one_warning(tmp_path, key, problem):
    code = (
        f"from log_support import log_of\nwith log_of(__import__('pathlib').Path({str(tmp_path)!r}), 0, {TRACKERS!r}) "
    )
    code += "as log: log.write(1, 'train', {'loss': 1.0})"
    environment = {"WANDB_MODE": "online", "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "2"}
    said = in_process(code, **environment, **({"WANDB_API_KEY": key} if key else {}))
    assert said.count(STILL) == said.count(problem) == 1
    assert len(logged(tmp_path)) == 1
