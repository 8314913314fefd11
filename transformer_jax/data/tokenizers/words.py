"""Words between spaces, each an id of a fixed vocabulary: for text that has been cut into tokens already.

Papers distribute such text, often as BPE pieces with `@@` at the end of those that go on (Sennrich et al. 2016). A
word that the vocabulary lacks becomes unk, for good.
"""

from __future__ import annotations

import collections
import functools
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer_jax.data.tokenizers.base import EncodedTexts, before_eos
from transformer_jax.errors import ConfigError, DataError

MAGIC = b"words\n"
_RESERVED = {PAD_ID: "<pad>", EOS_ID: "</s>", UNK_ID: "<unk>", BOS_ID: "<s>"}


class WordTokenizer:
    """A list of words, the first of which has id 4. Raises DataError if the bytes are no such list.

    Spaces of every kind divide words, and decoding writes one space between two.
    """

    def __init__(self, model_bytes: bytes) -> None:
        """model_bytes: `MAGIC`, then the words in UTF-8, each followed by a line feed."""
        self._model_bytes = bytes(model_bytes)
        try:
            text = self._model_bytes.removeprefix(MAGIC).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"tokenizer: the list of words is not UTF-8: {error}") from error
        if not self._model_bytes.startswith(MAGIC) or not text.endswith("\n"):
            raise DataError("tokenizer: the list of words is damaged or incomplete")
        words = text[:-1].split("\n")
        self._ids = {word: id for id, word in enumerate(words, len(_RESERVED))}
        if len(self._ids) < len(words):
            twice = next(word for word, count in collections.Counter(words).items() if count > 1)
            raise DataError(f"tokenizer: the list of words has {twice!r} twice")
        if bad := next((word for word in words if word.split() != [word]), None):
            raise DataError(f"tokenizer: {bad!r} in the list of words is not one word")
        self._words = [_RESERVED[id] for id in range(len(_RESERVED))] + words

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    @property
    def model_bytes(self) -> bytes:
        return self._model_bytes

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._model_bytes).hexdigest()

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        get = self._ids.get
        rows = [[get(word, UNK_ID) for word in text.split()] for text in texts]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        return EncodedTexts(np.array([id for row in rows for id in row], np.int32), offsets)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return " ".join(self._words[id] for id in before_eos(ids) if id not in (PAD_ID, BOS_ID))

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]


def train_words(texts: Iterable[str], vocab_size: int) -> WordTokenizer:
    """The `vocab_size` - 4 most frequent words of the texts; among equally frequent ones, those that sort first.

    Raises: ConfigError if there are not so many; DataError if there are none.
    """
    counts = collections.Counter(word for text in texts for word in text.split())
    for reserved in _RESERVED.values():  # in such a text they stand for what the ids stand for
        counts.pop(reserved, None)
    if not counts:
        raise DataError("tokenizer: the training split has no words")
    if len(counts) < vocab_size - len(_RESERVED):
        raise ConfigError(
            f"config: model.vocab_size={vocab_size}: the training split has {len(counts)} different words; with the "
            f"{len(_RESERVED)} reserved ids choose at most {len(counts) + len(_RESERVED)}"
        )
    words = sorted(counts, key=lambda word: (-counts[word], word))[: vocab_size - len(_RESERVED)]
    return _from_words(words)


def read_vocabulary(path: Path, vocab_size: int) -> WordTokenizer:
    """A vocabulary as papers distribute it: a word a line, perhaps with its count behind a space.

    The names of reserved ids (`<pad>`, `<s>`, `</s>`, `<unk>`) may be among them and are left out: the ids exist anyway.

    Raises: DataError if the file cannot be read or is no such list; ConfigError if it has another number of words than
      `vocab_size` has ids for.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"data.vocabulary_file: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data.vocabulary_file: {path} is not UTF-8: {error}") from error
    words = []
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) > 2 or (len(parts) == 2 and not parts[1].isdecimal()):
            raise DataError(
                f"data.vocabulary_file: {path}, line {number}: {line!r} is neither a word nor a word and its count"
            )
        if parts[0] not in _RESERVED.values():
            words.append(parts[0])
    if not words:
        raise DataError(f"data.vocabulary_file: {path} has no words")
    if len(words) + len(_RESERVED) != vocab_size:
        raise ConfigError(
            f"config: model.vocab_size={vocab_size}: {path} has {len(words)} words; with the {len(_RESERVED)} reserved "
            f"ids that makes {len(words) + len(_RESERVED)}"
        )
    return _from_words(words)


def _from_words(words: Sequence[str]) -> WordTokenizer:
    return WordTokenizer(MAGIC + "".join(f"{word}\n" for word in words).encode())
