"""Tests of WordPiece alone: BERT's rules, vocabularies of others, and training."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from tokenizer_support import TEXTS, encode, trained

from transformer_jax.data.tokenizers import AddedTokens, SpecialIds, load_tokenizer, train_tokenizer
from transformer_jax.data.tokenizers.word_piece import OWN_IDS, WordPieceTokenizer, read_word_piece
from transformer_jax.errors import ConfigError, DataError

# The vocabulary of tokenization_test.py in google-research/bert, whose vectors follow.
PIECES = ["[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ","]


@pytest.fixture
def read(tmp_path):
    """A function from the pieces of a vocab.txt to its tokenizer."""

    def tokenizer(pieces, lower_case=True):
        (tmp_path / "vocab.txt").write_text("\n".join([*pieces, ""]), encoding="utf-8")
        return read_word_piece(tmp_path / "vocab.txt", 999, lower_case)

    return tokenizer


def tokens(tokenizer, text):
    return tokenizer.tokens(encode(tokenizer, text))


def divided(read, text, expected, lower_case=True):
    """Whether the words of a text are the expected ones: each is a piece, and no other is."""
    return tokens(read(["[UNK]", "[CLS]", "[SEP]", *sorted({*expected})], lower_case), text) == expected


def test_vector_full_tokenizer(read):
    tokenizer = read(PIECES)
    assert tokens(tokenizer, "UNwant\u00e9d,running") == ["un", "##want", "##ed", ",", "runn", "##ing"]
    assert encode(tokenizer, "UNwant\u00e9d,running").tolist() == [7, 4, 5, 10, 8, 9]


def test_vector_chinese(read):
    assert divided(read, "ah\u535a\u63a8zz", ["ah", "\u535a", "\u63a8", "zz"])


def test_vector_lower(read):
    assert divided(read, " \tHeLLo!how  \n Are yoU?  ", ["hello", "!", "how", "are", "you", "?"])
    assert divided(read, "H\u00e9llo", ["hello"])


def test_vector_no_lower(read):
    text = " \tHeLLo!how  \n Are yoU?  "
    assert divided(read, text, ["HeLLo", "!", "how", "Are", "yoU", "?"], lower_case=False)


def test_vector_wordpiece(read):
    tokenizer = read(PIECES[:-1], lower_case=False)
    assert tokens(tokenizer, "") == []
    assert tokens(tokenizer, "unwanted running") == ["un", "##want", "##ed", "runn", "##ing"]
    assert tokens(tokenizer, "unwantedX running") == ["[UNK]", "runn", "##ing"]


def test_vector_ids(read):
    assert encode(read(PIECES[:-1]), "unwanted running").tolist() == [7, 4, 5, 8, 9]


@pytest.mark.parametrize("space", [" ", "\t", "\r", "\n", "\u00a0"])
def test_vector_white_space(read, space):
    assert divided(read, f"a{space}b", ["a", "b"])


def test_vector_control_characters(read):
    assert divided(read, "a\u0005b\0c\ufffdd", ["abcd"])


@pytest.mark.parametrize("mark", ["-", "$", "`", "."])
def test_vector_punctuation(read, mark):
    assert divided(read, f"a{mark}A", ["a", mark, "a"])


def test_a_word_of_more_than_a_hundred_characters(read):
    tokenizer = read([*PIECES, "a", "##a"])
    assert tokens(tokenizer, "a" * 100) == ["a", *["##a"] * 99]
    assert tokens(tokenizer, "a" * 101) == ["[UNK]"]


def test_special_ids_and_names_in_a_text(read):
    tokenizer = read([*PIECES, "[MASK]", "[PAD]", "[", "]", "mask"])
    assert tokenizer.special_ids == SpecialIds(pad=12, eos=2, unk=0, bos=1, mask=11, cls=1, sep=2)
    assert tokens(tokenizer, "[MASK]") == ["[", "mask", "]"]
    without = read(PIECES)
    assert (without.special_ids.pad, without.special_ids.mask) == (None, None)
    assert trained("wordpiece").special_ids == OWN_IDS


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        ("i don't want (a) [b]!", "i don't want (a) [b]!"),
        ("unwanted , a - b", "unwanted, a - b"),
        ("'a' b; c", "' a'b [UNK] [UNK]"),
    ],
)
def test_decoding(read, text, decoded):
    tokenizer = read([*PIECES, "i", "don", "t", "'", *"()[]!-ab"])
    assert tokenizer.decode([1, *encode(tokenizer, text).tolist(), 2, 3]) == decoded


def test_places_of_tokens(read):
    """They are those of the text, although letters and accents change; added tokens change nothing."""
    text = "A\u0301a \tUNwant\u00e9d,\u0005want"
    tokenizer = read([*PIECES, "aa"])
    for given in (tokenizer, AddedTokens(tokenizer, ["<extra_id_0>"])):
        found = given.encode_spans([text, ""])
        assert tokenizer.tokens(found.ids) == ["aa", "un", "##want", "##ed", ",", "want"]
        words = [text[a:b] for a, b in found.spans]
        assert [word.strip("\u0301") for word in words] == ["A\u0301a", "UN", "want", "\u00e9d", ",", "want"]
        assert found.offsets.tolist() == [0, 6, 6]


@pytest.mark.parametrize("threads", ["1", "3"])
def test_training_does_not_depend_on_threads_or_process(threads):
    code = "from tokenizer_support import trained; print(trained('wordpiece').sha256)"
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert out.stdout.strip() == trained("wordpiece").sha256


def test_training_merges_the_most_frequent_pair():
    # 4 x ab and 3 x xbc: the first merge is a + ##b, the second ##b + ##c, the third x + ##bc.
    texts = ["Ab ab AB xbc ab xbc xBC"]
    tokenizer = train_tokenizer(texts, "wordpiece", 12)
    assert tokenizer.tokens(range(5, 12)) == ["##b", "##c", "a", "x", "ab", "##bc", "xbc"]
    cased = train_tokenizer(texts, "wordpiece_cased", 19)
    assert (tokenizer.lower_case, cased.lower_case) == (True, False)
    assert {"##B", "##C", "A"} < {*cased.tokens(range(19))}


def test_rare_characters_leave_half_of_the_vocabulary_to_merges():
    rare = "".join(map(chr, range(0x3B1, 0x3C9)))
    texts = [*TEXTS, *(f"{a}{b}" for a, b in zip(rare, rare[::-1], strict=True))]
    tokenizer = train_tokenizer(texts, "wordpiece", 105)
    names = tokenizer.tokens(range(105))
    assert sum(len(name.removeprefix("##")) == 1 for name in names) == 50
    assert tokens(tokenizer, f"{rare[0]}{rare[-1]} ing")[0] == "[UNK]"
    assert "[UNK]" not in tokens(tokenizer, "the ing")


def test_files_of_others(tmp_path, read):
    plain = read(PIECES)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "vocab.txt.gz").write_bytes(gzip.compress("\r\n".join([*PIECES, ""]).encode()))
    assert read_word_piece(folder, 11).sha256 == plain.sha256
    assert read_word_piece(folder, 12).vocab_size == 11
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(ConfigError, match=r"data\.tokenizer=wordpiece: .*; set data\.tokenizer=wordpiece_cased"):
        read_word_piece(folder, 11)
    assert tokens(read_word_piece(folder, 11, lower_case=False), "Unwanted want") == ["[UNK]", "want"]
    (folder / "tokenizer.json").write_bytes(plain.model_bytes)  # the settings change its letters
    assert not read_word_piece(folder, 11, lower_case=False).lower_case
    (folder / "tokenizer_config.json").unlink()
    assert read_word_piece(folder, 11).sha256 == plain.sha256
    assert load_tokenizer(plain.model_bytes).sha256 == plain.sha256
    model = json.loads(plain.model_bytes)
    del model["model"]["type"]  # as in older files
    assert isinstance(load_tokenizer(json.dumps(model).encode()), WordPieceTokenizer)


def test_strip_accents_and_chinese_characters_are_settings(tmp_path):
    pieces = ["[UNK]", "[CLS]", "[SEP]", "\u00e9", "e", "\u535a\u63a8"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    settings = {"strip_accents": False, "tokenize_chinese_chars": False, "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert encode(read_word_piece(tmp_path, 6), "\u00c9 E \u535a\u63a8").tolist() == [3, 4, 5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b"[UNK]\n[CLS]\n[SEP]\na\nb\na\n", "it has 'a' in line 4 and line 6"),
        (b"[UNK]\n\n[CLS]\n", "line 2 is empty"),
        (b"[CLS]\n[SEP]\na\n", r"the vocabulary has no \[UNK\]$"),
        (b"[UNK]\na\n", r"the vocabulary has no \[CLS\] and no \[SEP\]"),
        (b"[UNK]\n\xff\n", "it is not UTF-8"),
    ],
)
def test_bad_vocabularies(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError, match=rf"data\.vocabulary_file: .*: {message}"):
        read_word_piece(tmp_path / "vocab.txt", 99)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt.gz", b"[UNK]", "cannot read"),
        ("vocab.txt.gz", gzip.compress(b"[UNK]" * 99, mtime=0)[:20], "cannot read"),
        ("tokenizer.json", b"{}", "2 bytes are not a model of WordPiece"),
        ("tokenizer.json", trained("byte_bpe").model_bytes, "not a model of WordPiece"),
        ("tokenizer.json", trained("wordpiece").model_bytes.replace(b"[SEP]", b"[ZZZ]"), r"has no \[SEP\]"),
        ("tokenizer_config.json", b"{", "has no tokenizer.json and no vocab.txt"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"data\.vocabulary_file: .*{message}"):
        read_word_piece(tmp_path, 999)


def test_bad_settings_and_missing_files(tmp_path):
    with pytest.raises(DataError, match=r"data\.vocabulary_file: cannot read .*absent\.txt"):
        read_word_piece(tmp_path / "absent.txt", 99)
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES))
    with pytest.raises(ConfigError, match=r"model\.vocab_size=10: .*vocab\.txt has 11 ids"):
        read_word_piece(tmp_path / "vocab.txt", 10)
    for text, message in (("{", "is not JSON"), ("[]", "holds no object")):
        (tmp_path / "tokenizer_config.json").write_text(text)
        with pytest.raises(DataError, match=rf"tokenizer_config\.json {message}"):
            read_word_piece(tmp_path / "vocab.txt", 99)
