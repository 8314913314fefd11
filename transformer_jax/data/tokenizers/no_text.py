"""The place of a tokenizer in a corpus without text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

import numpy as np

from transformer_jax.data.tokenizers.tokenizer import EncodedSpans, EncodedTexts, ModelBytes, SpecialIds
from transformer_jax.errors import DataError

MAGIC = b"no text\n"


class NoText(ModelBytes):
    """A tokenizer without ids, of a model that reads images; raises DataError for other model bytes than `MAGIC`.

    Every text is a DataError.
    """

    special_ids = SpecialIds()
    vocab_size = 0

    def __init__(self, model_bytes: bytes = MAGIC) -> None:
        super().__init__(model_bytes)
        if self._model_bytes != MAGIC:
            raise DataError("tokenizer: the model of a corpus without text is damaged")

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        return _refuse()

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        return _refuse()

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return _refuse()

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return _refuse()

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        return [] if not len([*ids]) else _refuse()


def _refuse() -> NoReturn:
    raise DataError("this model reads images and has no tokenizer")
