"""Batches of pairs: planned by length, reached by their number, padded with id 0.

A batch is `{"inputs": [B, S], "targets": [B, T], "row_ids": [B]}`, all int32. Inputs and targets end in eos.
`row_ids` is each row's place in the global batch: it travels with the row to whatever device computes it, and keys its
dropout. A row of padding is all zeros and has no weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from transformer_jax.data.buckets import Shape, assign, choose_shapes, fill, make_buckets
from transformer_jax.data.order import ORDER_STREAM, ROWS_STREAM, generator
from transformer_jax.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]


@runtime_checkable
class PairsOfIds(Protocol):
    """A split as ids, such as `TokenizedSplit`; rows end in eos, and row -1 is padding."""

    @property
    def input_lengths(self) -> np.ndarray: ...

    @property
    def target_lengths(self) -> np.ndarray: ...

    def inputs(self, rows: np.ndarray, width: int) -> np.ndarray: ...

    def targets(self, rows: np.ndarray, width: int) -> np.ndarray: ...


class BatchShape(NamedTuple):
    """A compiled shape of a batch."""

    rows: int
    input_width: int
    target_width: int


@runtime_checkable
class TrainingBatches(Protocol):
    """What a training run takes its batches from: `BatchPlan`, or `packing.PackedPlan`.

    num_pairs: of an epoch. num_dropped: pairs left out because a side is too long. padding_efficiency: tokens of both
    sides over slots of both sides, in an epoch. shapes: every one that a batch may have. epoch: which pass over the
    corpus batch `step` belongs to, from 0. batch: number `step`, or some of its rows, which keep their `row_ids`.
    """

    num_pairs: int
    num_dropped: int
    padding_efficiency: float

    @property
    def batches_per_epoch(self) -> int: ...

    @property
    def shapes(self) -> tuple[BatchShape, ...]: ...

    def epoch(self, step: int) -> int: ...

    def shape(self, step: int) -> BatchShape: ...

    def batch(self, step: int, rows: slice | None = None) -> Batch: ...


class BatchPlan:
    """The training batches: random access, every kept pair exactly once per epoch.

    Which shape batch `step` has follows from the corpus, the limits and the epoch alone, so runs with other seeds
    have the same shapes at the same steps; which pairs fill it follows from the seed as well. Only the current epoch's
    order is held in memory.

    Args:
      split: the training split.
      tokens_per_batch: limit of rows times the longer width.
      max_length: pairs with a longer side, eos included, are left out; `num_dropped` says how many.
      row_multiple: rows of every batch are a multiple of this.
      num_buckets: at most so many shapes.
      seed: which pairs share a batch, and when.

    Raises:
      ConfigError: `row_multiple` rows of the largest shape exceed `tokens_per_batch`.
      DataError: no pair is short enough.
    """

    def __init__(
        self,
        split: PairsOfIds,
        *,
        tokens_per_batch: int,
        max_length: int,
        row_multiple: int,
        num_buckets: int,
        seed: int,
    ) -> None:
        self._split = split
        self._seed = seed
        inputs, targets = split.input_lengths, split.target_lengths
        kept = np.flatnonzero((inputs <= max_length) & (targets <= max_length)).astype(np.int32)
        self.num_pairs = len(kept)
        """Pairs of an epoch."""
        self.num_dropped = len(inputs) - len(kept)
        """Pairs left out because a side is longer than `max_length`."""
        if not len(kept):
            raise DataError(f"all {len(inputs)} training pairs have a side longer than data.max_length={max_length}")
        inputs, targets = inputs[kept], targets[kept]
        shapes = choose_shapes(inputs, targets, num_buckets, max_length)
        widest = max(map(max, shapes))
        if row_multiple * widest > tokens_per_batch:
            raise ConfigError(
                f"config: data.tokens_per_batch={tokens_per_batch} cannot hold data.row_multiple={row_multiple} "
                f"rows of width {widest}, the training split's longest"
            )
        bucket = assign(inputs, targets, shapes)
        counts = np.bincount(bucket, minlength=len(shapes))
        by_bucket = kept[np.argsort(bucket, kind="stable")]
        self._members = np.split(by_bucket, np.cumsum(counts)[:-1])
        self._buckets = make_buckets(counts.tolist(), shapes, tokens_per_batch, row_multiple, True)
        # Batches are numbered bucket by bucket and shuffled by epoch.
        self._first_batch = np.cumsum([0, *(b.num_batches for b in self._buckets)])
        self._epoch: tuple[int, np.ndarray, list[np.ndarray]] | None = None
        self.padding_efficiency = float(
            (inputs.sum(dtype=np.int64) + targets.sum(dtype=np.int64)) / sum(b.num_slots for b in self._buckets)
        )
        """Tokens of both sides over padded slots of both sides, in an epoch."""

    @property
    def batches_per_epoch(self) -> int:
        return int(self._first_batch[-1])

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """Every shape that a batch may have, smallest first."""
        return tuple(BatchShape(b.rows, *b.shape) for b in self._buckets if b.num_batches)

    def epoch(self, step: int) -> int:
        """Which pass over the corpus batch `step` belongs to, from 0."""
        return step // self.batches_per_epoch

    def shape(self, step: int) -> BatchShape:
        """Shape of batch `step`; the same for every seed."""
        order = self._order(self.epoch(step))
        bucket = self._buckets[self._bucket_of(int(order[step % self.batches_per_epoch]))]
        return BatchShape(bucket.rows, *bucket.shape)

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Batch `step`, or some of its rows, which keep their `row_ids`."""
        order, filled = self._plan(self.epoch(step))
        number = int(order[step % self.batches_per_epoch])
        k = self._bucket_of(number)
        examples = filled[k][number - self._first_batch[k]]
        return _gather(self._split, examples, self._buckets[k].shape, rows)

    def _bucket_of(self, number: int) -> int:
        return int(np.searchsorted(self._first_batch, number, side="right")) - 1

    def _order(self, epoch: int) -> np.ndarray:
        return generator(ORDER_STREAM, 0, epoch, 0).permutation(self.batches_per_epoch)

    def _plan(self, epoch: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Order of the batches, and for every bucket the pairs of its batches."""
        current = self._epoch
        if current is None or current[0] != epoch:

            def shuffle(bucket: int, pairs: np.ndarray) -> np.ndarray:
                return generator(ROWS_STREAM, self._seed, epoch, bucket).permutation(pairs)

            self._epoch = current = None  # so that memory never holds two epochs
            current = epoch, self._order(epoch), fill(self._buckets, self._members, shuffle)
            self._epoch = current
        return current[1:]


class LengthBatch(NamedTuple):
    """Some rows of similar length."""

    indices: np.ndarray
    """int32 [B]; -1 is a row of padding."""
    width: int


def length_batches(
    lengths: np.ndarray, tokens_per_batch: int, row_multiple: int, max_width: int | None = None
) -> list[LengthBatch]:
    """Groups rows by length: every one exactly once, sorted, nothing left out or cut.

    Widths come from 8, 16, 24, 32, 48, 64, 96, ... and rows are `row_multiple` times a power of two, or as many as
    `tokens_per_batch` allows, so there are few shapes however many calls there are. A row that alone exceeds
    `tokens_per_batch` still gets its batch, of `row_multiple` rows.

    Args:
      lengths: int [rows], at least 1 each.
      tokens_per_batch: limit of rows times width.
      row_multiple: rows of every batch are a multiple of this.
      max_width: capacity of the model, if it has one: no width is larger, except for rows that are longer themselves.
    """
    if not len(lengths):
        return []
    ladder = _ladder(int(max(lengths)), max_width)
    level = np.searchsorted(ladder, lengths)
    shapes = [(width, width) for width in ladder]
    counts = np.bincount(level, minlength=len(ladder))
    buckets = make_buckets(counts.tolist(), shapes, tokens_per_batch, row_multiple, False)
    members = np.split(np.argsort(lengths, kind="stable"), np.cumsum(counts)[:-1])
    # Rows left over from smaller buckets come first and are shorter, so the order stays sorted.
    filled = fill(buckets, members, lambda _, rows: rows)
    return [LengthBatch(rows, width) for width, batches in zip(ladder, filled, strict=True) for rows in batches]


class EvaluationBatches:
    """The batches of an evaluation: every pair exactly once, sorted by length, nothing left out or cut.

    Iterating yields (batch, indices): `indices`, int32 [B], is each row's pair, -1 for rows of padding.

    Args:
      split: the split.
      tokens_per_batch: limit of rows times the longer width; a longer pair still gets its batch.
      row_multiple: rows of every batch are a multiple of this.
      max_width: capacity of the model, if it has one; see `length_batches`.
    """

    def __init__(
        self, split: PairsOfIds, *, tokens_per_batch: int, row_multiple: int, max_width: int | None = None
    ) -> None:
        self._split = split
        sides = (split.input_lengths, split.target_lengths)
        self._groups = length_batches(np.maximum(*sides), tokens_per_batch, row_multiple, max_width)
        # Within one width, the shorter side may need less: as where a summary is a twentieth of its document.
        self._widths: dict[int, Shape] = {}
        for width in {group.width for group in self._groups}:
            indices = np.concatenate([group.indices for group in self._groups if group.width == width])
            longest = [int(lengths[indices[indices >= 0]].max()) for lengths in sides]
            self._widths[width] = (_ladder(longest[0], max_width)[-1], _ladder(longest[1], max_width)[-1])

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[tuple[Batch, np.ndarray]]:
        return map(self.batch, range(len(self)))

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """Every shape that a batch may have, smallest first."""
        return tuple(sorted({BatchShape(len(g.indices), *self._widths[g.width]) for g in self._groups}))

    def num_rows(self, number: int) -> int:
        """Rows of batch `number`, those of padding among them."""
        return len(self._groups[number].indices)

    def batch(self, number: int, rows: slice | None = None) -> tuple[Batch, np.ndarray]:
        """Batch `number` and its pairs, or some of its rows, which keep their `row_ids`."""
        group = self._groups[number]
        indices = group.indices if rows is None else group.indices[rows]
        return _gather(self._split, group.indices, self._widths[group.width], rows), indices


def _ladder(longest: int, max_width: int | None) -> list[int]:
    """Widths 8, 16, 24, 32, 48, 64, 96, ..., up to one that holds `longest`; none passes both it and `max_width`."""
    widths = [8]
    while widths[-1] < longest:
        power = 1 << (widths[-1].bit_length() - 1)
        widths.append(widths[-1] + max(8, power // 2))
    if max_width is not None and widths[-1] > max_width:
        widths = [*(w for w in widths if w < max_width), max_width]
        if longest > max_width:
            widths.append(longest)
    return widths


def _gather(split: PairsOfIds, examples: np.ndarray, shape: Shape, rows: slice | None) -> Batch:
    row_ids = np.arange(len(examples), dtype=np.int32)
    if rows is not None:
        examples, row_ids = examples[rows], row_ids[rows]
    return {
        "inputs": split.inputs(examples, shape[0]),
        "targets": split.targets(examples, shape[1]),
        "row_ids": row_ids,
    }
