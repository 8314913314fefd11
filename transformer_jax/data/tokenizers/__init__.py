"""Tokenizers: text to ids and back.

Every tokenizer names its special ids (pad, eos, ...; those of this project reserve 0 to 3). Its model bytes describe it
completely; they are stored in the work directory and in every checkpoint, in the file `tokenizer.model`. If source and
target have separate tokenizers, that of the source is in `source_tokenizer.model`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from transformer_jax.data.tokenizers.added import MAGIC as ADDED_MAGIC
from transformer_jax.data.tokenizers.added import AddedTokens, lacking, plain, unpack, with_added_tokens
from transformer_jax.data.tokenizers.characters import (
    BYTES_MAGIC,
    CHARACTERS_MAGIC,
    ByteTokenizer,
    CharTokenizer,
    byte_tokenizer,
    train_characters,
)
from transformer_jax.data.tokenizers.no_text import MAGIC as NO_TEXT_MAGIC
from transformer_jax.data.tokenizers.no_text import NoText
from transformer_jax.data.tokenizers.pair import TokenizerPair
from transformer_jax.data.tokenizers.tokenizer import (
    OWN_SPECIAL_IDS,
    EncodedSpans,
    EncodedTexts,
    Frame,
    SpecialIds,
    Tokenizer,
    VocabularyFileError,
    VocabularySizeError,
    check_decode_ids,
    check_token_ids,
)
from transformer_jax.data.tokenizers.words import MAGIC as WORDS_MAGIC
from transformer_jax.data.tokenizers.words import WordTokenizer, read_vocabulary, train_words
from transformer_jax.errors import DataError
from transformer_jax.host.files import replace_file
from transformer_jax.readers import parse_json, read_bytes

__all__ = [
    "SOURCE_TOKENIZER_FILE",
    "TOKENIZER_FILE",
    "TRAINERS",
    "VOCABULARIES",
    "AddedTokens",
    "EncodedSpans",
    "EncodedTexts",
    "Frame",
    "NoText",
    "SpecialIds",
    "Tokenizer",
    "TokenizerPair",
    "VocabularyFileError",
    "VocabularySizeError",
    "check_decode_ids",
    "check_token_ids",
    "load_tokenizer",
    "plain",
    "read_tokenizer",
    "sizes_text",
    "tokenizer_by_file",
    "tokenizer_of_files",
    "train_tokenizer",
    "trained_special_ids",
    "with_added_tokens",
    "write_tokenizer",
]

TOKENIZER_FILE = "tokenizer.model"
SOURCE_TOKENIZER_FILE = "source_tokenizer.model"
_NUMBERED_PIECES = b"numbered pieces\n"
_log = logging.getLogger(__name__)
_JSON = b"{"  # begins a model of the library `tokenizers`, but no SentencePiece model


def train_tokenizer(texts: Iterable[str], kind: str, vocab_size: int, added: Sequence[str] = ()) -> Tokenizer:
    """Train a tokenizer of `vocab_size` ids, including the reserved ones, on `texts` of one language or both.

    Args:
      kind: a name of `TRAINERS`.
      added: names of special tokens that it must have; those that the kind lacks have the last ids.

    Raises: ConfigError if the texts cannot fill so large a vocabulary, or it is too small for the ids that it must
      have; DataError if there is no text.
    """
    missing = lacking(trained_special_ids(kind), added)
    if not missing:
        return TRAINERS[kind](texts, vocab_size)
    size = vocab_size - len(missing)
    listing = missing[0] if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
    of_added = f"{len(missing)} of the ids are for added tokens ({listing})"
    if size < 1:
        raise VocabularySizeError(vocab_size, f"{of_added}; increase it")
    try:
        return AddedTokens(TRAINERS[kind](texts, size), missing)
    except VocabularySizeError as error:
        raise VocabularySizeError(vocab_size, f"{of_added}; without them, {error.problem}") from error


def trained_special_ids(kind: str) -> SpecialIds:
    """Return the special ids that every tokenizer of a kind has which is trained here, without added tokens."""
    if not kind.startswith("wordpiece"):
        return OWN_SPECIAL_IDS
    from transformer_jax.data.tokenizers.word_piece import OWN_IDS

    return OWN_IDS


def _unigram(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.sentence_piece import train_sentence_piece

    return train_sentence_piece(texts, "unigram", vocab_size)


def _bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.sentence_piece import train_sentence_piece

    return train_sentence_piece(texts, "bpe", vocab_size)


def _byte_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.byte_bpe import train_byte_bpe

    return train_byte_bpe(texts, vocab_size)


def _word_piece(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.word_piece import train_word_piece

    return train_word_piece(texts, vocab_size)


def _word_piece_cased(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.word_piece import train_word_piece

    return train_word_piece(texts, vocab_size, lower_case=False)


TRAINERS = {
    "unigram": _unigram,
    "bpe": _bpe,
    "byte_bpe": _byte_bpe,
    "wordpiece": _word_piece,
    "wordpiece_cased": _word_piece_cased,
    "words": train_words,
    "char": train_characters,
    "byte": byte_tokenizer,
}
"""Functions from texts and the size of the vocabulary to a tokenizer, by the values of `data.tokenizer`."""


def _read_byte_bpe(path: Path, vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.byte_bpe import read_byte_bpe

    return read_byte_bpe(path, vocab_size)


def _read_word_piece(path: Path, vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.word_piece import read_word_piece

    return read_word_piece(path, vocab_size)


def _read_word_piece_cased(path: Path, vocab_size: int) -> Tokenizer:
    from transformer_jax.data.tokenizers.word_piece import read_word_piece

    return read_word_piece(path, vocab_size, lower_case=False)


VOCABULARIES = {
    "words": read_vocabulary,
    "byte_bpe": _read_byte_bpe,
    "wordpiece": _read_word_piece,
    "wordpiece_cased": _read_word_piece_cased,
}
"""Functions from `data.vocabulary_file` and the size of the vocabulary to a tokenizer, by `data.tokenizer`."""


def load_tokenizer(model_bytes: bytes) -> Tokenizer:
    """Return the tokenizer of stored `model_bytes`; raise DataError if they are damaged."""
    if model_bytes.startswith(ADDED_MAGIC):
        inner, names = unpack(model_bytes)
        return AddedTokens(load_tokenizer(inner), names)
    if model_bytes.startswith(WORDS_MAGIC):
        return WordTokenizer(model_bytes)
    if model_bytes.startswith(CHARACTERS_MAGIC):
        return CharTokenizer(model_bytes)
    if model_bytes.startswith(BYTES_MAGIC):
        return ByteTokenizer(model_bytes)
    if model_bytes.startswith(NO_TEXT_MAGIC):
        return NoText(model_bytes)
    if model_bytes.startswith(_JSON):
        from transformer_jax.data.tokenizers.byte_bpe import ByteBPETokenizer
        from transformer_jax.data.tokenizers.library import is_word_piece
        from transformer_jax.data.tokenizers.word_piece import WordPieceTokenizer

        try:
            values = parse_json(model_bytes)
        except ValueError:
            values = None  # the tokenizer raises an error with the reason
        return WordPieceTokenizer(model_bytes) if is_word_piece(values) else ByteBPETokenizer(model_bytes)
    if model_bytes.startswith(_NUMBERED_PIECES):
        from transformer_jax.data.tokenizers.numbered_pieces import NumberedPieces

        return NumberedPieces(model_bytes)
    from transformer_jax.data.tokenizers.sentence_piece import SentencePieceTokenizer

    return SentencePieceTokenizer(model_bytes)


def tokenizer_by_file(tokenizer: Tokenizer) -> dict[str, Tokenizer]:
    """Return the tokenizers that are stored in files of their own, by the names of the files."""
    if isinstance(tokenizer, TokenizerPair):
        return {TOKENIZER_FILE: tokenizer.target, SOURCE_TOKENIZER_FILE: tokenizer.source}
    return {TOKENIZER_FILE: tokenizer}


def tokenizer_of_files(files: Mapping[str, bytes]) -> Tokenizer:
    """Return the tokenizer of the contents of its one or two files, by name; raises DataError if they are damaged."""
    target = load_tokenizer(files[TOKENIZER_FILE])
    if SOURCE_TOKENIZER_FILE not in files:
        return target
    return TokenizerPair(load_tokenizer(files[SOURCE_TOKENIZER_FILE]), target)


def sizes_text(tokenizer: Tokenizer) -> str:
    """Return the number of ids as text; that of the source first if there are two tokenizers."""
    sizes = [tokenizer.source.vocab_size, tokenizer.vocab_size]
    return " and ".join(f"{size:,}" for size in (sizes if isinstance(tokenizer, TokenizerPair) else sizes[1:]))


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
