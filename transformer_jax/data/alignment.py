"""Words and their tokens: columns of tagged words, and of texts with the characters of their tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np

from transformer_jax.data.columns import Column, TextColumn
from transformer_jax.data.tokenizers.tokenizer import EncodedTexts, Tokenizer, concatenated


class AlignedWords(NamedTuple):
    """The tokens of sentences of given words.

    ids: of every sentence. firsts: for every word of a sentence, the number of its first token in the sentence.
    """

    ids: EncodedTexts
    firsts: EncodedTexts


def align(sentences: Sequence[Sequence[str]], tokenizer: Tokenizer) -> AlignedWords:
    """Join the words of each sentence by spaces, encode the sentences, and find the first token of every word.

    The first token of a word is the first one that has a character of the word and does not belong to an earlier word.
    If a word has no such token, for example because the tokenizer drops its characters, a token with the id unk is
    inserted for it (padding or another id if there is no unk). So every word has a first token.
    """
    encoded = tokenizer.encode_spans([" ".join(words) for words in sentences])
    all_ids, all_firsts = [], []
    for number, words in enumerate(sentences):
        part = slice(encoded.offsets[number], encoded.offsets[number + 1])
        ids, firsts = _with_all_words(words, encoded.ids[part], *encoded.spans[part].T, tokenizer)
        all_ids.append(ids)
        all_firsts.append(firsts)
    return AlignedWords(concatenated(all_ids), concatenated(all_firsts))


def _with_all_words(
    words: Sequence[str], ids: np.ndarray, starts: np.ndarray, ends: np.ndarray, tokenizer: Tokenizer
) -> tuple[list[int], list[int]]:
    special, result, firsts = tokenizer.special_ids, [], []
    absent = next(id for id in (special.unk, special.pad, special.end_of_text, 0) if id is not None)
    token, begin = 0, 0
    for word in words:
        end = begin + len(word)
        # Tokens before the word, such as that of a space.
        while token < len(ids) and ends[token] <= begin and starts[token] < begin:
            result.append(int(ids[token]))
            token += 1
        firsts.append(len(result))
        if token < len(ids) and starts[token] < end:
            result.append(int(ids[token]))
            token += 1
        else:
            result.append(absent)
        while token < len(ids) and starts[token] < end and ends[token] <= end:
            result.append(int(ids[token]))
            token += 1
        begin = end + 1
    return [*result, *map(int, ids[token:])], firsts


@dataclasses.dataclass(frozen=True)
class WordsColumn(Column):
    """Lists of words as the ids of their tokens, without end-of-sequence."""

    ragged: ClassVar[bool] = True
    trains_tokenizer: ClassVar[bool] = True

    def training_text(self, value: Sequence[str]) -> str:
        """Return the words, joined by spaces."""
        return " ".join(value)

    def encode(self, values: Sequence[Sequence[str]], tokenizer: Tokenizer) -> EncodedTexts:
        return align(values, tokenizer).ids


@dataclasses.dataclass(frozen=True)
class FirstTokensColumn(Column):
    """For every word, the number of its first token in the sentence, from 0."""

    ragged: ClassVar[bool] = True

    def encode(self, values: Sequence[Sequence[str]], tokenizer: Tokenizer) -> EncodedTexts:
        return align(values, tokenizer).firsts


@dataclasses.dataclass(frozen=True)
class CharactersColumn(TextColumn):
    """Texts as the places of the characters of their tokens: of the first one, or behind the last one (`ends`)."""

    end: bool = False
    ends: bool = False
    trains_tokenizer: ClassVar[bool] = False

    def stored_dtype(self, tokenizer: Tokenizer) -> str:
        """Return int32."""
        return "<i4"

    def encode(self, values: Sequence[str], tokenizer: Tokenizer) -> EncodedTexts:
        encoded = tokenizer.encode_spans(values)
        return EncodedTexts(encoded.spans[:, int(self.ends)], encoded.offsets)
