"""The forms in which Hugging Face stores our parameters. Each is invertible: no number changes, only its place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from transformer_jax.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Layout:
    """The same array, as a vector or a matrix.

    inputs: number of our leading axes that are the rows of their matrix, [*inputs, *features]; None for a vector.
    transposed: whether they store the matrix as [features, inputs], as `torch.nn.Linear` does.
    skipped: number of rows before ours that nothing reads; zeros are written.
    halves: whether the last axis of ours holds the pairs of rotary positions side by side, and theirs the first numbers
      of all pairs before the second ones.
    head_dim, rotary_dim: with `halves`, the width of a head, if the last axis holds several, and how many of its
      numbers are in pairs, the first ones; None: all. `of` sets them for a model.
    """

    inputs: int | None = 1
    transposed: bool = True
    halves: bool = False
    skipped: int = 0
    head_dim: int | None = None
    rotary_dim: int | None = None

    def of(self, config: ModelConfig) -> Layout:
        """Return the layout in a model with this config."""
        if not self.halves:
            return self
        return dataclasses.replace(self, head_dim=config.head_dim, rotary_dim=config.rotary_dim)

    def shape(self, ours: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of their array for an array of ours."""
        if self.inputs is None:
            return (math.prod(ours),)
        rows, columns = self.skipped + math.prod(ours[: self.inputs]), math.prod(ours[self.inputs :])
        return (columns, rows) if self.transposed else (rows, columns)

    def to_ours(self, x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return their array x in our shape."""
        x = x[self.skipped :]
        y = x if self.inputs is None or not self.transposed else x.T
        return self._in_pairs(y.reshape(shape)) if self.halves else y.reshape(shape)

    def to_theirs(self, x: np.ndarray) -> np.ndarray:
        """Return our array x in their shape."""
        if self.skipped:
            return np.pad(x, ((self.skipped, 0), (0, 0)))
        theirs = self.shape(x.shape)
        if self.halves:
            x = self._in_halves(x)
        if self.inputs is None:
            return x.reshape(theirs)
        y = x.reshape(theirs[::-1] if self.transposed else theirs)
        return y.T if self.transposed else y

    def split(self, x: np.ndarray, shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the arrays of ours, of these shapes, that their array x holds."""
        axis, start, parts = self.features_axis, 0, []
        for shape in shapes:
            width = self.shape(shape)[axis]
            parts.append(self.to_ours(x[(slice(None),) * axis + (slice(start, start + width),)], shape))
            start += width
        return parts

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the array of theirs that holds these of ours, along the axis of features."""
        parts = [self.to_theirs(x) for x in arrays]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.features_axis)

    @property
    def features_axis(self) -> int:
        """The axis of their array with the features, along which several of our arrays may be joined."""
        return 0 if self.transposed or self.inputs is None else 1

    def _in_pairs(self, x: np.ndarray) -> np.ndarray:
        """Return x [..., heads * H] with the numbers of every pair side by side; in x, the first ones come first."""
        return self._reordered(x, lambda rotated: interleaved(rotated, -1))

    def _in_halves(self, x: np.ndarray) -> np.ndarray:
        """Return the inverse of `_in_pairs`."""
        return self._reordered(x, lambda rotated: halved(rotated, -1))

    def _reordered(self, x: np.ndarray, order: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return x [..., heads * H] with `order` applied to the numbers of every head that are in pairs."""
        heads = x.reshape(*x.shape[:-1], -1, self.head_dim or x.shape[-1])
        width = heads.shape[-1] if self.rotary_dim is None else self.rotary_dim
        parts = [order(heads[..., :width]), heads[..., width:]]
        return (np.concatenate(parts, -1) if parts[1].size else parts[0]).reshape(x.shape)


@dataclasses.dataclass(frozen=True)
class HeadByHead(Layout):
    """Queries, keys and values [*inputs, N, H] in one matrix [N * 3 * H, inputs], those of a head together.

    Values have no rotary positions.
    """

    def split(self, x: np.ndarray, shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
        heads = x.reshape(-1, len(shapes), shapes[0][-1], *x.shape[1:])  # [N, 3, H, ...]
        return [
            layout.to_ours(heads[:, part].reshape(-1, *x.shape[1:]), shape)
            for part, (layout, shape) in enumerate(zip(self._layouts(), shapes, strict=True))
        ]

    def join(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        parts = [layout.to_theirs(x) for layout, x in zip(self._layouts(), arrays, strict=True)]
        heads = [part.reshape(-1, arrays[0].shape[-1], *part.shape[1:]) for part in parts]  # [N, H, ...]
        return np.stack(heads, 1).reshape(-1, *parts[0].shape[1:])

    def _layouts(self) -> tuple[Layout, ...]:
        return (self, self, dataclasses.replace(self, halves=False))


@dataclasses.dataclass(frozen=True)
class Permuted(Layout):
    """The same array with its axes in another order, after some axes of size 1.

    order: our axes in the order of theirs. ones: number of axes of size 1 before them.
    """

    order: tuple[int, ...] = ()
    ones: int = 0

    def shape(self, ours: Sequence[int]) -> tuple[int, ...]:
        return (1,) * self.ones + tuple(ours[axis] for axis in self.order)

    def to_ours(self, x: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return x.reshape([shape[axis] for axis in self.order]).transpose(np.argsort(self.order))

    def to_theirs(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(self.order).reshape(self.shape(x.shape))


VECTOR = Layout(inputs=None)
ROTARY_VECTOR = Layout(inputs=None, halves=True)
ROW = Layout(inputs=0, transposed=False)
"""[columns] as [1, columns]."""
TABLE = Layout(inputs=1, transposed=False)
"""[rows, columns] on both sides: embeddings, and kernels of GPT-2's `Conv1D`."""
LINEAR = Layout()
"""[inputs, *features] as [features, inputs]."""
ROTARY_LINEAR = Layout(halves=True)
FUSED_LINEAR = HeadByHead(halves=True)
FUSED_VECTOR = HeadByHead(inputs=None, halves=True)
HEADS_OUT = Layout(inputs=2)
"""[N, H, D] as [D, N H]: the output projection of attention."""
HEADS_OUT_TABLE = Layout(inputs=2, transposed=False)
CONVOLUTION = Permuted(order=(3, 2, 0, 1))
"""[row, column, channel, D] as [D, channel, row, column], which is the form of `torch.nn.Conv2d`."""
VECTOR_OF_ONE = Permuted(order=(0,), ones=2)
"""[D] as [1, 1, D]."""
MATRIX_OF_ONE = Permuted(order=(0, 1), ones=1)
"""[rows, D] as [1, rows, D]."""


def interleaved(x: np.ndarray, axis: int) -> np.ndarray:
    """Return x with `axis` in our order, where each sine is followed by its cosine.

    In x, all sines come before all cosines."""
    size = x.shape[axis]
    return np.take(x, np.arange(size).reshape(2, size // 2).T.ravel(), axis)


def halved(x: np.ndarray, axis: int) -> np.ndarray:
    """Return the inverse of `interleaved`."""
    size = x.shape[axis]
    return np.take(x, np.arange(size).reshape(size // 2, 2).T.ravel(), axis)
