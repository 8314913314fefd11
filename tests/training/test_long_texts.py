"""A run that would leave out many of its training examples is refused, with values that fit."""

import logging

import numpy as np
import pytest

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.config.task import SOURCE_TO_TARGET
from transformer_jax.data.batching import BatchPlan, TooLongError, left_out
from transformer_jax.data.packing import PackedPlan
from transformer_jax.errors import DataError
from transformer_jax.training.long_texts import all_too_long, check_long_texts


def config(task="classification", model=None, **data):
    architecture = "encoder_decoder" if task in SOURCE_TO_TARGET else "encoder_only"
    sizes = {"architecture": architecture, "max_length": 16, "position_encoding": "sinusoidal"} | (model or {})
    labels = {} if task in SOURCE_TO_TARGET else {"num_labels": 2}
    return ExperimentConfig(
        model=ModelConfig(**sizes),
        data=DataConfig(**{"max_length": 16, "tokens_per_batch": 256} | data),
        task=TaskConfig(name=task, **labels),
    ).resolved()


def plan(config, lengths):
    data = config.data
    sizes = {"inputs": np.asarray(lengths, np.int32)}
    common = {"tokens_per_batch": data.tokens_per_batch, "max_length": data.max_length, "seed": 0}
    common["row_multiple"] = data.row_multiple
    if data.batching == "packed":
        return PackedPlan(sizes, lambda *_: {}, packed_length=data.packed_length, **common)
    return BatchPlan(sizes, lambda *_: {}, num_buckets=2, **common)


def lengths(long, of=1000, tokens=40):
    return [8] * (of - long) + [tokens] * long


@pytest.mark.parametrize(("long", "level"), [(0, None), (9, None), (10, "warning"), (100, "warning"), (101, "error")])
def test_the_share_decides(caplog, long, level):
    given = config()
    if level == "error":
        with pytest.raises(DataError, match="101 of 1,000 training examples"):
            check_long_texts(given, plan(given, lengths(long)))
        return
    with caplog.at_level(logging.WARNING):
        check_long_texts(given, plan(given, lengths(long)))
    assert ("are left out" in caplog.text) == (level == "warning")


def test_drop_long_trains_without_them(caplog):
    given = config(drop_long=True)
    check_long_texts(given, plan(given, lengths(900)))
    assert (
        "900 of 1,000 training examples (90 %) have more tokens than data.max_length=16 and are left out" in caplog.text
    )


CASES = {
    "labels are cut": ({}, "data.cut_texts=true cuts them at their end; 99 % of them fit with data.max_length=40 (the"),
    "cut already": ({"cut_texts": True}, "left out; 99 % of them fit with data.max_length=40 (the"),
    "learned positions": (
        {"model": {"position_encoding": "learned"}},
        "data.max_length=40 model.max_length=40 (the longest has 40 tokens)",
    ),
    "packed": (
        {"task": "translation", "batching": "packed", "packed_length": 32},
        "data.max_length=40 data.packed_length=40 (the longest",
    ),
    "a batch": ({"row_multiple": 8}, "data.max_length=40 data.tokens_per_batch=320 (the longest has 40 tokens)"),
    "summaries": ({"task": "text_to_text"}, "would be left out; 99 % of them fit with data.max_length=40"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_has_values_that_fit(name):
    fields, expected = CASES[name]
    given = config(**{"row_multiple": 4} | fields)
    with pytest.raises(DataError) as error:
        check_long_texts(given, plan(given, lengths(500)))
    assert expected in str(error.value)
    assert str(error.value).endswith("data.drop_long=true trains without them")


@pytest.mark.parametrize("batching", [{}, {"task": "translation", "batching": "packed", "packed_length": 16}])
def test_the_values_of_the_error_do_fit(batching):
    """A plan with the fields that the error names leaves out 1 % at most."""
    sizes = np.random.default_rng(0).integers(8, 300, 2000).tolist()
    given = config(model={"position_encoding": "learned"}, **batching)
    with pytest.raises(DataError) as error:
        check_long_texts(given, plan(given, sizes))
    fields = dict(word.split("=") for word in str(error.value).split(" fit with ")[1].split(" (the")[0].split())
    named = {name.partition(".")[2]: int(value) for name, value in fields.items() if name.startswith("data.")}
    model = {"position_encoding": "learned", "max_length": int(fields["model.max_length"])}
    remedied = config(model=model, **batching | named)
    assert 0 < plan(remedied, sizes).left_out.count <= 20


def test_all_are_too_long():
    given = config()
    with pytest.raises(TooLongError) as error:
        plan(given, [40] * 100)
    message = str(all_too_long(given, error.value))
    assert message.startswith("all 100 training examples are longer than data.max_length=16; data.cut_texts=true")
    assert "data.max_length=40" in message


def test_what_is_left_out():
    longer = left_out(np.arange(1, 101), np.ones(100, int), 90)
    assert longer == (10, 100, 100)
    assert left_out(np.ones(100, int), np.arange(1, 101), 100).count == 0
