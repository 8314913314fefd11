"""Models of the library `tokenizers`, which its own JSON describes completely, `tokenizer.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from transformer_jax.data.tokenizers.base import EncodedSpans, EncodedTexts, ModelBytes, concatenated, with_spans
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json, read_bytes
from transformer_jax.readers.archives import read_gzip
from transformer_jax.readers.json_values import MAX_JSON_BYTES


class LibraryTokenizer(ModelBytes):
    """A model in the library's JSON. Names of special tokens in a text, such as `</s>`, are ordinary text.

    Args:
      kind: name of the models that a subclass reads, for messages.

    Raises: DataError for other bytes.
    """

    def __init__(self, model_bytes: bytes, kind: str) -> None:
        super().__init__(model_bytes)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(self._model_bytes.decode("utf-8"))
        except Exception as error:  # the library raises no other class
            raise DataError(f"tokenizer: {len(self._model_bytes)} bytes are not a model of {kind}: {error}") from error
        # Names of special tokens are text. The model's bytes do not store this setting.
        self._tokenizer.encode_special_tokens = True

    def special_tokens(self) -> dict[str, int]:
        """Return the ids of the special tokens, by name."""
        return {t.content: id for id, t in self._tokenizer.get_added_tokens_decoder().items() if t.special}

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return concatenated([encoding.ids for encoding in encodings])

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ids, spans = [encoding.ids for encoding in encodings], [encoding.offsets for encoding in encodings]
        return with_spans(ids, spans, texts)


def is_word_piece(model_bytes: bytes) -> bool:
    """Return whether the library's JSON is a model of WordPiece; older files do not name the type."""
    try:
        model = parse_json(model_bytes)["model"]
        return model.get("type", "WordPiece") == "WordPiece" and "max_input_chars_per_word" in model
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def content(path: Path) -> bytes:
    """Return the content of a file, which may be compressed if its name ends in .gz; raises DataError."""
    try:
        return read_gzip(path, MAX_JSON_BYTES) if path.suffix == ".gz" else read_bytes(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def either(folder: Path, *names: str) -> Path | None:
    """Return the first file of these names that a folder has, plain or .gz; None if it has none."""
    found = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in found if path.is_file()), None)
