"""Chunks, such as names, in tags of words; counted as the script conlleval of the CoNLL shared tasks counts them.

A tag is `O`, outside of all chunks, or a prefix and the type of a chunk, as in `B-PER`. conlleval reads several schemes
without being told which:

| scheme | prefixes                                                                              |
|--------|---------------------------------------------------------------------------------------|
| IOB1   | I; B only for a chunk directly after another one of its type                          |
| IOB2   | B for the first word of every chunk, I for the others (BIO)                           |
| BIOES  | B, I, E for the last word; S for a chunk of one word                                  |

Of two neighbouring words, a chunk ends after the first if that is in one, and it is E or S, or the next word is B, S or
O, or of another type. A chunk begins at the second word if that is in one, and it is B or S, or the word before it is
E, S or O, or of another type. So an I after O begins a chunk. A predicted chunk is right if type, first and last word
are those of a true one.

The script has these rules for B, I and O, and does not know S. seqeval's default mode, which is not strict, has them
for all prefixes.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transformer_jax.errors import DataError

OUTSIDE = "O"
PREFIXES = ("B", "I", "E", "S")


class Chunk(NamedTuple):
    """A chunk. first, last: numbers of its first and last word, from 0."""

    type: str
    first: int
    last: int


def chunks(tags: Sequence[str]) -> list[Chunk]:
    """Return the chunks of a sentence, in order."""
    found: list[Chunk] = []
    before, type_before, first = OUTSIDE, "", 0
    for number, tag in enumerate([*tags, OUTSIDE]):
        prefix, _, type = tag.partition("-")
        other = type != type_before
        if before != OUTSIDE and (before in ("E", "S") or prefix in ("B", "S", OUTSIDE) or other):
            found.append(Chunk(type_before, first, number - 1))
        if prefix != OUTSIDE and (prefix in ("B", "S") or before in ("E", "S", OUTSIDE) or other):
            first = number
        before, type_before = prefix, type
    return found


class ChunkCounts(NamedTuple):
    """Numbers of chunks: right predictions, predictions, and true chunks."""

    right: int
    predicted: int
    true: int


def count_chunks(true: Sequence[str], predicted: Sequence[str]) -> dict[str, ChunkCounts]:
    """Return the counts of one sentence by type of chunk; types without chunks are left out.

    Args:
      true, predicted: one tag per word.
    """
    of_true, of_predicted = set(chunks(true)), set(chunks(predicted))
    counted = [
        collections.Counter(chunk.type for chunk in chosen)
        for chosen in (of_true & of_predicted, of_predicted, of_true)
    ]
    return {type: ChunkCounts(*(c[type] for c in counted)) for type in sorted({*counted[1], *counted[2]})}


def check_tags(names: Iterable[str]) -> None:
    """Raise DataError if one of the names is not a tag of IOB1, IOB2 (BIO) or BIOES."""
    for name in names:
        prefix, dash, type = name.partition("-")
        if name != OUTSIDE and not (prefix in PREFIXES and dash and type):
            raise DataError(
                f"the tag {name!r} is neither O nor B-TYPE, I-TYPE, E-TYPE or S-TYPE, the tags of IOB1, BIO (IOB2) and "
                "BIOES; set task.chunks=false to score it as a plain tag"
            )
