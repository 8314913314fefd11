"""Words between spaces, each with an id of a fixed vocabulary; for text that is already tokenised.

Papers distribute such text, often as BPE subwords that end in `@@` except for the last of a word (Sennrich et al.
2016). A word that is not in the vocabulary becomes unk; this cannot be undone.

All kinds of spaces divide words, including U+00A0 and U+2028, as in fairseq and in sacreBLEU's count of n-grams.
Decoding writes one plain space between two words.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.data.tokenizers.tokenizer import (
    OWN_SPECIAL_IDS,
    RESERVED,
    EncodedSpans,
    EncodedTexts,
    ModelBytes,
    VocabularyFileError,
    VocabularySizeError,
    concatenated,
    with_spans,
    with_text,
)
from transformer_jax.errors import DataError
from transformer_jax.readers import read_bytes

MAGIC = b"words\n"
_WORD = re.compile(r"\S+")
_WORD_AND_COUNT = re.compile(r"(\S+)(?:[ \t]+[0-9]+)?[ \t\r]*")


class _Ids(dict[str, int]):
    def __missing__(self, word: str) -> int:
        return OWN_SPECIAL_IDS.required("unk")


class WordTokenizer(ModelBytes):
    """A list of words; the first has id 4. Raises DataError for other bytes."""

    def __init__(self, model_bytes: bytes) -> None:
        """model_bytes: `MAGIC`, then the words in UTF-8, each followed by a line feed."""
        super().__init__(model_bytes)
        try:
            text = self._model_bytes.removeprefix(MAGIC).decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"tokenizer: the list of words is not UTF-8: {error}") from error
        if not self._model_bytes.startswith(MAGIC) or not text.endswith("\n"):
            raise DataError("tokenizer: the list of words is damaged or incomplete")
        words = text[:-1].split("\n")
        names = set(RESERVED.values())
        if bad := [word for word in words if word.split() != [word] or word in names]:
            raise DataError(f"tokenizer: {bad[0]!r} in the list of words is not one word")
        self._ids = _Ids((word, id) for id, word in enumerate(words, len(RESERVED)))
        if len(self._ids) < len(words):
            twice = next(word for word, count in collections.Counter(words).items() if count > 1)
            raise DataError(f"tokenizer: the list of words has {twice!r} twice")
        self._words = [*(RESERVED[id] for id in range(len(RESERVED))), *words]

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        get = self._ids.__getitem__
        return concatenated([list(map(get, text.split())) for text in texts])

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        words = [list(_WORD.finditer(text)) for text in texts]
        ids = [[self._ids[word[0]] for word in row] for row in words]
        return with_spans(ids, [[word.span() for word in row] for row in words], texts)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; unk is written `<unk>`."""
        return " ".join([self._words[id] for id in with_text(ids, self.special_ids)])

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; a token is a word, and no token contains a space."""
        return [self._words[id] for id in ids]


def train_words(texts: Iterable[str], vocab_size: int) -> WordTokenizer:
    """Return a tokenizer with the `vocab_size` - 4 most frequent words; ties go to the words that sort first.

    Raises: ConfigError if there are fewer words, or `vocab_size` leaves no room for one; DataError if there are none.
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text.split())
    for name in RESERVED.values():  # an unk in the text stays unk
        counts.pop(name, None)
    if not counts:
        raise DataError("tokenizer: the training split has no words")
    if vocab_size <= len(RESERVED):
        raise VocabularySizeError(
            vocab_size, f"the tokenizer needs at least {len(RESERVED) + 1}: {len(RESERVED)} reserved ids and a word"
        )
    if len(counts) < vocab_size - len(RESERVED):
        raise VocabularySizeError(
            vocab_size,
            f"the training split has {len(counts)} different words; with the "
            f"{len(RESERVED)} reserved ids choose at most {len(counts) + len(RESERVED)}",
        )
    words = sorted(counts, key=lambda word: (-counts[word], word))[: vocab_size - len(RESERVED)]
    return _from_words(words)


def read_vocabulary(path: Path, vocab_size: int) -> WordTokenizer:
    """Return the tokenizer of a vocabulary file: one word per line, optionally a space or tab and its count.

    Empty lines and the names of reserved ids (`<pad>`, `<s>`, `</s>`, `<unk>`) are skipped: these ids always exist.

    Raises: DataError if the file cannot be read or has another form; ConfigError if it has more words than
      `vocab_size` has room for.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").split("\n")
    except OSError as error:
        raise VocabularyFileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise VocabularyFileError(f"{path} is not UTF-8: {error}") from error
    first_lines: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip(" \t\r"):
            continue
        found = _WORD_AND_COUNT.fullmatch(line)
        if not found:
            raise VocabularyFileError(f"{path}, line {number}: {line!r} is neither a word nor a word and its count")
        word = found[1]
        if word in RESERVED.values():
            continue
        if word in first_lines:
            raise VocabularyFileError(f"{path} has {word!r} in line {first_lines[word]} and line {number}")
        first_lines[word] = number
    if not first_lines:
        raise VocabularyFileError(f"{path} has no words")
    if len(first_lines) + len(RESERVED) > vocab_size:
        raise VocabularySizeError(
            vocab_size,
            f"{path} has {len(first_lines)} words; with the {len(RESERVED)} "
            f"reserved ids that makes {len(first_lines) + len(RESERVED)}",
        )
    return _from_words(first_lines)


def _from_words(words: Iterable[str]) -> WordTokenizer:
    return WordTokenizer(MAGIC + "".join(f"{word}\n" for word in words).encode())
