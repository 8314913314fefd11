"""`train` as a whole: its messages, and runs that finish or fail."""

import json
import os
import re
import shutil
import signal

import numpy as np
import pytest
from data_support import prepared
from log_support import log_of
from run_support import (
    TOTAL,
    assert_same_run,
    at,
    copy_of_trained,
    metric_lines,
    run_main,
    saved_steps,
    snapshot,
    train,
    trained_config,
    trained_folder,
    write_corpus,
)

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.host.files import with_checksum
from transformer_jax.metrics_file import digest, format_line
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training import loop, set_up
from transformer_jax.training.resume import warn_of_lost_lines


@pytest.fixture
def folder(tmp_path):
    return write_corpus(tmp_path)


def test_the_loss_falls():
    losses = [line["loss"] for line in metric_lines(trained_folder() / "run") if line["split"] == "train"]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.5


def test_lost_lines_of_the_log_are_named(tmp_path, caplog):
    run, log = trained_folder() / "run", tmp_path / "metrics.jsonl"
    store = CheckpointStore(run / "checkpoints", read_only=True)
    for step in store.steps():
        record = store.read_record(step)
        lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        lines = [line for line in lines if json.loads(line)["step"] <= step]
        for count in range(len(lines) + 1):
            caplog.clear()
            log.write_text("".join(lines[:count]))
            warn_of_lost_lines(tmp_path, record, step)
            assert bool(caplog.records) == (count < len(lines)), (step, count)
        log.unlink()
        warn_of_lost_lines(tmp_path, record, step)
        assert f"{log}: lines up to step {step} are missing" in caplog.text


LINES = [(3, "train", {"loss": 2.0}), (4, "valid", {"loss": 1.5}), (6, "train", {"loss": 1.0}), (8, "train", {})]


@pytest.mark.parametrize(
    ("lines", "is_named"),
    [
        (LINES, False),
        (LINES[:3], False),  # lines after the checkpoint
        (LINES[:2], True),
        (LINES[1:], True),
        ([LINES[0], *LINES[2:]], True),
        ([LINES[0], (4, "valid", {"loss": 1.25}), *LINES[2:]], True),  # of another trial: each line has its checksum
        ([], True),
    ],
)
def test_a_log_is_compared_with_the_digest_in_the_checkpoint(tmp_path, caplog, lines, is_named):
    with log_of(tmp_path, 0) as log:
        assert log.digest() == ""
        for line in LINES[:3]:
            log.write(*line)
        record = {"log_sha256": log.digest()}
    with log_of(tmp_path, 6) as log:  # a resumed run continues the digest
        assert log.digest() == record["log_sha256"] == digest(tmp_path / "metrics.jsonl")
    (tmp_path / "metrics.jsonl").write_text("".join(format_line(*line) for line in lines))
    warn_of_lost_lines(tmp_path, record, 6)
    assert ("lines up to step 6 are missing or were changed since its checkpoint" in caplog.text) == is_named


@pytest.mark.slow
def test_long_pairs_are_left_out_and_counted(folder, capsys):
    fields = {"data.max_length": 4, "data.drop_long": "true", "training.num_train_steps": 1}
    assert train(folder, *(f"--config.{name}={value}" for name, value in fields.items())) == 0
    message = capsys.readouterr().err
    left_out = re.search(r"(\d+) training examples have a sequence of more than data\.max_length=4 tokens", message)
    kept = re.search(r"([\d,]+) training examples in", message)
    assert int(left_out[1]) > 0
    assert int(left_out[1]) + int(kept[1]) == 150
    record = CheckpointStore(folder / "run" / "checkpoints", read_only=True).read_record(1)
    assert record["data"] == {"train_pairs": int(kept[1]), "left_out": int(left_out[1])}


@pytest.mark.slow
def test_long_phases_are_reported_only_when_they_happen(folder, capsys):
    phases = [
        "training the tokenizer on 150 examples",
        "tokenizing train (150 examples)",
        "tokenizing valid (13 examples)",
    ]
    for said in (True, False):
        assert train(folder, "--config.training.num_train_steps=1") == 0
        message = capsys.readouterr().err
        assert [phase in message for phase in phases] == [said] * 3


@pytest.mark.slow
def test_without_a_config_file_the_config_of_the_checkpoint_counts(tmp_path, capsys):
    """As after copying checkpoints/STEP into a new work directory."""
    folder, original = tmp_path / "copy", trained_folder()
    shutil.copytree(original / "run" / "checkpoints", folder / "run" / "checkpoints")
    before = snapshot(folder)
    words = ["train", f"--config={original / 'tiny.py'}", f"--config.data.dir={original}"]
    words += [f"--workdir={folder / 'run'}", "--config.seed=7", "--config.training.num_train_steps=9"]
    assert run_main(words) == 2
    message = capsys.readouterr().err
    assert f"{folder / 'run'}: another config is in use here" in message
    assert "  - seed: 0 in checkpoint 8, 7 now\n" in message
    assert "  - training.num_train_steps: 8 in checkpoint 8, 9 now\n" in message
    assert snapshot(folder) == before
    assert run_main([*words, "--allow_config_change"]) == 0
    assert "seed: 0 in checkpoint 8, 7 now" in capsys.readouterr().err
    assert saved_steps(folder)[-1] == 9
    assert json.loads((folder / "run" / "config.json").read_text())["seed"] == 7


def test_an_edited_config_file_is_refused_and_other_ways_work(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    run, words = folder / "run", ["train", f"--workdir={folder / 'run'}"]
    file = run / "config.json"
    assert run_main(words) == 0  # all steps are done
    assert run_main([*words, "--config.training.log_every_steps=7"]) == 0
    text = file.read_text()
    assert text.count('"learning_rate": 0.01,') == 1
    capsys.readouterr()
    for edited in (text.replace('"learning_rate": 0.01,', '"learning_rate": 0.03,'), edited_by_hand(text)):
        file.write_text(edited)
        before = snapshot(folder)
        assert run_main(words) == 2
        message = capsys.readouterr().err
        assert f"error: {file}: " in message
        assert "\n  - optimizer.learning_rate: 0.01 in checkpoint 8, 0.03 in config.json\n" in message
        assert "Delete the file to resume with the config of checkpoint 8. To change a field, give it as a" in message
        assert snapshot(folder) == before
    assert run_main(["train", f"--config={file}", f"--workdir={run}"]) == 2
    assert f"{file}: has no checksum, so it was edited or is damaged\n" in capsys.readouterr().err
    file.unlink()
    assert run_main(words) == 0
    assert "has no config.json; using the config of checkpoint 8" in capsys.readouterr().err


def edited_by_hand(text):
    """Return a config.json with another learning rate and without its checksum."""
    values = json.loads(text)
    del values["checksum"]
    values["optimizer"]["learning_rate"] = 0.03
    return json.dumps(values)


@pytest.mark.parametrize("before", [None, json.dumps(with_checksum({"seed": 1}))])
def test_ctrl_c_during_preparation_does_not_claim_the_folder(folder, monkeypatch, before):
    config = folder / "run" / "config.json"
    config.parent.mkdir()
    if before is not None:
        config.write_text(before)
    found = []

    def interrupt(*args, **kwargs):
        # A kill would leave the folder in its present state.
        found.append(config.read_text() if config.exists() else None)
        raise KeyboardInterrupt

    monkeypatch.setattr(set_up, "training_batches", interrupt)
    assert train(folder, "--allow_config_change") == 130
    assert [*found, config.read_text() if config.exists() else None] == [before, before]


@pytest.mark.slow
def test_a_log_without_its_checkpoints_is_kept(folder, capsys):
    flags = ["--config.training.num_train_steps=4", "--config.training.checkpoint_every_steps=2"]
    assert train(folder, *flags) == 0
    run = folder / "run"
    contents = []
    for number in (1, 2):
        contents.append((run / "metrics.jsonl").read_bytes())
        shutil.move(run / "checkpoints", folder / f"moved{number}")
        capsys.readouterr()
        assert train(folder, *flags) == 0
        message = capsys.readouterr().err
        assert f"warning: {run / 'checkpoints'} has no checkpoints, but metrics.jsonl has lines up to step 4" in message
        assert f"the run starts from step 0, the old log is now {run / f'metrics.jsonl.{number}'}\n" in message
        assert [(run / f"metrics.jsonl.{n + 1}").read_bytes() for n in range(number)] == contents
        assert [line["step"] for line in metric_lines(run)] == [3, 4, 4]


def test_a_log_from_before_the_first_checkpoint_is_kept(folder, capsys):
    (folder / "run").mkdir()
    lines = [{"step": step, "split": "train", "loss": 1.0} for step in range(1, 4)]  # a save is due at step 5
    log = folder / "run" / "metrics.jsonl"
    before = "".join(format_line(line["step"], "train", line) for line in lines) + '{"step": 4'
    log.write_text(before)
    assert train(folder, "--config.training.num_train_steps=3") == 0
    assert "metrics.jsonl has lines up to step 3; the run starts from step 0" in capsys.readouterr().err
    assert log.with_name("metrics.jsonl.1").read_text() == before
    assert [line["step"] for line in metric_lines(folder / "run")] == [3, 3]


def test_a_checkpoint_records_config_corpus_versions_and_metrics(folder):
    store = CheckpointStore(trained_folder() / "run" / "checkpoints", read_only=True)
    record = store.read_record(TOTAL)
    assert record["config"]["model"]["emb_dim"] == 16
    assert record["config"]["data"]["dir"] == str(trained_folder())
    assert re.fullmatch(r"[0-9a-f]{64}", record["corpus"]["sha256"])
    assert {"transformer_jax", "python", "jax", "flax", "optax", "sentencepiece", "tokenizers", "sacremoses"} <= set(
        record["versions"]
    )
    last = metric_lines(trained_folder() / "run")[-1]
    assert {"step": TOTAL, "split": "valid", **record["metrics"]} == last


@pytest.mark.slow
def test_a_loss_that_is_not_finite_keeps_the_saved_checkpoints(folder, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(loop, "kill_point", at("after_batch", 5, lambda: os.kill(os.getpid(), signal.SIGTERM)))
        assert train(folder) == 143
    before = snapshot(folder / "run" / "checkpoints")
    capsys.readouterr()
    assert train(folder, "--config.optimizer.learning_rate=1e30", "--allow_config_change") == 2
    message = capsys.readouterr().err
    assert re.search(r"error: (loss|gradient_norm) is (nan|inf) at step [67] \(.*learning rate 1e\+30\)", message)
    assert "a lower optimizer.learning_rate" in message
    assert "Traceback" not in message
    assert snapshot(folder / "run" / "checkpoints") == before
    assert train(folder, "--allow_config_change") == 0
    assert_same_run(folder, trained_folder())


def test_a_loss_that_is_not_finite_from_the_start(folder, capsys):
    assert train(folder, "--config.optimizer.learning_rate=1e30", "--config.optimizer.warmup_steps=0") == 2
    found = re.search(r" at step ([12]) \(.*; its batch is in (.*\.npz);", capsys.readouterr().err)
    assert found
    assert saved_steps(folder) == []
    assert metric_lines(folder / "run") == []
    config, kept = trained_config(), np.load(found[2])
    splits = prepared(config, folder / "run").splits
    expected = training_batches(config, splits["train"]).batch(int(found[1]) - 1)
    assert {name: kept[name].tolist() for name in kept} == {name: array.tolist() for name, array in expected.items()}
