"""Tokenizers: lossless, deterministic, and clear about what they cannot do."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer_jax.data import tokenizers
from transformer_jax.data.tokenizers import load_tokenizer, read_tokenizer, train_tokenizer, write_tokenizer
from transformer_jax.errors import ConfigError, DataError


def sentences(syllables):
    """300 lines of words that share syllables, so that there is something to learn."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(syllables.split(), random.integers(2, 4))) for _ in range(150)]
    return [" ".join(random.choice(words, 7)) for _ in range(300)]


INPUTS = sentences("ing the ous tion ed re con ment ly un king ship ter per ball dis ance for est ward")
TARGETS = sentences("keit schaft der ung los bar ver ent zu isch heim lich mäß burg sch ein auf wald über nis")


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request):
    return train_tokenizer(INPUTS, TARGETS, request.param, 360, 1000)


def encode(tokenizer, text):
    return tokenizer.encode_batch([text]).ids


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
    ],
)
def test_round_trip_is_lossless(tokenizer, text):
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert not np.isin(ids, [PAD_ID, EOS_ID, UNK_ID, BOS_ID]).any()


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="▁")))
def test_round_trip_of_any_text(text):
    tokenizer = train_once()
    assert tokenizer.decode(encode(tokenizer, text)) == text


def train_once(cache=[]):  # noqa: B006 - hypothesis refuses function-scoped fixtures
    if not cache:
        cache.append(train_tokenizer(INPUTS, TARGETS, "unigram", 360, 1000))
    return cache[0]


def test_the_one_lossy_character_becomes_a_space(tokenizer):
    assert tokenizer.decode(encode(tokenizer, "a▁b")) == "a b"


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_training_twice_gives_identical_bytes(model_type):
    first, second = (train_tokenizer(INPUTS, TARGETS, model_type, 360, 1000) for _ in range(2))
    assert first.model_bytes == second.model_bytes
    assert first.sha256 == second.sha256
    other = train_tokenizer(INPUTS, TARGETS, model_type, 361, 1000)
    assert other.sha256 != first.sha256


def test_vocabulary_is_exactly_as_large_as_asked(tokenizer):
    assert tokenizer.vocab_size == 360


def test_the_vocabulary_is_joint():
    joint, inputs_only, targets_only = (
        train_tokenizer(*sides, "bpe", 360, 1000) for sides in ((INPUTS, TARGETS), (INPUTS, INPUTS), (TARGETS, TARGETS))
    )
    for side, other in ((INPUTS, targets_only), (TARGETS, inputs_only)):
        assert len(joint.encode_batch(side).ids) < 0.9 * len(other.encode_batch(side).ids)


def test_batch_equals_one_by_one(tokenizer):
    texts = [*INPUTS, "", *TARGETS]  # enough for several threads
    ids, offsets = tokenizer.encode_batch(texts)
    assert ids.dtype == np.int32
    assert offsets.tolist()[0] == 0
    assert len(offsets) == len(texts) + 1
    for i, text in enumerate(texts):
        np.testing.assert_array_equal(ids[offsets[i] : offsets[i + 1]], encode(tokenizer, text))


def test_no_texts(tokenizer):
    ids, offsets = tokenizer.encode_batch([])
    assert (ids.tolist(), offsets.tolist()) == ([], [0])
    assert tokenizer.decode_batch([]) == []


def test_decoding_stops_at_eos_and_skips_pad_and_bos(tokenizer):
    dog, cats = encode(tokenizer, "old dog").tolist(), encode(tokenizer, "cats").tolist()
    assert tokenizer.decode([BOS_ID, *dog, EOS_ID, *cats]) == "old dog"
    rows = np.full((2, 30), PAD_ID, np.int32)
    rows[0, : len(dog)] = dog
    rows[1, : len(cats) + 1] = [*cats, EOS_ID]
    assert tokenizer.decode_batch(rows) == ["old dog", "cats"]


def test_training_pairs_are_spread_over_the_corpus():
    lines = list(tokenizers._training_lines([f"s{i}" for i in range(10)], [f"t{i}" for i in range(10)], 4))
    assert lines == ["s0", "t0", "s2", "t2", "s5", "t5", "s7", "t7"]
    assert len(list(tokenizers._training_lines(["a"] * 3, ["b"] * 3, 100))) == 6


def test_long_lines_train_like_short_ones():
    """SentencePiece by itself leaves out lines of more than 4,192 bytes."""
    words = " ".join(["Donaudampfschifffahrt"] * 2000)
    tokenizer = train_tokenizer([*INPUTS, words], [*TARGETS, words], "unigram", 360, 1000)
    assert len(encode(tokenizer, "Donaudampfschifffahrt")) <= 3


def test_lines_with_a_block_character_train_like_others():
    """SentencePiece by itself leaves out lines with U+2585."""
    words = ["▅ Donaudampfschifffahrt ▅"] * 400
    tokenizer = train_tokenizer([*INPUTS, *words], [*TARGETS, *words], "bpe", 360, 1000)
    assert len(encode(tokenizer, "Donaudampfschifffahrt")) <= 3


def test_a_million_characters_without_a_space():
    tokenizer = train_tokenizer([*INPUTS, "a" * 1_000_000], [*TARGETS, "b" * 1_000_000], "unigram", 360, 1000)
    text = "ab" * 500_000
    assert tokenizer.decode(encode(tokenizer, text)) == text


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_too_large_a_vocabulary_names_the_largest(model_type):
    with pytest.raises(ConfigError, match=r"model\.vocab_size=50000: .* at most \d+ pieces") as error:
        train_tokenizer(INPUTS, TARGETS, model_type, 50_000, 1000)
    largest = int(re.search(r"at most (\d+)", str(error.value))[1])
    assert train_tokenizer(INPUTS, TARGETS, model_type, largest, 1000).vocab_size == largest
    with pytest.raises(ConfigError, match=str(largest)):
        train_tokenizer(INPUTS, TARGETS, model_type, largest + 1, 1000)


@pytest.mark.parametrize("vocab_size", [8, 261])
def test_too_small_a_vocabulary_names_the_smallest(vocab_size):
    with pytest.raises(ConfigError, match=rf"model\.vocab_size={vocab_size}: .* at least \d+: 256 bytes") as error:
        train_tokenizer(INPUTS, TARGETS, "bpe", vocab_size, 1000)
    smallest = int(re.search(r"at least (\d+)", str(error.value))[1])
    assert train_tokenizer(INPUTS, TARGETS, "bpe", smallest, 1000).vocab_size == smallest


@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_nothing_to_train_on(texts):
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(texts, texts, "unigram", 360, 1000)


def test_training_is_quiet(capfd):
    train_tokenizer(INPUTS, TARGETS, "unigram", 360, 1000)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_loading_gives_the_same_tokenizer(tokenizer):
    loaded = load_tokenizer(tokenizer.model_bytes)
    assert loaded.sha256 == tokenizer.sha256
    np.testing.assert_array_equal(encode(loaded, INPUTS[7]), encode(tokenizer, INPUTS[7]))


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b"garbage", lambda b: b[: len(b) // 2]])
def test_damaged_bytes(tokenizer, damage, tmp_path, capfd):
    with pytest.raises(DataError, match="tokenizer"):
        load_tokenizer(damage(tokenizer.model_bytes))
    (tmp_path / "tokenizer.model").write_bytes(damage(tokenizer.model_bytes))
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "tokenizer.model"))):
        read_tokenizer(tmp_path / "tokenizer.model")
    assert capfd.readouterr().err == ""


def test_other_reserved_ids_are_refused():
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(INPUTS), model_writer=model, vocab_size=60, minloglevel=2
    )
    with pytest.raises(DataError, match=r"expected \(0, 1, 2, 3\)"):
        load_tokenizer(model.getvalue())


def test_file_round_trip(tokenizer, tmp_path):
    path = tmp_path / "new" / "tokenizer.model"
    write_tokenizer(path, tokenizer)
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

    monkeypatch.setattr(tokenizers.os, "fsync", full)
    with pytest.raises(DataError, match=f"{re.escape(str(tmp_path))}.*No space left"):
        write_tokenizer(path, tokenizer)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"tokenizer.model": b"old"}
