"""Arrays of batches of text, made on the host from the columns of a split; called by tasks.

Letters as in `transformer_jax.typing`. Padding is found by lengths, never by the value of an id: every id may be a
token.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from transformer_jax.data.batching import Batch, BatchShape, Rows
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.packing import numbers_within


class Sequences(NamedTuple):
    """One ragged column of the rows of a batch, all [B, T].

    ids: int32. mask: bool, True for tokens. segment_ids: int32, number of the example in its row from 1, 0 for
    padding. positions: int32, within the example. The last two are None for rows that are not packed.
    """

    ids: np.ndarray
    mask: np.ndarray
    segment_ids: np.ndarray | None
    positions: np.ndarray | None


def sequences(split: EncodedSplit, name: str, rows: Rows, width: int, pad_id: int) -> Sequences:
    """Return a ragged column of the rows of a batch, padded with `pad_id` to `width`.

    Raises: ValueError if a row has more tokens than `width`.
    """
    lengths = np.where(rows.examples < 0, 0, split.lengths(name)[rows.examples])
    if rows.packed:
        return _packed(split, name, rows, lengths, width, pad_id)
    mask = np.arange(width) < lengths[:, None]
    return Sequences(split.take(name, rows.examples, width, pad_id), mask, None, None)


def shift_right(ids: np.ndarray, start_id: int, segment_ids: np.ndarray | None = None) -> np.ndarray:
    """Return the decoder's input to predict `ids`: the start id, then the ids without the last one, per segment.

    Args:
      ids: [B, T] int32; segment_ids: [B, T] int32 of packed rows.
    Returns: [B, T] int32.
    """
    first = ((0, 0), (1, 0))
    shifted = np.pad(ids[:, :-1], first, constant_values=start_id)
    if segment_ids is None:
        return shifted
    previous = np.pad(segment_ids[:, :-1], first)
    return np.where(segment_ids == previous, shifted, np.int32(start_id))


def sequence_to_sequence_arrays(split: EncodedSplit, rows: Rows, shape: BatchShape, start_id: int) -> Batch:
    """Return the batch of a task that predicts the column `targets` from the column `inputs`.

    Padding positions have the padding id of their column's tokenizer, or 0 if it has none. Any id of the vocabulary
    would do, since masks and weights mark the padding.

    Args:
      shape: has the widths of `inputs`, S, and `targets`, T.
      start_id: first decoder input of every example.
    Returns: `inputs` [B, S], `inputs_mask` [B, S], `decoder_inputs`, `targets` and `weights` [B, T], `row_ids` [B] and,
      for packed rows, segment ids and positions of both; types as in `transformer_jax.typing`.
    Raises: ValueError if an example is longer than the widths.
    """
    pads = {"inputs": split.source_special_ids.pad, "targets": split.special_ids.pad}
    sides = {name: sequences(split, name, rows, shape.width(name), pad or 0) for name, pad in pads.items()}
    inputs, targets = sides["inputs"], sides["targets"]
    batch = {
        "inputs": inputs.ids,
        "inputs_mask": inputs.mask,
        "decoder_inputs": shift_right(targets.ids, start_id, targets.segment_ids),
        "targets": targets.ids,
        "weights": targets.mask.astype(np.float32),
        "row_ids": rows.row_ids,
    }
    for name, side in sides.items():
        if side.segment_ids is not None and side.positions is not None:
            batch |= {f"{name}_segment_ids": side.segment_ids, f"{name}_positions": side.positions}
    return batch


def language_model_arrays(split: EncodedSplit, rows: Rows, shape: BatchShape, pad_id: int | None) -> Batch:
    """Return the batch of a task that predicts every token of a text from those before it.

    Args:
      split: windows of texts; see `data.windows.in_windows`.
      shape: has the width of `targets`, T.
      pad_id: id of padding positions. Any id works, since weights mark the padding; None means 0.
    Returns: `decoder_inputs`, `targets` and `weights` [B, T], 0 for padding and for tokens that are only context;
      `row_ids` [B]; and, for packed rows, segment ids and positions. If the split has the column `counted`, a token
      without it has weight 0 too, and `targets_mask` [B, T] tells such tokens from padding.
    Raises: ValueError if an example is longer than the width.
    """
    width = shape.width("targets")
    targets, inputs = (sequences(split, name, rows, width, pad_id or 0) for name in ("targets", "decoder_inputs"))
    weights = targets.mask
    if not rows.packed:
        weights = weights & (np.arange(width) >= split.values("context", rows.examples)[:, None])
    masks = {}
    if "counted" in split.ragged_names:
        masks["targets_mask"] = targets.mask
        weights = weights & (sequences(split, "counted", rows, width, 0).ids > 0)
    batch = {
        "decoder_inputs": inputs.ids,
        "targets": targets.ids,
        "weights": weights.astype(np.float32),
        "row_ids": rows.row_ids,
        **masks,
    }
    if targets.segment_ids is not None and targets.positions is not None:
        batch |= {"targets_segment_ids": targets.segment_ids, "targets_positions": targets.positions}
    return batch


def _packed(split: EncodedSplit, name: str, rows: Rows, lengths: np.ndarray, width: int, pad_id: int) -> Sequences:
    """Return packed rows; lengths: int [n], of `rows.examples`."""
    longest = int(lengths.max(initial=0))
    is_token = np.arange(longest) < lengths[:, None]
    example, position = np.nonzero(is_token)
    sizes = rows.counts
    row_of_example = np.repeat(np.arange(len(sizes)), sizes)
    before = np.concatenate([[0], np.cumsum(lengths)])  # tokens before each example, in all rows together
    first = np.cumsum(sizes) - sizes
    if len(sizes) and (totals := before[first + sizes] - before[first]).max() > width:
        raise ValueError(f"a row of {totals.max()} tokens does not fit into width {width}")
    place = (row_of_example * width + before[:-1] - before[first][row_of_example])[example] + position
    ids = np.full((len(sizes), width), pad_id, np.int32)
    segment_ids, positions = np.zeros((2, len(sizes), width), np.int32)
    ids.reshape(-1)[place] = split.take(name, rows.examples, longest, pad_id)[is_token]
    segment_ids.reshape(-1)[place] = (numbers_within(sizes) + 1)[example]
    positions.reshape(-1)[place] = position
    return Sequences(ids, segment_ids > 0, segment_ids, positions)
