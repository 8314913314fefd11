"""Tests of byte-level BPE alone."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from tokenizer_support import TEXTS, encode, trained

from transformer_jax.data.tokenizers import load_tokenizer, train_tokenizer
from transformer_jax.data.tokenizers.byte_bpe import read_byte_bpe
from transformer_jax.data.tokenizers.tokenizer import SpecialIds
from transformer_jax.errors import ConfigError, DataError

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


def test_special_ids_are_found_by_their_names(tokenizer):
    def swap(model):
        vocabulary = model["model"]["vocab"]
        vocabulary["<pad>"], vocabulary["<s>"] = 3, 0
        for token in model["added_tokens"]:
            token["id"] = vocabulary[token["content"]]

    assert load_tokenizer(changed(tokenizer, swap)).special_ids == SpecialIds(pad=3, eos=1, unk=2, bos=0)


def test_a_model_without_an_end_of_sequence_is_refused(tokenizer):
    def remove(model):
        model["added_tokens"] = [token for token in model["added_tokens"] if token["content"] != "</s>"]

    with pytest.raises(DataError, match=r"special tokens \(<pad>, <unk>, <s>\) is an end-of-sequence: </s>"):
        load_tokenizer(changed(tokenizer, remove))


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


@pytest.fixture
def gpt2_files(tmp_path):
    """A vocabulary in GPT-2's files: the 256 bytes in its order, two merges, and its only special token."""
    alphabet = [chr(c) for c in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    alphabet += [chr(256 + k) for k in range(256 - len(alphabet))]
    words = [*alphabet, "th", "Ġth", "<|endoftext|>"]
    (tmp_path / "encoder.json.gz").write_bytes(gzip.compress(json.dumps({w: i for i, w in enumerate(words)}).encode()))
    (tmp_path / "vocab.bpe").write_text("#version: 0.2\nt h\nĠ th\n", encoding="utf-8")
    return tmp_path


def test_the_files_of_gpt2(gpt2_files):
    tokenizer = read_byte_bpe(gpt2_files, 259)
    ids = encode(tokenizer, "the thé")
    space, t, h, e = 220, 83, 71, 68  # as in GPT-2's own vocabulary
    assert ids.tolist() == [256, e, 257, 127 - 33 + 0xC3 - 161 - 1, 127 - 33 + 0xA9 - 161]
    assert tokenizer.decode(ids) == "the thé"
    assert encode(tokenizer, " t h").tolist() == [space, t, space, h]
    assert tokenizer.special_ids == SpecialIds(eos=258, bos=258)
    assert encode(tokenizer, "<|endoftext|>").max() < 256  # a text cannot contain the end
    assert tokenizer.decode([256, 258, 256]) == "th"


def test_a_tokenizer_json(gpt2_files, tmp_path):
    first = read_byte_bpe(gpt2_files, 259)
    (tmp_path / "tokenizer.json").write_bytes(first.model_bytes)
    second = read_byte_bpe(tmp_path / "tokenizer.json", 259)
    assert (second.sha256, second.special_ids) == (first.sha256, first.special_ids)
    assert load_tokenizer(second.model_bytes).special_ids == first.special_ids


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: (folder / "vocab.bpe").unlink(), r"the folder has no vocab\.bpe or vocab\.bpe\.gz; expected "),
        (lambda folder: (folder / "vocab.bpe").write_text("x y\n"), "are not a vocabulary of byte-level BPE"),
        (lambda folder: (folder / "encoder.json.gz").write_bytes(gzip.compress(b"[")), "are not a vocabulary"),
        (lambda folder: (folder / "encoder.json.gz").write_bytes(gzip.compress(b"{}" * 999)[:20]), "cannot read"),
        (lambda folder: (folder / "vocab.bpe").write_bytes(b"\xff"), "are not a vocabulary"),
    ],
)
def test_damaged_files_of_gpt2(gpt2_files, spoil, problem):
    spoil(gpt2_files)
    with pytest.raises(DataError, match=r"data\.vocabulary_file: .*" + problem):
        read_byte_bpe(gpt2_files, 259)


def test_a_vocabulary_of_another_size(gpt2_files):
    assert read_byte_bpe(gpt2_files, 300).vocab_size == 259
    with pytest.raises(ConfigError, match=r"model\.vocab_size=258: .* has 259 ids"):
        read_byte_bpe(gpt2_files, 258)
