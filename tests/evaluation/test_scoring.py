"""`evaluate`: from a checkpoint to a table and JSON files."""

import errno
import json
import os
import re
import shutil
from pathlib import Path
from unittest import mock

import pytest
import sacrebleu
from run_support import (
    argv,
    copy_of_trained,
    run_main,
    snapshot,
    trained_folder,
    translated,
    without_checksum,
    write_corpus,
)

from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer
from transformer_jax.errors import CheckpointError, DataError
from transformer_jax.evaluation.scoring import check_finite_scores, evaluate
from transformer_jax.tasks.translation import Translation

CHECKPOINTS = ("run", "checkpoints")


@pytest.fixture
def folder(tmp_path):
    return copy_of_trained(tmp_path / "copy")


@pytest.fixture
def some_right(monkeypatch):
    """Make the model right on the first half of every split."""

    def outputs(task, evaluator, params, split):
        targets = evaluator.data.text(split).features["targets"]
        right = len(targets) // 2
        return translated([*targets[:right], *("12 " + line for line in targets[right:])], unfinished=(1, 2, 3))

    monkeypatch.setattr(Translation, "outputs", outputs)


def test_every_split_but_train_is_scored(folder, capsys, some_right):
    results = evaluate(folder / "run")
    assert list(results) == ["valid", "test"]
    out = capsys.readouterr().out
    for name, count in (("valid", 13), ("test", 11)):
        scores = json.loads((folder / "run" / "evaluation" / f"{name}.json").read_text())
        assert without_checksum(scores) == json.loads(json.dumps(results[name]))
        references = (folder / f"{name}.de").read_text().splitlines()
        lines = (folder / "run" / "evaluation" / f"{name}.txt").read_text().splitlines()
        assert len(lines) == len(references) == count
        assert scores["exact_match"] == pytest.approx(100 * (count // 2) / count)
        assert scores["sacrebleu"] == sacrebleu.corpus_bleu(lines, [references]).score
        assert scores["chrf"] == sacrebleu.corpus_chrf(lines, [references]).score
        assert scores["split"] == name
        assert scores["checkpoints"] == [8]
        assert scores["unfinished"] == 3
        assert scores["evaluation"]["average_checkpoints"] == 1
        assert scores["decode"]["max_extra_length"] == 8
        assert scores["decode"]["length_penalty"] == "none"  # unset fields are reported too
        assert "families" not in scores  # the corpus has no families
        assert re.search(rf"{name} .* {scores['loss']:.4f} .* {scores['chrf']:.2f}", out)
    assert f"sacrebleu: {results['test']['sacrebleu_signature']}\n" in out


def test_the_validation_loss_equals_the_logged_one(folder):
    last = json.loads((folder / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    scores = evaluate(folder / "run", ["valid"], generate=False)["valid"]
    assert {name: scores[name] for name in ("loss", "accuracy", "tokens")} == {
        name: last[name] for name in ("loss", "accuracy", "tokens")
    }
    assert last["split"] == "valid"
    assert "sacrebleu" not in scores
    assert not (folder / "run" / "evaluation" / "valid.txt").exists()


def test_a_copied_checkpoint_is_enough(tmp_path, capsys):
    """Only with its text files; not even the config file is needed."""
    shutil.copytree(trained_folder().joinpath(*CHECKPOINTS, "5"), tmp_path / "new" / "best_model")
    for name in ("train", "valid", "test"):
        for locale in ("en", "de"):
            (tmp_path / "data").mkdir(exist_ok=True)
            shutil.copy(trained_folder() / f"{name}.{locale}", tmp_path / "data")
    results = evaluate(tmp_path / "new" / "best_model", ["test"], {"data.dir": str(tmp_path / "data")})
    assert results == evaluate(copy_of_trained(tmp_path / "old").joinpath(*CHECKPOINTS, "5"), ["test"])
    assert results["test"]["checkpoints"] == [5]
    assert "step 5\n" in capsys.readouterr().err
    assert (tmp_path / "new" / "evaluation" / "best_model" / "test.json").exists()


def test_one_step_does_not_overwrite_the_scores_of_the_newest(folder, capsys):
    checkpoints, scores = folder.joinpath(*CHECKPOINTS), folder / "run" / "evaluation"
    evaluate(folder / "run", ["test"], generate=False)
    newest = snapshot(scores)
    evaluate(checkpoints / "5", ["test"], generate=False)
    shutil.copytree(checkpoints / "8", checkpoints / "mine")
    evaluate(checkpoints / "mine", ["test"], generate=False)
    written = ["test.json", "step_5/test.json", "mine/test.json"]
    assert {name: snapshot(scores)[name] for name in newest} == newest
    assert {path.relative_to(scores).as_posix() for path in scores.rglob("*.*")} == set(written)
    steps = [json.loads((scores / name).read_text())["checkpoints"] for name in written]
    assert steps == [[8], [5], [8]]
    err = capsys.readouterr().err
    assert all(f"test: {scores / name}\n" in err for name in written)


def test_scores_without_translations_keep_translations_of_the_same_checkpoint(folder, some_right, capsys):
    scores = folder / "run" / "evaluation"
    full = json.loads(json.dumps(evaluate(folder / "run", ["test"])["test"]))
    before = snapshot(scores)
    result = evaluate(folder / "run", ["test"], generate=False)["test"]
    assert "sacrebleu" not in result
    assert without_checksum(json.loads((scores / "test.json").read_text())) == full
    assert (scores / "test.txt").read_bytes() == before["test.txt"]
    assert f"test: {scores / 'test.json'}, {scores / 'test.txt'}\n" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("earlier", ["of the same split", "of another", "damaged", "nothing"])
def test_scores_of_other_checkpoints_are_removed(folder, some_right, earlier):
    scores = folder / "run" / "evaluation"
    evaluate(folder / "run", ["test"], {"evaluation.average_checkpoints": 2})
    if earlier == "of another":
        metrics = json.loads((scores / "test.json").read_text()) | {"checkpoints": [8], "split": "valid"}
        (scores / "test.json").write_text(json.dumps(metrics))
    elif earlier == "damaged":
        (scores / "test.json").write_text('["checkpoints"')
    elif earlier == "nothing":
        (scores / "test.json").unlink()
    result = evaluate(folder / "run", ["test"], generate=False)["test"]
    assert without_checksum(json.loads((scores / "test.json").read_text())) == result
    assert "sacrebleu" not in result
    assert not (scores / "test.txt").exists()


def test_pairs_that_training_would_have_left_out_are_counted(folder, tmp_path, capsys):
    """They are scored too."""
    assert evaluate(folder / "run", ["test"], generate=False)["test"]["over_length"] == 0
    assert "over" not in capsys.readouterr().err.replace(str(tmp_path), "")
    with mock.patch.object(Translation, "num_over_length", return_value=3):
        assert evaluate(folder / "run", ["test"], generate=False)["test"]["over_length"] == 3
    message = "test: 3 examples have a sequence of more than data.max_length=16 tokens, and training leaves such out;"
    assert message in capsys.readouterr().err
    assert json.loads((folder / "run" / "evaluation" / "test.json").read_text())["over_length"] == 3


def test_averaged_checkpoints(folder, capsys):
    assert (
        run_main(["evaluate", f"--checkpoint={folder / 'run'}", "--evaluation.average_checkpoints=2", "--nogenerate"])
        == 0
    )
    assert "step 5, 8 averaged" in capsys.readouterr().err
    averaged = json.loads((folder / "run" / "evaluation" / "test.json").read_text())
    assert averaged["checkpoints"] == [5, 8]
    last = evaluate(folder / "run", ["test"], generate=False)["test"]["loss"]
    first = evaluate(folder.joinpath(*CHECKPOINTS, "5"), ["test"], generate=False)["test"]["loss"]
    assert last < averaged["loss"] < first


def test_text_files_that_have_moved(folder, tmp_path, capsys):
    original = trained_folder()
    moved = original.rename(original.with_name("elsewhere"))
    try:
        assert run_main(["evaluate", f"--checkpoint={folder / 'run'}", "--nogenerate"]) == 2
        assert f"data.dir='{original}' does not exist" in capsys.readouterr().err
        assert not (folder / "run" / "evaluation").exists()
        words = ["evaluate", f"--checkpoint={folder / 'run'}", "--nogenerate", f"--data.dir={moved}"]
        assert run_main(words) == 0
    finally:
        moved.rename(original)


def test_another_corpus_is_refused(folder, tmp_path):
    write_corpus(tmp_path / "other", seed=1)
    before = snapshot(folder)
    with pytest.raises(DataError, match=r"not the one this checkpoint was trained on: sha256 [0-9a-f]{12} then"):
        evaluate(folder / "run", None, {"data.dir": str(tmp_path / "other")})
    assert snapshot(folder) == before


def test_baselines_of_a_task_without_them_are_refused_before_it_is_scored(folder, capsys):
    before = snapshot(folder)
    assert run_main(["evaluate", f"--checkpoint={folder / 'run'}", "--baselines"]) == 2
    assert "task.name='translation' has no baselines; tasks with baselines are class" in capsys.readouterr().err
    assert snapshot(folder) == before


def test_an_unknown_split(folder, capsys):
    before = snapshot(folder)
    assert run_main(["evaluate", f"--checkpoint={folder / 'run'}", "--splits=valid,tset"]) == 2
    assert "no split 'tset'; there are train, valid, test (did you mean 'test'?)" in capsys.readouterr().err
    assert snapshot(folder) == before


def test_the_training_split_can_be_scored(folder):
    assert list(evaluate(folder / "run", ["train"], generate=False)) == ["train"]


def test_a_corpus_with_nothing_to_score(tmp_path, capsys):
    folder = write_corpus(tmp_path)
    assert run_main(argv("train", folder, "--config.data.valid_split=", "--config.data.test_split=")) == 2
    assert "data.valid_split is empty, but training needs it" in capsys.readouterr().err
    assert not (folder / "run" / "config.json").exists()


@pytest.mark.parametrize("name", ["test.json", "test.txt"])
def test_a_full_disk(folder, some_right, monkeypatch, name):
    (folder / "run" / "evaluation").mkdir()
    (folder / "run" / "evaluation" / name).write_text("of an earlier evaluation")
    fsync = os.fsync

    def full_for_one_file(descriptor):
        if name in Path(os.readlink(f"/proc/self/fd/{descriptor}")).name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full_for_one_file)
    with pytest.raises(CheckpointError, match=rf"evaluation/{name}: could not be written: No space left on device"):
        evaluate(folder / "run", ["test"])
    assert (folder / "run" / "evaluation" / name).read_text() == "of an earlier evaluation"


def test_line_n_translates_sentence_n_whatever_the_model_writes(folder, monkeypatch):
    monkeypatch.setattr(SentencePieceTokenizer, "decode_batch", lambda self, rows: ["x\ny\u2028z" for _ in rows])
    evaluate(folder / "run", ["test"])
    assert (folder / "run" / "evaluation" / "test.txt").read_text() == "x y z\n" * 11


def test_no_folder_for_the_scores(folder, some_right):
    (folder / "run" / "evaluation").write_text("a file")
    with pytest.raises(CheckpointError, match=r"run/evaluation: cannot be made: File exists"):
        evaluate(folder / "run", ["test"])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_is_an_error(bad):
    check_finite_scores(
        "runs/a: split 'test'", {"loss": 1.0, "examples": 3, "by_label": {"x": {"f1": 0.0}}, "text": "nan"}
    )
    for metrics, metric in (({"loss": bad}, "loss is"), ({"by_label": {"x": {"f1": bad}}}, "by_label, x: f1 is")):
        with pytest.raises(CheckpointError, match=f"split 'test'(, |: ){metric} {bad}; the model's output is"):
            check_finite_scores("runs/a: split 'test'", metrics)
