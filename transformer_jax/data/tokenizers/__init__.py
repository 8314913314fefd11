"""Tokenizers: text to ids and back.

Every tokenizer names its special ids (pad, eos, ...; those of this project reserve 0 to 3). Its model bytes describe it
completely; they are stored in the work directory and in every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformer_jax.data.tokenizers.base import EncodedTexts, SpecialIds, Tokenizer, check_decode_ids
from transformer_jax.data.tokenizers.characters import (
    BYTES_MAGIC,
    CHARACTERS_MAGIC,
    ByteTokenizer,
    CharTokenizer,
    byte_tokenizer,
    train_characters,
)
from transformer_jax.data.tokenizers.words import MAGIC as WORDS_MAGIC
from transformer_jax.data.tokenizers.words import WordTokenizer, read_vocabulary, train_words
from transformer_jax.errors import DataError
from transformer_jax.files import read_bytes, replace_file

__all__ = [
    "TRAINERS",
    "VOCABULARIES",
    "EncodedTexts",
    "SpecialIds",
    "Tokenizer",
    "check_decode_ids",
    "load_tokenizer",
    "read_tokenizer",
    "train_tokenizer",
    "write_tokenizer",
]

_JSON = b"{"  # begins a model of byte-level BPE, but no SentencePiece model


def train_tokenizer(texts: Iterable[str], kind: str, vocab_size: int) -> Tokenizer:
    """Train a tokenizer of `vocab_size` ids, including the reserved ones, on `texts` of both languages.

    Args:
      kind: a name of `TRAINERS`.

    Raises: ConfigError if the texts cannot fill so large a vocabulary, or it is too small for the ids that it must
      have; DataError if there is no text.
    """
    return TRAINERS[kind](texts, vocab_size)


def _unigram(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.sentence_piece import train_sentence_piece

    return train_sentence_piece(texts, "unigram", vocab_size)


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.sentence_piece import train_sentence_piece

    return train_sentence_piece(texts, "bpe", vocab_size)


def _byte_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.byte_bpe import train_byte_bpe

    return train_byte_bpe(texts, vocab_size)


TRAINERS = {
    "unigram": _unigram,
    "bpe": _bpe,
    "byte_bpe": _byte_bpe,
    "words": train_words,
    "char": train_characters,
    "byte": byte_tokenizer,
}
"""Functions from texts and the size of the vocabulary to a tokenizer, by the values of `data.tokenizer`."""


def _read_byte_bpe(path: Path, vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.byte_bpe import read_byte_bpe

    return read_byte_bpe(path, vocab_size)


VOCABULARIES = {"words": read_vocabulary, "byte_bpe": _read_byte_bpe}
"""Functions from `data.vocabulary_file` and the size of the vocabulary to a tokenizer, by `data.tokenizer`."""


def load_tokenizer(model_bytes: bytes) -> Tokenizer:
    """Return the tokenizer of stored `model_bytes`; raise DataError if they are damaged."""
    if model_bytes.startswith(WORDS_MAGIC):
        return WordTokenizer(model_bytes)
    if model_bytes.startswith(CHARACTERS_MAGIC):
        return CharTokenizer(model_bytes)
    if model_bytes.startswith(BYTES_MAGIC):
        return ByteTokenizer(model_bytes)
    if model_bytes.startswith(_JSON):
        from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer

        return ByteBPETokenizer(model_bytes)
    from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer

    return SentencePieceTokenizer(model_bytes)


def read_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a file; raise DataError, which names the file, if it cannot be read or is damaged."""
    try:
        return load_tokenizer(read_bytes(path))
    except OSError as error:
        raise DataError(f"{path}: cannot read the tokenizer: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def write_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Write a tokenizer atomically; raise DataError, which names the folder, if that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, tokenizer.model_bytes)
    except OSError as error:
        raise DataError(f"{path.parent}: cannot write {path.name}: {error.strerror}") from error
