"""The command around `LanguageModel.score`: bytes in, a line out for each, in order."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.cli import score as score_command
from transformer_jax.cli.main import main
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.tokenizers.characters import ByteTokenizer
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation import loading
from transformer_jax.tasks.trained.language_model import TextScores
from transformer_jax.tasks.trained.translator import Translator


class Counting:
    """Scores a text by its length."""

    def score(self, texts, end=True):
        lengths = np.array([len(text) + end for text in texts])
        return TextScores(-0.5 * lengths, lengths)


@pytest.fixture
def score(monkeypatch, capsys):
    monkeypatch.setattr(loading, "load_language_model", lambda *args, **options: Counting())
    monkeypatch.setattr("transformer_jax.host.compilation_cache.use_compilation_cache", lambda: None)

    def run(data, *argv):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(["score", "--checkpoint=runs/x", *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_line_for_each(score, monkeypatch):
    monkeypatch.setattr(score_command, "_CHUNK", 2)
    assert score(b"ab\n\nabcd") == (0, "-1.500000\t3\n-0.500000\t1\n-2.500000\t5\n", "")
    assert score(b"ab\n\n", "--without_end")[1] == "-1.000000\t2\n0.000000\t0\n"


def test_one_text(score):
    assert score(b"", "--text=abc")[1] == "-2.000000\t4\n"


def test_jsonl(score):
    lines = score(b"abc\n\n", "--output=jsonl", "--without_end")[1].splitlines()
    assert json.loads(lines[0]) == {"line": 1, "log_prob": -1.5, "tokens": 3, "perplexity": pytest.approx(np.exp(0.5))}
    assert json.loads(lines[1]) == {"line": 2, "log_prob": 0.0, "tokens": 0, "perplexity": None}


def test_lines_that_are_no_utf8(score):
    code, out, err = score(b"a\n\xff\nb\n")
    assert (code, out) == (3, "-1.000000\t2\n\n-1.000000\t2\n")
    assert "stdin, line 2: not valid UTF-8" in err
    assert json.loads(score(b"\xff", "--output=jsonl")[1])["problem"].startswith("not valid UTF-8")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_probability_that_is_not_finite_is_named(score, monkeypatch, bad):
    values = TextScores(np.array([-1.0, bad, -2.0]), np.array([2, 2, 2]))
    monkeypatch.setattr(Counting, "score", lambda self, texts, end=True: values)
    code, out, err = score(b"a\nb\nc\n")
    assert (code, out) == (3, "-1.000000\t2\n\n-2.000000\t2\n")
    assert "stdin, line 2: the model's output is not finite" in err
    lines = [
        json.loads(line, parse_constant=pytest.fail) for line in score(b"a\nb\nc\n", "--output=jsonl")[1].splitlines()
    ]
    assert [*lines[1]] == ["line", "problem"]


def test_bad_flags(score, tmp_path):
    assert score(b"", "--text=a", "--input=b")[0] == 2
    code, _, err = score(b"", f"--input={tmp_path}/none")
    assert (code, "--input=" in err) == (2, True)


def test_a_translation_model_has_no_such_scores(monkeypatch):
    translator = Translator(ExperimentConfig(), {}, ByteTokenizer())
    monkeypatch.setattr(loading, "load_generator", lambda *args, **options: translator)
    with pytest.raises(ConfigError, match=r"task\.name='translation'; expected a language model"):
        loading.load_language_model(Path("runs/x"))
