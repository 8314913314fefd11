"""The command around the predictor, bytes in and lines out in order."""

import dataclasses
import io
import json

import jax
import numpy as np
import pytest
from labelled_support import CONTEXTS, QUESTIONS, untrained

from transformer_jax.cli import predict
from transformer_jax.cli.main import main
from transformer_jax.config import DataConfig
from transformer_jax.data.sources import load_source
from transformer_jax.errors import DataError
from transformer_jax.evaluation import loading
from transformer_jax.tasks.batches.answer_spans import Answer
from transformer_jax.tasks.trained import predictor as predictor_module

PAIRS = {"source": "text", "dir": "unused", "format": "tsv", "second_feature": "3"}


@pytest.fixture
def predictor(monkeypatch):
    """Return a function that puts a task's untrained model in the place of that of any checkpoint."""

    def put(task: str, **fields):
        made = untrained(task, **fields).predictor
        monkeypatch.setattr(loading, "load_predictor", lambda *args: made)
        return made

    return put


def output_of(capsysbinary, monkeypatch, lines: bytes, *flags: str) -> tuple[int, list[str], str]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    code = main(["predict", "--checkpoint=unused", *flags])
    captured = capsysbinary.readouterr()
    return code, captured.out.decode().split("\n")[:-1], captured.err.decode()


def test_labels(predictor, capsysbinary, monkeypatch):
    expected = predictor("classification").predict(["a film", "so long"])
    lines = b"a film\n\nso long\r\n\xff\n" + b"a " * 20
    code, out, err = output_of(capsysbinary, monkeypatch, lines)
    assert code == 3
    assert [line.split("\t")[0] for line in out] == [expected[0].label, "", expected[1].label, "", ""]
    assert float(out[0].split("\t")[1]) == pytest.approx(expected[0].probability, abs=1e-5)
    for text in ("line 2: has no text", "line 4: not valid UTF-8", "line 5: 22 tokens", "without a prediction", ": 3"):
        assert text in err
    code, out, _ = output_of(capsysbinary, monkeypatch, b"", "--text=a film", "--probabilities")
    assert code == 0
    named = dict(part.split("=") for part in out[0].split("\t")[2:])
    assert [*named] == ["bad", "good", "mixed"]
    assert sum(map(float, named.values())) == pytest.approx(1, abs=1e-5)
    code, out, _ = output_of(capsysbinary, monkeypatch, b"a film\n\n", "--output=jsonl", "--probabilities")
    first, second = map(json.loads, out)
    assert first["line"] == 1
    assert first["label"] == expected[0].label
    assert [*first["probabilities"]] == ["bad", "good", "mixed"]
    assert second == {"line": 2, "problem": "has no text"}


def test_pairs_of_texts(predictor, capsysbinary, monkeypatch):
    expected = predictor("classification", data=PAIRS).predict([("a film", "no")])
    code, out, err = output_of(capsysbinary, monkeypatch, b"a film\tno\na film\n", "--output=jsonl")
    assert code == 3
    assert json.loads(out[0])["label"] == expected[0].label
    assert "line 2: 1 texts; the model reads 2" in err
    assert "has a tab" not in err


def test_a_tab_for_a_model_of_one_text_is_named_once(predictor, capsysbinary, monkeypatch):
    predictor("classification")
    code, out, err = output_of(capsysbinary, monkeypatch, b"a film\na film\tno\na\tfilm\n")
    assert (code, len(out)) == (0, 3)
    assert err.count("has a tab") == 1
    assert "line 2: has a tab; the model reads one text, with the tab in it: data.second_feature is empty" in err


def test_tags(predictor, capsysbinary, monkeypatch):
    expected = predictor("tagging").predict(["Ann saw York"])[0]
    code, out, err = output_of(capsysbinary, monkeypatch, b"Ann saw York\n\n")
    assert (code, out) == (3, [" ".join(expected.tags), ""])
    assert "line 2: has no words" in err
    flags = "--output=jsonl", "--probabilities"
    code, out, _ = output_of(capsysbinary, monkeypatch, b"Ann  saw York\n", *flags)
    found = json.loads(out[0])
    assert (found["words"], found["tags"]) == (["Ann", "saw", "York"], expected.tags)
    assert len(found["probabilities"]) == 3
    code, _, err = output_of(capsysbinary, monkeypatch, b"", "--probabilities")
    assert code == 2
    assert "--probabilities: --output=text writes tags without probabilities; use --output=jsonl" in err


def test_answers(predictor, capsysbinary, monkeypatch):
    pairs = list(zip(QUESTIONS, CONTEXTS, strict=True))
    expected = predictor("span_qa").predict(pairs)
    lines = [json.dumps({"question": q, "context": c}) for q, c in pairs] + ["{}", "", '{"question": 1, "context": 2}']
    code, out, err = output_of(capsysbinary, monkeypatch, "\n".join(lines).encode(), "--output=jsonl")
    assert code == 3
    for line, answer, context in zip(out, expected, CONTEXTS, strict=False):
        found = json.loads(line)
        assert found["answer"] == answer.text == context[found["start"] : found["end"]]
    assert "line 4: expected a JSON object with 'question' and 'context'" in err
    assert "line 5: has no question" in err
    assert "line 6: 'question' and 'context' must be texts" in err
    code, out, _ = output_of(capsysbinary, monkeypatch, "\n".join(lines[:3]).encode())
    assert (code, out) == (0, [answer.text for answer in expected])
    code, _, err = output_of(capsysbinary, monkeypatch, b"", "--probabilities")
    assert code == 2
    assert "not available for question answering" in err


def test_text_that_cannot_be_encoded_is_named_and_the_rest_predicted(predictor, capsysbinary, monkeypatch):
    made = predictor("span_qa")
    monkeypatch.setattr(type(made), "attempt", lambda self, pairs: [Answer(c[:3], 0, 3, 1.0) for _, c in pairs])
    whole = json.dumps({"question": QUESTIONS[1], "context": CONTEXTS[1]})
    half = '{"question": "who \\ud83d ?", "context": "Ann"}'
    pair = '{"question": "who \\ud83d\\ude00 ?", "context": "Bob saw"}'
    lines = [whole, half, pair, '{"question": "a", "context": "b\\uDE00"}', "[" * 100_000, '{"question": NaN}', whole]
    problem = "expected a JSON object with 'question' and 'context'"
    for flags in ([], ["--output=jsonl"]):
        code, out, err = output_of(capsysbinary, monkeypatch, "\n".join(lines).encode(), *flags)
        assert code == 3
        answers = [json.loads(line).get("answer", "") for line in out] if flags else out
        assert answers == ["Ann", "", "Bob", "", "", "", "Ann"]
        for text in (
            f"line 2: {problem}: it has \\ud83d, half of",
            f"line 4: {problem}: it has \\ude00",
            "line 5:",
            "line 6:",
        ):
            assert text in err
        assert "Traceback" not in err


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("task", ["classification", "tagging", "span_qa"])
def test_outputs_that_are_not_finite_are_no_prediction(predictor, capsysbinary, monkeypatch, task, bad):
    made = predictor(task)

    def outputs_of_batches(config, params, batches):
        shape = {"classification": (3,), "tagging": (16, 5), "span_qa": (16, 2)}[task]
        outputs = [np.zeros(shape) for _ in range(3)]
        outputs[1][..., -1] = bad  # one of the classes, or the end of the answer, of the second line
        return outputs

    monkeypatch.setattr(predictor_module, "outputs_of_batches", outputs_of_batches)
    given = {"question": "how ?", "context": "so dull"}
    lines = "\n".join([json.dumps(given)] * 3 if task == "span_qa" else ["a film"] * 3).encode()
    code, out, err = output_of(capsysbinary, monkeypatch, lines)
    assert (code, [bool(line) for line in out]) == (3, [True, False, True])
    assert "line 2: the model's output is not finite: its parameters are damaged" in err
    code, out, _ = output_of(capsysbinary, monkeypatch, lines, "--output=jsonl")
    found = [json.loads(line, parse_constant=pytest.fail) for line in out]
    assert [*found[1]] == ["line", "problem"]
    with pytest.raises(DataError, match="example 2: the model's output is not finite"):
        made.predict([(given["question"], given["context"])] * 3 if task == "span_qa" else ["a film"] * 3)


def test_words_and_texts_with_odd_spaces_are_read_as_in_training(predictor, tmp_path):
    """A file of tagged words divides at spaces or tabs alone, and only `data.format=labelled` drops outer spaces."""
    tagger = predictor("tagging")
    (tmp_path / "train.conll").write_text("10\u00a0000 O\n\u3000x O\na\u2028b O\n")
    fields = {"source": "text", "dir": str(tmp_path), "valid_split": "", "test_split": ""}
    (words,) = load_source(DataConfig(**fields, format="conll")).split("train").features["words"]
    assert (
        tagger.features(" 10\u00a0000  \u3000x\ta\u2028b ")["words"] == words == ["10\u00a0000", "\u3000x", "a\u2028b"]
    )
    for bad, problem in (("a \u00a0 b", "has an empty word"), (" \t", "has no words")):
        with pytest.raises(ValueError, match=problem):
            tagger.features(bad)
    text = "\u00a0 a  film \t"
    (tmp_path / "train.txt").write_text(f"good {text}\n")
    (tmp_path / "train.tsv").write_text("  a  film\u00a0\tgood\n")
    for data, given in (({"format": "labelled"}, text), ({"format": "tsv"}, "  a  film\u00a0")):
        for template in ("", "sst2: {inputs}!"):
            data |= fields | {"input_template": template}
            (read,) = load_source(DataConfig(**data)).split("train").features["inputs"]
            assert predictor("classification", data=data).features(given)["inputs"] == read
    pair = PAIRS | {"input_template": "a {inputs} b {second}"}
    assert predictor("classification", data=pair).features(("x", "y")) == {
        **{"inputs": "a x b y", "second": "y"},
        "targets": "bad",
    }


def test_answers_in_contexts_with_odd_spaces_are_at_their_place(predictor):
    context = "  Ann\u00a0 saw\t\tNew   York \u3000"
    for answer in predictor("span_qa").predict([("  who   saw York ?", context), ("how ?\t", " \u00a0so   dull")]):
        text = context if answer.text in context else " \u00a0so   dull"
        assert answer.text == text[answer.first : answer.end] == answer.text.strip() != ""


def test_texts_of_a_program_that_cannot_be_encoded_are_named(predictor):
    for task, example in (
        ("classification", "a \ud83d"),
        ("span_qa", ("how ?", "\udcff")),
        ("tagging", ["a", "\ud83d"]),
    ):
        with pytest.raises(DataError, match=r"example 1: has \\ud[8c][3f][df], half of a surrogate pair"):
            predictor(task).predict([example])


def test_a_head_with_a_bias_that_is_not_finite_predicts_nothing(predictor, capsysbinary, monkeypatch):
    made = predictor("classification")
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: x * float("nan") if "head" in str(path).lower() and x.ndim == 1 else x, made.params
    )
    broken = dataclasses.replace(made, params=params)
    monkeypatch.setattr(loading, "load_predictor", lambda *args: broken)
    code, out, err = output_of(capsysbinary, monkeypatch, b"a film\nso long\n", "--output=jsonl", "--probabilities")
    assert code == 3
    assert [[*json.loads(line)] for line in out] == [["line", "problem"]] * 2
    assert err.count("is not finite") == 2


def test_an_interrupted_command_continues(predictor, capsysbinary, monkeypatch, tmp_path):
    model = predictor("classification")
    monkeypatch.setattr(predict, "_CHUNK", 2)
    source, target = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("a film\n\nso long\nfine\na joy\n")
    flags = f"--input={source}", f"--output_file={target}"
    attempts = []

    def attempt(self, examples):
        attempts.append(len(examples))
        if len(attempts) == 2:
            raise KeyboardInterrupt
        return before(self, examples)

    before = type(model).attempt
    monkeypatch.setattr(type(model), "attempt", attempt)
    code, _, _ = output_of(capsysbinary, monkeypatch, b"", *flags)
    assert code == 130
    assert not target.exists()
    code, _, err = output_of(capsysbinary, monkeypatch, b"", *flags)
    assert code == 3
    assert attempts == [2, 2, 2, 1]
    assert "lines without a prediction, which are empty: 1" in err
    assert [line.split("\t")[0] for line in target.read_text().splitlines()] == [
        "" if text == "" else model.predict([text])[0].label for text in source.read_text().splitlines()
    ]
    code, _, err = output_of(capsysbinary, monkeypatch, b"", *flags)
    assert code == 2
    assert "exists already; --force replaces it" in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--output=json",), "--output=json: expected one of text, jsonl, conll (did you mean 'jsonl'?)"),
        (("--text=a", "--input=b"), "--text and --input: give one of them"),
        (("--input=nowhere.txt",), "--input=nowhere.txt: No such file or directory"),
    ],
)
def test_bad_flags(capsysbinary, monkeypatch, flags, message):
    code, _, err = output_of(capsysbinary, monkeypatch, b"", *flags)
    assert code == 2
    assert message in err
