"""Separate tokenizers of source and target texts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.data.tokenizers.tokenizer import EncodedSpans, EncodedTexts, SpecialIds, Tokenizer


class TokenizerPair:
    """Two tokenizers with vocabularies of their own: that of target texts, and as `source` that of source texts.

    As a tokenizer it is that of the target: the ids that a model outputs, and those of prompts, are the target's.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source = source
        self.target = target

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def special_ids(self) -> SpecialIds:
        return self.target.special_ids

    @property
    def model_bytes(self) -> bytes:
        """The bytes of the target's tokenizer alone; each of the two is stored in a file of its own."""
        return self.target.model_bytes

    @functools.cached_property
    def sha256(self) -> str:
        """Hex digest of both digests."""
        return hashlib.sha256(f"{self.source.sha256} {self.target.sha256}".encode()).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        return self.target.encode_batch(texts)

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        return self.target.encode_spans(texts)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self.target.decode(ids)

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return self.target.decode_batch(rows)

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        return self.target.tokens(ids)
