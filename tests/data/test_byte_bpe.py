"""Tests of byte-level BPE alone."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tokenizer_support import TEXTS, encode, trained

from transformer_jax.data.tokenizers import load_tokenizer, train_tokenizer
from transformer_jax.errors import DataError

UNK_ID = 2


@pytest.fixture(scope="module")
def tokenizer():
    return trained("byte_bpe")


def changed(tokenizer, change):
    model = json.loads(tokenizer.model_bytes)
    change(model)
    return json.dumps(model).encode()


def test_the_smallest_vocabulary_is_the_bytes():
    tokenizer = train_tokenizer(TEXTS, "byte_bpe", 260)
    text = "aß漢 </s>"
    assert len(encode(tokenizer, text)) == len(text.encode())
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_no_space_is_put_in_front(tokenizer):
    with_space, without = encode(tokenizer, " over").tolist(), encode(tokenizer, "over").tolist()
    assert with_space != without
    assert tokenizer.decode(without) == "over"


def test_names_of_reserved_ids_are_never_tokens():
    """However often they are in the training text."""
    names = ["<pad>", "</s>", "<unk>", "<s>"]
    tokenizer = train_tokenizer([*TEXTS, *[" ".join(names * 50), "".join(names * 50)] * 20], "byte_bpe", 360)
    for name in names:
        ids = encode(tokenizer, name)
        assert len(ids) > 1
        assert ids.min() > UNK_ID + 1
        assert tokenizer.decode(ids) == name


def test_bytes_that_are_not_utf8(tokenizer):
    first_of_two = encode(tokenizer, "ß")[:1]
    assert tokenizer.decode(first_of_two) in ("\ufffd", "ß")
    assert tokenizer.decode(encode(tokenizer, "漢")[:1]) == "\ufffd"


@pytest.mark.parametrize("threads", ["1", "3"])
def test_training_does_not_depend_on_threads_or_process(tokenizer, threads):
    code = "from tokenizer_support import trained; print(trained('byte_bpe').sha256)"
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.strip() == tokenizer.sha256


def test_a_process_started_meanwhile_prints_nothing(tokenizer, capfd):
    tokenizer.encode_batch(TEXTS)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert capfd.readouterr().err == ""


def test_other_reserved_ids_are_refused(tokenizer):
    def swap(model):
        vocabulary = model["model"]["vocab"]
        vocabulary["<pad>"], vocabulary["<s>"] = 3, 0
        for token in model["added_tokens"]:
            token["id"] = vocabulary[token["content"]]

    with pytest.raises(DataError, match=r"\(3, 1, 2, 0\), expected \(0, 1, 2, 3\)"):
        load_tokenizer(changed(tokenizer, swap))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("pre_tokenizer", {"type": "Whitespace"}, "BPE after Whitespace, expected BPE after ByteLevel"),
        ("pre_tokenizer", None, "BPE after NoneType"),
        ("model", {"type": "WordLevel", "vocab": {"<pad>": 0}, "unk_token": "<pad>"}, "WordLevel after ByteLevel"),
        ("model", {"type": "Strange"}, "not a model of byte-level BPE"),
    ],
)
def test_other_models_are_refused(tokenizer, part, value, message):
    with pytest.raises(DataError, match=message):
        load_tokenizer(changed(tokenizer, lambda model: model.update({part: value})))


def test_other_json_and_text_are_refused():
    for data in (b"{}", b"{", b'{"version":"1.0"}', b"{\xff"):
        with pytest.raises(DataError, match=f"tokenizer: {len(data)} bytes are not a model of byte-level BPE"):
            load_tokenizer(data)


def test_offsets_of_texts_without_tokens(tokenizer):
    ids, offsets = tokenizer.encode_batch(["", "a", "", ""])
    assert offsets.tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_array_equal(ids, encode(tokenizer, "a"))
