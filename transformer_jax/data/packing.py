"""Packed batches: several examples per row, separated by segment ids, so that few slots are padding."""

from __future__ import annotations

import numpy as np

from transformer_jax.data.batching import (
    Arrays,
    Batch,
    Lengths,
    OneShape,
    Rows,
    TooLongError,
    batch_shape,
    left_out,
    two_sides,
)
from transformer_jax.data.bin_packing import pack, row_shape
from transformer_jax.data.order import ROWS_STREAM, generator
from transformer_jax.errors import ConfigError

# The two random parts of an epoch's order.
_ROWS, _EXAMPLES = 0, 1


class PackedPlan(OneShape):
    """Training batches of packed rows: random access, every kept example exactly once per epoch.

    The lengths of the examples that share a row are chosen once, from the lengths alone. Every epoch shuffles examples
    of equal lengths, and the rows that share a batch; both depend on the seed and the epoch. Only the order of the
    current epoch is kept in memory: three int32 arrays with one number per example.

    Args:
      lengths: of the training split's examples. arrays: makes a batch.
      tokens_per_batch: limit of rows times `packed_length`.
      max_length: examples with a longer sequence (with eos) are left out; see `left_out`.
      packed_length: width of a row for the sequence with more tokens; see `bin_packing.row_shape`. Longer examples are
        left out too.
      row_multiple: rows of every batch are a multiple of this.
      seed: determines which examples share a row and a batch, and the order.

    Raises: ConfigError if `row_multiple` rows exceed `tokens_per_batch`; TooLongError if no example is short enough.
    """

    def __init__(
        self,
        lengths: Lengths,
        arrays: Arrays,
        *,
        tokens_per_batch: int,
        max_length: int,
        packed_length: int,
        row_multiple: int,
        seed: int,
    ) -> None:
        self._arrays = arrays
        self._seed = seed
        rows = tokens_per_batch // packed_length // row_multiple * row_multiple
        if not rows:
            raise ConfigError(
                f"config: data.tokens_per_batch={tokens_per_batch} cannot hold data.row_multiple={row_multiple} "
                f"rows of data.packed_length={packed_length}"
            )
        inputs, targets = two_sides(lengths)
        longest = min(max_length, packed_length)
        kept = np.flatnonzero((inputs <= longest) & (targets <= longest)).astype(np.int32)
        self.num_examples = len(kept)
        """Number of examples of an epoch."""
        self.left_out = left_out(inputs, targets, longest)
        if not len(kept):
            message = (
                f"all {len(inputs)} training examples are longer than data.max_length={max_length} or "
                f"data.packed_length={packed_length}"
            )
            raise TooLongError(message, self.left_out, len(inputs))
        inputs, targets = inputs[kept], targets[kept]
        shape = row_shape(inputs, targets, packed_length)
        packing = pack(inputs, targets, shape)
        self._shape = batch_shape(rows, lengths, shape)
        self._first_slot = packing.first_slot
        by_class = np.argsort(packing.classes, kind="stable")
        self._members = kept[by_class]
        self._class_ends = np.cumsum(np.bincount(packing.classes))
        self._slots_by_class = np.argsort(packing.slots, kind="stable").astype(np.int32)
        self.batches_per_epoch = -(-packing.num_rows // rows)
        self._epoch: tuple[int, np.ndarray, np.ndarray] | None = None
        num_tokens = int(inputs.sum(dtype=np.int64) + targets.sum(dtype=np.int64))
        self.padding_efficiency = num_tokens / (self.batches_per_epoch * rows * sum(shape))
        """Tokens divided by slots of all sequences, in an epoch."""

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Return packed batch `step`, or some rows of it; the last batch of an epoch may have empty rows."""
        order, examples_of_slots = self._plan(self.epoch(step))
        row_ids = np.arange(self._shape.rows, dtype=np.int32)
        if rows is not None:
            row_ids = row_ids[rows]
        places = step % self.batches_per_epoch * self._shape.rows + row_ids
        is_row = places < len(order)
        packed = order[places[is_row]]
        first, sizes = self._first_slot[packed], np.zeros(len(places), np.int32)
        sizes[is_row] = self._first_slot[packed + 1] - first
        numbers = numbers_within(sizes)
        examples = examples_of_slots[np.repeat(first, sizes[is_row]) + numbers]
        return self._arrays(Rows(examples, sizes, row_ids, packed=True), self._shape, step)

    def _plan(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows in the order of the epoch, and the example of every slot."""
        current = self._epoch
        if current is None or current[0] != epoch:
            self._epoch = current = None  # first, so that memory never holds two epochs
            order = generator(ROWS_STREAM, self._seed, epoch, _ROWS).permutation(len(self._first_slot) - 1)
            random, members = generator(ROWS_STREAM, self._seed, epoch, _EXAMPLES), self._members.copy()
            for of_one_class in np.split(members, self._class_ends[:-1]):
                random.shuffle(of_one_class)
            examples_of_slots = np.empty_like(members)
            examples_of_slots[self._slots_by_class] = members
            current = self._epoch = epoch, order.astype(np.int32), examples_of_slots
        return current[1:]


def numbers_within(sizes: np.ndarray) -> np.ndarray:
    """Return 0, 1, ..., sizes[r] - 1 for every r, one after the other."""
    return np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
