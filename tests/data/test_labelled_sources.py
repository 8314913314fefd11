"""Labelled data: texts with labels, tagged words and questions, from files, TFDS and the embedded corpus."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from tfds_support import prepare

from transformer_jax.config import DataConfig, ExperimentConfig
from transformer_jax.data import sources
from transformer_jax.data.labels import LabelColumn, parse_labels, with_names
from transformer_jax.data.sources import load_source, open_test_set
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks.metrics.chunks import check_tags, chunks

CONTEXT = "The Broncos won. The Panthers lost."
UNCLEAR = "is it a comment, or the word '#' and its tag?"


def source_of(folder: Path, name: str, content: str | bytes, **fields):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    values = {"source": "text", "dir": str(folder), "valid_split": "", "test_split": ""} | fields
    return load_source(DataConfig(**values))


def features(folder: Path, name: str, content: str | bytes, **fields):
    source = source_of(folder, name, content, **fields)
    split = source.split("train")
    assert source.num_examples("train") == split.num_examples
    assert [chunk.num_examples for chunk in source.chunks("train", 1)] == [1] * split.num_examples
    return split.features


def squad(*answers: tuple[str, int], question: str = "Who won?", **qa) -> str:
    texts = [{"text": text, "answer_start": start} for text, start in answers]
    qas = [{"id": "q1", "question": question, "answers": texts} | qa]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]})


def test_columns_of_a_header_by_name(tmp_path):
    content = "sentence\tlabel\tother\nit 's a joy \t1\tx y\nbleak\t0\tz\n"
    fields = {"format": "tsv", "input_feature": "sentence", "target_feature": "label"}
    expected = {"inputs": ["it 's a joy ", "bleak"], "targets": ["1", "0"]}
    assert features(tmp_path, "train.tsv", content, **fields) == expected
    assert features(tmp_path, "train.tsv", content, **fields, second_feature="other") == {
        **expected,
        "second": ["x y", "z"],
    }


def test_labels_of_json_may_be_numbers_and_truth_values(tmp_path):
    content = '{"en": "a", "de": 1}\n{"en": "b", "de": true}\n{"en": "c", "de": "yes"}\n'
    assert features(tmp_path, "train.jsonl", content, format="jsonl")["targets"] == ["1", "true", "yes"]


def test_lines_that_begin_with_a_label(tmp_path):
    content = "DESC:manner How did serfdom develop ?\nENTY:cremat What film is caf\u00e9 ?\n".encode("latin-1")
    fields = {"format": "labelled", "encoding": "latin-1"}
    found = features(tmp_path, "train.txt", content, **fields)
    assert found == {
        "inputs": ["How did serfdom develop ?", "What film is caf\u00e9 ?"],
        "targets": ["DESC:manner", "ENTY:cremat"],
    }
    coarse = features(tmp_path, "train.txt", content, **fields, coarse_labels=True)
    assert coarse == found | {"targets": ["DESC", "ENTY"]}
    with pytest.raises(DataError, match=r"train\.txt, line 2: not UTF-8"):
        features(tmp_path, "train.txt", content, format="labelled")


def test_tagged_words(tmp_path):
    content = "-DOCSTART- -X- O O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
    found = features(tmp_path, "train.conll", content, format="conll")
    assert found == {
        "words": [["EU", "rejects"], ["Peter"]],
        "tags": [["B-ORG", "O"], ["B-PER"]],
        "inputs": ["EU rejects", "Peter"],
        "targets": ["B-ORG O", "B-PER"],
    }
    assert features(tmp_path, "train.conll", content, format="conll", target_feature="2")["tags"][0] == ["NNP", "VBZ"]
    # With tabs, a word may contain spaces, and # begins no comment.
    tabs = features(tmp_path, "train.conll", "# 1\tO\n#tag\tB-x\n", format="conll")
    assert (tabs["words"], tabs["tags"]) == ([["# 1", "#tag"]], [["O", "B-x"]])


@pytest.mark.parametrize(
    ("content", "words", "tags"),
    [
        # Of CoNLL-U, with as many columns as the words; two sentences, the second without a comment.
        ("# sent_id = 1\nEU NNP B-NP B-ORG\n\nit PRP B-NP O\n", [["EU"], ["it"]], [["B-ORG"], ["O"]]),
        ("# sent_id = web-1\n# text = EU\nEU B-ORG\n", [["EU"]], [["B-ORG"]]),
        ("EU B-ORG\n# sent_id = 2\nis O\n", [["EU", "is"]], [["B-ORG", "O"]]),
        ("# newpar\n# newdoc id = a\na\tO\n\n# newdoc\nb\tO\n", [["a"], ["b"]], [["O"], ["O"]]),
        # Of MultiCoNER, between spaces and between tabs; of CoNLL-2012.
        ("# id 52d8\tdomain=en\nEU _ _ B-ORG\nis _ _ O\n", [["EU", "is"]], [["B-ORG", "O"]]),
        ("# id 52d8\tdomain=en\nEU\tB-ORG\n", [["EU"]], [["B-ORG"]]),
        ("#begin document (a); part 000\na x O\n#end document\n", [["a"]], [["O"]]),
        # Any text before the first word, with another number of columns.
        ("## By A. Nobody\n#=====\na X O\n", [["a"]], [["O"]]),
        # The word # with its tag, also at the beginning of a file, and a hashtag; all lines with #.
        ("# # B-NP O\n1 CD I-NP O\n#tag NN B-NP O\n", [["#", "1", "#tag"]], [["O", "O", "O"]]),
        ("# O\n1 O\n\na O\n# B-x\n", [["#", "1"], ["a", "#"]], [["O", "O"], ["O", "B-x"]]),
        ("# O\n\n#\tO\n", [["#"], ["#"]], [["O"], ["O"]]),
        ("# id\tx\tO\n#\tid\tO\n", [["# id", "#"]], [["O", "O"]]),
        # The word # first in its sentence: another word has its tag, also further down; the Penn Treebank's own tag.
        ("# SYM\n1 CD\n\n% SYM\n", [["#", "1"], ["%"]], [["SYM", "CD"], ["SYM"]]),
        ("# #\n1 CD\n", [["#", "1"]], [["#", "CD"]]),
        ("#tag X\n1 CD\n", [["#tag", "1"]], [["X", "CD"]]),
        # Within a sentence, where no comment stands; between tabs; a comment with a key.
        ("1 CD\n# SYM\n", [["1", "#"]], [["CD", "SYM"]]),
        ("#\tSYM\n1\tCD\n", [["#", "1"]], [["SYM", "CD"]]),
        ("# note = English\n1 CD\n", [["1"]], [["CD"]]),
        # A document begins without a blank line.
        ("a O\n-DOCSTART- O\nb O\n -DOCSTART- -X- O\n\nc O\n", [["a"], ["b"], ["c"]], [["O"], ["O"], ["O"]]),
    ],
)
def test_comments_and_the_word_hash(tmp_path, content, words, tags):
    found = features(tmp_path, "train.conll", content, format="conll")
    assert (found["words"], found["tags"]) == (words, tags)


def test_a_chosen_column_of_tags_says_that_hash_is_a_word(tmp_path):
    """The last column is a number here, which no other word has."""
    content = "# SYM 7\n% SYM 8\n"
    found = features(tmp_path, "train.conll", content, format="conll", target_feature="2")
    assert (found["words"], found["tags"]) == ([["#", "%"]], [["SYM", "SYM"]])
    with pytest.raises(DataError, match=r"train\.conll, line 1: is it a comment"):
        features(tmp_path, "train.conll", content, format="conll")


def test_coarse_and_renamed_tags(tmp_path):
    content = "a X:y\nb Z\n"
    coarse = features(tmp_path, "train.conll", content, format="conll", coarse_labels=True)
    assert (coarse["tags"], coarse["targets"]) == ([["X", "Z"]], ["X Z"])
    named = features(tmp_path, "train.conll", content, format="conll", coarse_labels=True, label_names="X=one,Z=two")
    assert (named["tags"], named["targets"]) == ([["one", "two"]], ["one two"])


def test_sentences_of_universal_dependencies(tmp_path):
    rows = [
        "# text = vamonos al mar",
        "1-2\tvamonos\t_\t_\t_\t_\t_\t_\t_\t_",
        "1\tvamos\tir\tVERB\tV\t_\t0\troot\t_\t_",
        "2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_",
        "2.1\tx\t_\tVERB\t_\t_\t_\t_\t_\t_",
    ]
    content = "\n".join(rows) + "\n\n1\t10 000\t_\tNUM\tN\t_\t0\troot\t_\t_\n"
    found = features(tmp_path, "train.conllu", content, format="conllu")
    assert found["words"] == [["vamos", "nos"], ["10 000"]]
    assert found["tags"] == [["VERB", "PRON"], ["NUM"]]
    for column in ("XPOS", "5"):
        other = features(tmp_path, "train.conllu", content, format="conllu", target_feature=column)
        assert other["tags"] == [["V", "P"], ["N"]]


def test_questions(tmp_path):
    found = features(tmp_path, "train.json", squad(("Broncos", 4), ("The Broncos", 0)), format="squad")
    assert found == {
        "questions": ["Who won?"],
        "contexts": [CONTEXT],
        "answers": [["Broncos", "The Broncos"]],
        "answer_starts": [[4, 0]],
        "inputs": [f"question: Who won? context: {CONTEXT}"],
        "targets": ["Broncos"],
    }


@pytest.mark.parametrize(
    ("name", "content", "fields", "problem"),
    [
        (
            "train.tsv",
            "text\tlabel\na\t1\n",
            {"input_feature": "txt"},
            "line 1: no column 'txt'; there are text, label",
        ),
        ("train.tsv", "text\tlabel\na\n", {"input_feature": "text"}, "line 2: expected at least 2 columns, got 1"),
        ("train.tsv", "text\tlabel\na\t \n", {"input_feature": "text"}, "line 2: column label is empty"),
        ("train.jsonl", '{"en": "a", "de": 0.5}\n', {}, "line 1: 'de' is a number, 0.5, and not text"),
        ("train.txt", "1 a\nNUM\n", {"format": "labelled"}, "line 2: expected a label, a space and a text"),
        ("train.conll", "a O\n\nb\n", {}, "line 3: the word 'b' has no tag: expected two columns or more"),
        ("train.conll", "a\tO\nb\t \n", {}, "line 2: column 2 is empty"),
        ("train.conll", "a X Y O\n\nb X Y\n", {}, "line 3: expected 4 columns, as in line 1, got 3"),
        ("train.conll", "# O\n\na X Y O\n", {}, "line 1: expected 4 columns, as in line 3, got 2"),
        ("train.conll", "# a b\na X Y O\nb X O\n", {}, "line 3: expected 4 columns, as in line 2, got 3"),
        ("train.conll", "a O\n# B-x\n#\n", {}, "line 3: the word '#' has no tag"),
        ("train.conll", "#\na O\n", {}, "line 1: the word '#' has no tag"),
        (
            "train.conll",
            "a X O\n# of the annotator: no\nb X O\n",
            {},
            "line 2: begins with '#' and has 5 columns, not 3",
        ),
        ("train.conll", "# id 7\na X O\n", {}, f"line 1: {UNCLEAR}"),
        ("train.conll", "a O\n\n# sent_id=7\na O\n", {}, f"line 3: {UNCLEAR}"),
        # A comment with as many columns as the words: without a tag, or with one of -DOCSTART- alone.
        ("train.conll", "# English\na O\n", {}, f"line 1: {UNCLEAR} No other word of the file has 'English'"),
        ("train.conll", "# English\n\na O\n", {}, f"line 1: {UNCLEAR} No other word"),
        ("train.conll", "a X O\n\n# foo bar\nb X O\n", {}, f"line 3: {UNCLEAR} No other word of the file has 'bar'"),
        ("train.conll", "a\tO\n\n# English\nb\tO\n", {}, f"line 3: {UNCLEAR} No other word"),
        ("train.conll", "# English\n# English\n#tag O\n", {}, f"line 1: {UNCLEAR} No other word"),
        ("train.conll", "-DOCSTART- X\n\n# X\na O\n", {}, f"line 3: {UNCLEAR} No other word"),
        ("train.conll", "a O\n", {"target_feature": "3"}, "line 1: expected at least 3 columns, got 2"),
        ("train.conllu", "1\ta\tb\n", {}, "line 1: expected 10 columns, got 3"),
        ("train.conll", "", {}, " is empty"),
        ("train.conll", "\n\n", {}, ""),
        ("train.json", "{", {"format": "squad"}, ": not JSON"),
        ("train.json", "{}", {"format": "squad"}, ": data has no key 'data'"),
        ("train.json", "[]", {"format": "squad"}, ": data: expected an object with the key 'data', got []"),
        ("train.json", '{"data": 0.5}', {"format": "squad"}, ": data: 'data' is not a list: 0.5"),
        ("train.json", '{"data": ["a"]}', {"format": "squad"}, ": data: data[0] is not an object: 'a'"),
        ("train.json", '{"data": [{"paragraphs": {"context": "a"}}]}', {"format": "squad"}, ": data[0]: 'paragraphs'"),
        (
            "train.json",
            squad(answers=[["a", 0]]),
            {"format": "squad"},
            ": data[0].paragraphs[0].qas[0]: answers[0] is not an object: ['a', 0]",
        ),
        ("train.json", squad(answers=None), {"format": "squad"}, ".qas[0]: 'answers' is not a list: None"),
        ("train.json", squad(), {"format": "squad"}, ": data[0].paragraphs[0].qas[0]: a question without answers"),
        ("train.json", squad(("a", 0), question=""), {"format": "squad"}, ": data[0].paragraphs[0].qas[0]: 'question'"),
        (
            "train.json",
            squad(("Broncos", 5)),
            {"format": "squad"},
            ": 1 of 1 answers are not at their place in the context; the first is that of question q1: 'Broncos' at "
            "character 5, where the context has 'roncos '; correct the file, or set data.misplaced_answers=ignore",
        ),
    ],
)
def test_bad_content_is_named(tmp_path, name, content, fields, problem):
    fields = {"format": name.partition(".")[2]} | fields
    if name == "train.tsv":
        fields |= {"target_feature": "label"}
    with pytest.raises(DataError) as raised:
        features(tmp_path, name, content, **fields)
    assert f"{tmp_path / name}" in str(raised.value)
    assert problem in str(raised.value)


def test_answers_that_are_not_at_their_place_can_be_ignored(tmp_path):
    content = squad(("Broncos", 5), ("Broncos", 4), ("won", -3))
    found = features(tmp_path, "train.json", content, format="squad", misplaced_answers="ignore")
    assert found["answers"] == [["Broncos", "Broncos", "won"]]
    assert found["answer_starts"] == [[-1, 4, -1]]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"format": "conll", "target_feature": "tag"}, r"data\.target_feature='tag': with format='conll', a column is"),
        ({"format": "conllu", "input_feature": "WORD"}, r"a number from 1 to 10, or one of ID, FORM"),
        ({"format": "squad", "input_feature": "context"}, r"data\.input_feature='context' has no effect with format"),
        ({"format": "conll", "second_feature": "2"}, r"data\.second_feature='2' has no effect with format='conll'"),
        ({"label_names": "0=a,0=b"}, r"data\.label_names='0=a,0=b': the label '0' is given twice"),
        ({"label_names": "zero"}, r"expected LABEL=NAME,LABEL=NAME"),
        ({"input_template": "sst2 sentence:"}, r"data\.input_template='sst2 sentence:': expected \{inputs\} in it"),
    ],
)
def test_bad_fields_are_refused(fields, problem):
    with pytest.raises(ConfigError, match=problem):
        ExperimentConfig(data=DataConfig(source="text", dir="x", **fields)).resolved()


def test_labels_as_words_of_a_text_to_text_model(tmp_path):
    """Raffel et al. 2020: the input has a prefix, and the target is the name of the label."""
    fields = {"format": "tsv", "label_names": "0=negative, 1=positive", "input_template": "sst2 sentence: {inputs}"}
    content = "a {second} joy\t1\tx\nbleak\t0\ty\n"
    found = features(tmp_path, "train.tsv", content, **fields)
    assert found["inputs"] == ["sst2 sentence: a {second} joy", "sst2 sentence: bleak"]
    assert found["targets"] == ["positive", "negative"]
    two = fields | {"input_template": "mnli premise: {inputs} hypothesis: {second}.", "second_feature": "3"}
    assert features(tmp_path, "train.tsv", content, **two)["inputs"] == [
        "mnli premise: a {second} joy hypothesis: x.",
        "mnli premise: bleak hypothesis: y.",
    ]
    with pytest.raises(DataError, match=r"no name for the label '2' of split 'train'"):
        features(tmp_path, "train.tsv", "a\t2\n", **fields)
    with pytest.raises(DataError, match=r"has no second text; set data\.second_feature"):
        features(tmp_path, "train.tsv", "a\t1\n", format="tsv", input_template="{inputs} {second}")


def test_the_fingerprint_has_all_that_changes_the_examples(tmp_path):
    content = "0 1\n1 0\n"
    several = [
        {"format": "labelled"},
        {"format": "labelled", "encoding": "latin-1"},
        {"format": "labelled", "coarse_labels": True},
        {"format": "labelled", "label_names": "0=a,1=b"},
        {"format": "labelled", "input_template": "x {inputs}"},
    ]
    digests = [source_of(tmp_path, "train.txt", content, **fields).fingerprint()["sha256"] for fields in several]
    words = "a b c\n"
    digests += [
        source_of(tmp_path, "train.conll", words, format="conll", target_feature=tag).fingerprint()["sha256"]
        for tag in (None, "2")
    ]
    for misplaced in ("error", "ignore"):
        source = source_of(tmp_path, "train.json", squad(("won", 12)), format="squad", misplaced_answers=misplaced)
        digests.append(source.fingerprint()["sha256"])
    assert len({*digests}) == len(digests)


def test_test_sets_of_labelled_files(tmp_path):
    """`evaluate --input=FILE` reads a file in the format of its suffix, as the config says for labelled lines."""
    (tmp_path / "more.conll").write_text("a B-x\n")
    (tmp_path / "more.txt").write_text("x:y text\n")
    config = DataConfig(source="text", dir="nowhere", format="labelled", coarse_labels=True)
    tagged = open_test_set(config, sources.TestFiles("more", str(tmp_path / "more.conll")))
    assert tagged.split("more").features["tags"] == [["B-x"]]
    lines = open_test_set(config, sources.TestFiles("more", str(tmp_path / "more.txt")))
    assert lines.split("more").features == {"inputs": ["text"], "targets": ["x"]}


def test_labels_of_tfds(tmp_path):
    rows = [{"sentence": "a joy", "label": 1, "idx": 0}, {"sentence": "bleak", "label": 0, "idx": 1}]
    unlabelled = [{"sentence": "who knows", "label": -1, "idx": 0}]
    prepare("glue/sst2", tmp_path, {"train": rows, "test": unlabelled})
    fields = {"source": "tfds", "dir": str(tmp_path), "dataset": "glue/sst2", "valid_split": ""}
    named = {"input_feature": "sentence", "target_feature": "label"}
    source = load_source(DataConfig(**fields, **named))
    assert source.split("train").features == {"inputs": ["a joy", "bleak"], "targets": ["positive", "negative"]}
    with pytest.raises(DataError, match=r"example 0 of split 'test', feature 'label': the example has no label \(-1\)"):
        source.split("test")
    with pytest.raises(DataError, match=r"data\.target_feature='idx': this feature .* not a text or a label"):
        load_source(DataConfig(**fields, **named | {"target_feature": "idx"}))
    with pytest.raises(DataError, match=r"data\.input_feature='label': this feature .* not a text; its texts are sent"):
        load_source(DataConfig(**fields, **named | {"input_feature": "label"}))


@pytest.mark.slow
@pytest.mark.parametrize("locales", [("en", "de"), ("de", "fr")])
def test_the_embedded_corpus_has_labels(locales):
    """They follow from its grammar: chunks of words are whole phrases, and answers are phrases too."""
    fields = dict(zip(("source_locale", "target_locale"), locales, strict=True)) | {"num_eval_pairs": 200}
    plain, families, tagged, asked = (
        load_source(DataConfig(num_train_pairs=200, target_feature=name, **fields))
        for name in (None, "families", "phrases", "answers")
    )
    assert len({source.fingerprint()["sha256"] for source in (plain, families, tagged, asked)}) == 4
    for split in plain.split_names:
        sentences = plain.split(split).features
        assert families.split(split).features["targets"] == sentences["families"]
        found = tagged.split(split).features
        for sentence, phrases, words, tags in zip(
            sentences["inputs"], sentences["phrases"], found["words"], found["tags"], strict=True
        ):
            assert "".join(words) == "".join(sentence.split())
            texts = [(chunk.type, "".join(words[chunk.first : chunk.last + 1])) for chunk in chunks(tags)]
            assert texts == [(kind, re.sub(r"\s", "", text)) for kind, text in phrases]
        check_tags(tag for row in found["tags"] for tag in row)
        questions = asked.split(split).features
        columns = (questions[name] for name in ("contexts", "answers", "answer_starts"))
        for context, answers, starts in zip(*columns, strict=True):
            assert context[starts[0] : starts[0] + len(answers[0])] == answers[0]
    with pytest.raises(DataError, match=r"data\.target_feature='phrase': the embedded corpus has families, phrases"):
        load_source(DataConfig(target_feature="phrase"))


def test_labels_that_cannot_be_written_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", train_x=np.zeros((2, 2, 2), np.uint8), train_y=np.array(["a", "b\ud83d"]))
    source = load_source(DataConfig(source="npz", dir=str(tmp_path), valid_split="", test_split=""))
    with pytest.raises(DataError, match=r"the label 'b\\ud83d' cannot be written as UTF-8; give it another name"):
        with_names([LabelColumn("labels", "targets")], None, source, tmp_path / "work")
    assert not (tmp_path / "work").exists()
    with pytest.raises(DataError, match=r"labels\.json is damaged"):
        parse_labels(b'{"labels": ["a", "\\ud83d"]}')
