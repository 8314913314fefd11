"""Packed batches: several pairs to a row, kept apart by segment ids, so that hardly any slot is padding.

A packed batch is that of `batching` with four arrays more, of the shapes of `inputs` and `targets`:
`inputs_segment_ids` and `targets_segment_ids` number the pairs of a row 1, 2, 3, ..., the same on both sides, and are 0
where there is padding; `inputs_positions` and `targets_positions` begin with 0 in every segment.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transformer_jax.data.batching import Batch, BatchShape, PairsOfIds
from transformer_jax.data.bin_packing import pack, row_shape
from transformer_jax.data.order import ROWS_STREAM, generator
from transformer_jax.errors import ConfigError, DataError

# The two parts of an epoch's order that are random.
_ROWS, _PAIRS = 0, 1


class PackedPlan:
    """Training batches of packed rows: random access, every kept pair exactly once per epoch.

    How many pairs of which lengths share a row is decided once, by the lengths alone. An epoch shuffles which pairs of
    equal lengths take whose place, and which rows share a batch; both follow from the seed and the epoch. Only the
    current epoch's order is held in memory: with it there are three int32 arrays as long as there are pairs.

    Args:
      split: the training split.
      tokens_per_batch: limit of rows times `packed_length`.
      max_length: pairs with a longer side, eos included, are left out; `num_dropped` says how many.
      packed_length: width of a row, on the side with more tokens; see `bin_packing.row_shape`. Longer pairs are left
        out as well.
      row_multiple: rows of every batch are a multiple of this.
      seed: which pairs share a row and a batch, and when.

    Raises:
      ConfigError: `row_multiple` rows exceed `tokens_per_batch`.
      DataError: no pair is short enough.
    """

    def __init__(
        self,
        split: PairsOfIds,
        *,
        tokens_per_batch: int,
        max_length: int,
        packed_length: int,
        row_multiple: int,
        seed: int,
    ) -> None:
        self._split = split
        self._seed = seed
        rows = tokens_per_batch // packed_length // row_multiple * row_multiple
        if not rows:
            raise ConfigError(
                f"config: data.tokens_per_batch={tokens_per_batch} cannot hold data.row_multiple={row_multiple} "
                f"rows of data.packed_length={packed_length}"
            )
        inputs, targets = split.input_lengths, split.target_lengths
        longest = min(max_length, packed_length)
        kept = np.flatnonzero((inputs <= longest) & (targets <= longest)).astype(np.int32)
        self.num_pairs = len(kept)
        """Pairs of an epoch."""
        self.num_dropped = len(inputs) - len(kept)
        """Pairs left out because a side is too long."""
        if not len(kept):
            raise DataError(
                f"all {len(inputs)} training pairs have a side longer than data.max_length={max_length} or "
                f"data.packed_length={packed_length}"
            )
        inputs, targets = inputs[kept], targets[kept]
        shape = row_shape(inputs, targets, packed_length)
        packing = pack(inputs, targets, shape)
        self._shape = BatchShape(rows, *shape)
        self._first_slot = packing.first_slot
        by_class = np.argsort(packing.classes, kind="stable")
        self._members = kept[by_class]
        self._class_ends = np.cumsum(np.bincount(packing.classes))
        self._slots_by_class = np.argsort(packing.slots, kind="stable").astype(np.int32)
        self.batches_per_epoch = -(-packing.num_rows // rows)
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None
        num_tokens = int(inputs.sum(dtype=np.int64) + targets.sum(dtype=np.int64))
        self.padding_efficiency = num_tokens / (self.batches_per_epoch * rows * sum(shape))
        """Tokens of both sides over slots of both sides, in an epoch."""

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """The one shape that every batch has."""
        return (self._shape,)

    def epoch(self, step: int) -> int:
        """Which pass over the corpus batch `step` belongs to, from 0."""
        return step // self.batches_per_epoch

    def shape(self, step: int) -> BatchShape:
        """Shape of batch `step`."""
        return self._shape

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Batch `step`, or some of its rows, which keep their `row_ids`; the last of an epoch may end in empty rows."""
        order, pairs_of_slots = self._plan(self.epoch(step))
        row_ids = np.arange(self._shape.rows, dtype=np.int32)
        if rows is not None:
            row_ids = row_ids[rows]
        places = step % self.batches_per_epoch * self._shape.rows + row_ids
        is_row = places < len(order)
        packed = order[places[is_row]]
        first, sizes = self._first_slot[packed], np.zeros(len(places), np.int32)
        sizes[is_row] = self._first_slot[packed + 1] - first
        numbers = _numbers(sizes)
        pairs = pairs_of_slots[np.repeat(first, sizes[is_row]) + numbers]
        inputs, inputs_segment_ids, inputs_positions = _side(
            self._split.inputs, pairs, self._split.input_lengths[pairs], sizes, self._shape.input_width
        )
        targets, targets_segment_ids, targets_positions = _side(
            self._split.targets, pairs, self._split.target_lengths[pairs], sizes, self._shape.target_width
        )
        return {
            "inputs": inputs,
            "inputs_segment_ids": inputs_segment_ids,
            "inputs_positions": inputs_positions,
            "targets": targets,
            "targets_segment_ids": targets_segment_ids,
            "targets_positions": targets_positions,
            "row_ids": row_ids,
        }

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows in the order of the epoch, and the pair of every slot."""
        current = self._epoch
        if current is None or current[0] != epoch:
            self._epoch = current = None  # so that memory never holds two epochs
            order = generator(ROWS_STREAM, self._seed, epoch, _ROWS).permutation(len(self._first_slot) - 1)
            random, members = generator(ROWS_STREAM, self._seed, epoch, _PAIRS), self._members.copy()
            for of_one_class in np.split(members, self._class_ends[:-1]):
                random.shuffle(of_one_class)
            pairs_of_slots = np.empty_like(members)
            pairs_of_slots[self._slots_by_class] = members
            current = self._epoch = epoch, order.astype(np.int32), pairs_of_slots
        return current[1:]


def _numbers(sizes: np.ndarray) -> np.ndarray:
    """0, 1, ..., sizes[r] - 1 for every r, one after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)


def _side(
    take: Callable[[np.ndarray, int], np.ndarray],
    pairs: np.ndarray,
    lengths: np.ndarray,
    sizes: np.ndarray,
    width: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One side of packed rows: ids, segment ids and positions, int32 [B, width] each.

    Args:
      take: gathers pairs, padded to a width.
      pairs: those of all rows, one row after the other; lengths: how many ids each has on this side.
      sizes: [B] how many pairs each row has.
    """
    longest = int(lengths.max(initial=0))
    is_id = np.arange(longest) < lengths[:, None]
    pair, position = np.nonzero(is_id)
    row_of_pair = np.repeat(np.arange(len(sizes)), sizes)
    before = np.concatenate([[0], np.cumsum(lengths)])  # ids before each pair, in all rows together
    before_row = before[np.cumsum(sizes) - sizes]
    place = (row_of_pair * width + before[:-1] - before_row[row_of_pair])[pair] + position
    ids, segment_ids, positions = np.zeros((3, len(sizes), width), np.int32)
    ids.reshape(-1)[place] = take(pairs, longest)[is_id]
    segment_ids.reshape(-1)[place] = (_numbers(sizes) + 1)[pair]
    positions.reshape(-1)[place] = position
    return ids, segment_ids, positions
