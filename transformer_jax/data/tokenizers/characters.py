"""Characters, and bytes: tokenizers without merges, for language models of characters and for any text.

- `char`: every character of the training split has an id, in the order of the code points. Another character becomes
  unk; this cannot be undone.
- `byte`: the UTF-8 bytes of the text, 256 ids (as in ByT5: Xue et al. 2022). Every text can be encoded.
"""

from __future__ import annotations

import collections
import json
import logging
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.data.tokenizers.tokenizer import (
    OWN_SPECIAL_IDS,
    RESERVED,
    SPACE,
    EncodedSpans,
    EncodedTexts,
    ModelBytes,
    VocabularySizeError,
    with_text,
)
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json

_log = logging.getLogger(__name__)

CHARACTERS_MAGIC = b"characters\n"
BYTES_MAGIC = b"bytes\n"
_NUM_BYTES = 256
_BYTES = [*(name.encode() for name in RESERVED.values()), *(bytes([byte]) for byte in range(_NUM_BYTES))]


class CharTokenizer(ModelBytes):
    """A tokenizer whose tokens are characters; the first of its list has id 4."""

    def __init__(self, model_bytes: bytes) -> None:
        """model_bytes: `CHARACTERS_MAGIC`, then the characters as one JSON text and a line feed.

        Raises: DataError for bytes of another form.
        """
        super().__init__(model_bytes)
        try:
            if not self._model_bytes.startswith(CHARACTERS_MAGIC) or not self._model_bytes.endswith(b"\n"):
                raise ValueError("it is incomplete")
            characters = parse_json(self._model_bytes.removeprefix(CHARACTERS_MAGIC))
            if not isinstance(characters, str) or not characters or list(characters) != sorted(set(characters)):
                raise ValueError("expected a JSON string of different characters, sorted by code point")
            codes = _code_points(characters)
        except (ValueError, RecursionError) as error:
            raise DataError(f"tokenizer: the list of characters is damaged: {error}") from error
        self._characters = [*RESERVED.values(), *characters]
        self._codes = codes

    @property
    def vocab_size(self) -> int:
        return len(self._characters)

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        codes = _code_points("".join(texts))
        places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        known = self._codes[places] == codes
        ids = np.where(known, places + len(RESERVED), OWN_SPECIAL_IDS.required("unk")).astype(np.int32)
        return EncodedTexts(ids, _offsets([len(text) for text in texts]))

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        return EncodedSpans(*self.encode_batch(texts), _spans([np.ones(len(text), np.int64) for text in texts]))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; unk is written `<unk>`."""
        return "".join([self._characters[id] for id in with_text(ids, self.special_ids)])

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; other white space is written as an escape, such as `\\n`."""
        return [_shown(self._characters[id]) for id in ids]


class ByteTokenizer(ModelBytes):
    """The bytes of UTF-8; byte b has id 4 + b. Raises DataError for other model bytes than `BYTES_MAGIC`."""

    def __init__(self, model_bytes: bytes = BYTES_MAGIC) -> None:
        super().__init__(model_bytes)
        if self._model_bytes != BYTES_MAGIC:
            raise DataError("tokenizer: the model of bytes is damaged")

    @property
    def vocab_size(self) -> int:
        return len(RESERVED) + _NUM_BYTES

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        ids = np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32) + len(RESERVED)
        return EncodedTexts(ids, _offsets([len(text) for text in encoded]))

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        return EncodedSpans(*self.encode_batch(texts), _spans([_byte_counts(text) for text in texts]))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; bytes that are not UTF-8 become U+FFFD, and unk is written `<unk>`."""
        return b"".join([_BYTES[id] for id in with_text(ids, self.special_ids)]).decode("utf-8", "replace")

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; a byte that is not an ASCII character is written in hexadecimal, such as `<C3>`."""
        return [self._token(int(id)) for id in ids]

    def _token(self, id: int) -> str:
        if id in RESERVED:
            return RESERVED[id]
        byte = id - len(RESERVED)
        return _shown(chr(byte)) if byte < 128 else f"<{byte:02X}>"


def train_characters(texts: Iterable[str], vocab_size: int) -> CharTokenizer:
    """Return a tokenizer with the `vocab_size` - 4 most frequent characters; ties go to the lower code points.

    Raises: ConfigError if there are fewer characters, or `vocab_size` leaves no room for one; DataError if there is no
      text.
    """
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(text)
    if not counts:
        raise DataError("tokenizer: the training split has no text to train on")
    room = vocab_size - len(RESERVED)
    if room < 1:
        raise VocabularySizeError(
            vocab_size,
            f"the tokenizer needs at least {len(RESERVED) + 1}: {len(RESERVED)} reserved ids and a character",
        )
    if room > len(counts):
        raise VocabularySizeError(
            vocab_size,
            f"the training split has {len(counts)} different characters; with "
            f"the {len(RESERVED)} reserved ids choose at most {len(counts) + len(RESERVED)}",
        )
    characters = sorted(sorted(counts, key=lambda character: (-counts[character], character))[:room])
    if unknown := counts.total() - sum(counts[character] for character in characters):
        _log.warning(
            "model.vocab_size=%d: %d of %d different characters get no id and are read as <unk>; they make up "
            "%.2g %% of the training text",
            vocab_size,
            len(counts) - room,
            len(counts),
            100 * unknown / counts.total(),
        )
    return CharTokenizer(CHARACTERS_MAGIC + json.dumps("".join(characters)).encode() + b"\n")


def byte_tokenizer(texts: Iterable[str], vocab_size: int) -> ByteTokenizer:
    """Return the tokenizer of bytes, which needs no training.

    Raises: ConfigError unless `vocab_size` is 260; DataError if there is no text.
    """
    tokenizer = ByteTokenizer()
    if not any(texts):
        raise DataError("tokenizer: the training split has no text")
    if vocab_size != tokenizer.vocab_size:
        raise VocabularySizeError(
            vocab_size,
            f"data.tokenizer='byte' has {tokenizer.vocab_size} ids: "
            f"{_NUM_BYTES} bytes and {len(RESERVED)} reserved ids",
        )
    return tokenizer


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _byte_counts(text: str) -> np.ndarray:
    """Return the number of bytes of every character in UTF-8; one for a byte that was not UTF-8 (surrogateescape)."""
    codes = _code_points(text)
    counts = 1 + (codes >= 0x80).astype(np.int64) + (codes >= 0x800) + (codes >= 0x10000)
    return np.where((codes >= 0xDC80) & (codes <= 0xDCFF), 1, counts)


def _spans(counts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the spans of tokens that lie within characters, int32 [tokens, 2].

    Args:
      counts: for every text, the number of tokens of each character.
    """
    starts = [np.repeat(np.arange(len(row)), row) for row in counts]
    flat = np.concatenate([np.zeros(0, np.int64), *starts]).astype(np.int32)
    return np.stack([flat, flat + 1], axis=1)


def _offsets(lengths: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)


def _shown(character: str) -> str:
    """Return a character as a visible text."""
    if character == " ":
        return SPACE
    return character if len(character) > 1 or character.isprintable() else ascii(character)[1:-1]
