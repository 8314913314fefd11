"""Columns of an example, which encode the values of a source as arrays, and splits stored as such arrays.

A task names its columns. A source has features, lists of values such as texts; a column reads one feature and encodes
its values, either as rows of ids of different lengths (ragged) or as one array of a fixed shape per example. The token
cache stores these arrays. For a new column, write a subclass with a method `encode`:

    class LengthColumn(Column):
        def encode(self, values, tokenizer):
            return np.array([len(text) for text in values])
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from transformer_jax.data.tokenizers.token_kinds import TokenKinds
from transformer_jax.data.tokenizers.tokenizer import EncodedTexts, SpecialIds, Tokenizer
from transformer_jax.errors import DataError


class BadValueError(DataError):
    """A value that a column cannot hold. index: the place of its example among those that were encoded together."""

    def __init__(self, index: int, problem: str) -> None:
        super().__init__(problem)
        self.index = index


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclasses.dataclass(frozen=True)
class Column(abc.ABC):
    """The encoding of one feature of a source.

    A subclass with parameters is a frozen dataclass too; JSON must be able to hold their values. Raises ValueError if
    the name is not an identifier, since it becomes part of file names.
    """

    name: str
    """Name of the column in `EncodedSplit`."""
    feature: str
    """Name of the source's feature that it encodes."""
    ragged: ClassVar[bool] = False
    """Whether `encode` returns rows of ids of different lengths."""
    version: ClassVar[int] = 1
    """Increase it when `encode` changes: caches of another version are not read."""
    trains_tokenizer: ClassVar[bool] = False
    """Whether a tokenizer is trained on the texts of this column, `training_text`."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"column name {self.name!r}: expected letters, digits and underscores")

    @property
    def key(self) -> dict[str, Any]:
        """Return the properties of the column that its stored values depend on, as values for JSON."""
        cls = type(self)
        return {"class": f"{cls.__module__}:{cls.__qualname__}", "version": cls.version, **dataclasses.asdict(self)}

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return the NumPy type of the stored values."""
        return "<i4"

    def training_text(self, value: Any) -> str:
        """Return the text of a value, on which a tokenizer is trained; here the value, which is a text."""
        return value

    @abc.abstractmethod
    def encode(self, values: Sequence[Any], tokenizer: Tokenizer) -> EncodedTexts | np.ndarray:
        """Return the values of some examples: ids with their offsets if `ragged`, otherwise an array [examples, ...].

        The token cache stores them as `stored_dtype`, and refuses other values.

        Raises: DataError for values that the column cannot hold.
        """


@dataclasses.dataclass(frozen=True)
class TextColumn(Column):
    """Texts as ids of the tokenizer, each followed by the end-of-sequence id if `end`.

    side: `source` for texts that an encoder reads, whose tokenizer may be another; see `Tokenizer.source`.
    """

    end: bool = True
    side: Literal["source", "target"] = "target"
    ragged: ClassVar[bool] = True
    trains_tokenizer: ClassVar[bool] = True

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return uint16 if the vocabulary is small enough, otherwise int32."""
        return "<u2" if self._chosen(tokenizer).vocab_size <= 1 << 16 else "<i4"

    def encode(self, values: Sequence[str], tokenizer: Tokenizer) -> EncodedTexts:
        """Return the ids. Raises DataError if `end` and the tokenizer has no end-of-sequence id."""
        tokenizer = self._chosen(tokenizer)
        ids, offsets = tokenizer.encode_batch(values)
        if not self.end:
            return EncodedTexts(ids, offsets)
        eos = tokenizer.special_ids.required("eos")
        # Every row is longer by its eos, and begins later by the number of rows before it.
        return EncodedTexts(np.insert(ids, offsets[1:], eos), offsets + np.arange(len(offsets)))

    def _chosen(self, tokenizer: Tokenizer) -> Tokenizer:
        return tokenizer.source if self.side == "source" else tokenizer


@dataclasses.dataclass(frozen=True)
class PrefixedTextColumn(TextColumn):
    """Texts with the same text in front of each, `prefix`, and before it the beginning of a text if `start`."""

    prefix: str = ""
    start: bool = False

    def training_text(self, value: Any) -> str:
        """Return the text with its prefix."""
        return self.prefix + value

    def encode(self, values: Sequence[str], tokenizer: Tokenizer) -> EncodedTexts:
        """Return the ids. Raises DataError as in `TextColumn`, and if `start` and the tokenizer has no such id."""
        ids, offsets = super().encode([self.prefix + value for value in values], tokenizer)
        if not self.start:
            return EncodedTexts(ids, offsets)
        start = self._chosen(tokenizer).special_ids.required("start_of_text")
        return EncodedTexts(np.insert(ids, offsets[:-1], start), offsets + np.arange(len(offsets)))


@dataclasses.dataclass(frozen=True)
class IdsColumn(Column):
    """Lists of ids or other integers from the source, unchanged."""

    ragged: ClassVar[bool] = True

    def encode(self, values: Sequence[Sequence[int]], tokenizer: Tokenizer) -> EncodedTexts:
        """Return the ids."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        flat = np.array([id for row in values for id in row] or np.zeros(0, np.int64))
        return EncodedTexts(flat, np.concatenate([[0], np.cumsum(lengths)]))


@dataclasses.dataclass(frozen=True)
class CountedColumn(IdsColumn):
    """For every token of a text 1 if the loss counts it, else 0; the end of the text, which it adds, is not counted."""

    def encode(self, values: Sequence[Sequence[int]], tokenizer: Tokenizer) -> EncodedTexts:
        """Return the numbers, with one more for every text."""
        return super().encode([[*row, 0] for row in values], tokenizer)

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return uint8."""
        return "|u1"


@dataclasses.dataclass(frozen=True)
class TextLengthsColumn(Column):
    """The number of characters of every text of a list."""

    ragged: ClassVar[bool] = True

    def encode(self, values: Sequence[Sequence[str]], tokenizer: Tokenizer) -> EncodedTexts:
        """Return the numbers."""
        return IdsColumn(self.name, self.feature).encode([[*map(len, texts)] for texts in values], tokenizer)


@dataclasses.dataclass(frozen=True)
class ScalarColumn(Column):
    """One number per example, such as a label."""

    dtype: str = "<i4"

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return `dtype`."""
        return self.dtype

    def encode(self, values: Sequence[Any], tokenizer: Tokenizer) -> np.ndarray:
        """Return an array [examples]. Raises DataError for a value that is not a scalar."""
        return _fixed(self, values, ())


@dataclasses.dataclass(frozen=True)
class TextSizeColumn(Column):
    """The size of every text in `words` or in `bytes`, with its end.

    Words stand between spaces, and every end of a line counts as a word, as does the end of the text. Bytes are those
    of UTF-8, and one for the end of the text. So a file with one document per line has as many bytes as its documents.
    """

    unit: str = "words"

    def encode(self, values: Sequence[str], tokenizer: Tokenizer) -> np.ndarray:
        """Return the sizes, int64 [examples]."""
        size = _SIZES[self.unit]
        return np.fromiter((size(text) for text in values), np.int64, len(values))

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return int64."""
        return "<i8"


_SIZES = {
    "words": lambda text: len(text.split()) + text.count("\n") + 1,
    "bytes": lambda text: len(text.encode("utf-8", "surrogateescape")) + 1,
}


@dataclasses.dataclass(frozen=True)
class ArrayColumn(Column):
    """One array of a fixed shape per example, such as an image of bytes."""

    shape: tuple[int, ...] = ()
    dtype: str = "|u1"

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return `dtype`."""
        return self.dtype

    def encode(self, values: Sequence[Any], tokenizer: Tokenizer) -> np.ndarray:
        """Return an array [examples, *shape]. Raises DataError for a value of another shape."""
        return _fixed(self, values, self.shape)


def _fixed(column: Column, values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # of several shapes
        array = np.zeros(0)
    if array.shape != (len(values), *shape):
        found = next((np.shape(value) for value in values if np.shape(value) != shape), array.shape[1:])
        raise DataError(f"feature '{column.feature}': a value of shape {list(found)}, expected {list(shape)}")
    return array


def exact(array: np.ndarray, dtype: str, feature: str) -> np.ndarray:
    """Return numbers as `dtype`; raises DataError if one is not a number of this type. Floats may be rounded."""
    if array.dtype.kind not in "biuf":
        raise DataError(f"feature '{feature}': expected numbers, got {array.dtype.name}")
    with np.errstate(invalid="ignore", over="ignore"):
        stored = array.astype(dtype)
    if np.dtype(dtype).kind != "f" and not np.array_equal(stored, array):
        bad = array[stored != array].flat[0]
        raise DataError(f"feature '{feature}': {bad} is not a value of type {np.dtype(dtype).name}")
    return stored


class Ragged(abc.ABC):
    """Rows of ids of different lengths: parts of one flat array.

    ids: [n]. starts: [rows], the first id of each row; lengths: int32 [rows].
    """

    ids: np.ndarray

    @property
    @abc.abstractmethod
    def starts(self) -> np.ndarray: ...

    @property
    @abc.abstractmethod
    def lengths(self) -> np.ndarray: ...

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, rows: np.ndarray, width: int, pad: int = 0) -> np.ndarray:
        """Return rows, padded on the right: int [B] -> int32 [B, width]. Row -1 is a row of padding.

        Raises ValueError if a row is longer than `width`: nothing is cut.
        """
        rows = np.asarray(rows, np.int64)
        lengths = np.where(rows < 0, 0, self.lengths[rows])
        if rows.size and lengths.max() > width:
            raise ValueError(f"a row of {lengths.max()} ids does not fit into width {width}")
        column = np.arange(width)
        is_token = column < lengths[:, None]
        padded = np.full((len(rows), width), pad, np.int32)
        padded[is_token] = self._at((self.starts[rows][:, None] + column)[is_token])
        return padded

    def _at(self, places: np.ndarray) -> np.ndarray:
        """Return the ids at places of the flat array."""
        return self.ids[places]


class RaggedIds(Ragged):
    """Rows stored one after the other: row `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self.ids = np.asarray(ids)  # a plain view: indexing a memmap itself is slower
        self.offsets = np.asarray(offsets)

    @property
    def starts(self) -> np.ndarray:
        return self.offsets[:-1]

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int32)


class EncodedSplit:
    """One split as arrays, which may be files that are mapped into memory.

    special_ids, source_special_ids: of the tokenizer that it was encoded with, and of its source. token_kinds: of the
    same tokenizer; None if they are not known.
    """

    def __init__(
        self,
        columns: Mapping[str, Ragged | np.ndarray],
        special_ids: SpecialIds,
        source_special_ids: SpecialIds | None = None,
        token_kinds: TokenKinds | None = None,
    ) -> None:
        """columns: by name, ragged ids or an array [examples, ...]; raises ValueError if not equally long.

        source_special_ids: default: the same.
        """
        self._columns = dict(columns)
        self.special_ids = special_ids
        self.source_special_ids = special_ids if source_special_ids is None else source_special_ids
        self.token_kinds = token_kinds
        counts = {name: len(column) for name, column in self._columns.items()}
        if len(set(counts.values())) != 1:
            raise ValueError(f"expected one or more columns of equal length, got {counts}")
        self.num_examples: int = next(iter(counts.values()))

    def with_columns(self, columns: Mapping[str, Ragged | np.ndarray]) -> EncodedSplit:
        """Return other columns of the same tokenizer; raises ValueError if they are not equally long."""
        return EncodedSplit(columns, self.special_ids, self.source_special_ids, self.token_kinds)

    @property
    def ragged_names(self) -> tuple[str, ...]:
        """Names of the ragged columns."""
        return tuple(name for name, column in self._columns.items() if isinstance(column, Ragged))

    def lengths(self, name: str) -> np.ndarray:
        """Return the number of ids of each example in a ragged column, with eos, int32 [examples]."""
        return self.ragged(name).lengths

    def take(self, name: str, rows: np.ndarray, width: int, pad: int = 0) -> np.ndarray:
        """Return ids of a ragged column, padded with `pad`, int32 [len(rows), width]; see `RaggedIds.take`."""
        return self.ragged(name).take(rows, width, pad)

    def values(self, name: str, rows: np.ndarray) -> np.ndarray:
        """Return rows of a fixed column, [len(rows), ...]; zeros for row -1."""
        column = self._columns[name]
        if isinstance(column, Ragged):
            raise TypeError(f"column '{name}' is ragged")
        rows = np.asarray(rows, np.int64)
        values = np.asarray(column)[rows]
        values[rows < 0] = 0
        return values

    def ragged(self, name: str) -> Ragged:
        """Return a ragged column; raises TypeError for another."""
        column = self._columns[name]
        if not isinstance(column, Ragged):
            raise TypeError(f"column '{name}' is not ragged")
        return column
