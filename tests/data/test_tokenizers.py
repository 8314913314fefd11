"""Tests for every kind of tokenizer: exact, deterministic, and clear errors."""

import functools
import hashlib
import itertools
import os
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_support import INPUTS, SIZES, TARGETS, TEXTS, encode, trained
from tokenizers.normalizers import BertNormalizer

from transformer_jax.config import DataConfig
from transformer_jax.data.tokenizers import (
    AddedTokens,
    Tokenizer,
    load_tokenizer,
    read_tokenizer,
    train_tokenizer,
    write_tokenizer,
)
from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer
from transformer_jax.data.tokenizers.word_piece import WordPieceTokenizer
from transformer_jax.errors import ConfigError, DataError

KINDS = DataConfig.__dataclass_fields__["tokenizer"].metadata["choices"]
WORD_PIECE = ("wordpiece", "wordpiece_cased")
LOSSLESS = [kind for kind in KINDS if kind not in ("words", "char", *WORD_PIECE)]
TRAINED = [kind for kind in KINDS if kind != "byte"]
RESERVED_IDS = [0, 1, 2, 3]

once = functools.cache(trained)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def tokenizer(kind):
    return once(kind)


def test_every_kind_of_the_config_is_tested():
    assert set(KINDS) == set(SIZES)


def test_is_a_tokenizer(kind, tokenizer):
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.vocab_size == SIZES[kind]
    assert tokenizer.sha256 == hashlib.sha256(tokenizer.model_bytes).hexdigest()


@pytest.mark.parametrize(
    "text",
    [
        "ingship  conball, 3 Cats!",
        "two  spaces   and three",
        " leading",
        "trailing ",
        "   ",
        "",
        "tab\tnewline\nreturn\rnul\0line separator\u2028end",
        "emoji 🤷🏽\u200d♀️, unseen 漢字, ½ … ﬁ Å a\u0301 no-break\u00a0space",
        "<s> </s> <pad> <unk> <0x41> ⁇ ▅ \ufeff",
        "</s></s>x<pad>y<unk>",
    ],
)
@pytest.mark.parametrize("kind", LOSSLESS)
def test_round_trip_is_lossless(kind, text):
    ids = encode(once(kind), text)
    assert once(kind).decode(ids) == text
    assert once(kind).decode_batch([ids.tolist()]) == [text]
    assert not np.isin(ids, RESERVED_IDS).any()


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="▁")))
@pytest.mark.parametrize("kind", LOSSLESS)
def test_round_trip_of_any_text(kind, text):
    assert once(kind).decode(encode(once(kind), text)) == text


def test_round_trip_of_the_training_text(kind, tokenizer):
    texts = INPUTS if kind == "wordpiece" else TEXTS  # it writes letters without accents
    known = [text for text in texts if tokenizer.special_ids.unk not in encode(tokenizer, text)]
    ids, offsets = tokenizer.encode_batch(known)
    assert tokenizer.decode_batch([ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]) == known
    assert len(known) > 20


def test_training_twice_gives_identical_bytes(kind, tokenizer):
    again = trained(kind)
    assert again.model_bytes == tokenizer.model_bytes
    assert again.sha256 == tokenizer.sha256


@pytest.mark.parametrize("kind", TRAINED)
def test_another_size_is_another_tokenizer(kind):
    assert train_tokenizer(TEXTS, kind, SIZES[kind] - 1).sha256 != once(kind).sha256


@pytest.mark.parametrize("kind", [kind for kind in TRAINED if kind != "char"])
def test_the_vocabulary_covers_all_texts(kind):
    joint, inputs_only, targets_only = (
        train_tokenizer(texts, kind, SIZES[kind] if kind != "words" else 140) for texts in (TEXTS, INPUTS, TARGETS)
    )
    for side, other in ((INPUTS, targets_only), (TARGETS, inputs_only)):
        if kind == "words":
            unknown = [
                (tokenizer.encode_batch(side).ids == tokenizer.special_ids.unk).mean() for tokenizer in (joint, other)
            ]
            assert unknown[0] < 0.9 < unknown[1]
        else:
            assert len(joint.encode_batch(side).ids) < 0.9 * len(other.encode_batch(side).ids)


def test_batch_equals_one_by_one(tokenizer):
    texts = [*INPUTS, "", *TARGETS]  # enough for several threads
    ids, offsets = tokenizer.encode_batch(texts)
    assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
    assert offsets.tolist()[0] == 0
    assert offsets.tolist()[-1] == len(ids)
    assert len(offsets) == len(texts) + 1
    for i, text in enumerate(texts):
        np.testing.assert_array_equal(ids[offsets[i] : offsets[i + 1]], encode(tokenizer, text))
    assert ids.max() < tokenizer.vocab_size


def test_no_texts(tokenizer):
    ids, offsets = tokenizer.encode_batch([])
    assert (ids.tolist(), offsets.tolist()) == ([], [0])
    assert (ids.dtype, offsets.dtype) == (np.int32, np.int64)
    assert tokenizer.decode_batch([]) == []
    assert tokenizer.decode([]) == ""
    assert encode(tokenizer, "").tolist() == []


def test_decoding_stops_at_eos_and_skips_pad_and_bos(tokenizer):
    special = tokenizer.special_ids
    texts = [text for text in TEXTS if special.unk not in encode(tokenizer, text)][:2]
    one, two = (encode(tokenizer, text).tolist() for text in texts)
    assert tokenizer.decode([special.bos, *one, special.eos, *two]) == texts[0]
    rows = np.full((4, 1 + max(len(one), len(two))), special.pad, np.int32)
    rows[0, : len(one)] = one
    rows[1, : len(two) + 1] = [*two, special.eos]
    rows[2, 0] = special.eos
    assert tokenizer.decode_batch(rows) == [*texts, "", ""]


def test_unk_is_visible_in_text(tokenizer):
    """A model may generate it, whether or not it was in the training data."""
    assert tokenizer.decode([tokenizer.special_ids.unk]).strip() in ("<unk>", "⁇", "[UNK]")


@pytest.mark.parametrize("kind", TRAINED)
def test_too_large_a_vocabulary_names_the_largest(kind):
    with pytest.raises(ConfigError, match=r"model\.vocab_size=50000: .* at most \d+") as error:
        train_tokenizer(TEXTS, kind, 50_000)
    largest = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train_tokenizer(TEXTS, kind, largest).vocab_size == largest
    with pytest.raises(ConfigError, match=str(largest)):
        train_tokenizer(TEXTS, kind, largest + 1)


@pytest.mark.parametrize(
    ("kind", "vocab_size"),
    [("bpe", 8), ("bpe", 261), ("byte_bpe", 8), ("byte_bpe", 259), ("words", 4), ("char", 4), ("wordpiece", 6)],
)
def test_too_small_a_vocabulary_names_the_smallest(kind, vocab_size):
    with pytest.raises(ConfigError, match=rf"model\.vocab_size={vocab_size}: .* at least \d+: ") as error:
        train_tokenizer(TEXTS, kind, vocab_size)
    smallest = int(re.search(r"at least (\d+)", str(error.value))[1])
    tokenizer = train_tokenizer(TEXTS, kind, smallest)
    assert tokenizer.vocab_size == smallest
    if kind in LOSSLESS:
        assert tokenizer.decode(encode(tokenizer, INPUTS[0])) == INPUTS[0]


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_nothing_to_train_on(kind, texts):
    with pytest.raises(DataError, match=r"no (text|words)"):
        train_tokenizer(texts, kind, SIZES[kind])


@pytest.mark.parametrize("kind", TRAINED)
def test_an_error_while_reading_the_texts_is_raised(kind):
    def texts():
        yield from TEXTS
        raise DataError("line 601 is bad")

    with pytest.raises(DataError, match="line 601 is bad"):
        train_tokenizer(texts(), kind, SIZES[kind])


def test_training_is_quiet(kind, capfd):
    trained(kind)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_million_characters_without_a_space(kind):
    tokenizer = train_tokenizer([*TEXTS, "a" * 1_000_000, "b" * 1_000_000], kind, SIZES[kind])
    text = "ab" * 500_000
    assert kind not in (*LOSSLESS, "char") or tokenizer.decode(encode(tokenizer, text)) == text


def test_loading_gives_the_same_tokenizer(tokenizer):
    loaded = load_tokenizer(tokenizer.model_bytes)
    assert type(loaded) is type(tokenizer)
    assert loaded.model_bytes == tokenizer.model_bytes
    assert loaded.vocab_size == tokenizer.vocab_size
    for text in (INPUTS[7], "</s> <pad>"):
        np.testing.assert_array_equal(encode(loaded, text), encode(tokenizer, text))


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b"garbage", lambda b: b[: len(b) // 2 + 1], lambda b: b[:1], lambda b: b[1:]]
)
def test_damaged_bytes(tokenizer, damage, tmp_path, capfd):
    damaged = damage(tokenizer.model_bytes)
    if damaged.endswith(b"\n"):
        damaged = damaged[:-1]
    with pytest.raises(DataError, match="tokenizer"):
        load_tokenizer(damaged)
    (tmp_path / "tokenizer.model").write_bytes(damaged)
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "tokenizer.model"))):
        read_tokenizer(tmp_path / "tokenizer.model")
    assert capfd.readouterr().err == ""


def test_file_round_trip(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    write_tokenizer(path, tokenizer)
    assert path.read_bytes() == tokenizer.model_bytes
    assert read_tokenizer(path).sha256 == tokenizer.sha256
    assert [p.name for p in path.parent.iterdir()] == ["tokenizer.model"]


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"absent\.model"):
        read_tokenizer(tmp_path / "absent.model")


def test_a_full_disk_keeps_the_old_file(tokenizer, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(b"old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=f"{re.escape(str(tmp_path))}.*No space left"):
        write_tokenizer(path, tokenizer)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"tokenizer.model": b"old"}


def test_tokens_are_named_one_by_one(kind, tokenizer):
    special = tokenizer.special_ids
    text = "ingship conball"
    if kind == "words":
        text = next(t for t in TEXTS if special.unk not in encode(tokenizer, t))
    ids = encode(tokenizer, text)
    tokens = tokenizer.tokens(ids)
    assert len(tokens) == len(ids)
    if kind in ("words", *WORD_PIECE):
        assert " ".join(tokens).replace(" ##", "") == text
    else:
        assert "".join(tokens).replace("▁", " ").lstrip(" ") == text
    named = tokenizer.tokens(id for id in (special.pad, special.eos, special.unk, special.bos))
    assert named == (["[PAD]", "[SEP]", "[UNK]", "[CLS]"] if kind in WORD_PIECE else ["<pad>", "</s>", "<unk>", "<s>"])
    assert len(set(tokenizer.tokens(range(tokenizer.vocab_size)))) == tokenizer.vocab_size


# Characters of tokens.

SPAN_TEXTS = [
    "",
    "   ",
    " ingship  conball,\tdis\u2028tance\nfor",
    "emoji 🤷🏽\u200d♀️, unseen 漢字, ½ … ﬁ Å a\u0301 no-break\u00a0space",
    "</s> <pad>[MASK]<extra_id_0> \u2581",
]


def check_spans(tokenizer, texts):
    encoded, found = tokenizer.encode_batch(texts), tokenizer.encode_spans(texts)
    np.testing.assert_array_equal(found.ids, encoded.ids)
    np.testing.assert_array_equal(found.offsets, encoded.offsets)
    assert (found.spans.dtype, found.spans.shape) == (np.int32, (len(found.ids), 2))
    for i, text in enumerate(texts):
        rows = slice(found.offsets[i], found.offsets[i + 1])
        starts, ends = found.spans[rows].T
        assert (starts >= 0).all()
        assert (starts <= ends).all()
        assert (ends <= len(text)).all()
        assert (np.diff(starts) >= 0).all()
        for token, start, end in zip(tokenizer.tokens(found.ids[rows]), starts, ends, strict=True):
            assert carries(tokenizer, token, text[start:end]), (text, token, start, end)
    return found


def carries(tokenizer, token, part):
    """Return whether a part of a text can be that of a token. One byte of a character has the span of all of them."""
    if token in ("<unk>", "[UNK]"):
        return part != ""
    token = token.removeprefix("##").replace("▁", " ")
    if isinstance(tokenizer, WordPieceTokenizer):
        part = BertNormalizer(lowercase=tokenizer.lower_case).normalize_str(part)
    part = part.strip() or part
    if len(part) == 1 or token.strip() in (part, ""):
        return True
    return isinstance(tokenizer, ByteBPETokenizer) and ends_within_characters(token, part)


_AS_THEMSELVES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _AS_THEMSELVES]
BYTES = {chr(byte): byte for byte in _AS_THEMSELVES} | {chr(256 + n): byte for n, byte in enumerate(_OTHERS)}
"""The byte of every character of GPT-2's alphabet of bytes."""


def ends_within_characters(token, part):
    """Return whether the bytes of a token are some of the text's, at least one of every character of it."""
    if not part or not BYTES.keys() >= {*token}:
        return False
    stored, whole = bytes(BYTES[character] for character in token), part.encode()
    first, last = len(part[0].encode()), len(whole) - len(part[-1].encode())
    return any(whole[at:].startswith(stored) and at + len(stored) > last for at in range(first))


@pytest.mark.parametrize("kind", KINDS)
def test_spans_of_odd_texts(kind):
    for tokenizer in (once(kind), AddedTokens(once(kind), ["<extra_id_0>"])):
        check_spans(tokenizer, SPAN_TEXTS)
        check_spans(tokenizer, [])


@settings(max_examples=25, deadline=None)
@given(text=st.text(st.characters(blacklist_categories=["Cs"])))
@pytest.mark.parametrize("kind", KINDS)
def test_spans_of_any_text(kind, text):
    check_spans(once(kind), [text, "ingship " + text])


def test_spans_together_are_the_text(kind, tokenizer):
    """All but spaces; of words that the tokenizer knows."""
    for text in INPUTS[:20]:
        spans = check_spans(tokenizer, [text]).spans.tolist()
        assert "".join(text[a:b] for a, b in sorted({*map(tuple, spans)})).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("kind", ["unigram", "bpe", "byte_bpe", "byte", "char"])
def test_all_bytes_of_a_character_have_its_span(kind):
    tokenizer, text = once(kind), "a 漢é🤷"
    spans = tokenizer.encode_spans([text]).spans.tolist()
    assert [span for span in spans if text[slice(*span)].strip()] == [
        span
        for place, count in ((0, 1), (2, 3), (3, 2), (4, 4))
        for span in [[place, place + 1]] * (1 if kind == "char" else count)
    ]
