"""The forms in which Hugging Face stores our parameters. Each is invertible: no number changes, only its place."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Layout:
    """The same array, as a vector or a matrix.

    inputs: number of our leading axes that are the rows of their matrix, [*inputs, *features]; None for a vector.
    transposed: whether they store the matrix as [features, inputs], as `torch.nn.Linear` does.
    skipped: number of rows before ours that nothing reads; zeros are written.
    halves: whether the last axis of ours holds the pairs of rotary positions side by side, and theirs the first numbers
      of all pairs before the second ones.
    """

    inputs: int | None = 1
    transposed: bool = True
    halves: bool = False
    skipped: int = 0

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
        if self.halves:
            y = y.reshape(*shape[:-1], 2, shape[-1] // 2).swapaxes(-1, -2)
        return y.reshape(shape)

    def to_theirs(self, x: np.ndarray) -> np.ndarray:
        """Return our array x in their shape."""
        if self.skipped:
            return np.pad(x, ((self.skipped, 0), (0, 0)))
        theirs = self.shape(x.shape)
        if self.halves:
            x = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2).swapaxes(-1, -2)
        if self.inputs is None:
            return x.reshape(theirs)
        y = x.reshape(theirs[::-1] if self.transposed else theirs)
        return y.T if self.transposed else y

    @property
    def features_axis(self) -> int:
        """The axis of their array with the features, along which several of our arrays may be joined."""
        return 0 if self.transposed or self.inputs is None else 1


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
