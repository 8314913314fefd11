"""A run that is stopped and resumed ends bit for bit like the uninterrupted run, whatever stopped it."""

import json
import os
import re
import shutil
import signal
from unittest import mock

import jax
import pytest
from run_support import (
    EVALUATED,
    LOGGED,
    TOTAL,
    argv,
    assert_same_run,
    at,
    copy_of_trained,
    final_state,
    metric_lines,
    run_main,
    saved_steps,
    snapshot,
    subprocess_main,
    train,
    trained_folder,
    write_corpus,
)

from transformer_jax.builtin import parts
from transformer_jax.checkpoints import store as store_module
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.metrics_file import format_line, read_lines
from transformer_jax.training import loop, session


def send(number):
    os.kill(os.getpid(), number)


def train_until(folder, monkeypatch, name, step, *signals):
    """Train; at a step's kill point, send the signals."""
    with monkeypatch.context() as patch:
        module = loop if name == "after_batch" else session
        patch.setattr(module, "kill_point", at(name, step, lambda: [send(number) for number in signals]))
        return train(folder)


@pytest.mark.slow
def test_stopped_after_every_single_step(tmp_path, monkeypatch, capsys):
    folder = write_corpus(tmp_path)
    for step in range(1, TOTAL):
        number, code = [(signal.SIGTERM, 143), (signal.SIGINT, 130)][step % 2]
        assert train_until(folder, monkeypatch, "after_batch", step, number) == code
        assert saved_steps(folder)[-1] == step
        expected = [s for s in LOGGED if s <= step] + [s for s in EVALUATED if s <= step]
        assert [line["step"] for line in metric_lines(folder / "run")] == sorted(expected)
        assert ("resuming" in capsys.readouterr().err) == (step > 1)
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step", "saved"), [("inside_evaluation", 4, [4]), ("inside_save", 5, [5, 6])])
def test_a_signal_during_evaluation_or_saving(tmp_path, monkeypatch, name, step, saved):
    """A signal during a save takes effect after the next step."""
    folder = write_corpus(tmp_path)
    assert train_until(folder, monkeypatch, name, step, signal.SIGTERM) == 143
    assert saved_steps(folder) == saved
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_save(tmp_path, monkeypatch, capsys):
    folder = write_corpus(tmp_path)
    assert train_until(folder, monkeypatch, "after_batch", 7, signal.SIGINT, signal.SIGINT) == 130
    assert "interrupted" in capsys.readouterr().err
    assert saved_steps(folder) == [5]
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
def test_an_error_in_the_middle_of_a_step_loses_nothing_that_was_saved(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("the machine is on fire")

    folder = write_corpus(tmp_path)
    monkeypatch.setattr(session, "kill_point", at("inside_evaluation", 8, fail))
    with pytest.raises(RuntimeError, match="on fire"):
        train(folder)
    assert [line["step"] for line in metric_lines(folder / "run")] == [3, 4, 6, 8]
    assert run_main(["train", f"--workdir={folder / 'run'}"]) == 0  # with the config of the folder
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
def test_the_log_is_continued_after_a_truncated_line(tmp_path, monkeypatch):
    folder = write_corpus(tmp_path)
    train_until(folder, monkeypatch, "after_batch", 5, signal.SIGTERM)
    log = folder / "run" / "metrics.jsonl"
    later = format_line(6, "train", {"loss": 0.0})
    log.write_text(log.read_text() + later + later[:9])
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
def test_derived_files_may_be_deleted(tmp_path, monkeypatch):
    folder = write_corpus(tmp_path)
    train_until(folder, monkeypatch, "after_batch", 5, signal.SIGTERM)
    (folder / "run" / "tokenizer.model").unlink()  # every checkpoint contains it
    (folder / "run" / "config.json").unlink()
    shutil.rmtree(folder / "run" / "token_cache")
    shutil.rmtree(folder / "run" / "tensorboard")
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
def test_the_tokenizer_is_that_of_the_checkpoint(tmp_path, monkeypatch, capsys):
    folder = write_corpus(tmp_path / "a")
    train_until(folder, monkeypatch, "after_batch", 5, signal.SIGTERM)
    other = write_corpus(tmp_path / "b", seed=1)
    train_until(other, monkeypatch, "after_batch", 1, signal.SIGTERM)
    shutil.copy(other / "run" / "tokenizer.model", folder / "run" / "tokenizer.model")
    assert train(folder) == 2
    assert re.search(
        r"run/tokenizer\.model is not the tokenizer of checkpoint 5; delete the file", capsys.readouterr().err
    )
    (folder / "run" / "tokenizer.model").unlink()
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


def test_resuming_from_an_older_checkpoint_if_the_newest_is_damaged(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "a")
    shutil.copytree(trained_folder(), tmp_path / "b")
    largest = max((folder / "run" / "checkpoints" / "8" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    assert train_in_place(folder) == 0
    assert "damaged step 8 is now" in capsys.readouterr().err
    assert (folder / "run" / "checkpoints" / "8.damaged").is_dir()
    assert_same_run(folder, trained_folder())


def train_in_place(folder, *flags):
    """Continue training in a copy of the trained folder with the corpus of the original: the same config."""
    original = trained_folder()
    files = [f"--config={original / 'tiny.py'}", f"--config.data.dir={original}"]
    return run_main(["train", *files, f"--workdir={folder / 'run'}", *flags])


def test_a_finished_run_is_left_alone(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    before = snapshot(folder)
    assert train_in_place(folder) == 0
    assert "nothing to do, 8 of 8 steps are done" in capsys.readouterr().err
    assert snapshot(folder) == before


def test_a_finished_run_gives_its_lines_to_a_tracker_that_lacks_them(tmp_path, monkeypatch):
    """docs/training.md: the tracker has failed, or was not named before."""
    monkeypatch.syspath_prepend(str(parts()["losses"].parent))
    run = copy_of_trained(tmp_path / "copy") / "run"
    before = (run / "metrics.jsonl").read_bytes()
    assert train_in_place(run.parent, "--config.training.trackers=jsonl,losses:Losses") == 0
    lines = [f"{line['step']}\t{line['split']}\t{line['loss']}" for line in read_lines(run / "metrics.jsonl")]
    assert (run / "losses.tsv").read_text().splitlines() == lines
    assert (run / "metrics.jsonl").read_bytes() == before


def test_another_corpus_is_refused(tmp_path, monkeypatch, capsys):
    folder = write_corpus(tmp_path)
    train_until(folder, monkeypatch, "after_batch", 5, signal.SIGTERM)
    for suffix in ("en", "de"):
        with (folder / f"valid.{suffix}").open("a") as file:
            file.write("1 1\n")
    before = snapshot(folder)
    capsys.readouterr()
    assert train(folder) == 2
    message = capsys.readouterr().err
    assert "the corpus has changed since its last checkpoint" in message
    assert str(folder / "run") in message
    assert snapshot(folder) == before


def test_another_config_is_refused(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    before = snapshot(folder)
    assert train_in_place(folder, "--config.model.dropout_rate=0.2", "--config.seed=7") == 2
    message = capsys.readouterr().err
    assert "model.dropout_rate: 0.1 in run, 0.2 now" in message
    assert "seed: 0 in run, 7 now" in message
    assert "--allow_config_change" in message
    assert snapshot(folder) == before


def test_another_config_is_accepted_on_request(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    assert train_in_place(folder, "--config.training.num_train_steps=10", "--allow_config_change") == 0
    assert "training.num_train_steps: 8 in run, 10 now" in capsys.readouterr().err
    assert saved_steps(folder)[-1] == 10
    assert metric_lines(folder / "run")[:5] == metric_lines(trained_folder() / "run")
    assert [line["step"] for line in metric_lines(folder / "run")[5:]] == [9, 10, 10]
    assert json.loads((folder / "run" / "config.json").read_text())["training"]["num_train_steps"] == 10


def test_a_config_with_other_array_shapes_is_always_refused(tmp_path, capsys):
    folder = copy_of_trained(tmp_path / "copy")
    before = snapshot(folder)
    assert train_in_place(folder, "--config.model.mlp_dim=20", "--allow_config_change") == 2
    message = capsys.readouterr().err
    assert "arrays differ from those of this config" in message
    assert "feed_forward" in message
    assert snapshot(folder) == before


def test_a_run_that_never_started_does_not_claim_its_folder(tmp_path, capsys):
    folder = write_corpus(tmp_path)
    assert train(folder, "--config.data.test_split=tets") == 2
    assert "tets.en" in capsys.readouterr().err
    assert not (folder / "run" / "config.json").exists()
    assert train(folder, "--config.training.num_train_steps=1") == 0


@pytest.mark.slow
def test_a_tokenizer_without_a_checkpoint_is_made_again(tmp_path, monkeypatch, capsys):
    """A run that dies before its first checkpoint leaves its tokenizer; another config would need another one."""
    folder = write_corpus(tmp_path)

    def fail():
        raise RuntimeError

    monkeypatch.setattr(loop, "kill_point", at("after_batch", 1, fail))
    with pytest.raises(RuntimeError):
        train(folder)
    tokenizer = folder / "run" / "tokenizer.model"
    before = tokenizer.read_bytes()
    unigram = ["--config.data.tokenizer=unigram", "--config.training.num_train_steps=1"]
    assert train(folder, *unigram) == 2
    assert train(folder, *unigram, "--allow_config_change") == 0
    assert "data.tokenizer" in capsys.readouterr().err
    assert tokenizer.read_bytes() != before
    assert (folder / "run" / "checkpoints" / "1" / "tokenizer.model").read_bytes() == tokenizer.read_bytes()


@pytest.mark.slow
def test_a_failed_save_is_reported_and_the_run_resumes_from_the_previous_checkpoint(tmp_path, monkeypatch, capsys):
    folder = write_corpus(tmp_path)
    seal = store_module.seal

    def full_at_8(target, *args):
        if target.name.startswith("8"):
            raise OSError(28, "No space left on device")
        seal(target, *args)

    with mock.patch.object(store_module, "seal", full_at_8):
        assert train(folder) == 2
    message = capsys.readouterr().err
    assert "checkpoints/8: could not be saved: No space left on device; earlier checkpoints are intact: 5" in message
    assert "Traceback" not in message
    assert saved_steps(folder) == [5]
    assert train(folder) == 0
    assert_same_run(folder, trained_folder())


@pytest.mark.slow
def test_the_last_and_the_best_checkpoints_are_kept(tmp_path, monkeypatch):
    """A checkpoint that exists only because of an interruption counts as neither, once there is a newer one."""
    every = "--config.training.checkpoint_every_steps=2"
    flags = [every, "--config.training.keep_last=1", "--config.training.best_metric=accuracy"]
    accuracy = iter([9.0, 1.0, 2.0])

    def evaluate(evaluator, params):
        return {"loss": 1.0, "accuracy": next(accuracy)}

    monkeypatch.setattr(Evaluator, "validation", evaluate)
    folder = write_corpus(tmp_path)
    eval_every = "--config.training.eval_every_steps=3"
    monkeypatch.setattr(loop, "kill_point", at("after_batch", 3, lambda: send(signal.SIGTERM)))
    assert train(folder, *flags, eval_every) == 143
    assert saved_steps(folder) == [3]
    assert train(folder, *flags, eval_every) == 0
    assert saved_steps(folder) == [8]  # with accuracy 2; 6 had 1


@pytest.mark.slow
def test_two_devices_resume_a_run_of_one(tmp_path, monkeypatch):
    """The sums have another order: equal up to rounding. On Ctrl-C the process exits with its exit code."""
    folder = write_corpus(tmp_path)
    train_until(folder, monkeypatch, "after_batch", 5, signal.SIGTERM)
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    result = subprocess_main(argv("train", folder), env={"XLA_FLAGS": flags})
    assert result.returncode == 0, result.stderr
    assert "jit on 2 cpu device(s)" in result.stderr
    for ours, theirs in zip(metric_lines(folder / "run"), metric_lines(trained_folder() / "run"), strict=True):
        assert ours == {k: v if isinstance(v, str) else pytest.approx(v, rel=1e-4) for k, v in theirs.items()}
    assert len(final_state(folder)) == len(final_state(trained_folder()))
    assert len(jax.devices()) == 1
