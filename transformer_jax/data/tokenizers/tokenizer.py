"""The interface of tokenizers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from transformer_jax.config import DecodeConfig
from transformer_jax.config.decode import parse_ids
from transformer_jax.errors import ConfigError, DataError

_T = TypeVar("_T")


class VocabularySizeError(ConfigError):
    """A vocabulary cannot have this size; problem: why, without the name of the field."""

    def __init__(self, size: int, problem: str, field: str = "model.vocab_size") -> None:
        super().__init__(f"config: {field}={size}: {problem}")
        self.problem = problem


class VocabularyFileError(DataError):
    """A vocabulary cannot be read from a file; problem: why, without the name of the field."""

    def __init__(self, problem: str, field: str = "data.vocabulary_file") -> None:
        super().__init__(f"{field}: {problem}")
        self.problem = problem


class SpecialIds(NamedTuple):
    """Ids with a role in one tokenizer; None if there is none for a role."""

    pad: int | None = None
    eos: int | None = None
    unk: int | None = None
    bos: int | None = None
    mask: int | None = None
    cls: int | None = None
    sep: int | None = None
    sentinels: tuple[int, ...] = ()
    """Ids of `<extra_id_0>`, `<extra_id_1>`, ..., which stand for parts of a text; usually in descending order."""

    @property
    def start_of_text(self) -> int | None:
        """The token in front of a text: `cls`, or else `bos`."""
        return self.bos if self.cls is None else self.cls

    @property
    def end_of_text(self) -> int | None:
        """The token behind a text: `sep`, or else `eos`."""
        return self.eos if self.sep is None else self.sep

    @property
    def without_text(self) -> frozenset[int]:
        """All these ids but `unk`, which stands for a word of a text."""
        roles = (self.pad, self.eos, self.bos, self.mask, self.cls, self.sep)
        return frozenset(id for id in (*roles, *self.sentinels) if id is not None)

    def required(self, role: str) -> int:
        """Return the id of a role; raises DataError if there is none."""
        id = getattr(self, role)
        if id is None:
            raise DataError(f"the tokenizer has no id for '{role}'")
        return id


class Frame(NamedTuple):
    """The tokens around one or two texts in the batches of a task: [start] a [end], or [start] a [end] b [end].

    start, end: ids; None for no token. optional_start: an id that may be the start as well, since users may put it
    there. pairs: whether the task has pairs of texts.
    """

    start: int | None = None
    end: int | None = None
    optional_start: int | None = None
    pairs: bool = False


OWN_SPECIAL_IDS = SpecialIds(pad=0, eos=1, unk=2, bos=3)
"""The special ids of every tokenizer that this project trains."""
RESERVED = {0: "<pad>", 1: "</s>", 2: "<unk>", 3: "<s>"}
"""Names of these ids, which are not tokens of text."""

_ROLES = {name: role for role in ("mask", "cls", "sep", "pad") for name in (f"<{role}>", f"[{role.upper()}]")}
_SENTINEL = re.compile(r"<extra_id_(\d+)>")

SPACE = "\u2581"
"""The character that stands for a space where a token is shown: SentencePiece's `▁`."""

# Trainers need minutes for a word of a million characters, or leave it out. Lines are cut into parts of this many
# characters.
_TRAINING_CHARACTERS = 1000


def with_named_roles(special_ids: SpecialIds, ids: Mapping[str, int]) -> SpecialIds:
    """Return special ids with those of the names that mean a role: `<mask>`, `<cls>`, `<sep>`, `<extra_id_0>`, ...

    Args:
      ids: of special tokens, by name; may contain other names. Of two names of a role, and of a role that
        `special_ids` has already, the first counts.
    """
    roles: dict[str, int] = {}
    for name, id in ids.items():
        role = _ROLES.get(name)
        if role is not None and getattr(special_ids, role) is None:
            roles.setdefault(role, id)
    sentinels = list(special_ids.sentinels)
    while (name := f"<extra_id_{len(sentinels)}>") in ids:
        sentinels.append(ids[name])
    return special_ids._replace(**roles, sentinels=tuple(sentinels))


def has_named_role(special_ids: SpecialIds, name: str) -> bool | None:
    """Return whether there is an id for the role that a name means; None if it means none."""
    if match := _SENTINEL.fullmatch(name):
        return int(match[1]) < len(special_ids.sentinels)
    return None if name not in _ROLES else getattr(special_ids, _ROLES[name]) is not None


class EncodedTexts(NamedTuple):
    """The ids of several texts, one after the other: text `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray
    """int32 [sum of lengths]."""
    offsets: np.ndarray
    """int64 [number of texts + 1], from 0."""


class EncodedSpans(NamedTuple):
    """The ids of several texts as `EncodedTexts`, and the characters that each token stands for."""

    ids: np.ndarray
    """int32 [sum of lengths]."""
    offsets: np.ndarray
    """int64 [number of texts + 1], from 0."""
    spans: np.ndarray
    """int32 [sum of lengths, 2]: the start and the end of each token in its text, in characters."""


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids and back. Encoding adds no eos and no bos: the token cache and the decoder add them."""

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the special ones."""
        ...

    @property
    def special_ids(self) -> SpecialIds:
        """The ids with a role."""
        ...

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of source texts; the tokenizer itself, unless the two sides differ."""
        ...

    @property
    def model_bytes(self) -> bytes:
        """The bytes from which `load_tokenizer` makes the tokenizer again."""
        ...

    @property
    def sha256(self) -> str:
        """Hex digest of `model_bytes`, and of how they are read where that has changed."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the ids of every text, without eos."""
        ...

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        """Return the ids of `encode_batch`, and for each token the characters `text[start:end]` that it stands for.

        Starts do not decrease. Spaces around a token do not count, unless it has nothing else. The bytes of one
        character all have its span. A token without characters of the text, such as the space that SentencePiece puts
        in front, has an empty span.
        """
        ...

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the text of the ids before the first eos; special ids have none, except for unk."""
        ...

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        """Return `decode` of every row; rows may be an int array [B, T]."""
        ...

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """Return the text of every single id: the name of a reserved one, `SPACE` for a space."""
        ...


class ModelBytes:
    """The common part of this project's tokenizers: special ids, model bytes, and a digest."""

    special_ids = OWN_SPECIAL_IDS
    id_problem = ""
    """Names ids without a token and ids of two tokens; empty if there are none, as in all that are trained here."""

    def __init__(self, model_bytes: bytes) -> None:
        self._model_bytes = bytes(model_bytes)

    @property
    def source(self: _T) -> _T:
        return self

    @property
    def model_bytes(self) -> bytes:
        return self._model_bytes

    @functools.cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self._model_bytes).hexdigest()


def concatenated(rows: Sequence[Sequence[int]]) -> EncodedTexts:
    """Return the ids of all texts as two arrays."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1]))
    return EncodedTexts(ids, offsets)


def with_spans(
    rows: Sequence[Sequence[int]], spans: Sequence[Sequence[tuple[int, int]]], texts: Sequence[str]
) -> EncodedSpans:
    """Return ids and spans of all texts as arrays, the spans without spaces around them."""
    trimmed = [_trimmed(text, *span) for text, row in zip(texts, spans, strict=True) for span in row]
    return EncodedSpans(*concatenated(rows), np.array(trimmed, np.int32).reshape(-1, 2))


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    if start < end and (text[start].isspace() or text[end - 1].isspace()):
        part = text[start:end]
        if inner := part.strip():
            start += len(part) - len(part.lstrip())
            end = start + len(inner)
    return start, end


def before_eos(ids: Iterable[int] | np.ndarray, eos: int | None) -> list[int]:
    """Return the ids that come before the first `eos`, as a list."""
    row = ids.tolist() if isinstance(ids, np.ndarray) else [int(i) for i in ids]
    return row if eos is None or eos not in row else row[: row.index(eos)]


def with_text(ids: Iterable[int] | np.ndarray, special_ids: SpecialIds) -> list[int]:
    """Return the ids that have a text: those before the first eos, without special ones; unk has a text."""
    special = special_ids.without_text
    return [id for id in before_eos(ids, special_ids.eos) if id not in special]


def check_token_ids(tokenizer: Tokenizer, file: str) -> None:
    """Raise DataError if an imported file has ids without a token, or ids of two tokens.

    Stored tokenizers were checked when they were imported.
    """
    if isinstance(tokenizer, ModelBytes) and tokenizer.id_problem:
        raise DataError(
            f"{file}: {tokenizer.id_problem}. Edit the vocabulary in this file: every id from 0 to the last needs one "
            "token; a new one, such as '<unused_0>', can take a free id"
        )


def check_decode_ids(decode: DecodeConfig, special_ids: SpecialIds) -> None:
    """Raise ConfigError if `decode.prefix_ids` contains padding or end-of-sequence of the tokenizer."""
    prefix = parse_ids(decode.prefix_ids)
    roles = {"padding": special_ids.pad, "end-of-sequence": special_ids.eos}
    if any(id in prefix for id in roles.values()):
        named = " or ".join(f"{role} ({id})" for role, id in roles.items() if id is not None)
        raise ConfigError(f"config: decode.prefix_ids={decode.prefix_ids} must not contain {named}")


def training_lines(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts for a trainer, long ones in parts."""
    for text in texts:
        for start in range(0, len(text), _TRAINING_CHARACTERS):
            yield text[start : start + _TRAINING_CHARACTERS]
