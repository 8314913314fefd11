"""Byte-level BPE as in GPT-2, by the library `tokenizers`: any text to tokens and back, without loss.

Text is divided between letters, digits, other characters and spaces. The UTF-8 bytes of each part are merged by the
pairs that were most frequent in training; no token spans two parts. No space is added in front, and nothing is
normalised.

A vocabulary that others have trained can be read: a `tokenizer.json` of this kind, or the two files of GPT-2. Its
special ids are those of the special tokens with usual names, such as `<|endoftext|>`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from transformer_jax.data.tokenizers.library import LibraryTokenizer
from transformer_jax.data.tokenizers.tokenizer import (
    RESERVED,
    SPACE,
    SpecialIds,
    VocabularyFileError,
    VocabularySizeError,
    training_lines,
    with_named_roles,
    with_text,
)
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json, read_bytes
from transformer_jax.readers.archives import CompressedError, read_gzip
from transformer_jax.readers.json_values import MAX_JSON_BYTES

_SMALLEST = 256 + len(RESERVED)
# Usual names of special tokens, by role: of this project, of GPT-2, Llama 3, GPT-NeoX and OLMo 2.
_ROLES = {
    "pad": ("<pad>", "<|padding|>", "<|pad|>"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>"),
    "unk": ("<unk>",),
    "bos": ("<s>", "<|endoftext|>", "<|begin_of_text|>"),
}
# Special tokens of vocabularies in two files: of GPT-2, and of RoBERTa and BART.
_SPECIAL_TOKENS = (("<|endoftext|>",), ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
_GPT2_FILES = ("encoder.json", "vocab.bpe")


class ByteBPETokenizer(LibraryTokenizer):
    """A model in the library's JSON. Raises DataError for other bytes, and for a model without an end-of-sequence."""

    def __init__(self, model_bytes: bytes) -> None:
        super().__init__(model_bytes, "byte-level BPE")
        kinds = self._tokenizer.model, self._tokenizer.pre_tokenizer
        before = kinds[1] if isinstance(kinds[1], pre_tokenizers.Sequence) else [kinds[1]]
        if not (isinstance(kinds[0], models.BPE) and any(isinstance(x, pre_tokenizers.ByteLevel) for x in before)):
            raise DataError(
                f"tokenizer: {type(kinds[0]).__name__} after {type(kinds[1]).__name__}, expected BPE after "
                "ByteLevel. If it was made from a SentencePiece model, put the model beside it, as spiece.model"
            )
        self.special_ids = self._special_ids()

    def _special_ids(self) -> SpecialIds:
        special = self.special_tokens()
        ids = {role: next((special[n] for n in names if n in special), None) for role, names in _ROLES.items()}
        if ids["eos"] is None:
            raise DataError(
                f"tokenizer: none of its special tokens ({', '.join(special) or 'it has none'}) is an end-of-sequence: "
                f"{', '.join(_ROLES['eos'])}"
            )
        return with_named_roles(SpecialIds(ids["pad"], ids["eos"], ids["unk"], ids["bos"]), special)

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
        raise VocabularySizeError(
            vocab_size, f"the tokenizer needs at least {_SMALLEST}: 256 bytes, {len(RESERVED)} reserved ids"
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
        raise VocabularySizeError(
            vocab_size, f"the training split yields at most {tokenizer.get_vocab_size()} tokens; choose at most that"
        )
    return ByteBPETokenizer(tokenizer.to_str().encode("utf-8"))


def read_byte_bpe(path: Path, vocab_size: int) -> ByteBPETokenizer:
    """Return the tokenizer of a file `tokenizer.json`, or of a folder with GPT-2's `encoder.json` and `vocab.bpe`.

    The two files may be .gz.

    Raises: DataError if a file cannot be read or has another form; ConfigError if it has more than
      `vocab_size` ids.
    """
    try:
        tokenizer = of_gpt2(path) if path.is_dir() else ByteBPETokenizer(read_bytes(path))
    except (OSError, CompressedError) as error:
        raise VocabularyFileError(f"cannot read {path}: {error}") from error
    except DataError as error:
        raise VocabularyFileError(f"{path}: {error}") from error
    if tokenizer.vocab_size > vocab_size:
        raise VocabularySizeError(vocab_size, f"{path} has {tokenizer.vocab_size} ids")
    return tokenizer


def of_gpt2(folder: Path, files: tuple[str, str] = _GPT2_FILES) -> ByteBPETokenizer:
    """Return the tokenizer of a folder with two files, of ids by token and of merges; raises DataError, OSError."""
    encoder, merges = (_content(folder, name, files) for name in files)
    try:
        vocabulary = parse_json(encoder)
        lines = merges.decode("utf-8").split("\n")
        merged = [line.split() for line in lines if line and not line.startswith("#version")]
        pairs = [(first, second) for first, second in merged]
        model = models.BPE(vocab=vocabulary, merges=pairs)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises no other class than Exception, or panics
        raise DataError(f"{' and '.join(files)} are not a vocabulary of byte-level BPE: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = next((names for names in _SPECIAL_TOKENS if vocabulary.keys() >= {*names}), ())
    tokenizer.add_special_tokens(list(special))
    return ByteBPETokenizer(tokenizer.to_str().encode("utf-8"))


def _content(folder: Path, name: str, files: tuple[str, str]) -> bytes:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return read_gzip(path, MAX_JSON_BYTES) if path.suffix == ".gz" else read_bytes(path)
    raise DataError(f"the folder has no {name} or {name}.gz; expected {' and '.join(files)}")
