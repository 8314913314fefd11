"""Models of the library `tokenizers`, which its own JSON describes completely, `tokenizer.json`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from transformer_jax.data.tokenizers.tokenizer import EncodedSpans, EncodedTexts, ModelBytes, concatenated, with_spans
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json, read_bytes
from transformer_jax.readers.archives import read_gzip
from transformer_jax.readers.json_values import MAX_JSON_BYTES

_MOST_NAMED = 10


class LibraryTokenizer(ModelBytes):
    """A model in the library's JSON. Names of special tokens in a text, such as `</s>`, are ordinary text.

    Args:
      kind: name of the models that a subclass reads, for messages.

    Raises: DataError for other bytes.
    """

    def __init__(self, model_bytes: bytes, kind: str) -> None:
        super().__init__(model_bytes)
        self._tokenizer = library_model(self._model_bytes, kind)
        # Published files have these settings of the library; they are not part of how a text is cut.
        self._has_settings = bool(self._tokenizer.truncation or self._tokenizer.padding)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Names of special tokens are text. The model's bytes do not store this setting.
        self._tokenizer.encode_special_tokens = True
        self.id_problem = _id_problem(sorted(self._tokenizer.get_vocab().values()))

    def plain_json(self) -> bytes:
        """Return the model's bytes without `truncation` and `padding`, which have no effect here."""
        if not self._has_settings:
            return self._model_bytes
        values = parse_json(self._model_bytes) | {"truncation": None, "padding": None}
        return json.dumps(values, ensure_ascii=False).encode("utf-8")

    def special_tokens(self) -> dict[str, int]:
        """Return the ids of the special tokens, by name."""
        return {t.content: id for id, t in self._tokenizer.get_added_tokens_decoder().items() if t.special}

    @property
    def names(self) -> Collection[str]:
        """The names of all tokens, as the library stores them."""
        return self._tokenizer.get_vocab().keys()

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


def _id_problem(ids: Sequence[int]) -> str:
    """Return a text that names the ids without a token and those of two tokens; empty if there are none.

    Args: ids: of all tokens, sorted.
    """
    found: dict[str, list[str]] = {"ids without a token": [], "ids of two tokens": []}
    for before, id in itertools.pairwise([-1, *ids]):
        if id > before + 1:
            found["ids without a token"].append(f"{before + 1}" if id == before + 2 else f"{before + 1} to {id - 1}")
        elif id == before:
            found["ids of two tokens"].append(f"{id}")
    return "; ".join(
        f"{what}: {', '.join(which[:_MOST_NAMED])}{', ...' if len(which) > _MOST_NAMED else ''}"
        for what, which in found.items()
        if which
    )


def library_model(model_bytes: bytes, kind: str) -> tokenizers.Tokenizer:
    """Return the library's model of its JSON; raises DataError for other bytes."""
    try:
        parse_json(model_bytes)  # bounds its size and depth
        return tokenizers.Tokenizer.from_str(model_bytes.decode("utf-8"))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # the library raises no other class, and for some damage a panic, no Exception
        raise DataError(f"tokenizer: {len(model_bytes)} bytes are not a model of {kind}: {error}") from error


def is_word_piece(values: Any) -> bool:
    """Return whether the values of the library's JSON are a model of WordPiece; older files do not name the type."""
    model = values.get("model") if isinstance(values, dict) else None
    return (
        isinstance(model, dict)
        and model.get("type", "WordPiece") == "WordPiece"
        and "max_input_chars_per_word" in model
    )


def with_more_tokens(model_bytes: bytes, names: Collection[str], tokens: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a model with more added tokens, whose ids follow those of the model.

    Args:
      names: of all tokens of the model.
      tokens: objects of the library's `added_tokens` without their ids. Tokens that the model has are left out; without
        others the bytes stay as they are.
    """
    new = [token for token in tokens if token["content"] not in names]
    if not new:
        return model_bytes
    values = parse_json(model_bytes)
    listed = values.get("added_tokens") or []
    values["added_tokens"] = [*listed, *({"id": id, **token} for id, token in enumerate(new, len(names)))]
    return json.dumps(values, ensure_ascii=False).encode("utf-8")


def content(path: Path) -> bytes:
    """Return the content of a file, which may be compressed if its name ends in .gz; raises DataError."""
    try:
        return read_gzip(path, MAX_JSON_BYTES) if path.suffix == ".gz" else read_bytes(path)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def first_file(folder: Path, *names: str) -> Path | None:
    """Return the first file of these names that a folder has, plain or .gz; None if it has none."""
    found = (folder / f"{name}{suffix}" for name in names for suffix in ("", ".gz"))
    return next((path for path in found if path.is_file()), None)
