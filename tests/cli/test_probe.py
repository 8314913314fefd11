"""The command `probe`: planted labels, its files and errors."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from support import random_params, tiny

from transformer_jax.cli.main import main
from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.evaluation import loading
from transformer_jax.evaluation.loading import Loaded

TOKENIZER = ByteTokenizer()
FIELDS = {"vocab_size": TOKENIZER.vocab_size, "norm_position": "pre", "max_length": 12, "position_encoding": "learned"}


def loaded(config, params=None, tokenizer=TOKENIZER, labels=()):
    return Loaded(config, params or {}, tokenizer, (1,), None, Path("runs/x"), None, labels)


def of(model, task, data=None, **fields):
    return loaded(ExperimentConfig(model=model, task=TaskConfig(name=task), data=data or DataConfig()), **fields)


@pytest.fixture
def command(monkeypatch, capsys):
    monkeypatch.setattr("transformer_jax.host.compilation_cache.use_compilation_cache", lambda: None)

    def run(*argv, of=None):
        monkeypatch.setattr(loading, "load", lambda *args: of)
        code = main(["probe", "--checkpoint=runs/x", *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def language_model():
    config = tiny(architecture="decoder_only", **FIELDS)
    return of(config, "language_model", params=random_params(config))


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Write texts of four letters, labelled by whether the last one has an even code; and with random labels."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("planted")
    texts = sorted({"".join(rng.choice([*"abcdef"], 4)) for _ in range(300)})
    labels = ["even" if ord(text[-1]) % 2 == 0 else "odd" for text in texts]
    for name, of_texts in (("planted", labels), ("random", rng.permutation(labels))):
        lines = [f"{text}\t{label}\n" for text, label in zip(texts, of_texts, strict=True)]
        (folder / f"{name}.tsv").write_text("".join(lines))
        (folder / f"{name}_train.tsv").write_text("".join(lines[::2]))
        (folder / f"{name}_test.tsv").write_text("".join(lines[1::2]))
    return folder, len(texts)


@pytest.mark.slow
def test_a_planted_label_is_found_and_a_random_one_is_not(command, planted, tmp_path):
    folder, count = planted
    flags = [f"--data={folder / 'planted.tsv'}", "--pooling=last", "--json", f"--output={tmp_path}"]
    _, out, _ = command(*flags, of=language_model())
    found = json.loads(out.splitlines()[0])
    assert (found["fitted"] + found["held_out"], found["labels"]) == (count, ["even", "odd"])
    assert found["held_out"] == pytest.approx(count / 4, abs=1)
    names = ["decoder/embedding", *(f"decoder/{layer}/feed_forward/stream" for layer in (0, 1))]
    assert [*found["accuracies"]] == [*found["control"]] == names
    embedding, frequent = found["accuracies"][names[0]], found["most_frequent"]
    assert embedding["value"] == 1
    assert embedding["low"] > frequent["high"]
    for chance in (frequent, *found["control"].values()):
        assert chance["low"] < 0.55
        assert chance["high"] > 0.45
    assert out.splitlines()[1] == str(tmp_path / "probe.png")

    _, out, _ = command(f"--data={folder / 'random.tsv'}", "--pooling=last", "--json", of=language_model())
    found = json.loads(out)
    for accuracy in found["accuracies"].values():
        assert accuracy["low"] < found["most_frequent"]["value"] < accuracy["high"]


@pytest.mark.slow
def test_texts_of_another_file_score_the_probes(command, planted):
    folder, count = planted
    train, test = (
        f"--{flag}={folder / name}" for flag, name in (("data", "planted_train.tsv"), ("test", "planted_test.tsv"))
    )
    _, out, err = command(train, test, "--pooling=last", of=language_model())
    first, *table = out.splitlines()
    assert first.startswith(f"2 labels, {count - count // 2} texts fitted, {count // 2} held out; accuracy of the most")
    (row,) = [line for line in table if "embedding" in line]
    assert re.search("1.000 .* 0.9.. to 1.000 ", row), row
    assert err == ""
    _, _, err = command(train, train.replace("data", "test", 1), of=language_model())
    assert f"{count - count // 2} of its texts are in --data too" in err


BAD_FILES = {
    "": "--data=.* has no lines",
    "a\tx\nb\n": "--data=.*, line 2: has no tab; expected a text, a tab and its label",
    "a\tx\n\ty\n": "--data=.*, line 2: has no text",
    "a\tx\nb\t \n": "--data=.*, line 2: has no label",
    "a\tx\nb\tx\n": "--data=.*: has one label alone, 'x'; a probe needs at least two",
    "a\tx\nb\tx\nc\ty\n": "--data=.*: label 'y' has too few examples: 1 that differ; expected at least 2",
    "a\tx\nb\tx\nc\ty\nc\ty\n": "--data=.*: label 'y' has too few examples: 1 that differ",
    "a\tx\nb\tx\nc\ty\n" + 12 * "d" + "\ty\n": "--data=.*, line 4: its 12 tokens and the start exceed .*max_length=12",
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_bad_files(command, tmp_path, content):
    file = tmp_path / "labelled.tsv"
    file.write_text(content)
    code, _, err = command(f"--data={file}", of=of(tiny(architecture="decoder_only", **FIELDS), "language_model"))
    assert code == 2
    assert re.search(BAD_FILES[content], err), err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--held_out=1"], "held_out=1.0: expected a share between 0 and 1"),
        (["--held_out=a"], "--held_out=a: expected a number"),
        (["--held_out=0.5", "--test={folder}/other.tsv"], "--held_out and --test: .*leave --held_out out"),
        (["--pooling=sum"], "--pooling=sum: .*mean.*first.*last.*max"),
        (["--test={folder}/other.tsv"], "--test=.*, line 2: label 'z' is in no line of --data"),
        (["--test=/no/such"], "--test=/no/such: No such file"),
    ],
)
def test_bad_input(command, tmp_path, argv, message):
    (tmp_path / "labelled.tsv").write_text("a\tx\nb\tx\nc\ty\nd\ty\n")
    (tmp_path / "other.tsv").write_text("a\tx\nb\tz\n")
    argv = [word.format(folder=tmp_path) for word in argv]
    code, _, err = command(f"--data={tmp_path / 'labelled.tsv'}", *argv)
    assert code == 2
    assert re.search(message, err), err


RECURRENT = ModelConfig(architecture="recurrent", vocab_size=TOKENIZER.vocab_size, emb_dim=8, hidden_dim=8)
IMAGES = ModelConfig(
    architecture="encoder_only", inputs="patches", image_size=8, patch_size=4, position_encoding="none"
)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (lambda: of(IMAGES, "images"), "task.name='images' reads images; expected a model of text"),
        (lambda: of(RECURRENT.resolved(), "language_model"), "architecture=recurrent has no residual stream"),
        (
            lambda: of(tiny(architecture="encoder_only"), "span_qa"),
            "task.name='span_qa': its model does not read single",
        ),
        (lambda: of(tiny(architecture="encoder_only"), "tagging"), "expected a language model, a model of source and"),
        (
            lambda: of(tiny(architecture="encoder_only"), "classification", DataConfig(second_feature="b")),
            "data.second_feature=b: the model reads pairs of texts",
        ),
    ],
)
def test_models_that_read_no_single_texts(command, tmp_path, of, message):
    (tmp_path / "labelled.tsv").write_text("a\tx\nb\tx\nc\ty\nd\ty\n")
    code, _, err = command(f"--data={tmp_path / 'labelled.tsv'}", of=of())
    assert code == 2
    assert message in err
