"""Pairs for a decoder alone: source and target in one row, as in Liu et al. 2018, section 4.2.1.

A row is `source </s> target </s>`: the end of the source separates the two, so that the vocabulary is that of an
encoder-decoder. The decoder reads it after the start id, and only the target is predicted. With
`task.source_mask=prefix`, the start id and the source attend to each other in both directions.
"""

from __future__ import annotations

import numpy as np

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.data.batching import Batch, BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit, Ragged
from transformer_jax.tasks.batches.sequences import sequences, shift_right


class Joined(Ragged):
    """The ids of two ragged columns, one after the other."""

    def __init__(self, first: Ragged, second: Ragged) -> None:
        self._first, self._second = first, second

    @property
    def starts(self) -> np.ndarray:
        """The places of the first column's ids."""
        return self._first.starts

    @property
    def lengths(self) -> np.ndarray:
        return self._first.lengths + self._second.lengths

    def take(self, rows: np.ndarray, width: int, pad: int = 0) -> np.ndarray:
        """Return rows, padded on the right; see `Ragged.take`."""
        rows = np.asarray(rows, np.int64)
        sizes = [np.where(rows < 0, 0, column.lengths[rows]) for column in (self._first, self._second)]
        if rows.size and (longest := (sizes[0] + sizes[1]).max()) > width:
            raise ValueError(f"a row of {longest} ids does not fit into width {width}")
        result = self._first.take(rows, width, pad)
        column = np.arange(width)
        is_second = (column >= sizes[0][:, None]) & (column < (sizes[0] + sizes[1])[:, None])
        second = self._second.take(rows, width, pad)
        result[is_second] = second[column < sizes[1][:, None]]
        return result


class Constant(Ragged):
    """A column with one value in place of every id of another column."""

    def __init__(self, like: Ragged, value: int) -> None:
        self._like, self._value = like, value

    @property
    def starts(self) -> np.ndarray:
        return self._like.starts

    @property
    def lengths(self) -> np.ndarray:
        return self._like.lengths

    def _at(self, places: np.ndarray) -> np.ndarray:
        return np.full(places.shape, self._value, np.int32)


def reads_source_two_way(task: TaskConfig) -> bool:
    """Return whether the source's tokens attend to each other in both directions."""
    return {"causal": False, "prefix": True}[task.source_mask]


def pair_lengths(split: EncodedSplit) -> np.ndarray:
    """Return the tokens of source and target together, with an end each, int32 [examples]."""
    return split.lengths("inputs") + split.lengths("targets")


def pair_row_arrays(config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape) -> Batch:
    """Return the batch of pairs in rows.

    Args:
      split: with the columns `inputs` and `targets`. shape: has the width of `targets`, T.
    Returns: `decoder_inputs`, `targets`, `targets_mask` and `weights` [B, T], 0 for the source; `row_ids` [B]; with
      `task.source_mask=prefix` also `prefix_mask` [B, T], and for packed rows segment ids and positions.
    Raises: ValueError if a pair is longer than the width.
    """
    inputs, targets = split.ragged("inputs"), split.ragged("targets")
    joined = split.with_columns(
        {"ids": Joined(inputs, targets), "is_target": Joined(Constant(inputs, 0), Constant(targets, 1))}
    )
    width = shape.width("targets")
    pairs = sequences(joined, "ids", rows, width, split.special_ids.pad or 0)
    is_target = sequences(joined, "is_target", rows, width, 0).ids
    batch = {
        "decoder_inputs": shift_right(pairs.ids, config.model.decoder_start_id, pairs.segment_ids),
        "targets": pairs.ids,
        "targets_mask": pairs.mask,
        "weights": is_target.astype(np.float32),
        "row_ids": rows.row_ids,
    }
    if reads_source_two_way(config.task):
        batch["prefix_mask"] = pairs.mask & (shift_right(is_target, 0, pairs.segment_ids) == 0)
    if pairs.segment_ids is not None and pairs.positions is not None:
        batch |= {"targets_segment_ids": pairs.segment_ids, "targets_positions": pairs.positions}
    return batch
