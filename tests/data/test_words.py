"""Tests of word tokenizers alone: word boundaries, losses, and vocabularies as papers distribute them."""

import re

import pytest
from tokenizer_support import encode

from transformer_jax.data.tokenizers import load_tokenizer, train_tokenizer
from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer, read_vocabulary
from transformer_jax.errors import ConfigError, DataError

UNK_ID = 2


def words(*names):
    return WordTokenizer(MAGIC + "".join(f"{name}\n" for name in names).encode())


@pytest.fixture
def vocabulary(tmp_path):
    """Read a vocabulary file with the given bytes."""

    def read(content, vocab_size):
        path = tmp_path / "dict.txt"
        path.write_bytes(content)
        return read_vocabulary(path, vocab_size)

    return read


def test_ids_follow_the_list():
    tokenizer = words("ein", "Hund@@", "e")
    assert encode(tokenizer, "Hund@@ e ein").tolist() == [5, 6, 4]
    assert tokenizer.decode([5, 6, 4]) == "Hund@@ e ein"


def test_unknown_words_are_unk():
    tokenizer = words("ein")
    assert encode(tokenizer, "ein Hund ein EIN").tolist() == [4, UNK_ID, 4, UNK_ID]
    assert tokenizer.decode([4, UNK_ID, 4]) == "ein <unk> ein"


def test_names_of_reserved_ids_in_text_are_unknown_words():
    assert encode(words("ein"), "<pad> </s> <s> <unk>").tolist() == [UNK_ID] * 4


@pytest.mark.parametrize("space", [" ", "   ", "\t", "\u00a0", "\u2028", "\u3000", "\r", "\x85", "\x1f"])
def test_every_space_divides(space):
    tokenizer = words("a", "b")
    assert encode(tokenizer, f"{space}a{space}b{space}").tolist() == [4, 5]
    assert tokenizer.decode([4, 5]) == "a b"


@pytest.mark.parametrize("character", ["\u200b", "\ufeff", "\u00ad"])
def test_other_characters_do_not_divide(character):
    assert encode(words(f"a{character}b", "a"), f"a{character}b").tolist() == [4]


def test_only_spaces():
    assert encode(words("a"), " \t\u00a0").tolist() == []


def test_the_most_frequent_words_are_taken_and_ties_are_sorted():
    tokenizer = train_tokenizer(["b b c", "c a d <unk> <unk> <unk> </s>"], "words", 7)
    assert tokenizer.model_bytes == MAGIC + b"b\nc\na\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\nb", "damaged or incomplete"),
        (b"", "damaged or incomplete"),
        (b"a\xff\n", "not UTF-8"),
        (b"a\nb\na\n", "'a' twice"),
        (b"a\n\nb\n", "'' in the list of words is not one word"),
        (b"a b\n", "'a b' in the list of words is not one word"),
        (b"</s>\n", "'</s>' in the list of words is not one word"),
    ],
)
def test_damaged_lists(data, message):
    with pytest.raises(DataError, match=f"tokenizer: .*{message}"):
        load_tokenizer(MAGIC + data)


@pytest.mark.parametrize(
    "content",
    [
        "der\nHund@@\nist\n",
        "der 123\nHund@@ 7\nist 1\n",
        "der\t123\nHund@@\t7\nist\t1",
        "\ufeffder 9\r\nHund@@ 8\r\n\r\nist 7\r\n",
        "<s>\n<pad> 0\n</s>\n<unk> 5\nder\nHund@@ \nist\n\n",
    ],
)
def test_vocabularies_as_papers_distribute_them(vocabulary, content):
    tokenizer = vocabulary(content.encode(), 7)
    assert tokenizer.model_bytes == MAGIC + b"der\nHund@@\nist\n"


def test_words_that_are_numbers_have_counts_too(vocabulary):
    assert vocabulary(b"3 17\n17 3\n", 6).decode([4, 5]) == "3 17"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("a b", "'a b'"),
        ("a 1 2", "'a 1 2'"),
        ("a 1 #fairseq:overwrite", "overwrite"),
        ("\u00a0 12", r"\\xa0 12"),  # the space counts as a word, without a count
        ("a\u2028b 12", r"\\u2028b 12"),
    ],
)
def test_lines_that_are_not_words(vocabulary, line, shown):
    with pytest.raises(DataError, match=rf"data\.vocabulary_file: .*dict\.txt, line 2: .*{shown}.* is neither a word"):
        vocabulary(f"der\n{line}\n".encode(), 6)


def test_bad_vocabularies(vocabulary, tmp_path):
    with pytest.raises(DataError, match=r"dict\.txt has 'a' in line 1 and line 4"):
        vocabulary(b"a 3\nb 2\n\na 1\n", 7)
    with pytest.raises(DataError, match=r"dict\.txt is not UTF-8"):
        vocabulary(b"a\n\xff\n", 6)
    with pytest.raises(DataError, match=r"dict\.txt has no words"):
        vocabulary(b"<s>\n\n", 4)
    assert vocabulary(b"a\nb\n", 9).vocab_size == 6
    with pytest.raises(ConfigError, match=r"model\.vocab_size=5: .*dict\.txt has 2 words; .* that makes 6"):
        vocabulary(b"a\nb\n", 5)
    with pytest.raises(DataError, match=rf"data\.vocabulary_file: cannot read {re.escape(str(tmp_path / 'no'))}"):
        read_vocabulary(tmp_path / "no", 6)
