"""Batches of examples: planned by length, accessible by number, and made by the task.

A plan assigns examples to rows and rows to batches, and sets the widths of a batch's sequences. A callable, `Arrays`,
makes the arrays of the batch from that; `transformer_jax.typing` lists their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from transformer_jax.data.buckets import Shape, assign, choose_shapes, fill, make_buckets
from transformer_jax.data.order import ORDER_STREAM, ROWS_STREAM, generator
from transformer_jax.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]
Lengths = Mapping[str, np.ndarray]
"""Lengths of each example's sequences, int32 [examples] by name; one or two names."""


class BatchShape(NamedTuple):
    """A compiled shape of a batch: its rows, and the width of every sequence by name."""

    rows: int
    widths: tuple[tuple[str, int], ...]

    def width(self, name: str) -> int:
        """Return the width of a sequence; raises KeyError if there is none of this name."""
        return dict(self.widths)[name]

    def __str__(self) -> str:
        return ", ".join([f"{self.rows} rows", *(f"{name} {width}" for name, width in self.widths)])


class Rows(NamedTuple):
    """The examples in some rows of a batch.

    - examples: int [n], those of the first row, then those of the second, and so on; -1 is an example without tokens.
    - counts: int [B], number of examples of each row; 1 unless `packed`.
    - row_ids: int32 [B], numbers of the rows in the global batch. They are the seeds of dropout on any device.
    """

    examples: np.ndarray
    counts: np.ndarray
    row_ids: np.ndarray
    packed: bool


Arrays = Callable[[Rows, BatchShape, int | None], Batch]
"""A function that makes the arrays of a batch from its rows, its shape and the training step (None in evaluation).

The rows may be a part of the batch; the `rows` of the shape are those of the whole batch."""


class LeftOut(NamedTuple):
    """The training examples that are left out because a sequence is too long.

    count: their number. longest: tokens of the longest sequence of all examples. most: smallest number of tokens within
    which 99 % of the examples are; both are 0 where no example can be too long.
    """

    count: int = 0
    longest: int = 0
    most: int = 0


def left_out(inputs: np.ndarray, targets: np.ndarray, limit: int) -> LeftOut:
    """Return what a limit on both sequences leaves out; inputs, targets: int [examples], lengths, at least one."""
    longer = np.maximum(inputs, targets)
    most = np.quantile(longer, 0.99, method="higher")
    return LeftOut(int((longer > limit).sum()), int(longer.max()), int(most))


class TooLongError(DataError):
    """All training examples are too long; `left_out` and `num_examples` say how long."""

    def __init__(self, message: str, left_out: LeftOut, num_examples: int) -> None:
        super().__init__(message)
        self.left_out, self.num_examples = left_out, num_examples


@runtime_checkable
class TrainingBatches(Protocol):
    """The interface of a plan of training batches: `BatchPlan`, or `packing.PackedPlan`.

    num_examples: examples of an epoch. left_out: those that are too long and in no epoch.
    padding_efficiency: tokens divided by slots of all sequences, in an epoch. shapes: all possible shapes of a batch.
    epoch: number of the epoch of batch `step`, from 0. batch: batch number `step`, or some of its rows, which keep
    their `row_ids`.
    """

    num_examples: int
    left_out: LeftOut
    padding_efficiency: float

    @property
    def batches_per_epoch(self) -> int: ...

    @property
    def shapes(self) -> tuple[BatchShape, ...]: ...

    def epoch(self, step: int) -> int: ...

    def shape(self, step: int) -> BatchShape: ...

    def batch(self, step: int, rows: slice | None = None) -> Batch: ...


class OneShape:
    """The base class of plans whose batches all have the shape `_shape`."""

    _shape: BatchShape
    batches_per_epoch: int

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """The shape of every batch, as the only item."""
        return (self._shape,)

    def epoch(self, step: int) -> int:
        """Return the number of the epoch of batch `step`, from 0."""
        return step // self.batches_per_epoch

    def shape(self, step: int) -> BatchShape:
        """Return the shape of batch `step`, the same for all."""
        return self._shape


def two_sides(lengths: Lengths) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of two sides, for the algorithms of buckets and packing.

    With one sequence, both sides are this sequence: then both have the same widths.

    Raises: ValueError unless there are one or two names.
    """
    if not 1 <= len(lengths) <= 2:
        raise ValueError(f"expected lengths of one or two sequences, got {', '.join(lengths) or 'none'}")
    sides = list(lengths.values())
    return sides[0], sides[-1]


def batch_shape(rows: int, lengths: Lengths, shape: Shape) -> BatchShape:
    """Return the shape of a batch from the widths of both sides; see `two_sides`."""
    return BatchShape(rows, tuple((name, int(width)) for name, width in zip(lengths, shape, strict=False)))


class BatchPlan:
    """The training batches: random access, every kept example exactly once per epoch.

    The shape of batch `step` depends on the corpus, the limits and the epoch alone, so runs with other seeds have the
    same shapes at the same steps. The examples of the batch also depend on the seed. Only the order of the current
    epoch is kept in memory.

    Args:
      lengths: of the training split's examples. arrays: makes a batch.
      tokens_per_batch: limit of rows times the longest width.
      max_length: examples with a longer sequence (with eos) are left out; see `left_out`.
      row_multiple: rows of every batch are a multiple of this.
      num_buckets: greatest number of shapes.
      seed: determines which examples share a batch, and the order.

    Raises: ConfigError if `row_multiple` rows of the largest shape exceed `tokens_per_batch`; TooLongError if no
      example is short enough.
    """

    def __init__(
        self,
        lengths: Lengths,
        arrays: Arrays,
        *,
        tokens_per_batch: int,
        max_length: int,
        row_multiple: int,
        num_buckets: int,
        seed: int,
    ) -> None:
        self._arrays = arrays
        self._seed = seed
        inputs, targets = two_sides(lengths)
        kept = np.flatnonzero((inputs <= max_length) & (targets <= max_length)).astype(np.int32)
        self.num_examples = len(kept)
        """Number of examples of an epoch."""
        self.left_out = left_out(inputs, targets, max_length)
        if not len(kept):
            message = f"all {len(inputs)} training examples are longer than data.max_length={max_length}"
            raise TooLongError(message, self.left_out, len(inputs))
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
        self._shapes = [batch_shape(bucket.rows, lengths, bucket.shape) for bucket in self._buckets]
        # Batches are numbered bucket by bucket and shuffled by epoch.
        self._first_batch = np.cumsum([0, *(b.num_batches for b in self._buckets)])
        self._epoch: tuple[int, np.ndarray, list[np.ndarray]] | None = None
        self.padding_efficiency = float(
            (inputs.sum(dtype=np.int64) + targets.sum(dtype=np.int64)) / sum(b.num_slots for b in self._buckets)
        )
        """Tokens divided by slots of all sequences, in an epoch."""

    @property
    def batches_per_epoch(self) -> int:
        return int(self._first_batch[-1])

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """All possible shapes of a batch, smallest first."""
        return tuple(s for s, bucket in zip(self._shapes, self._buckets, strict=True) if bucket.num_batches)

    def epoch(self, step: int) -> int:
        """Return the number of the epoch of batch `step`, from 0."""
        return step // self.batches_per_epoch

    def shape(self, step: int) -> BatchShape:
        """Return the shape of batch `step`; it is the same for every seed."""
        order = self._order(self.epoch(step))
        return self._shapes[self._bucket_of(int(order[step % self.batches_per_epoch]))]

    def batch(self, step: int, rows: slice | None = None) -> Batch:
        """Return batch `step`, or some of its rows, which keep their `row_ids`."""
        order, filled = self._plan(self.epoch(step))
        number = int(order[step % self.batches_per_epoch])
        k = self._bucket_of(number)
        examples = filled[k][number - self._first_batch[k]]
        return self._arrays(_rows(examples, rows), self._shapes[k], step)

    def _bucket_of(self, number: int) -> int:
        return int(np.searchsorted(self._first_batch, number, side="right")) - 1

    def _order(self, epoch: int) -> np.ndarray:
        if self._epoch is not None and self._epoch[0] == epoch:
            return self._epoch[1]
        return generator(ORDER_STREAM, 0, epoch, 0).permutation(self.batches_per_epoch)

    def _plan(self, epoch: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the order of the batches, and for every bucket the examples of its batches."""
        current = self._epoch
        if current is None or current[0] != epoch:

            def shuffle(bucket: int, examples: np.ndarray) -> np.ndarray:
                return generator(ROWS_STREAM, self._seed, epoch, bucket).permutation(examples)

            self._epoch = current = None  # first, so that memory never holds two epochs
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
    """Group rows by length: every row exactly once, sorted, none left out or cut.

    Widths come from 8, 16, 24, 32, 48, 64, 96, ... The number of rows is `row_multiple` times a power of two, or the
    greatest that `tokens_per_batch` allows. So there are few shapes, for any number of calls. A row that exceeds
    `tokens_per_batch` alone gets a batch of `row_multiple` rows.

    Args:
      lengths: int [rows], at least 1 each.
      tokens_per_batch: limit of rows times width.
      row_multiple: rows of every batch are a multiple of this.
      max_width: number of the model's positions, if it is bounded. Only rows that are longer get a larger width.
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


class EvaluationBatch(NamedTuple):
    """Arrays of a batch, and the number of the example of each row, int [B]; -1 for an empty row."""

    batch: Batch
    examples: np.ndarray


class EvaluationBatches:
    """The batches of an evaluation: every example exactly once, sorted by length, none left out or cut.

    Iteration yields (batch, indices); `indices`, int32 [B], is the example of each row, -1 for rows of padding.

    Args:
      lengths: of the split's examples. arrays: makes a batch.
      tokens_per_batch: limit of rows times the longest width; a longer example still gets its batch.
      row_multiple: rows of every batch are a multiple of this.
      max_width: number of the model's positions, if it is bounded; see `length_batches`.
    """

    def __init__(
        self,
        lengths: Lengths,
        arrays: Arrays,
        *,
        tokens_per_batch: int,
        row_multiple: int,
        max_width: int | None = None,
    ) -> None:
        self._lengths = lengths
        self._arrays = arrays
        sides = two_sides(lengths)
        self._groups = length_batches(np.maximum(*sides), tokens_per_batch, row_multiple, max_width)
        # The shorter side may need less than the width: a summary may have a twentieth of its document's length.
        self._widths: dict[int, Shape] = {}
        for width in {group.width for group in self._groups}:
            indices = np.concatenate([group.indices for group in self._groups if group.width == width])
            longest = [int(side[indices[indices >= 0]].max()) for side in sides]
            self._widths[width] = (_ladder(longest[0], max_width)[-1], _ladder(longest[1], max_width)[-1])

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[EvaluationBatch]:
        return map(self.batch, range(len(self)))

    @property
    def shapes(self) -> tuple[BatchShape, ...]:
        """All possible shapes of a batch, smallest first."""
        return tuple(sorted({self._shape(group) for group in self._groups}))

    def num_rows(self, number: int) -> int:
        """Return the number of rows of batch `number`, including padding."""
        return len(self._groups[number].indices)

    def batch(self, number: int, rows: slice | None = None) -> EvaluationBatch:
        """Return batch `number` and its examples, or some of its rows, which keep their `row_ids`."""
        group = self._groups[number]
        chosen = _rows(group.indices, rows)
        return EvaluationBatch(self._arrays(chosen, self._shape(group), None), chosen.examples)

    def _shape(self, group: LengthBatch) -> BatchShape:
        return batch_shape(len(group.indices), self._lengths, self._widths[group.width])


def _ladder(longest: int, max_width: int | None) -> list[int]:
    """Return the widths 8, 16, 24, 32, 48, 64, 96, ... up to one for `longest`, within `max_width` if possible."""
    widths = [8]
    while widths[-1] < longest:
        power = 1 << (widths[-1].bit_length() - 1)
        widths.append(widths[-1] + max(8, power // 2))
    if max_width is not None and widths[-1] > max_width:
        widths = [*(w for w in widths if w < max_width), max_width]
        if longest > max_width:
            widths.append(longest)
    return widths


def _rows(examples: np.ndarray, rows: slice | None) -> Rows:
    """Return rows of one example each, or some of them."""
    row_ids = np.arange(len(examples), dtype=np.int32)
    if rows is not None:
        examples, row_ids = examples[rows], row_ids[rows]
    return Rows(examples, np.ones(len(examples), np.int32), row_ids, packed=False)
