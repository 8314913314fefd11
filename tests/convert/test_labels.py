"""Labels of config.json, as tables of keys; no model."""

import time

import pytest

from transformer_jax.config import TaskConfig
from transformer_jax.convert.families import CLASSES
from transformer_jax.convert.folder_config import read_task
from transformer_jax.convert.labels import label_keys, labels_of_config
from transformer_jax.errors import CheckpointError, ConfigError

TEXT, TAGS, IMAGE = (
    next(family for family in CLASSES if family.class_name == name)
    for name in ("BertForSequenceClassification", "BertForTokenClassification", "ViTForImageClassification")
)
HEADS = [TEXT, TAGS, IMAGE]
BASES = [family for family in CLASSES if family.lacks and family.has_labels]


@pytest.mark.parametrize("family", HEADS, ids=lambda family: family.class_name)
@pytest.mark.parametrize(
    ("keys", "rows", "names", "ignored"),
    [
        ({"id2label": {"0": "no", "1": "yes", "2": "?"}}, 3, ("no", "yes", "?"), {}),
        ({"id2label": {"2": "c", "1": "b", "0": "a"}, "label2id": {"a": 0, "c": 2, "b": 1}}, 3, ("a", "b", "c"), {}),
        ({"id2label": {"0": 5, "1": 3}, "label2id": {"5": "0"}, "num_labels": 2}, 2, ("5", "3"), {}),
        ({}, 2, ("LABEL_0", "LABEL_1"), {}),
        ({"id2label": None, "num_labels": None}, 2, ("LABEL_0", "LABEL_1"), {}),
        ({"num_labels": 3}, 3, ("LABEL_0", "LABEL_1", "LABEL_2"), {}),
        ({"id2label": {"0": "a", "1": "a"}, "label2id": {"a": 1}}, 2, ("a", "a (1)"), {"id2label"}),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"LABEL_0": 0}}, 2, ("a", "b"), {"label2id"}),
        ({"problem_type": "single_label_classification"}, 2, ("LABEL_0", "LABEL_1"), {}),
    ],
)
def test_labels_that_are_read(family, keys, rows, names, ignored):
    found = labels_of_config(family, keys, rows, "x")
    assert (found.names, {*found.ignored}) == (names, {*ignored})
    assert read_task(family, len(found.names)).num_labels == rows


BAD = [
    ({"id2label": {"0": "a", "2": "c"}}, 2, "id2label has 2 names, the largest id 2, and no name for 1"),
    ({"id2label": {"1": "a", "2": "c"}}, 2, "no name for 0"),
    ({"id2label": {"a": "0", "b": "1"}}, 2, "id2label has the key 'a', expected an id"),
    ({"id2label": {"-1": "a", "0": "b"}}, 2, "id2label has the key '-1', expected an id"),
    ({"id2label": {"0": "a", "00": "b"}}, 2, "id2label has the id 0 twice"),
    ({"id2label": {"0": "a", "1": None}}, 2, "id2label has the name None for the id 1, expected a text"),
    ({"id2label": ["a", "b"]}, 2, r"id2label=['a', 'b']: expected an object of ids and names"),
    ({"id2label": {}}, 2, "id2label={}: expected an object of ids and names"),
    ({"id2label": {"0": "a", "1": "b"}}, 3, "id2label has 2 labels, but the head has 3 rows"),
    ({}, 3, "num_labels has 2 labels, but the head has 3 rows"),
    ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, 2, "label2id has 1 for 'a', but id2label has 0"),
    ({"id2label": {"0": "a", "1": "b"}, "label2id": {"b": None}}, 2, "label2id has None for 'b', but id2label has 1"),
    ({"id2label": {"0": "a", "1": "b"}, "label2id": ["a"]}, 2, "label2id=['a']: expected an object"),
    ({"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, 2, "num_labels=3: id2label has 2 names"),
    *(({"num_labels": count}, 2, f"num_labels={count!r}: expected an integer") for count in (0, -1, 2.0, True, "2")),
]


@pytest.mark.parametrize("family", HEADS, ids=lambda family: family.class_name)
@pytest.mark.parametrize(("keys", "rows", "message"), BAD)
def test_labels_that_contradict_are_refused(family, keys, rows, message):
    with pytest.raises(CheckpointError) as raised:
        labels_of_config(family, keys, rows, "x")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("keys", "rows", "message"),
    [
        (
            {"problem_type": "regression"},
            2,
            "problem_type='regression': transformer_jax has only heads",
        ),
        (
            {"problem_type": "multi_label_classification"},
            2,
            "problem_type='multi_label_classification': transformer_jax has only heads",
        ),
        ({"problem_type": ["regression"]}, 2, "problem_type=['regression']: transformer_jax has only heads"),
        ({"num_labels": 1}, 1, "one label: transformers takes such a head for regression"),
        ({"id2label": {"0": "score"}}, 1, "one label: transformers takes such a head for regression"),
    ],
)
def test_heads_that_are_no_softmax(keys, rows, message):
    """transformers reads no kind of problem for tags, and base models have no trained head."""
    for family in (TEXT, IMAGE):
        with pytest.raises(CheckpointError) as raised:
            labels_of_config(family, keys, rows, "x")
        assert message in str(raised.value)
    assert len(labels_of_config(TAGS, keys, rows, "x").names) == rows
    for family in BASES:
        assert len(labels_of_config(family, keys, None, "x").names) == rows


def test_many_labels_take_no_time():
    names = {str(id): f"name {id}" for id in range(100_000)}
    start = time.monotonic()
    assert len(labels_of_config(IMAGE, {"id2label": names}, 100_000, "x").names) == 100_000
    same = {str(id): "one" for id in range(20_000)}
    assert len({*labels_of_config(IMAGE, {"id2label": same}, 20_000, "x").names}) == 20_000
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("family", HEADS, ids=lambda family: family.class_name)
def test_labels_that_are_written(family):
    name = family.tasks[0]
    keys = label_keys(family, TaskConfig(name=name, num_labels=2), ("b", "a"))
    kind = {"problem_type": "single_label_classification"} if name == "classification" else {}
    assert keys == {"id2label": {"0": "b", "1": "a"}, "label2id": {"b": 0, "a": 1}, **kind}
    assert labels_of_config(family, keys, 2, "x") == (("b", "a"), {})
    for labels in (("a",), ("a", "a")):
        with pytest.raises(ConfigError, match=r"expected 2 different names, as task\.num_labels says"):
            label_keys(family, TaskConfig(name=name, num_labels=2), labels)
    one = TaskConfig(name=name, num_labels=1)
    if name == "tagging":
        assert label_keys(family, one, ())["id2label"] == {"0": "LABEL_0"}
        return
    with pytest.raises(
        ConfigError, match=r"task\.num_labels=1: transformers takes a \w+ with one label for regression"
    ):
        label_keys(family, one, ())
