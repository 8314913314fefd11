"""`data.text_lists`: JSON lines whose input is a list of sentences and whose target is a list of references."""

import json
from dataclasses import replace

import pytest

from transformer_jax.config import DataConfig, ExperimentConfig, TaskConfig
from transformer_jax.data import sources
from transformer_jax.data.sources import load_source, open_test_set
from transformer_jax.data.sources.inputs import input_file
from transformer_jax.errors import ConfigError, DataError

ONE = {"source": ["First. ", " ", "\nSecond one"], "target": [" a summary", "another"], "title": "t"}
TWO = {"source": " A single text. Of two. ", "target": "its summary "}
FEATURES = {
    "inputs": ["First. Second one", "A single text. Of two."],
    "targets": ["a summary", "its summary"],
    "sentences": [["First.", "Second one"], ["A single text.", "Of two."]],
    "references": [["a summary", "another"], ["its summary"]],
}
TASK = TaskConfig(name="text_to_text")
KEYS = {"input_feature": "source", "target_feature": "target"}


def config(folder, **fields):
    values = {"source": "text", "dir": str(folder), "format": "jsonl", "valid_split": "", "test_split": ""}
    return DataConfig(**values | KEYS | {"text_lists": True} | fields)


def write(path, *objects):
    path.write_text("".join(f"{json.dumps(value)}\n" for value in objects))
    return path


def test_sentences_and_references(tmp_path):
    write(tmp_path / "train.jsonl", ONE, TWO)
    source = load_source(config(tmp_path))
    assert source.split("train").features == FEATURES
    assert [chunk.num_examples for chunk in source.chunks("train", 1)] == [1, 1] == [1] * source.num_examples("train")
    unpaired = load_source(config(tmp_path, target_feature="")).split("train")
    assert unpaired.features == {name: FEATURES[name] for name in ("inputs", "sentences")}


def test_single_texts_are_as_without_the_field(tmp_path):
    """A file without lists has the same inputs and targets, also where a target is a number."""
    write(tmp_path / "train.jsonl", {"source": "a b", "target": "c"}, {"source": "d", "target": 1})
    plain, lists = (load_source(config(tmp_path, text_lists=value)).split("train").features for value in (False, True))
    assert plain == {"inputs": ["a b", "d"], "targets": ["c", "1"]}
    assert lists == plain | {"sentences": [["a b"], ["d"]], "references": [["c"], ["1"]]}


def test_the_fingerprint_changes_only_with_the_field(tmp_path):
    write(tmp_path / "train.jsonl", TWO)
    lists, plain = (load_source(config(tmp_path, text_lists=value)) for value in (True, False))
    assert lists._format.key == ["jsonl ['source', 'target'] False", "text_lists"]
    assert plain._format.key == lists._format.key[:1]
    assert lists.fingerprint() != plain.fingerprint()


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [
        ([], "a", "'source' is an empty list"),
        ([" ", ""], "a", "'source' is a list of empty texts"),
        (["a", 7, "b"], "a", "'source': text 2 of 3 is int, not text"),
        (["a", None], "a", "'source': text 2 of 2 is NoneType, not text"),
        (["a", ["b"]], "a", "'source': text 2 of 2 is list, not text"),
        (["a\0"], "a", "'source': text 1 of 1 has the character U+0000, which is not text"),
        (" ", "a", "'source' is empty"),
        ({"a": 1}, "a", "'source' is dict, not text"),
        (7, "a", "'source' is int, not text"),
        ("a", [], "'target' is an empty list"),
        ("a", ["b", " ", "c"], "'target': reference 2 of 3 is empty"),
        ("a", ["", ""], "'target': reference 1 of 2 is empty"),
        ("a", ["b", 1], "'target': reference 2 of 2 is int, not text"),
        ("a", ["b", 0.5], "'target': reference 2 of 2 is a number, 0.5, and not text"),
        ("a", " ", "'target' is empty"),
    ],
)
def test_bad_lists_are_named(tmp_path, source, target, problem):
    path = write(tmp_path / "train.jsonl", ONE, {"source": source, "target": target})
    with pytest.raises(DataError) as raised:
        load_source(config(tmp_path)).split("train")
    assert str(raised.value).startswith(f"{path}, line 2: {problem}")


@pytest.mark.parametrize(("key", "value"), [("source", ONE["source"]), ("target", ONE["target"])])
def test_a_list_without_the_field_names_it(tmp_path, key, value):
    write(tmp_path / "train.jsonl", TWO | {key: value})
    remedy = "is a list; for lists of sentences and of references set data.text_lists=true"
    with pytest.raises(DataError, match=f"line 1: '{key}' {remedy}"):
        load_source(config(tmp_path, text_lists=False)).split("train")


def test_files_of_inputs(tmp_path):
    """`predict` and `generate` need no targets; a bad line keeps its place."""
    path = write(tmp_path / "a.jsonl", {"source": ONE["source"]}, {"source": []}, {"source": TWO["source"]})
    file = input_file(config(tmp_path), str(path), ["jsonl"], None)
    assert [found.value for found in file.inputs()] == [FEATURES["inputs"][0], None, FEATURES["inputs"][1]]
    assert [found.problem for found in file.inputs()] == [None, "'source' is an empty list", None]
    plain = input_file(config(tmp_path, text_lists=False), str(path), ["jsonl"], None)
    assert "set data.text_lists=true" in (next(plain.inputs()).problem or "")
    assert plain.key == ["jsonl", "source", None, "utf-8"]
    assert file.key == [*plain.key, "text_lists"]


def test_a_test_set_keeps_its_references(tmp_path):
    path = write(tmp_path / "more.jsonl", ONE, TWO)
    found = open_test_set(config("nowhere"), sources.TestFiles("more", str(path))).split("more")
    assert found.features == FEATURES
    unpaired = open_test_set(config("nowhere"), sources.TestFiles("more", str(path), columns=("title", "target")))
    with pytest.raises(DataError, match="line 2: no key 'title'"):
        unpaired.split("more")


def test_a_template_changes_the_inputs_alone(tmp_path):
    write(tmp_path / "train.jsonl", ONE, TWO)
    found = load_source(config(tmp_path, input_template="summarize: {inputs}")).split("train")
    assert found.features == FEATURES | {"inputs": [f"summarize: {text}" for text in FEATURES["inputs"]]}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"second_feature": "title"}, r"data\.second_feature='title' cannot be used with text_lists=true"),
        ({"label_names": "a=b"}, r"data\.label_names='a=b' cannot be used with text_lists=true"),
        ({"coarse_labels": True}, r"data\.coarse_labels=True cannot be used with text_lists=true"),
        ({"format": "tsv"}, r"data\.text_lists=True has no effect with format='tsv', only with 'jsonl'"),
        ({"format": "parallel"} | dict.fromkeys(KEYS), r"data\.text_lists=True has no effect with format='parallel'"),
    ],
)
def test_fields_that_do_not_go_with_lists(tmp_path, fields, problem):
    with pytest.raises(ConfigError, match=problem):
        ExperimentConfig(task=TASK, data=replace(config(tmp_path), **fields)).resolved()
    with pytest.raises(ConfigError, match=r"data\.text_lists=True has no effect with task.name='translation'"):
        ExperimentConfig(data=config(tmp_path)).resolved()
    ExperimentConfig(task=TASK, data=config(tmp_path)).resolved()
