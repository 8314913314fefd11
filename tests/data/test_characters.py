"""Tests of the tokenizers of characters and of bytes alone."""

import re

import pytest
from tokenizer_support import encode

from transformer_jax.data.tokenizers import load_tokenizer, train_tokenizer
from transformer_jax.data.tokenizers.characters import CHARACTERS_MAGIC, CharTokenizer
from transformer_jax.errors import ConfigError, DataError

UNK_ID = 2


def test_characters_are_in_the_order_of_their_code_points():
    tokenizer = train_tokenizer(["b\na é😀", "aaa"], "char", 10)
    assert tokenizer.tokens(range(4, 10)) == ["\\n", "▁", "a", "b", "é", "😀"]
    assert encode(tokenizer, "a\n😀b").tolist() == [6, 4, 9, 7]
    assert tokenizer.decode([6, 4, 9, 7]) == "a\n😀b"


def test_rare_characters_are_left_out():
    tokenizer = train_tokenizer(["aabbc"], "char", 6)
    assert encode(tokenizer, "abc~").tolist() == [4, 5, UNK_ID, UNK_ID]
    assert tokenizer.decode([4, UNK_ID]) == "a<unk>"


def test_bytes():
    tokenizer = train_tokenizer(["x"], "byte", 260)
    assert encode(tokenizer, "Aé").tolist() == [4 + 65, 4 + 0xC3, 4 + 0xA9]
    assert tokenizer.tokens([4 + 65, 4 + 32, 4 + 10, 4 + 0xC3]) == ["A", "▁", "\\n", "<C3>"]
    assert tokenizer.decode([4 + 65, 4 + 0xC3, 4 + 65]) == "A\ufffdA"


def test_bytes_that_are_no_utf8_are_kept():
    tokenizer = train_tokenizer(["x"], "byte", 260)
    text = b"a\xffb".decode("utf-8", "surrogateescape")
    assert encode(tokenizer, text).tolist() == [4 + 97, 4 + 0xFF, 4 + 98]
    assert tokenizer.encode_spans([text]).spans.tolist() == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.parametrize("vocab_size", [256, 259, 261])
def test_bytes_have_one_size(vocab_size):
    with pytest.raises(ConfigError, match=rf"model\.vocab_size={vocab_size}: .* has 260 ids"):
        train_tokenizer(["x"], "byte", vocab_size)


@pytest.mark.parametrize(
    "content",
    [b"", b'"ab"', b'"ba"\n', b'"aa"\n', b'["a"]\n', b'""\n', b'"a\n', b"1\n", b'"\xff"\n'],
)
def test_damaged_lists_of_characters(content):
    with pytest.raises(DataError, match=re.escape("the list of characters is damaged")):
        load_tokenizer(CHARACTERS_MAGIC + content)


def test_damaged_bytes():
    with pytest.raises(DataError, match="the model of bytes is damaged"):
        load_tokenizer(b"bytes\nx")


def test_the_list_survives_storage():
    tokenizer = train_tokenizer(["x\u2028\0é😀"], "char", 9)
    assert CharTokenizer(tokenizer.model_bytes).tokens(range(9)) == tokenizer.tokens(range(9))


def test_characters_without_an_id_are_named(caplog):
    train_tokenizer(["aaab", "aac"], "char", 5)
    assert caplog.messages == [
        "model.vocab_size=5: 2 of 3 different characters get no id and are read as <unk>; they make up 29 % of the "
        "training text"
    ]
    caplog.clear()
    train_tokenizer(["aaab", "aac"], "char", 7)
    assert not caplog.messages
