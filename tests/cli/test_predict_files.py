"""`predict` on files in the formats of training: with labels, without them, and with lines that cannot be read."""

import gzip
import io
import json
import re

import pytest
from labelled_support import ANSWERS, CONTEXTS, LABELS, QUESTIONS, SECONDS, TAGS, TEXTS, WORDS, untrained

from transformer_jax.cli import predict
from transformer_jax.cli.main import main
from transformer_jax.data.sources import format_of
from transformer_jax.errors import DataError
from transformer_jax.evaluation import loading
from transformer_jax.evaluation import scoring as evaluation_run

NAMED = {"source": "text", "dir": "unused", "format": "tsv", "input_feature": "text", "target_feature": "label"}
PAIRS = NAMED | {"second_feature": "other"}


@pytest.fixture
def model(monkeypatch, tmp_path):
    """Return a function that puts a task's untrained model in the place of any checkpoint, for both commands."""

    def put(task, data=None, **fields):
        settings, corpus, params, made = untrained(task, data=data, **fields)
        loaded = loading.Loaded(settings, params, corpus.tokenizer, (1,), None, tmp_path / "run", None, corpus.labels)
        monkeypatch.setattr(loading, "load_predictor", lambda *args: made)
        monkeypatch.setattr(evaluation_run, "load", lambda *args, **kwargs: loaded)
        return made

    return put


@pytest.fixture
def predicted(capsysbinary, monkeypatch):
    """Return a function from flags to the exit code, the lines of stdout and stderr."""

    def call(*flags, stdin=b""):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsysbinary.readouterr()
        code = main(["predict", "--checkpoint=runs/unused", *flags])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode().split("\n")[:-1], captured.err.decode()

    return call


def tsv(*columns, header=""):
    return header + "".join("\t".join(row) + "\n" for row in zip(*columns, strict=True))


def conll(*columns):
    sentences = (zip(*sentence, strict=True) for sentence in zip(*columns, strict=True))
    return "\n".join("".join("\t".join(row) + "\n" for row in rows) for rows in sentences)


def squad(with_answers=True):
    paragraphs = []
    for number, (context, question, answers) in enumerate(zip(CONTEXTS, QUESTIONS, ANSWERS, strict=True)):
        found = [{"text": text, "answer_start": context.index(text)} for text in answers]
        asked = {"id": f"q{number}", "question": question} | ({"answers": found} if with_answers else {})
        paragraphs.append({"context": context, "qas": [asked]})
    return json.dumps({"data": [{"paragraphs": paragraphs}]})


LABELLED = {
    "classification": ("second.tsv", tsv(LABELS, TEXTS, header="label\ttext\n"), NAMED),
    "tagging": ("second.conll", conll(WORDS, TAGS), {}),
    "span_qa": ("second.json", squad(), {}),
}
EXAMPLES = {"classification": TEXTS, "tagging": WORDS, "span_qa": list(zip(QUESTIONS, CONTEXTS, strict=True))}


def first_words(made, examples):
    """Return what a line of the output begins with, for examples of any task."""
    found = made.predict(examples)
    return [" ".join(x.tags) if hasattr(x, "tags") else getattr(x, "label", None) or x.text for x in found]


@pytest.mark.parametrize("task", LABELLED)
def test_a_labelled_file_is_predicted_and_scored_as_evaluate_scores_it(model, predicted, capsysbinary, tmp_path, task):
    name, content, data = LABELLED[task]
    made = model(task, data)
    file = tmp_path / name
    file.write_text(content)
    code, out, err = predicted(f"--input={file}")
    assert code == 0
    assert [line.split("\t")[0] for line in out] == first_words(made, EXAMPLES[task])
    assert main(["evaluate", "--checkpoint=runs/unused", f"--input={file}"]) == 0
    table = capsysbinary.readouterr().out.decode()
    assert table.count("┃") > 4
    assert table in err
    assert ("support" in table) == (task == "tagging")
    assert f"transformer-jax evaluate --checkpoint=runs/unused --input={file}" in err


def test_a_file_without_labels_is_predicted(model, predicted, tmp_path):
    for name, content, task, data, reason in (
        ("a.tsv", tsv(TEXTS, header="text\n"), "classification", NAMED, "line 1: no column 'label'; there are text"),
        ("a.jsonl", "".join(f"{json.dumps({'en': text})}\n" for text in TEXTS), "classification", {}, "no key 'de'"),
        ("a.conll", conll(WORDS), "tagging", {}, "line 1: the word 'Ann' has no tag"),
        ("a.json", squad(with_answers=False), "span_qa", {}, "has no key 'answers'"),
    ):
        made = model(task, data)
        (tmp_path / name).write_text(content)
        code, out, err = predicted(f"--input={tmp_path / name}")
        assert (code, [line.split("\t")[0] for line in out]) == (0, first_words(made, EXAMPLES[task]))
        assert re.search(f"no scores: .*{re.escape(reason)}", err)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
        assert predicted(f"--input={tmp_path / name}.gz")[:2] == (0, out)


def test_words_of_universal_dependencies_and_of_another_column(model, predicted, tmp_path):
    made = model("tagging", chunks=False)
    rows = [f"{i}\t{word}\t{word}\t_\t_\t_\t_\t_\t_\t_\n" for i, word in enumerate(WORDS[0], 1)]
    (tmp_path / "a.conllu").write_text("# text = x\n" + "".join(rows) + "\n")
    (tmp_path / "a.conll").write_text(conll(TAGS[:1], WORDS[:1]))
    expected = first_words(made, WORDS[:1])
    for flags in (["--input=a.conllu"], ["--input=a.conllu", "--column=LEMMA"], ["--input=a.conll", "--column=2"]):
        code, out, err = predicted(flags[0].replace("a.", f"{tmp_path}/a."), *flags[1:])
        assert (code, out) == (0, expected)
        assert "no scores" in err
    assert "the labels would be read from the column of the text" in err


def test_output_in_columns(model, predicted, tmp_path):
    made = model("tagging")
    (tmp_path / "a.conll").write_text(conll(WORDS))
    tags = [tags.split() for tags in first_words(made, WORDS)]
    code, out, _ = predicted(f"--input={tmp_path / 'a.conll'}", "--output=conll")
    assert (code, "\n".join(out)) == (0, conll(WORDS, tags))
    model("classification")
    code, _, err = predicted("--text=a", "--output=conll")
    assert code == 2
    assert "--output=conll: only for models that tag words" in err


def test_lines_that_cannot_be_read_keep_their_place_and_are_named(model, predicted, tmp_path):
    made = model("classification", NAMED)
    good = first_words(made, TEXTS[:1])[0]
    lines = [b"label\ttext", b"good\ta fine film", b"", b"bad", b"bad\t\xff", b"bad\t" + b"a " * 20, b"x\ta fine film"]
    (tmp_path / "a.tsv").write_bytes(b"\n".join(lines))
    code, out, err = predicted(f"--input={tmp_path / 'a.tsv'}")
    assert (code, [line.split("\t")[0] for line in out]) == (3, [good, "", "", "", "", good])
    for problem in (
        "line 3: expected at least 2 columns, got 1",
        "line 4: expected at least 2 columns, got 1",
        "line 5: not valid UTF-8 (byte 0xff after 4 characters)",
        "line 6: 22 tokens",
        "without a prediction, which are empty: 4",
        "no scores: ",
    ):
        assert problem in err
    model("tagging")
    (tmp_path / "a.conll").write_text("Ann O\nsaw\n\n\nBob O\n")
    code, out, err = predicted(f"--input={tmp_path / 'a.conll'}", "--output=jsonl")
    assert code == 3
    first, second = map(json.loads, out)
    assert first == {"line": 1, "problem": "expected 2 columns, as in line 1, got 1"}
    assert (second["line"], second["words"]) == (2, ["Bob"])
    assert "a.conll, line 2: expected 2 columns, as in line 1, got 1" in err
    model("span_qa")
    asked = json.loads(squad())
    asked["data"][0]["paragraphs"][1]["qas"][0]["question"] = " "
    (tmp_path / "a.json").write_text(json.dumps(asked))
    code, out, err = predicted(f"--input={tmp_path / 'a.json'}", "--output=jsonl")
    assert (code, [json.loads(line)["id"] for line in out]) == (3, ["q0", "q1", "q2"])
    assert "a.json, question q1: 'question' is not text: ' '" in err


@pytest.mark.parametrize(
    ("task", "name", "content", "flag", "message"),
    [
        ("classification", "a.tsv", "text\tlabel\na\tb\n", "--column=txt", "no column 'txt'; there are text, label"),
        ("classification", "a.tsv", "a\tb\n", "--column=3", "line 1: no column 3; there are 1, 2"),
        ("classification", "a.jsonl", '{"text": "a"}\n', "--column=txt", "no key 'txt'; there are: text (did you"),
        ("classification", "a.tsv", "a\tb\n", "--column=1,2", "--column=1,2: the model reads one text; name"),
        ("classification", "a.conll", "a b\n", "", "the task does not read this format; it reads FILE.tsv, FILE.jsonl"),
        ("classification", "a.txt", "a\n", "--column=1", "--column=1: needs --input=FILE.tsv"),
        ("tagging", "a.conll", "a b\n", "--column=word", "--column=word: a column of a .conll file is a number from 1"),
        ("tagging", "a.conll", "a b\n", "--column=3", "line 1: no column 3; there are 1, 2; --column=NAME chooses"),
        ("tagging", "a.conllu", "a b\n", "--column=FROM", "no column 'FROM'; there are ID, FORM"),
        ("span_qa", "a.json", "{}", "--column=1", "--column=1: a file of questions has no columns; leave the flag out"),
        ("span_qa", "a.json", '{"a": 1}', "", "data has no key 'data'"),
    ],
)  # fmt: skip
def test_columns_and_files_that_cannot_be_meant(model, predicted, tmp_path, task, name, content, flag, message):
    model(task)
    (tmp_path / name).write_text(content)
    code, out, err = predicted(f"--input={tmp_path / name}", *([flag] if flag else []))
    assert (code, out) == (2, [])
    assert message in err
    assert "Traceback" not in err


def test_labels_of_another_kind_give_no_scores(model, predicted, tmp_path):
    made = model("classification", NAMED)
    content = tsv(TEXTS, ["good", "unknown", *LABELS[2:]], SECONDS, header="text\tlabel\tother\n")
    (tmp_path / "a.tsv").write_text(content)
    code, out, err = predicted(f"--input={tmp_path / 'a.tsv'}")
    assert (code, [line.split("\t")[0] for line in out]) == (0, first_words(made, TEXTS))
    assert "no scores: split 'a', example 2: the label 'unknown' is not in the training split" in err
    code, _, err = predicted(f"--input={tmp_path / 'a.tsv'}", "--column=label")
    assert code == 0
    assert "no scores: " in err
    assert "the labels would be read from the column of the text; to name the column of the labels, use" in err
    assert "--columns=label,LABEL" in err


def test_pairs_are_in_two_columns_or_on_lines_with_a_tab(model, predicted, tmp_path):
    made = model("classification", PAIRS)
    expected = [label.label for label in made.predict(list(zip(TEXTS, SECONDS, strict=True)))]
    for name, content, flags, is_told in (
        ("named.tsv", tsv(LABELS, SECONDS, TEXTS, header="label\tother\ttext\n"), [], False),
        ("chosen.tsv", tsv(SECONDS, LABELS, TEXTS), ["--column=3,1"], False),
        ("plain.tsv", tsv(TEXTS, SECONDS), [], True),
    ):
        (tmp_path / name).write_text(content)
        code, out, err = predicted(f"--input={tmp_path / name}", *flags)
        assert (code, [line.split("\t")[0] for line in out]) == (0, expected)
        assert ("is read as two texts" in err) == is_told
        assert ("accuracy" in err) == (name == "named.tsv")
    code, _, err = predicted(f"--input={tmp_path / 'chosen.tsv'}")
    assert code == 2
    assert "line 1: no column 'text'; there are yes, good, a fine film" in err


def test_lines_of_questions_stay_what_they_are(model, predicted, tmp_path):
    made = model("span_qa")
    lines = "".join(f"{json.dumps({'question': q, 'context': c})}\n" for q, c in zip(QUESTIONS, CONTEXTS, strict=True))
    for name in ("a.jsonl", "a.json"):
        (tmp_path / name).write_text(lines)
        code, out, err = predicted(f"--input={tmp_path / name}")
        assert (code, out) == (0, first_words(made, EXAMPLES["span_qa"]))
        assert "no scores" not in err


def test_a_tab_in_a_text_of_json_is_named(model, predicted, tmp_path):
    model("classification")
    (tmp_path / "a.jsonl").write_text('{"en": "a film"}\n{"en": "a\\tfilm"}\n')
    code, _, err = predicted(f"--input={tmp_path / 'a.jsonl'}")
    assert code == 0
    assert "a.jsonl, line 2: has a tab; the model reads one text" in err


def test_an_interrupted_file_continues_and_another_column_does_not(model, predicted, monkeypatch, tmp_path):
    made = model("classification", NAMED)
    monkeypatch.setattr(predict, "_CHUNK", 4)
    source, target = tmp_path / "a.tsv", tmp_path / "out.txt"
    source.write_text(tsv(TEXTS, LABELS, SECONDS, header="text\tlabel\tother\n"))
    flags = f"--input={source}", f"--output_file={target}"
    attempts = []
    before = type(made).attempt

    def attempt(self, examples):
        attempts.append(len(examples))
        if len(attempts) == 2:
            raise KeyboardInterrupt
        return before(self, examples)

    monkeypatch.setattr(type(made), "attempt", attempt)
    assert predicted(*flags)[0] == 130
    code, _, err = predicted(*flags, "--column=other")
    assert code == 2
    assert "was made with another format" in err
    code, out, err = predicted(*flags)
    assert (code, out, attempts) == (0, [], [4, 2, 2])
    assert [line.split("\t")[0] for line in target.read_text().splitlines()] == first_words(made, TEXTS)
    assert "accuracy" in err


def test_it_speaks_before_it_loads_the_checkpoint(model, predicted, monkeypatch):
    model("classification")
    code, out, err = predicted("--text=a film")
    assert (code, len(out)) == (0, 1)
    assert err.splitlines()[:2] == [
        "reading checkpoint runs/unused",
        "predicting --text; programs are compiled for the first batches",
    ]


@pytest.mark.parametrize(
    ("path", "message"), [("a/b.csv", "a/b.csv is CSV"), ("b.csv.gz", "> b.tsv"), ("b.xlsx", "spreadsheet")]
)
def test_a_table_that_is_not_read_is_not_taken_for_lines_of_text(path, message):
    with pytest.raises(DataError, match=message):
        format_of(path)
