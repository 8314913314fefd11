"""`evaluate --baselines`: rows of the table, values of SPLIT.json, and the file that keeps them."""

import json
import math
import shutil
from unittest import mock

import numpy as np
import pytest
from baseline_support import baselines
from data_support import prepared
from image_support import npz_config, write_npz
from kinds_support import trained_kind, write_kind
from labelled_support import FEATURES, Corpus
from run_support import without_checksum

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.config_file import read_config
from transformer_jax.data import sources
from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation import task_baselines
from transformer_jax.evaluation.kneser_ney import KneserNey
from transformer_jax.evaluation.scoring import evaluate
from transformer_jax.evaluation.table import print_table
from transformer_jax.evaluation.task_baselines import TaskBaselines, check_has_baselines
from transformer_jax.tasks.task import TASKS

FEW = {"inputs": ["a fine joy", "dull"], "second": ["yes", "no"], "targets": ["good", "mixed"]}


def of_labels(folder, valid=FEW):
    return baselines("classification", folder, FEATURES["classification"], valid)


def of_files(kind, folder, **fields):
    """Return the baselines of the corpus of `write_kind`."""
    settings = read_config(str(write_kind(folder, kind) / "tiny.py"), {"data.dir": str(folder), **fields})
    return TaskBaselines(settings, prepared(settings, folder / "run"), folder / "baselines")


# The file.


def test_scores_are_kept_in_a_file_with_a_checksum(tmp_path):
    scores = of_labels(tmp_path).scores("valid")
    kept = json.loads((tmp_path / "baselines" / "valid.json").read_text())
    assert kept["baselines"] == scores
    assert kept["checksum"]
    with mock.patch.object(task_baselines, "naive_bayes", side_effect=AssertionError("learned again")):
        assert of_labels(tmp_path).scores("valid") == scores


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        (lambda text: text.replace('"accuracy": 5', '"accuracy": 6', 1), "does not match its checksum"),
        (lambda text: text[:-40], "damaged"),
        (lambda text: "[]", "holds a list"),
        (lambda text: "{}", "lacks 'of'"),
        (lambda text: text.replace('"checksum"', '"other"'), "lacks 'checksum'"),
        (lambda text: json.dumps({"of": {}, "baselines": {"x": {"loss": None}}, "checksum": ""}), "'baselines'"),
    ],
    ids=["a digit", "cut", "a list", "empty", "no checksum", "no number"],
)
def test_a_damaged_file_is_named_and_made_again(tmp_path, caplog, change, warning):
    scores, file = of_labels(tmp_path).scores("valid"), tmp_path / "baselines" / "valid.json"
    text = file.read_text()
    file.write_text(change(text))
    assert file.read_text() != text
    assert of_labels(tmp_path).scores("valid") == scores
    assert f"{file}: is damaged and is made again" in caplog.text
    assert warning in caplog.text
    assert file.read_text() == text


def test_scores_of_another_corpus_or_version_are_made_again(tmp_path, caplog, monkeypatch):
    first = of_labels(tmp_path).scores("valid")
    other = of_labels(tmp_path, FEW | {"targets": ["bad", "mixed"]}).scores("valid")
    assert other != first
    assert of_labels(tmp_path).scores("valid") == first
    monkeypatch.setattr(task_baselines, "VERSION", 2)
    of_labels(tmp_path).scores("valid")
    assert json.loads((tmp_path / "baselines" / "valid.json").read_text())["of"]["version"] == 2
    assert not caplog.text


# Tasks.


def test_the_second_text_counts(tmp_path):
    assert of_labels(tmp_path).scores("valid")["logistic regression"]["accuracy"] > 0
    changed = of_labels(tmp_path / "changed", FEW | {"second": ["maybe", "maybe"]}).scores("valid")
    assert changed["naive Bayes"]["loss"] != of_labels(tmp_path).scores("valid")["naive Bayes"]["loss"]


def test_a_language_model_counts_the_words_and_bytes_of_the_task(tmp_path):
    found = of_files("language_model", tmp_path)
    training, tests = ((tmp_path / f"{split}.txt").read_text().splitlines() for split in ("train", "test"))
    scores = found.scores("test")
    ids, num_words = found.data.tokenizer, sum(len(line.split()) + 1 for line in tests)
    ways = {
        "unigram": (1, str.split),
        "5-gram Kneser-Ney": (5, str.split),
        "5-gram Kneser-Ney of tokens": (5, lambda line: ids.encode_batch([line]).ids.tolist()),
    }
    assert list(scores) == [*ways]
    for (name, row), (order, cut) in zip(scores.items(), ways.values(), strict=True):
        log_probs = KneserNey.of_sentences(map(cut, training), order).log_probs(map(cut, tests))
        assert row["words"] == num_words, name
        assert row["bytes"] == (tmp_path / "test.txt").stat().st_size
        assert row["word_perplexity"] == pytest.approx(math.exp(-log_probs.sum() / num_words))
        assert row["bits_per_byte"] == pytest.approx(-log_probs.sum() / math.log(2) / row["bytes"])
        assert row["unknown_words"] == 0
    assert scores["5-gram Kneser-Ney"]["word_perplexity"] < scores["unigram"]["word_perplexity"]


def test_lines_of_a_document_are_sentences(tmp_path):
    found = of_files("language_model", tmp_path, **{"data.documents": "file"}).scores("test")["unigram"]
    lines = (tmp_path / "test.txt").read_text().split("\n")
    assert found["words"] == sum(len(line.split()) + 1 for line in lines)


def test_images_have_the_majority_label(tmp_path):
    settings = npz_config(write_npz(tmp_path))
    found = TaskBaselines(settings, prepared(settings, tmp_path / "run"), tmp_path / "baselines")
    splits = {name: found.data.splits[name] for name in ("train", "test")}
    train, tests = (split.values("labels", np.arange(split.num_examples)) for split in splits.values())
    shares = np.bincount(train) / len(train)
    assert found.scores("test") == {
        "majority label": {
            "loss": pytest.approx(-np.log(shares[tests]).mean()),
            "accuracy": pytest.approx(100 * (tests == shares.argmax()).mean()),
            "examples": len(tests),
        }
    }


def test_the_five_most_frequent_labels_of_images(tmp_path):
    """Of seven labels, 6 is the most frequent one; 5 is as rare as the labels before it, and comes too late."""
    train, tests = np.resize([6, *range(7)], 36), np.resize([6, 3, 5], 9)  # the first 24 images are for training
    settings = npz_config(write_npz(tmp_path, train_y=train, test_y=tests), num_labels=7)
    found = TaskBaselines(settings, prepared(settings, tmp_path / "run"), tmp_path / "baselines").scores("test")
    assert found["majority label"]["accuracy"] == pytest.approx(100 * (tests == 6).mean())
    assert found["majority label"]["top_5"] == pytest.approx(100 * (tests != 5).mean())


def test_the_first_and_the_best_sentence(tmp_path):
    """Without `sentences` in the corpus, they are those of the text; no training split is needed."""
    settings = ExperimentConfig(
        task=TaskConfig(name="text_to_text", rouge_stemmer=False, best_reference="rouge1"),
        data=DataConfig(source="text", dir="unused", format="jsonl"),
        model=ModelConfig(vocab_size=24),
    ).resolved()
    documents = [["a b.", "c d e.", "c x."], ["k l.", "m n."]]
    features = {
        "inputs": [" ".join(sentences) for sentences in documents],
        "targets": ["x a", "k m"],
        "references": [["x a", "e d c"], ["k m"]],
    }
    tokenizer = WordTokenizer(MAGIC + "".join(f"word{i}\n" for i in range(20)).encode())
    corpus = Corpus(valid=features, split=features | {"sentences": documents})
    data = prepared(settings, tmp_path, tokenizer, source=corpus)
    found = TaskBaselines(settings, data, tmp_path / "baselines")
    scores = found.scores("valid")
    assert scores == found.scores("split")
    lead, oracle = scores.values()
    assert list(scores) == ["lead sentence", "best sentence (oracle)"]
    assert lead == pytest.approx({"exact_match": 0, "rouge1": 50, "rouge2": 0, "rougeL": 50})
    assert oracle == pytest.approx({"exact_match": 0, "rouge1": 75, "rouge2": 0, "rougeL": 100 * (1 / 3 + 1 / 2) / 2})


@pytest.mark.parametrize("name", ["translation", "span_qa", "masked_lm", "span_corruption", "denoising"])
def test_a_task_without_baselines_is_an_error_that_names_the_others(name):
    message = (
        f"--baselines: task.name='{name}' has no baselines; tasks with baselines are classification, images, tagging, "
        "language_model, text_to_text; leave the flag out"
    )
    with pytest.raises(ConfigError, match=message):
        check_has_baselines(ExperimentConfig(task=TaskConfig(name=name)))


def test_a_prefix_lm_has_no_baselines():
    with pytest.raises(ConfigError, match=r"task.prefix='random' leaves out"):
        check_has_baselines(ExperimentConfig(task=TaskConfig(name="language_model", prefix="random")))


def test_a_corpus_without_training_split_is_an_error(tmp_path, monkeypatch):
    found = of_labels(tmp_path)
    monkeypatch.setattr(found.data.source, "split_names", ("valid",), raising=False)
    with pytest.raises(DataError, match="no split train"):
        TaskBaselines(found.config, found.data, tmp_path)


# The command.


def test_a_row_per_baseline_in_the_metrics_that_both_have(capsys):
    rows = {"most frequent tag": {"accuracy": 88.125, "words": 16}}
    model = {"loss": 0.25, "accuracy": 93.75, "words": 16}
    print_table({"valid": model | {"baselines": rows}, "test": model}, TASKS["tagging"].metrics)
    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.replace("┃", "│").strip("│ ").split("│")] for line in lines]
    assert cells[1] == ["split", "scores of", "loss", "accuracy %", "words"]
    assert cells[3:6] == [
        ["valid", "model", "0.2500", "93.75", "16"],
        ["valid", "most frequent tag", "", "88.12", "16"],
        ["test", "model", "0.2500", "93.75", "16"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "tagging", "language_model", "images"])
def test_the_command_adds_rows_to_the_table_and_to_the_file(kind, tmp_path, capsys):
    folder = shutil.copytree(trained_kind(kind), tmp_path / "copy")
    results = evaluate(folder / "run", ["test"], {"data.dir": str(folder)}, baselines=True)
    out = capsys.readouterr().out
    written = without_checksum(json.loads((folder / "run" / "evaluation" / "test.json").read_text()))
    assert written == json.loads(json.dumps(results["test"]))
    assert written["baselines"]
    shown = {spec.name for spec in TASKS[kind].metrics}
    for name, scores in written["baselines"].items():
        assert f" {name} " in out
        assert set(scores) - {"unknown_words"} <= shown & set(written)
    denominators = {"examples", "words", "bytes"} & set(written)
    assert all(scores[d] == written[d] for scores in written["baselines"].values() for d in denominators)
    kept = json.loads((folder / "run" / "evaluation" / "baselines" / "test.json").read_text())
    assert kept["baselines"] == written["baselines"]
    evaluate(folder / "run", ["test"], {"data.dir": str(folder)})
    assert "scores of" not in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"--baselines learn from the training split, and --input=new\.txt does"):
        evaluate(folder / "run", ["new"], baselines=True, files=sources.TestFiles("new", "new.txt"))
