"""The characters of tokens: for every token of a text, the place of its first character and of that behind its last.

A token that is a part of a character, such as one of its bytes, has the place of the whole character. A token without
characters, such as SentencePiece's mark in front of a text, is empty. Spaces may belong to the token before or after
them, or to neither, as the tokenizer has it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.tokenizers import Tokenizer, plain
from transformer_jax.data.tokenizers.characters import ByteTokenizer, CharTokenizer
from transformer_jax.data.tokenizers.words import WordTokenizer
from transformer_jax.errors import ConfigError


class TokenSpans(NamedTuple):
    """Tokens of texts, one after the other: those of text i are at offsets[i] to offsets[i + 1].

    ids: int32. starts, ends: int32, the characters of every token in its text.
    """

    ids: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    ends: np.ndarray


_Spans = list[tuple[int, int]]


def encode_with_spans(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenSpans:
    """Return the ids of `Tokenizer.encode_batch`, and the characters of every token.

    Raises: ConfigError for a tokenizer whose tokens have no known places.
    """
    spans_of = _spans_of(plain(tokenizer))
    encoded = tokenizer.encode_batch(texts)
    spans = [spans_of(text) for text in texts]
    counts = np.diff(encoded.offsets)
    if (bad := np.flatnonzero(counts != [len(row) for row in spans])).size:
        raise ConfigError(f"the tokenizer gives no place for each token of {texts[bad[0]]!r}")
    flat = np.array([span for row in spans for span in row], np.int32).reshape(-1, 2)
    return TokenSpans(encoded.ids, encoded.offsets, flat[:, 0], flat[:, 1])


def _spans_of(tokenizer: Tokenizer) -> Callable[[str], _Spans]:
    if isinstance(tokenizer, WordTokenizer):
        return lambda text: [word.span() for word in re.finditer(r"\S+", text)]
    if isinstance(tokenizer, CharTokenizer):
        return lambda text: [(place, place + 1) for place in range(len(text))]
    if isinstance(tokenizer, ByteTokenizer):
        return lambda text: [(c, c + 1) for c in _characters_of_bytes(text)[:-1].tolist()]
    # The modules of the others import their libraries.
    from transformer_jax.data.tokenizers.library import LibraryTokenizer
    from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer

    if isinstance(tokenizer, LibraryTokenizer):
        return _of_library(tokenizer.model_bytes)
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _of_sentence_piece(tokenizer.model_bytes)
    raise ConfigError(f"{type(tokenizer).__name__} has no places of tokens; choose another data.tokenizer")


@functools.lru_cache(maxsize=2)
def _of_library(model_bytes: bytes) -> Callable[[str], _Spans]:
    import tokenizers

    model = tokenizers.Tokenizer.from_str(model_bytes.decode())
    model.encode_special_tokens = True  # as in LibraryTokenizer: names of special tokens are text
    return lambda text: model.encode(text, add_special_tokens=False).offsets


@functools.lru_cache(maxsize=2)
def _of_sentence_piece(model_bytes: bytes) -> Callable[[str], _Spans]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    return lambda text: _pieces(processor, text)


def _pieces(processor: Any, text: str) -> _Spans:
    """Return the characters of SentencePiece's pieces, which it counts in bytes of UTF-8.

    Of the bytes of a character that is no piece, all but the last one are empty there.
    """
    characters = _characters_of_bytes(text)
    spans = []
    for piece in processor.encode(text, return_type="proto").pieces:
        first = int(characters[piece.begin])
        end = first + 1 if processor.is_byte(piece.id) else int(characters[piece.end])
        spans.append((first, end))
    return spans


def _characters_of_bytes(text: str) -> np.ndarray:
    """Return the number of the character of every byte of UTF-8, and behind them the number of characters."""
    sizes = [len(character.encode("utf-8", "surrogateescape")) for character in text]
    return np.append(np.repeat(np.arange(len(text)), sizes), len(text))
