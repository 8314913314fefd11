"""The line of `transformer-jax train` with the baselines of the validation split."""

import dataclasses
import json
import shutil
from unittest import mock

import numpy as np
import pytest
from baseline_support import baselines
from data_support import prepared
from kinds_support import trained_kind, write_kind
from labelled_support import FEATURES
from run_support import argv, run_main, snapshot

from transformer_jax.config import TaskConfig
from transformer_jax.config_file import read_config
from transformer_jax.errors import DataError
from transformer_jax.evaluation import after_training, task_baselines
from transformer_jax.evaluation.after_training import baselines_of_validation
from transformer_jax.evaluation.task_baselines import TaskBaselines
from transformer_jax.training import run as training_run
from transformer_jax.training.loop import Trained, TrainResult

KNOWN = {"majority label": {"accuracy": 50.9}, "naive Bayes": {"accuracy": 82.125}}


def text_of(found, workdir, metrics):
    return baselines_of_validation(found.config, found.data, workdir, metrics)


def of_labels(folder):
    return baselines("classification", folder, FEATURES["classification"], FEATURES["classification"])


def of_documents(folder):
    settings = read_config(str(write_kind(folder, "language_model") / "tiny.py"), {"data.dir": str(folder)})
    return TaskBaselines(settings, prepared(settings, folder / "run"), folder / "run" / "evaluation" / "baselines")


@pytest.mark.parametrize(
    ("task", "rows", "metrics", "lines"),
    [
        (
            "classification",
            KNOWN,
            {"loss": 0.5, "accuracy": 81.7},
            [
                "valid baselines: accuracy 50.90 majority label, 82.12 naive Bayes; the model: 81.70",
                'valid baselines: naive Bayes is better than the model; see section "Scores" of docs/labelled_tasks.md',
            ],
        ),
        (
            "classification",
            KNOWN,
            {"accuracy": 82.125},
            ["valid baselines: accuracy 50.90 majority label, 82.12 naive Bayes; the model: 82.12"],
        ),
        (
            "tagging",
            {"most frequent tag": {"accuracy": 90.0, "f1": 70.0}},
            {"accuracy": 80.0, "f1": 75.0},
            ["valid baselines: F1 70.00 most frequent tag; the model: 75.00"],
        ),
        (
            "tagging",
            {"most frequent tag": {"accuracy": 90.0}},
            {"accuracy": 95.0},
            ["valid baselines: accuracy 90.00 most frequent tag; the model: 95.00"],
        ),
        (
            "language_model",
            {"unigram": {"word_perplexity": 911.7}, "5-gram Kneser-Ney": {"word_perplexity": 220.1}},
            {"accuracy": 20.0, "word_perplexity": 250.0},
            [
                "valid baselines: perplexity per word 911.700 unigram, 220.100 5-gram Kneser-Ney; the model: 250.000",
                'valid baselines: 5-gram Kneser-Ney is better than the model; see section "Scores" of '
                "docs/language_models.md",
            ],
        ),
        (
            "language_model",
            {
                "5-gram Kneser-Ney": {"word_perplexity": 200.0, "unknown_words": 12, "words": 200},
                "5-gram Kneser-Ney of tokens": {"word_perplexity": 300.0, "unknown_words": 0, "words": 200},
            },
            {"word_perplexity": 250.0},
            [
                "valid baselines: perplexity per word 200.000 5-gram Kneser-Ney, 300.000 5-gram Kneser-Ney of tokens; "
                "the model: 250.000",
                "valid baselines: 6 % of the words are one unknown word to 5-gram Kneser-Ney, whose perplexity is too "
                "low to compare",
            ],
        ),
        (
            "images",
            {"majority label": {"accuracy": 10.0}},
            {"accuracy": 9.0},
            [
                "valid baselines: accuracy 10.00 majority label; the model: 9.00",
                'valid baselines: majority label is better than the model; see section "Scores" of docs/images.md',
            ],
        ),
        ("classification", KNOWN, {"loss": 0.5}, None),
    ],
)
def test_the_metric_that_is_shown_and_its_direction(task, rows, metrics, lines):
    assert after_training._text(task, rows, metrics) == (None if lines is None else "\n".join(lines))


def test_scores_are_those_of_the_file(tmp_path):
    text = text_of(of_labels(tmp_path), tmp_path, {"accuracy": 100.0})
    kept = json.loads((tmp_path / "evaluation" / "baselines" / "valid.json").read_text())["baselines"]
    assert f"{kept['naive Bayes']['accuracy']:.2f} naive Bayes" in text
    with mock.patch.object(task_baselines, "naive_bayes", side_effect=AssertionError("learned again")):
        assert text_of(of_labels(tmp_path), tmp_path, {"accuracy": 100.0}) == text


@pytest.mark.parametrize("make", [of_labels, of_documents], ids=["labels", "text"])
def test_a_large_training_split_is_left_to_evaluate_unless_the_file_has_its_scores(tmp_path, monkeypatch, make):
    found = make(tmp_path)
    assert 0 < found.seconds_to_learn() < 0.01
    monkeypatch.setattr(after_training, "MOST_SECONDS", found.seconds_to_learn() / 2)
    metrics = {"accuracy": 100.0, "word_perplexity": 1.0}
    text = text_of(found, tmp_path, metrics)
    command = f"transformer-jax evaluate --checkpoint={tmp_path} --splits=valid --baselines"
    assert text == f"valid baselines: not computed, since it takes more than 0 s; `{command}` computes them"
    assert not (tmp_path / "evaluation").exists()
    TaskBaselines(found.config, found.data, tmp_path / "evaluation" / "baselines").scores("valid")
    assert "; the model: " in text_of(found, tmp_path, metrics)


def test_the_time_grows_with_words_and_labels(tmp_path):
    labels = of_labels(tmp_path / "labels")
    tokens = sum(labels.data.splits["train"].lengths(name).sum() for name in ("first", "second"))
    assert labels.seconds_to_learn() == pytest.approx(4e-6 * tokens * 3)
    tags = baselines("tagging", tmp_path / "tags", FEATURES["tagging"], FEATURES["tagging"])
    assert tags.seconds_to_learn() == pytest.approx(2e-6 * sum(map(len, FEATURES["tagging"]["tags"])))
    text = of_documents(tmp_path / "text")
    split = text.data.splits["train"]
    words = split.values("words", np.arange(split.num_examples)).sum()
    assert text.seconds_to_learn() == pytest.approx(4e-6 * (words + split.lengths("ids").sum()))


@pytest.mark.parametrize("task", [TaskConfig(), TaskConfig(name="language_model", prefix="random")])
def test_a_task_without_baselines_has_no_line(tmp_path, task):
    found = of_labels(tmp_path)
    config = dataclasses.replace(found.config, task=task)
    assert baselines_of_validation(config, found.data, tmp_path, {"accuracy": 50.0}) is None


# The command.


@pytest.fixture
def trains(tmp_path, monkeypatch):
    """Replaces `training.run.train`; returns a function that sets its result and runs the command, with its stderr."""
    write_kind(tmp_path, "classification")

    def run(capsys, command="train", reason="finished", accuracy=100.0, **fields):
        def train(config, workdir, make_validate, *, allow_config_change=False):
            data = prepared(config, workdir)
            make_validate(config, data)
            return TrainResult(8, reason, {"accuracy": accuracy}, Trained({}, data))

        monkeypatch.setattr(training_run, "train", train)
        flags = [f"--config.{name}={value}" for name, value in fields.items()]
        code = run_main([command, *argv("train", tmp_path, *flags)[1:]])
        return code, capsys.readouterr().err

    return run


def test_train_prints_the_baselines_when_it_has_finished(trains, capsys):
    code, err = trains(capsys)
    assert code == 0
    assert err.splitlines()[-1] == (
        "valid baselines: accuracy 60.00 majority label, 100.00 naive Bayes, 100.00 logistic regression; the model: "
        "100.00"
    )
    assert "naive Bayes is better than the model" in trains(capsys, accuracy=90.0)[1]


def test_a_stopped_training_prints_none(trains, capsys):
    code, err = trains(capsys, reason="SIGINT")
    assert code == 130
    assert "baselines" not in err


@pytest.mark.parametrize(
    ("error", "message"), [(DataError("train.tsv: gone"), "train.tsv: gone"), (MemoryError(), "MemoryError()")]
)
def test_baselines_that_fail_are_a_warning(trains, capsys, monkeypatch, error, message):
    monkeypatch.setattr(task_baselines, "naive_bayes", mock.Mock(side_effect=error))
    code, err = trains(capsys)
    assert code == 0
    assert f"warning: training has finished, but the baselines of the validation split failed: {message}\n" in err


def test_a_file_that_cannot_be_written_is_a_warning(trains, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "evaluation").write_text("not a folder")
    code, err = trains(capsys)
    assert code == 0
    assert f"warning: training has finished, but the baselines of the validation split failed: {tmp_path}" in err


@pytest.mark.slow
def test_a_finished_run_shows_them_again_and_changes_no_file(tmp_path, capsys):
    folder = shutil.copytree(trained_kind("classification"), tmp_path / "copy")
    file = folder / "run" / "evaluation" / "baselines" / "valid.json"
    assert file.exists()
    before = snapshot(folder / "run")
    flags = [f"--config.data.dir={folder}", "--allow_config_change"]
    assert run_main(["train", f"--workdir={folder / 'run'}", *flags]) == 0
    err = capsys.readouterr().err
    assert "nothing to do" in err
    assert "\nvalid baselines: accuracy 60.00 majority label, " in err
    after = snapshot(folder / "run")
    assert after == before | {"config.json": after["config.json"]}
    with mock.patch.object(task_baselines, "naive_bayes", side_effect=AssertionError("learned again")):
        words = ["evaluate", f"--checkpoint={folder / 'run'}", f"--data.dir={folder}", "--splits=valid", "--baselines"]
        assert run_main(words) == 0
