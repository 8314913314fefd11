"""SentencePiece models whose tokens have the ids of a vocabulary file, as those of Marian.

A text is cut by a SentencePiece model, and a file `vocab.json` has the id of every token. One such vocabulary may serve
two models, that of source texts and that of target texts: both languages then share ids, but not the cuts.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.data.tokenizers.sentence_piece import ENCODING_THREADS, is_bpe, pieces_and_spans, processor_of
from transformer_jax.data.tokenizers.tokenizer import (
    RESERVED,
    EncodedSpans,
    EncodedTexts,
    ModelBytes,
    SpecialIds,
    concatenated,
    with_spans,
    with_text,
)
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json

MAGIC = b"numbered pieces\n"
_SIZES = re.compile(rb"([0-9]{1,12}) ([0-9]{1,12}) ([0-9]{1,12})\n")


class NumberedPieces(ModelBytes):
    """A SentencePiece model for each side, which may be the same, and the ids of the tokens of both.

    A token without an id becomes unk. A text may begin with the code of a language, such as `>>fr<<`, which
    multilingual models read; it is one token. Raises DataError for other bytes.
    """

    def __init__(self, model_bytes: bytes) -> None:
        """model_bytes: as `pack` returns them."""
        super().__init__(model_bytes)
        rest = self._model_bytes.removeprefix(MAGIC)
        found = _SIZES.match(rest)
        sizes = [int(size) for size in found.groups()] if found else []
        if not self._model_bytes.startswith(MAGIC) or found is None or len(rest) != found.end() + sum(sizes):
            raise DataError("tokenizer: the numbered pieces are damaged or incomplete")
        starts = [found.end() + sum(sizes[:i]) for i in range(4)]
        self.vocabulary, self.target_model, source = (rest[a:b] for a, b in itertools.pairwise(starts))
        self.source_model = source or self.target_model
        self._ids, self._tokens = _ids_and_tokens(self.vocabulary)
        pad, eos, unk, bos = (self._ids.get(name) for name in RESERVED.values())
        missing = [name for name, id in (("</s>", eos), ("<unk>", unk)) if id is None]
        if missing:
            raise DataError(f"tokenizer: vocab.json has no {' and no '.join(missing)}")
        self.special_ids = SpecialIds(pad=pad, eos=eos, unk=unk, bos=bos)
        self._processor = processor_of(self.target_model)

    @classmethod
    def pack(cls, vocabulary: bytes, target_model: bytes, source_model: bytes = b"") -> NumberedPieces:
        """Return the tokenizer of the content of three files.

        Args:
          vocabulary: JSON, the id of every token; ids are 0, 1, 2, ...
          target_model: SentencePiece model of target texts; source_model: that of source texts, default: the same.
        """
        source_model = b"" if source_model == target_model else source_model
        sizes = f"{len(vocabulary)} {len(target_model)} {len(source_model)}\n".encode()
        return cls(MAGIC + sizes + vocabulary + target_model + source_model)

    @functools.cached_property
    def source(self) -> NumberedPieces:
        if self.source_model == self.target_model:
            return self
        return NumberedPieces.pack(self.vocabulary, self.source_model)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def is_bpe(self) -> bool:
        return is_bpe(self.target_model)

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        codes, rest = zip(*map(_language_code, texts), strict=True) if texts else ((), ())
        num_threads = ENCODING_THREADS if len(texts) >= 64 else 1
        rows = self._processor.encode(list(rest), out_type=str, num_threads=num_threads)
        unk, tokens = self.special_ids.required("unk"), map(list.__add__, codes, rows)
        return concatenated([[self._ids.get(token, unk) for token in row] for row in tokens])

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        codes, rest = zip(*map(_language_code, texts), strict=True) if texts else ((), ())
        pieces, spans = pieces_and_spans(self._processor, rest)
        unk = self.special_ids.required("unk")
        ids, places = [], []
        for code, row, row_spans in zip(codes, pieces, spans, strict=True):
            ids.append([self._ids.get(token, unk) for token in [*code, *(piece.piece for piece in row)]])
            shift = len("".join(code))
            places.append(
                [*([(0, shift)] if code else []), *((start + shift, end + shift) for start, end in row_spans)]
            )
        return with_spans(ids, places, texts)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; unk is written as SentencePiece does, ` ⁇ `."""
        return self._processor.decode_pieces(self.tokens(with_text(ids, self.special_ids)))

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; a byte is written `<0x41>`."""
        return [self._tokens[int(id)] for id in ids]


def _language_code(text: str) -> tuple[list[str], str]:
    """Return the code that a text begins with, a list of one or none, and the text without it."""
    end = text.find("<<") + 2
    return ([text[:end]], text[end:]) if text.startswith(">>") and end > 1 else ([], text)


def _ids_and_tokens(vocabulary: bytes) -> tuple[dict[str, int], list[str]]:
    try:
        ids = parse_json(vocabulary)
    except ValueError as error:
        raise DataError(f"tokenizer: vocab.json is not JSON: {error}") from error
    if not isinstance(ids, dict) or any(type(id) is not int for id in ids.values()):
        raise DataError("tokenizer: vocab.json is not an object of ids by token")
    tokens = {id: token for token, id in ids.items()}
    if sorted(tokens) != list(range(len(ids))):
        wrong = next(iter({*tokens} - {*range(len(ids))}), None)
        reason = "an id occurs twice" if wrong is None else f"it has {wrong}"
        raise DataError(f"tokenizer: vocab.json has {len(ids)} tokens, whose ids must be 0 to {len(ids) - 1}; {reason}")
    return ids, [tokens[id] for id in range(len(ids))]
