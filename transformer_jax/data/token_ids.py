"""A split as ids: rows of different lengths in flat arrays, which may be files that are mapped into memory."""

from __future__ import annotations

import functools

import numpy as np

from transformer_jax.config import PAD_ID
from transformer_jax.errors import DataError


class RaggedIds:
    """Rows of ids of different lengths, stored one after the other: row `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    def __init__(self, ids: np.ndarray, offsets: np.ndarray) -> None:
        self._ids = np.asarray(ids)  # a plain view: indexing a memmap itself is slower
        self._offsets = np.asarray(offsets)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """int32 [number of rows]."""
        return np.diff(self._offsets).astype(np.int32)

    def take(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Gathers rows, padded on the right: int [B] -> int32 [B, width]. Row -1 is a row of padding.

        Raises ValueError if a row is longer than `width`: nothing is cut.
        """
        rows = np.asarray(rows, np.int64)
        starts = self._offsets[rows]
        lengths = np.where(rows < 0, 0, self._offsets[rows + 1] - starts)
        if rows.size and lengths.max() > width:
            raise ValueError(f"a row of {lengths.max()} ids does not fit into width {width}")
        column = np.arange(width)
        is_token = column < lengths[:, None]
        padded = np.full((len(rows), width), PAD_ID, np.int32)
        padded[is_token] = self._ids[(starts[:, None] + column)[is_token]]
        return padded


class TokenizedSplit:
    """One split as ids. Every row ends in eos; both sides are aligned. A monolingual split has no inputs."""

    def __init__(self, inputs: RaggedIds | None, targets: RaggedIds) -> None:
        self._inputs = inputs
        self._targets = targets

    @property
    def num_examples(self) -> int:
        return len(self.target_lengths)

    @property
    def monolingual(self) -> bool:
        return self._inputs is None

    @property
    def input_lengths(self) -> np.ndarray:
        """int32 [num_examples], with eos. Raises DataError if the split is monolingual, as `inputs` does."""
        return self._pairs().lengths

    @property
    def target_lengths(self) -> np.ndarray:
        """int32 [num_examples], with eos."""
        return self._targets.lengths

    def inputs(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Padded input ids of the rows, int32 [len(rows), width]; see `RaggedIds.take`."""
        return self._pairs().take(rows, width)

    def targets(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Padded target ids of the rows, int32 [len(rows), width]; see `RaggedIds.take`."""
        return self._targets.take(rows, width)

    def _pairs(self) -> RaggedIds:
        if self._inputs is None:
            raise DataError("data.monolingual=true: the corpus has no inputs, and this model needs pairs")
        return self._inputs
