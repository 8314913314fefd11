"""SentencePiece, unigram or BPE: text to tokens and back, without loss."""

from __future__ import annotations

import enum
import functools
import io
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import sentencepiece

from transformer_jax.data.tokenizers.tokenizer import (
    OWN_SPECIAL_IDS,
    EncodedSpans,
    EncodedTexts,
    ModelBytes,
    SpecialIds,
    VocabularySizeError,
    concatenated,
    training_lines,
    with_named_roles,
    with_spans,
    with_text,
)
from transformer_jax.errors import DataError

# SentencePiece's unigram tokens depend on the number of threads, so it is fixed.
_TRAINING_THREADS = 8
# More threads do not help, since Python lists of the ids are made serially.
ENCODING_THREADS = min(8, os.cpu_count() or 1)
_BYTES_AND_SPECIALS = 256 + 4


class PieceKind(enum.Enum):
    """The kinds of pieces, with their numbers in SentencePiece's files."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class NormalizerSpec(NamedTuple):
    """How a model changes text before it cuts it.

    character_rules: the table that replaces characters; empty if there is none. adds_space: a space is added before
    every text, or after it if `space_behind` is set. squeezes_spaces: spaces at both ends are removed, and several
    spaces in a row become one. escapes_spaces: every space is replaced by `SPACE`.
    """

    character_rules: bytes
    adds_space: bool
    space_behind: bool
    squeezes_spaces: bool
    escapes_spaces: bool


class SentencePieceTokenizer(ModelBytes):
    """A SentencePiece model, of this project or of others, which have other special ids.

    Raises DataError for other bytes, and for a model without an end-of-sequence.
    """

    def __init__(self, model_bytes: bytes) -> None:
        super().__init__(model_bytes)
        self._processor = processor = processor_of(self._model_bytes)
        ids = (processor.pad_id(), processor.eos_id(), processor.unk_id(), processor.bos_id())
        pad, eos, unk, bos = (None if id < 0 else id for id in ids)
        self.special_ids = with_named_roles(SpecialIds(pad, eos, unk, bos), self._declared_pieces())
        if self.special_ids.eos is None:
            raise DataError("tokenizer: the SentencePiece model has no end-of-sequence")

    @property
    def vocab_size(self) -> int:
        return self._processor.vocab_size()

    @property
    def is_bpe(self) -> bool:
        """Whether the pieces are merged by rank instead of chosen by their probabilities."""
        return is_bpe(self._model_bytes)

    @functools.cached_property
    def model_type(self) -> str:
        """How text is cut: unigram, bpe, word or char."""
        spec = _model_proto(self._model_bytes).trainer_spec
        return type(spec).ModelType.Name(spec.model_type).lower()

    @functools.cached_property
    def normalizer_spec(self) -> NormalizerSpec:
        """How text is changed before it is cut."""
        proto = _model_proto(self._model_bytes)
        spec, trainer = proto.normalizer_spec, proto.trainer_spec
        return NormalizerSpec(
            spec.precompiled_charsmap,
            spec.add_dummy_prefix,
            trainer.treat_whitespace_as_suffix,
            spec.remove_extra_whitespaces,
            spec.escape_whitespaces,
        )

    def _declared_pieces(self) -> dict[str, int]:
        """Return the ids of the pieces that the trainer was told, which are not learnt from text.

        Their log probability is 0 in the model, that of learnt pieces with such long names is lower.
        """
        processor = self._processor
        pieces = processor.id_to_piece(list(range(self.vocab_size)))
        named = [(piece, id) for id, piece in enumerate(pieces) if piece.startswith(("<", "["))]
        return {piece: id for piece, id in named if processor.is_control(id) or not processor.get_score(id)}

    def all_pieces(self) -> list[tuple[str, float, PieceKind]]:
        """Return every piece in the order of ids, with its score, a log probability or a negative rank."""
        return [(p.piece, p.score, PieceKind(p.type)) for p in _model_proto(self._model_bytes).pieces]

    @functools.cached_property
    def symbol_ids(self) -> frozenset[int]:
        """The ids of user-defined symbols, which text is cut into wherever it has their names."""
        return frozenset(id for id, (_, _, kind) in enumerate(self.all_pieces()) if kind is PieceKind.USER_DEFINED)

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        num_threads = ENCODING_THREADS if len(texts) >= 64 else 1
        rows = self._processor.encode(list(texts), out_type=int, num_threads=num_threads)
        return concatenated(rows)

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        pieces, spans = pieces_and_spans(self._processor, texts)
        return with_spans([[piece.id for piece in row] for row in pieces], spans, texts)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        return self._processor.decode(with_text(ids, self.special_ids))

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return [self.decode(row) for row in rows]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; a byte is written `<0x41>`."""
        return [self._processor.id_to_piece(int(id)) for id in ids]


def processor_of(model_bytes: bytes) -> sentencepiece.SentencePieceProcessor:
    """Return the processor of a SentencePiece model; raises DataError for other bytes."""
    if not model_bytes:  # SentencePiece loads empty bytes without an error, and fails at the first use
        raise DataError("tokenizer: the model is empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise DataError(f"tokenizer: {len(model_bytes)} bytes are not a SentencePiece model") from error


def is_bpe(model_bytes: bytes) -> bool:
    """Return whether the pieces of a SentencePiece model are merged by rank."""
    spec = _model_proto(model_bytes).trainer_spec
    return spec.model_type == type(spec).BPE


def _model_proto(model_bytes: bytes) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2  # its classes are made when it is imported
    return proto.ModelProto.FromString(model_bytes)


def pieces_and_spans(
    processor: sentencepiece.SentencePieceProcessor, texts: Sequence[str]
) -> tuple[list[Any], list[list[tuple[int, int]]]]:
    """Return the pieces of every text, SentencePiece's own objects, and the characters of each."""
    from sentencepiece import sentencepiece_pb2

    proto: Any = sentencepiece_pb2  # its classes are made when it is imported
    found = processor.encode(list(texts), out_type="serialized_proto")
    pieces = [proto.SentencePieceText.FromString(data).pieces for data in found]
    return pieces, [_spans(processor, text, row) for text, row in zip(texts, pieces, strict=True)]


def _spans(processor: sentencepiece.SentencePieceProcessor, text: str, pieces: Sequence[Any]) -> list[tuple[int, int]]:
    data = np.frombuffer(text.encode("utf-8"), np.uint8)
    # Number of characters before each byte, which are as many as bytes that begin one.
    characters = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)]).tolist()
    result: list[tuple[int, int]] = []
    waiting = 0  # bytes of a character, of which SentencePiece gives the last one the span of all
    for piece in pieces:
        span = characters[piece.begin], characters[piece.end]
        if piece.begin == piece.end and processor.is_byte(piece.id):
            waiting += 1
        else:
            result += [span] * (waiting + 1)
            waiting = 0
    return result + [(len(text), len(text))] * waiting


def train_sentence_piece(texts: Iterable[str], model_type: str, vocab_size: int) -> SentencePieceTokenizer:
    """Train one vocabulary for all texts.

    Text is neither normalised nor trimmed: encoded text decodes to the same string with all its spaces, tabs and other
    characters. So a model can produce the references that BLEU compares with. (SentencePiece's default, NFKC with
    merged spaces, irreversibly turns `…` into three dots and a no-break space into a space.) To normalise text,
    preprocess the files. Characters too rare for their own token become their UTF-8 bytes, so encoding never yields
    unk. One exception: `▁` (U+2581), with which SentencePiece writes a space, decodes to a space.

    Args:
      texts: of both languages.
      model_type: "unigram" or "bpe".
      vocab_size: number of ids, with the 4 reserved ones and the 256 bytes.

    Raises: ConfigError if the text cannot fill so large a vocabulary, or it is too small for the text's characters;
      DataError if there is no text.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # SentencePiece leaves out lines with its private unk mark, and lines of more than 4,192 bytes.
            sentence_iterator=(line.replace("\u2585", " ") for line in training_lines(texts)),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            pad_id=OWN_SPECIAL_IDS.pad,
            eos_id=OWN_SPECIAL_IDS.eos,
            unk_id=OWN_SPECIAL_IDS.unk,
            bos_id=OWN_SPECIAL_IDS.bos,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            num_threads=_TRAINING_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        _explain(error, vocab_size)
    return SentencePieceTokenizer(model.getvalue())


def _explain(error: RuntimeError, vocab_size: int) -> NoReturn:
    """Raise a ConfigError that explains SentencePiece's message."""
    message = str(error)
    if match := re.search(r"Vocabulary size too high.*<= (\d+)", message):
        problem = f"the training split yields at most {match[1]} tokens; choose at most that"
        raise VocabularySizeError(vocab_size, problem) from error
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        needed = int(match[1])
        problem = f"needs at least {needed}: 256 bytes, 4 reserved ids, {needed - _BYTES_AND_SPECIALS} characters"
        raise VocabularySizeError(vocab_size, f"the tokenizer {problem}") from error
    if "sentences_.empty()" in message:
        raise DataError("tokenizer: the training split has no text to train on") from error
    raise DataError(f"tokenizer: SentencePiece cannot train on this training split: {message}") from error
