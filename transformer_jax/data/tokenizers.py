"""Tokenizers: text to ids and back, without loss.

Every tokenizer reserves the ids 0 to 3 of `transformer_jax.config` (pad, eos, unk, bos) and is fully described by its
model bytes, which travel with the work directory and with every checkpoint.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
import sentencepiece

from transformer_jax.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer_jax.errors import ConfigError, DataError

# SentencePiece's unigram pieces depend on how many threads share the corpus, so the number is part of the recipe.
_TRAINING_THREADS = 8
# More threads than this do not help: making Python lists of the ids is serial.
_ENCODING_THREADS = min(8, os.cpu_count() or 1)
# SentencePiece leaves longer lines (4,192 bytes) out of its training without a word, and its unigram trainer needs
# minutes for a word of a million characters; cut into parts of this many characters, such lines count like others.
_TRAINING_CHARACTERS = 1000
_BYTES_AND_SPECIALS = 256 + 4


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


class SentencePieceTokenizer:
    """A SentencePiece model. Raises DataError if the bytes are none, or one with other reserved ids."""

    def __init__(self, model_bytes: bytes) -> None:
        self._model_bytes = bytes(model_bytes)
        if not self._model_bytes:  # SentencePiece loads nothing without complaint, and fails at the first use
            raise DataError("tokenizer: the model is empty")
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=self._model_bytes)
        except RuntimeError as error:
            raise DataError(f"tokenizer: {len(self._model_bytes)} bytes that are no SentencePiece model") from error
        processor = self._processor
        reserved = (processor.pad_id(), processor.eos_id(), processor.unk_id(), processor.bos_id())
        if reserved != (PAD_ID, EOS_ID, UNK_ID, BOS_ID):
            raise DataError(f"tokenizer: ids of pad, eos, unk, bos are {reserved}, expected (0, 1, 2, 3)")

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @property
    def model_bytes(self) -> bytes:
        return self._model_bytes

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._model_bytes).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        num_threads = _ENCODING_THREADS if len(texts) >= 64 else 1
        rows = self._processor.encode(list(texts), out_type=int, num_threads=num_threads)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1]))
        return EncodedTexts(ids, offsets)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self._processor.decode(_before_eos(ids))

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]


def train_tokenizer(
    inputs: Sequence[str], targets: Sequence[str], model_type: str, vocab_size: int, max_pairs: int
) -> SentencePieceTokenizer:
    """Trains one SentencePiece vocabulary for both sides of a training split.

    Text is neither normalised nor trimmed: what is encoded decodes to the same string, double, leading and trailing
    spaces, tabs and every character included, so BLEU is computed against references that the model could produce.
    (SentencePiece's own default, NFKC with spaces folded, turns `…` into three dots and a no-break space into a space,
    for good.) Who wants text normalised does it in the files, where it shows. Characters that are too rare for a piece
    of their own become their UTF-8 bytes, so encoding never yields unk. One exception: `▁` (U+2581), by which
    SentencePiece writes a space, decodes to a space.

    Args:
      inputs, targets: the two sides, aligned.
      model_type: "unigram" or "bpe".
      vocab_size: number of ids, with the 4 reserved ones and the 256 bytes.
      max_pairs: if there are more pairs, this many at even distances are used.

    Raises:
      ConfigError: the text cannot fill so large a vocabulary, or so small a one cannot hold its characters.
      DataError: there is no text.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_training_lines(inputs, targets, max_pairs),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            pad_id=PAD_ID,
            eos_id=EOS_ID,
            unk_id=UNK_ID,
            bos_id=BOS_ID,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        _explain(error, vocab_size)
    return SentencePieceTokenizer(model.getvalue())


def load_tokenizer(model_bytes: bytes) -> Tokenizer:
    """The tokenizer that was stored as `model_bytes`; raises DataError if they are damaged."""
    return SentencePieceTokenizer(model_bytes)


def read_tokenizer(path: Path) -> Tokenizer:
    """Loads a tokenizer file; raises DataError, naming the file, if it cannot be read or is damaged."""
    try:
        return load_tokenizer(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot read the tokenizer: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def write_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Stores a tokenizer whole or not at all; raises DataError, naming the folder, if that cannot be written."""
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(tokenizer.model_bytes)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path.parent}: cannot write {path.name}: {error.strerror}") from error


def _before_eos(ids: Iterable[int] | np.ndarray) -> list[int]:
    row = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
    return row[: row.index(EOS_ID)] if EOS_ID in row else row


def _training_lines(inputs: Sequence[str], targets: Sequence[str], max_pairs: int) -> Iterator[str]:
    num_pairs = min(len(inputs), max_pairs)
    for index in range(num_pairs):
        row = index * len(inputs) // num_pairs
        for text in (inputs[row], targets[row]):
            line = text.replace("\u2585", " ")  # SentencePiece leaves lines with its private unk mark out
            for start in range(0, len(line), _TRAINING_CHARACTERS):
                yield line[start : start + _TRAINING_CHARACTERS]


def _explain(error: RuntimeError, vocab_size: int) -> NoReturn:
    """Says in the user's words why training failed; SentencePiece puts it all into one message."""
    message = str(error)
    if match := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        problem = f"the training split yields at most {match[1]} pieces; choose at most that"
        raise ConfigError(f"config: model.vocab_size={vocab_size}: {problem}") from error
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        needed = int(match[1])
        problem = f"needs at least {needed}: 256 bytes, 4 reserved ids, {needed - _BYTES_AND_SPECIALS} characters"
        raise ConfigError(f"config: model.vocab_size={vocab_size}: the tokenizer {problem}") from error
    if "sentences_.empty()" in message:
        raise DataError("tokenizer: the training split has no text to train on") from error
    raise DataError(f"tokenizer: SentencePiece cannot train on this training split: {message}") from error
