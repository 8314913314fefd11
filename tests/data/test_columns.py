"""Columns: from the values of a source through the token cache and back."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
from data_support import FakeSource

from transformer_jax.data import token_cache
from transformer_jax.data.columns import (
    ArrayColumn,
    Column,
    EncodedSplit,
    IdsColumn,
    RaggedIds,
    ScalarColumn,
    TextColumn,
)
from transformer_jax.data.sources import Split
from transformer_jax.data.token_cache import open_split
from transformer_jax.data.tokenizers import EncodedTexts, SpecialIds
from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer
from transformer_jax.errors import DataError

TOKENIZER = WordTokenizer(MAGIC + b"a\nb\nc\n")  # ids 4, 5, 6
IMAGES = [np.full((2, 3), n, np.uint8) for n in (0, 1, 7, 255, 4)]
FEATURES = {
    "text": ["a b", "", "c", "b b b", "c a"],
    "ids": [[70_000, 5], [], [1], [], [0, 0, 0]],
    "label": [2, 0, 1, 1, -3],
    "weight": [0.5, 1.0, 2.5, 0.0, 1e-3],
    "image": IMAGES,
}


class LengthColumn(Column):
    """The example of the module's docstring."""

    def encode(self, values, tokenizer):
        return np.array([len(text) for text in values])


class BytesColumn(Column):
    """A custom ragged column."""

    ragged: ClassVar[bool] = True

    def stored_dtype(self, tokenizer):
        return "|u1"

    def encode(self, values, tokenizer):
        rows = [text.encode() for text in values]
        ids = np.frombuffer(b"".join(rows), np.uint8)
        return EncodedTexts(ids, np.cumsum([0, *map(len, rows)]))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(token_cache, "_CHUNK", 2)


@pytest.fixture
def encoded(tmp_path):
    """Open the cache of columns of FEATURES twice: while it is built and when it exists."""

    def open_cache(*columns, features=FEATURES, tokenizer=TOKENIZER):
        sources = [FakeSource(Split(features)) for _ in range(2)]
        first, second = (open_split(tmp_path, source, "train", tokenizer, columns) for source in sources)
        assert sources[1].reads == 0
        for split in (first, second):
            assert split.num_examples == 5
        return second

    return open_cache


def rows_of(split, name):
    lengths = split.lengths(name)
    return [split.take(name, np.array([row]), length)[0].tolist() for row, length in enumerate(lengths.tolist())]


def test_columns_of_every_kind_are_read_as_written(encoded):
    split = encoded(
        TextColumn("inputs", "text"),
        TextColumn("plain", "text", end=False),
        IdsColumn("ids", "ids"),
        ScalarColumn("label", "label"),
        ScalarColumn("weight", "weight", "<f4"),
        ArrayColumn("image", "image", (2, 3)),
        LengthColumn("length", "text"),
        BytesColumn("bytes", "text"),
    )
    assert rows_of(split, "plain") == [[4, 5], [], [6], [5, 5, 5], [6, 4]]
    assert rows_of(split, "inputs") == [[4, 5, 1], [1], [6, 1], [5, 5, 5, 1], [6, 4, 1]]
    assert rows_of(split, "ids") == FEATURES["ids"]
    assert rows_of(split, "bytes") == [list(text.encode()) for text in FEATURES["text"]]
    rows = np.array([3, -1, 0])
    for name, expected in (("label", [1, 0, 2]), ("weight", [0.0, 0.0, 0.5]), ("length", [5, 0, 3])):
        np.testing.assert_array_equal(split.values(name, rows), expected)
    images = split.values("image", rows)
    np.testing.assert_array_equal(images, [IMAGES[3], np.zeros((2, 3)), IMAGES[0]])
    dtypes = {name: split.values(name, rows).dtype.name for name in ("label", "weight", "image", "length")}
    assert dtypes == {"label": "int32", "weight": "float32", "image": "uint8", "length": "int32"}
    assert split.ragged_names == ("inputs", "plain", "ids", "bytes")
    assert split.lengths("inputs").dtype == np.int32
    assert split.take("inputs", rows, 4, pad=9).tolist() == [[5, 5, 5, 1], [9] * 4, [4, 5, 1, 9]]


def test_a_column_without_any_id(encoded):
    split = encoded(IdsColumn("ids", "ids"), features={"ids": [[]] * 5})
    assert rows_of(split, "ids") == [[]] * 5


def test_a_changed_column_is_another_cache(tmp_path):
    class Other(LengthColumn):
        pass

    class NewerOther(Other):
        version = 2

    NewerOther.__qualname__ = Other.__qualname__

    @dataclasses.dataclass(frozen=True)
    class Scaled(Column):
        factor: int = 1

        def encode(self, values, tokenizer):
            return np.array([self.factor * len(text) for text in values])

    column_lists = [
        [LengthColumn("a", "text")],
        [LengthColumn("b", "text")],
        [LengthColumn("a", "other")],
        [Other("a", "text")],
        [NewerOther("a", "text")],
        [Scaled("a", "text")],
        [Scaled("a", "text", factor=2)],
        [LengthColumn("a", "text"), LengthColumn("b", "text")],
        [TextColumn("a", "text")],
        [TextColumn("a", "text", end=False)],
    ]
    source = FakeSource(Split({"text": ["a b"], "other": ["b"]}))
    for _ in range(2):
        for columns in column_lists:
            open_split(tmp_path, source, "train", TOKENIZER, columns)
    assert source.reads == len(column_lists)
    assert len(list(tmp_path.iterdir())) == len(column_lists)


def test_other_special_ids_are_another_cache(tmp_path):
    class Other(WordTokenizer):
        special_ids = SpecialIds(pad=0, eos=2)

    source = FakeSource(Split({"text": ["a b"]}))
    for tokenizer, end in ((TOKENIZER, 1), (Other(TOKENIZER.model_bytes), 2)):
        split = open_split(tmp_path, source, "train", tokenizer, [TextColumn("inputs", "text")])
        assert rows_of(split, "inputs") == [[4, 5, end]]
        assert split.special_ids == tokenizer.special_ids


class Wrong(Column):
    """Returns one row too few."""

    def encode(self, values, tokenizer):
        return np.zeros(len(values) - 1)


class NotRagged(Column):
    ragged: ClassVar[bool] = True

    def encode(self, values, tokenizer):
        return np.zeros(len(values))


class Growing(Column):
    """Returns rows of another width in every chunk."""

    def encode(self, values, tokenizer):
        return np.zeros((len(values), values[0].count("b")), np.int32)


@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        (TextColumn("x", "title"), DataError, "no feature 'title', which column 'x' needs; it has text, ids, label"),
        (ScalarColumn("x", "weight"), DataError, "feature 'weight': 0.5 is not a value of type int32"),
        (ScalarColumn("x", "label", "|u1"), DataError, "feature 'label': -3 is not a value of type uint8"),
        (ScalarColumn("x", "text"), DataError, "feature 'text': expected numbers, got str"),
        (ScalarColumn("x", "image"), DataError, r"feature 'image': a value of shape \[2, 3\], expected \[\]"),
        (ArrayColumn("x", "image", (3, 2)), DataError, r"a value of shape \[2, 3\], expected \[3, 2\]"),
        (ArrayColumn("x", "ids", (2,)), DataError, r"a value of shape \[0\], expected \[2\]"),
        (Wrong("x", "text"), ValueError, "column 'x': encode returned 1 rows for 2 values"),
        (NotRagged("x", "text"), ValueError, "column 'x': encode returned ndarray, expected ids and offsets"),
        (Growing("x", "text"), ValueError, r"rows of shape \(0,\) after rows of shape \(1,\)"),
    ],
)
def test_values_and_columns_that_do_not_fit(encoded, tmp_path, column, error, message):
    with pytest.raises(error, match=message):
        encoded(column)
    assert list(tmp_path.iterdir()) == []


def test_an_eos_that_the_tokenizer_lacks(encoded):
    class Endless(WordTokenizer):
        special_ids = SpecialIds(pad=0)

    tokenizer = Endless(TOKENIZER.model_bytes)
    with pytest.raises(DataError, match="the tokenizer has no id for 'eos'"):
        encoded(TextColumn("inputs", "text"), tokenizer=tokenizer)
    assert rows_of(encoded(TextColumn("inputs", "text", end=False), tokenizer=tokenizer), "inputs")[0] == [4, 5]


def test_names_of_columns(encoded):
    with pytest.raises(ValueError, match="column name 'a/b': expected letters"):
        TextColumn("a/b", "text")
    with pytest.raises(ValueError, match=r"columns with different names, got \['a', 'a'\]"):
        encoded(TextColumn("a", "text"), LengthColumn("a", "text"))


def test_a_split_knows_its_kinds():
    ragged = RaggedIds(np.array([4, 5]), np.array([0, 1, 2]))
    split = EncodedSplit({"ids": ragged, "label": np.array([1, 2])}, SpecialIds())
    with pytest.raises(TypeError, match="column 'label' is not ragged"):
        split.lengths("label")
    with pytest.raises(TypeError, match="column 'ids' is ragged"):
        split.values("ids", np.array([0]))
    with pytest.raises(ValueError, match=r"equal length, got \{'ids': 2, 'label': 3\}"):
        EncodedSplit({"ids": ragged, "label": np.arange(3)}, SpecialIds())
    with pytest.raises(ValueError, match=r"equal length, got \{'a': 1, 'b': 2\}"):
        Split({"a": [1], "b": [1, 2]})
