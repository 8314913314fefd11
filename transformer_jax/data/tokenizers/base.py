"""What every tokenizer offers."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from transformer_jax.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID

RESERVED = {PAD_ID: "<pad>", EOS_ID: "</s>", UNK_ID: "<unk>", BOS_ID: "<s>"}
"""The ids from 0 that are no pieces of text, and their names."""

SPACE = "\u2581"
"""What stands for a space where a piece is shown: SentencePiece's `▁`."""

# Trainers need minutes for a word of a million characters, or leave it out; cut into parts of this many characters,
# such lines count like others.
_TRAINING_CHARACTERS = 1000


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

    def pieces(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """How every id is written by itself: a reserved one by its name, a space as `SPACE`."""
        ...


class ModelBytes:
    """What is the same for every tokenizer: bytes that describe it, and the digest they are known by."""

    def __init__(self, model_bytes: bytes) -> None:
        self._model_bytes = bytes(model_bytes)

    @property
    def model_bytes(self) -> bytes:
        return self._model_bytes

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._model_bytes).hexdigest()


def concatenated(rows: Sequence[Sequence[int]]) -> EncodedTexts:
    """The ids of every text as two arrays."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1]))
    return EncodedTexts(ids, offsets)


def before_eos(ids: Iterable[int] | np.ndarray) -> list[int]:
    """The ids that come before the first eos, as a list."""
    row = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
    return row[: row.index(EOS_ID)] if EOS_ID in row else row


def training_lines(texts: Iterable[str]) -> Iterator[str]:
    """The texts for a trainer, long ones in parts."""
    for text in texts:
        for start in range(0, len(text), _TRAINING_CHARACTERS):
            yield text[start : start + _TRAINING_CHARACTERS]
