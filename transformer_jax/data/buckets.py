"""Length buckets: the few shapes to which pairs of sentences are padded, and the distribution of pairs over batches.

Every shape is compiled once, so there are few. They are placed where they save the most padding. Lengths count eos.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

# The finest grid of widths has at most this many cells per side, so that the choice takes much less than a second for
# all lengths.
_MAX_CELLS = 128
# Widths that are multiples of 8, 4 or 2 suit accelerators; they are used if they cost at most this much padding.
_ALIGNMENT_TOLERANCE = 0.01

Shape = tuple[int, int]
"""Width of the inputs and width of the targets."""


@dataclasses.dataclass(frozen=True)
class Bucket:
    """One compiled shape, and the number of its batches in an epoch."""

    shape: Shape
    rows: int
    """Rows of each batch."""
    num_batches: int
    num_examples: int
    """Number of pairs in its batches: its own, and those left over from smaller buckets."""
    leftovers_to: int | None
    """Number of the bucket that takes the pairs of its last, short batch; None if it keeps them."""

    @property
    def num_slots(self) -> int:
        """Number of tokens of both sides, including padding, in all batches."""
        return self.num_batches * self.rows * sum(self.shape)


def choose_shapes(
    input_lengths: np.ndarray, target_lengths: np.ndarray, num_shapes: int, max_width: int
) -> list[Shape]:
    """Return at most `num_shapes` shapes, smallest first, that together need few slots.

    A pair costs the slots, inputs plus targets, of the cheapest shape that holds it. The largest shape holds all pairs.
    The other shapes start at quantiles. In turn, each moves to the place where it saves the most, given the others,
    until none moves. The result is a local optimum; random restarts improve it by less than 0.2 %.

    Args:
      input_lengths, target_lengths: int [pairs], each from 1 to `max_width`.
      num_shapes: greatest number of shapes.
      max_width: greatest width.
    """
    longest = int(max(input_lengths.max(), target_lengths.max()))
    finest = 1
    while longest > _MAX_CELLS * finest:
        finest *= 2
    rows, columns = (input_lengths - 1) // finest, (target_lengths - 1) // finest
    num_rows, num_columns = int(rows.max()) + 1, int(columns.max()) + 1
    counts = np.bincount(rows * num_columns + columns, minlength=num_rows * num_columns)
    counts = counts.reshape(num_rows, num_columns)
    best: list[Shape] = []
    limit = np.inf
    for grain in (finest, *(g for g in (2, 4, 8) if g > finest)):
        shapes, num_slots = _optimise(_coarsened(counts, grain // finest), grain, num_shapes, max_width)
        if num_slots <= limit:
            best = shapes
        if grain == finest:
            limit = num_slots * (1 + _ALIGNMENT_TOLERANCE)
    return sorted(set(best), key=lambda shape: (sum(shape), shape))


def assign(input_lengths: np.ndarray, target_lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """Return the index of the cheapest shape for each pair, int16 [pairs]; `shapes` ascend, and the last holds all."""
    index = np.full(len(input_lengths), len(shapes) - 1, np.int16)
    for k in reversed(range(len(shapes) - 1)):
        width, target_width = shapes[k]
        index[(input_lengths <= width) & (target_lengths <= target_width)] = k
    return index


def make_buckets(
    counts: Sequence[int], shapes: Sequence[Shape], tokens_per_batch: int, row_multiple: int, balanced: bool
) -> list[Bucket]:
    """Return the buckets: rows per batch, number of batches, and the bucket that takes the pairs of a short last batch.

    A batch has at most the largest multiple of `row_multiple` rows that keeps its longer side within
    `tokens_per_batch`, and at least one multiple. The pairs of a bucket's short last batch move into a larger bucket
    where this saves slots.

    Args:
      counts: pairs of each shape.
      shapes: ascending; the last one holds all others.
      tokens_per_batch: limit of rows times the longer width.
      row_multiple: rows are a multiple of this.
      balanced: whether the batches of a bucket share its pairs evenly, with fewer rows than the limit allows; this
        needs the fewest slots. Otherwise only a bucket that fills less than one batch has fewer rows, by a power of
        two, so that other sets of pairs probably need the same shapes.
    """
    limits = [max(row_multiple, tokens_per_batch // max(s) // row_multiple * row_multiple) for s in shapes]
    destinations: list[int | None] = [None] * len(shapes)

    def buckets_with(destinations: Sequence[int | None]) -> list[Bucket]:
        waiting, buckets = list(counts), []
        for k, shape in enumerate(shapes):
            destination = destinations[k]
            if destination is not None:
                moved = waiting[k] % limits[k]
                waiting[k] -= moved
                waiting[destination] += moved
            num_batches = -(-waiting[k] // limits[k])
            multiples = -(-waiting[k] // row_multiple)
            multiples = -(-multiples // max(num_batches, 1)) if balanced else 1 << (multiples - 1).bit_length()
            rows = min(multiples * row_multiple, limits[k])
            buckets.append(Bucket(shape, rows, num_batches, waiting[k], destination))
        return buckets

    best = buckets_with(destinations)
    num_slots = sum(bucket.num_slots for bucket in best)
    for k, shape in enumerate(shapes):
        for larger in range(k + 1, len(shapes)):
            if shapes[larger][0] < shape[0] or shapes[larger][1] < shape[1]:
                continue
            trial = buckets_with([*destinations[:k], larger, *destinations[k + 1 :]])
            if (trial_slots := sum(bucket.num_slots for bucket in trial)) < num_slots:
                best, num_slots = trial, trial_slots
        destinations[k] = best[k].leftovers_to
    return best


def fill(
    buckets: Sequence[Bucket], members: Sequence[np.ndarray], arrange: Callable[[int, np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Return the pairs of every batch: each pair exactly once, the last batch of a bucket padded with -1.

    Args:
      buckets: from `make_buckets`, for these members.
      members: the rows of each bucket's own pairs.
      arrange: orders the rows of bucket k, in which those left over from smaller buckets come first; the last ones move
        to the next bucket.

    Returns:
      For each bucket int32 [num_batches, rows].
    """
    pools = [[own] for own in members]
    filled = []
    for k, bucket in enumerate(buckets):
        pool = arrange(k, np.concatenate(pools[k]))
        if bucket.leftovers_to is not None:
            pools[bucket.leftovers_to].insert(-1, pool[bucket.num_examples :])
        rows = np.full(bucket.num_batches * bucket.rows, -1, np.int32)
        rows[: bucket.num_examples] = pool[: bucket.num_examples]
        filled.append(rows.reshape(bucket.num_batches, bucket.rows))
    return filled


def _coarsened(counts: np.ndarray, factor: int) -> np.ndarray:
    """Return sums of factor x factor cells: [I, J] -> [ceil(I / factor), ceil(J / factor)]."""
    summed = np.add.reduceat(counts, np.arange(0, counts.shape[0], factor), axis=0)
    return np.add.reduceat(summed, np.arange(0, counts.shape[1], factor), axis=1)


def _optimise(counts: np.ndarray, grain: int, num_shapes: int, max_width: int) -> tuple[list[Shape], int]:
    """Return shapes and their slots; cell [i, j] counts pairs that need widths (i + 1) * grain, (j + 1) * grain."""
    input_widths, target_widths = (np.minimum(grain * np.arange(1, n + 1), max_width) for n in counts.shape)
    slots = input_widths[:, None] + target_widths
    last = (counts.shape[0] - 1, counts.shape[1] - 1)
    cells = [*_quantiles(counts, num_shapes), last]
    for _ in range(50):  # it converges in about ten
        before = list(cells)
        for k in range(len(cells) - 1):
            cells[k] = _best_cell(counts, slots, _cheapest(slots, cells[:k] + cells[k + 1 :]))
        if cells == before:
            break
    num_slots = int((counts * _cheapest(slots, cells)).sum())
    return [(int(input_widths[i]), int(target_widths[j])) for i, j in cells], num_slots


def _quantiles(counts: np.ndarray, num_shapes: int) -> list[tuple[int, int]]:
    """Return `num_shapes` - 1 cells that divide the pairs evenly by their longer side."""
    i, j = np.indices(counts.shape)
    by_longer = np.bincount(np.maximum(i, j).ravel(), weights=counts.ravel()).cumsum()
    levels = np.arange(1, num_shapes) / num_shapes * by_longer[-1]
    cells = np.searchsorted(by_longer, levels).tolist()
    return [(min(c, counts.shape[0] - 1), min(c, counts.shape[1] - 1)) for c in cells]


def _cheapest(slots: np.ndarray, cells: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the slots of the cheapest shape that holds each cell; one of the shapes holds all."""
    cheapest = np.full(slots.shape, slots[-1, -1])
    for i, j in cells:
        held = cheapest[: i + 1, : j + 1]
        np.minimum(held, slots[i, j], out=held)
    return cheapest


def _best_cell(counts: np.ndarray, slots: np.ndarray, cheapest: np.ndarray) -> tuple[int, int]:
    """Return the shape that saves the most, given the cost of each cell without it.

    A shape at [i, j] saves the sum over cells i' <= i, j' <= j of count * max(0, cheapest - slots[i, j]). `cheapest`
    has few distinct values, so one cumulative sum per value gives the savings of all shapes at once.
    """
    savings = np.zeros(counts.shape, np.int64)
    for value in np.unique(cheapest):
        held = np.where(cheapest == value, counts, 0).cumsum(axis=0).cumsum(axis=1)
        savings += held * np.maximum(value - slots, 0)
    i, j = np.unravel_index(int(savings.argmax()), savings.shape)
    return int(i), int(j)
