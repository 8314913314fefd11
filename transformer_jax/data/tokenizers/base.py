"""What every tokenizer offers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from transformer_jax.config import EOS_ID


class EncodedTexts(NamedTuple):
    """Ids of several texts, one after the other: text `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    """int32 [sum of lengths]."""
    offsets: np.ndarray
    """int64 [number of texts + 1], from 0."""


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Encoding adds no eos or bos: the token cache and the decoder add what they need."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, the four reserved ones included."""
        ...

    @property
    def model_bytes(self) -> bytes:
        """Everything that `load_tokenizer` needs."""
        ...

    @property
    def sha256(self) -> str:
        """Hex digest of `model_bytes`."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        """Ids of every text, without eos."""
        ...

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Text of the ids before the first eos; pad and bos have none."""
        ...

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        """`decode` of every row, which may be an int array [B, T]."""
        ...


def before_eos(ids: Iterable[int] | np.ndarray) -> list[int]:
    """The ids that come before the first eos, as a list."""
    row = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
    return row[: row.index(EOS_ID)] if EOS_ID in row else row
