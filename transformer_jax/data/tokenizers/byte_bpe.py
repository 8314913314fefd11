"""Byte-level BPE as in GPT-2, by the library `tokenizers`: any text to tokens and back, without loss.

Text is divided between letters, digits, other characters and spaces. The UTF-8 bytes of each part are merged by the
pairs that were most frequent in training; no token spans two parts. No space is added in front, and nothing is
normalised.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transformer_jax.data.tokenizers.base import (
    RESERVED,
    SPACE,
    EncodedTexts,
    ModelBytes,
    concatenated,
    training_lines,
    with_text,
)
from transformer_jax.errors import ConfigError, DataError

_SMALLEST = 256 + len(RESERVED)


class ByteBPETokenizer(ModelBytes):
    """A model in the library's JSON. Raises DataError for other bytes, and for a model with other reserved ids.

    Names of reserved ids in a text, such as `</s>`, are ordinary text: encoding yields no reserved id.
    """

    def __init__(self, model_bytes: bytes) -> None:
        super().__init__(model_bytes)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(self._model_bytes.decode("utf-8"))
        except Exception as error:  # the library raises no other class
            raise DataError(
                f"tokenizer: {len(self._model_bytes)} bytes are not a model of byte-level BPE: {error}"
            ) from error
        kinds = self._tokenizer.model, self._tokenizer.pre_tokenizer
        if not (isinstance(kinds[0], models.BPE) and isinstance(kinds[1], pre_tokenizers.ByteLevel)):
            raise DataError(
                f"tokenizer: {type(kinds[0]).__name__} after {type(kinds[1]).__name__}, expected BPE after ByteLevel"
            )
        ids = tuple(self._tokenizer.token_to_id(name) for name in RESERVED.values())
        if ids != tuple(RESERVED):
            raise DataError(f"tokenizer: ids of {', '.join(RESERVED.values())} are {ids}, expected {tuple(RESERVED)}")
        # Names of reserved ids are text. The model's bytes do not store this setting.
        self._tokenizer.encode_special_tokens = True

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return concatenated([encoding.ids for encoding in encodings])

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; bytes that are not UTF-8, which encoding never yields, become U+FFFD."""
        return self._tokenizer.decode(with_text(ids, self.special_ids), skip_special_tokens=False)

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return self._tokenizer.decode_batch(
            [with_text(row, self.special_ids) for row in rows], skip_special_tokens=False
        )

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; bytes that are not a character are written as the library stores them, such as `Ã`."""
        return [self._token(int(id)) for id in ids]

    def _token(self, id: int) -> str:
        text = self._tokenizer.decode([id], skip_special_tokens=False)
        if "\ufffd" not in text:
            return text.replace(" ", SPACE)
        stored = self._tokenizer.id_to_token(id)
        assert stored is not None, f"id {id} is below vocab_size"
        return stored


def train_byte_bpe(texts: Iterable[str], vocab_size: int) -> ByteBPETokenizer:
    """Train one vocabulary for all texts: the reserved ids, the 256 bytes, and merges.

    The result does not depend on the number of threads.

    Raises: ConfigError if the texts have too few pairs to merge, or `vocab_size` is too small for reserved ids and
      bytes; DataError if there is no text.
    """
    if vocab_size < _SMALLEST:
        raise ConfigError(
            f"config: model.vocab_size={vocab_size}: the tokenizer needs at least {_SMALLEST}: 256 bytes, "
            f"{len(RESERVED)} reserved ids"
        )
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(RESERVED.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = training_lines(texts)
    first = next(lines, None)
    if first is None:
        raise DataError("tokenizer: the training split has no text to train on")
    tokenizer.train_from_iterator(itertools.chain([first], lines), trainer)
    if tokenizer.get_vocab_size() < vocab_size:
        raise ConfigError(
            f"config: model.vocab_size={vocab_size}: the training split yields at most "
            f"{tokenizer.get_vocab_size()} tokens; choose at most that"
        )
    return ByteBPETokenizer(tokenizer.to_str().encode("utf-8"))
