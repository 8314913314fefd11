"""Special tokens that a tokenizer has beyond those of its own model, such as `<mask>` or T5's `<extra_id_0>`.

Their ids follow those of the model. No text is encoded to such an id, even if it contains the name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from transformer_jax.data.tokenizers.pair import TokenizerPair
from transformer_jax.data.tokenizers.tokenizer import (
    EncodedSpans,
    EncodedTexts,
    ModelBytes,
    SpecialIds,
    Tokenizer,
    has_named_role,
    with_named_roles,
    with_text,
)
from transformer_jax.errors import DataError
from transformer_jax.readers import parse_json

MAGIC = b"added tokens\n"


class AddedTokens(ModelBytes):
    """A tokenizer and the names of further special tokens, in the order of their ids.

    Names that mean a role, such as `<mask>` and `<extra_id_0>`, give it to their ids (`with_named_roles`). The model
    bytes are `MAGIC`, a line with the names in JSON, and the bytes of the inner tokenizer.
    """

    def __init__(self, inner: Tokenizer, names: Sequence[str]) -> None:
        super().__init__(MAGIC + json.dumps(list(names)).encode() + b"\n" + inner.model_bytes)
        self.inner = inner
        self.names = tuple(names)
        ids = {name: id for id, name in enumerate(names, inner.vocab_size)}
        self.special_ids = with_named_roles(inner.special_ids, ids)

    @functools.cached_property
    def source(self) -> AddedTokens:
        """The tokenizer of source texts, with the same added tokens."""
        return self if self.inner.source is self.inner else AddedTokens(self.inner.source, self.names)

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size + len(self.names)

    def encode_batch(self, texts: Sequence[str]) -> EncodedTexts:
        return self.inner.encode_batch(texts)

    def encode_spans(self, texts: Sequence[str]) -> EncodedSpans:
        return self.inner.encode_spans(texts)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """See `Tokenizer`; added tokens have no text."""
        return self.inner.decode(self._with_text(ids))

    def decode_batch(self, rows: Iterable[Iterable[int]] | np.ndarray) -> list[str]:
        return self.inner.decode_batch([self._with_text(row) for row in rows])

    def _with_text(self, ids: Iterable[int] | np.ndarray) -> list[int]:
        return [id for id in with_text(ids, self.special_ids) if id < self.inner.vocab_size]

    def tokens(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """See `Tokenizer`; an added token is written as its name."""
        size = self.inner.vocab_size
        given = [int(id) for id in ids]
        inner = iter(self.inner.tokens([id for id in given if id < size]))
        return [next(inner) if id < size else self.names[id - size] for id in given]


def unpack(model_bytes: bytes) -> tuple[bytes, list[str]]:
    """Return the inner model bytes, and the names; raises DataError if they are damaged."""
    line, found, inner = model_bytes.removeprefix(MAGIC).partition(b"\n")
    try:
        names = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"tokenizer: the names of added tokens are damaged: {error}") from error
    ok = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if not found or not ok or len({*names}) < len(names):
        raise DataError("tokenizer: the names of added tokens are damaged")
    return inner, names


def lacking(special_ids: SpecialIds, names: Iterable[str], known: Collection[str] = ()) -> tuple[str, ...]:
    """Return those of the special tokens `names` for which there is no id, in the order of their new ids.

    A token of another name with the same role is enough, such as `[MASK]` for `<mask>`. Sentinels come last, in
    descending order, as in T5: `<extra_id_0>` has the highest id.

    Args:
      known: the tokens of a tokenizer, for names that mean no role.
    """
    has = {name: has_named_role(special_ids, name) for name in names}
    missing = [name for name, found in has.items() if not (name in known if found is None else found)]
    sentinels = [name for name in missing if name.startswith("<extra_id_")]
    return (*(name for name in missing if name not in sentinels), *reversed(sentinels))


def with_added_tokens(tokenizer: Tokenizer, names: Collection[str], vocab_size: int) -> Tokenizer:
    """Return a tokenizer that also has those special tokens that it lacks, if `vocab_size` has room for all of them.

    Without room it is returned as it is; a task that cannot do without a token says so.
    """
    if isinstance(tokenizer, TokenizerPair):  # only for translation, which needs none
        return tokenizer
    missing = lacking(tokenizer.special_ids, names, tokenizer.tokens(range(tokenizer.vocab_size)) if names else ())
    if not missing or tokenizer.vocab_size + len(missing) > vocab_size:
        return tokenizer
    if isinstance(tokenizer, AddedTokens):
        return AddedTokens(tokenizer.inner, (*tokenizer.names, *missing))
    return AddedTokens(tokenizer, missing)


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without its added tokens."""
    return tokenizer.inner if isinstance(tokenizer, AddedTokens) else tokenizer
