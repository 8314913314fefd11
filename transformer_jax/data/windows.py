"""Windows: parts of texts as rows of a language model's batches.

The text is the ids of all documents of a split, one after the other; each document ends in its end-of-sequence. Windows
lie either within documents, or anywhere in the stream, across the ends of documents. The decoder reads the token before
each target; before the first token of a document, or of the stream, that is the start id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from transformer_jax.data.batching import Batch, BatchShape, LeftOut, OneShape, Rows
from transformer_jax.data.columns import EncodedSplit, Ragged
from transformer_jax.data.order import ROWS_STREAM, generator
from transformer_jax.errors import ConfigError, DataError

WindowArrays = Callable[[EncodedSplit, Rows, BatchShape, int | None], Batch]
"""A function that makes the arrays of a batch from a split of windows, its rows, its shape and the training step."""

_WINDOWS = 2  # the part of an epoch's random order; 0 and 1 are those of packing


class IdWindows(Ragged):
    """Windows of a flat array of ids; they may overlap."""

    def __init__(self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        """Args: ids: [n]; starts: int64 [windows]; lengths: int32 [windows]."""
        self.ids = ids
        self._starts = np.asarray(starts, np.int64)
        self._lengths = np.asarray(lengths, np.int32)

    @property
    def starts(self) -> np.ndarray:
        return self._starts

    @property
    def lengths(self) -> np.ndarray:
        return self._lengths


class IdsBefore(IdWindows):
    """The ids before those of windows: the decoder's inputs. Before the first id of a text, that is the start id."""

    def __init__(
        self, ids: np.ndarray, starts: np.ndarray, lengths: np.ndarray, text_starts: np.ndarray, start_id: int
    ) -> None:
        """Args: text_starts: int64 [texts], ascending; the place of the first id of every document, or of the stream.

        Other arguments are those of `IdWindows`.
        """
        super().__init__(ids, starts, lengths)
        self._text_starts = text_starts
        self._start_id = start_id

    def _at(self, places: np.ndarray) -> np.ndarray:
        before = self.ids[np.maximum(places - 1, 0)].astype(np.int32)
        text = np.searchsorted(self._text_starts, places, side="right") - 1
        return np.where(self._text_starts[text] == places, np.int32(self._start_id), before)


def divided_into_windows(
    starts: np.ndarray, lengths: np.ndarray, size: int, context: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Divide texts into windows, so that every token is counted in exactly one.

    The first window of a text has up to `size` tokens, and all count. Each further one begins with `context` tokens
    that were counted before, and has up to `size` - `context` tokens that count; so each of these has at least
    `context` tokens before it.

    Args:
      starts: int64 [texts], the first token of each; lengths: int [texts], at least 1.
      size: greatest number of tokens of a window; context: from 0 to size - 1.
    Returns: first token int64, length int32 and number of tokens of context int32 of every window, [windows]; in the
      order of the texts.
    """
    starts, lengths = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
    counted = size - context
    counts = 1 + -(-np.maximum(lengths - size, 0) // counted)
    text = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    begin = number * counted
    sizes = np.minimum(lengths[text] - begin, size)
    of_context = np.where(number > 0, context, 0)
    return starts[text] + begin, sizes.astype(np.int32), of_context.astype(np.int32)


def in_windows(
    split: EncodedSplit, name: str, start_id: int, size: int, context: int = 0, *, stream: bool, end: bool = True
) -> EncodedSplit:
    """Return a split whose examples are windows, as `divided_into_windows` makes them, of a ragged column.

    Args:
      start_id: the token before a document, or before the stream. stream: windows cross the ends of documents.
      end: count the last token of every document; only without `stream`.
    Returns: the columns `targets`, `decoder_inputs` (ragged), `context` and `text`, the number of the document, int32
      [windows]; and `counted` (ragged), if the split has it. A document without tokens has no window.
    Raises: DataError if `counted` has other lengths than the column `name`.
    """
    column = split.ragged(name)
    counted = split.ragged("counted") if "counted" in split.ragged_names else None
    if counted is not None and not np.array_equal(counted.lengths, column.lengths):
        text = np.flatnonzero(counted.lengths != column.lengths)[0]
        raise DataError(
            f"text {text + 1:,} has {column.lengths[text]} tokens, but {counted.lengths[text]} numbers that say which "
            "ones count; its tokenizer must make one token of every word"
        )
    starts, lengths, text = np.array([0]), np.array([len(column.ids)]), np.array([0])
    if not stream:
        lengths = column.lengths - (0 if end else 1)
        text = np.flatnonzero(lengths > 0)
        starts, lengths = np.asarray(column.starts)[text], lengths[text]
    firsts, sizes, of_context = divided_into_windows(starts, lengths, size, context)
    columns: dict[str, Ragged | np.ndarray] = {
        "targets": IdWindows(column.ids, firsts, sizes),
        "decoder_inputs": IdsBefore(column.ids, firsts, sizes, starts, start_id),
        "context": of_context,
        "text": text[np.searchsorted(starts, firsts, side="right") - 1].astype(np.int32),
    }
    if counted is not None:
        columns["counted"] = IdWindows(counted.ids, firsts, sizes)
    return split.with_columns(columns)


class WindowPlan(OneShape):
    """Training batches of windows at random places of the stream (as in nanoGPT): random access, no padding.

    The places of batch `step` follow from the seed and the step alone. An epoch is as many windows as the text holds
    side by side; the windows of an epoch may overlap, and need not cover the text.

    Args:
      split: has the ragged column `name`. arrays: makes the arrays of a batch from a split of windows.
      tokens_per_batch: limit of rows times the longest width. size: tokens of a window.
      row_multiple: rows are a multiple of this. seed: determines the places.
      widths: of the sequences of a batch by name, if they are not the windows themselves.

    Raises: ConfigError if `row_multiple` rows exceed `tokens_per_batch`; DataError if the text is shorter than a window
      and the token before it.
    """

    left_out = LeftOut()
    padding_efficiency = 1.0

    def __init__(
        self,
        split: EncodedSplit,
        name: str,
        arrays: WindowArrays,
        *,
        tokens_per_batch: int,
        size: int,
        row_multiple: int,
        seed: int,
        widths: Mapping[str, int] | None = None,
    ) -> None:
        self._ids = split.ragged(name).ids
        self._split = split
        self._arrays = arrays
        self._seed = seed
        widths = {"targets": size} if widths is None else widths
        longest = max(widths.values())
        rows = tokens_per_batch // longest // row_multiple * row_multiple
        if not rows:
            raise ConfigError(
                f"config: data.tokens_per_batch={tokens_per_batch} cannot hold data.row_multiple={row_multiple} "
                f"windows of data.max_length={longest}"
            )
        if len(self._ids) <= size:
            raise DataError(
                f"the training split has {len(self._ids)} tokens; data.batching=windows needs more than a window of "
                f"data.max_length={longest}" + ("" if size == longest else f", {size} tokens of text")
            )
        self._shape = BatchShape(rows, tuple(widths.items()))
        self._size = size
        self.num_examples = len(self._ids) // size
        """Number of windows that the text holds side by side."""
        self.batches_per_epoch = -(-self.num_examples // rows)

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Return batch `step`, or some of its rows, which keep their `row_ids`."""
        random = generator(ROWS_STREAM, self._seed, step, _WINDOWS)
        # The token before the first window's first target is read, so that place 0 is none of a target.
        places = random.integers(1, len(self._ids) - self._size + 1, self._shape.rows)
        row_ids = np.arange(self._shape.rows, dtype=np.int32)
        if rows is not None:
            places, row_ids = places[rows], row_ids[rows]
        sizes = np.full(len(places), self._size, np.int32)
        columns: dict[str, Ragged | np.ndarray] = {
            "targets": IdWindows(self._ids, places, sizes),
            "decoder_inputs": IdWindows(self._ids, places - 1, sizes),
            "context": np.zeros(len(places), np.int32),
        }
        examples = np.arange(len(places), dtype=np.int32)
        chosen = Rows(examples, np.ones_like(examples), row_ids, packed=False)
        return self._arrays(self._split.with_columns(columns), chosen, self._shape, step)
