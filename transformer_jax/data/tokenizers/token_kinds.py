"""Tokens that begin a word or end a sentence, according to their text."""

from __future__ import annotations

import functools

import numpy as np
from jaxtyping import Bool

from transformer_jax.data.tokenizers.tokenizer import SPACE, Tokenizer

CONTINUATION = "##"
"""The beginning of a token that goes on with a word, in WordPiece."""
_ENDS = tuple(".!?\u3002\uff01\uff1f\u0964")


class TokenKinds:
    """Which ids of a tokenizer begin a word or end a sentence; found at the first use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        """Number of ids of the tokenizer; a model may have more."""

    @functools.cached_property
    def _texts(self) -> list[str]:
        return self._tokenizer.tokens(range(self.vocab_size))

    @functools.cached_property
    def begins_word(self) -> Bool[np.ndarray, " V"]:
        """Return, by id, whether a token begins a word.

        These are the tokens that begin with a space (SentencePiece and byte-level BPE, which write it as `SPACE`);
        without such tokens, those that do not begin with `##` (WordPiece); without these too, all: every token is a
        word.
        """
        texts = self._texts
        if any(text.startswith(SPACE) for text in texts):
            return np.array([text.startswith(SPACE) for text in texts])
        return np.array([text == CONTINUATION or not text.startswith(CONTINUATION) for text in texts])

    @functools.cached_property
    def ends_sentence(self) -> Bool[np.ndarray, " V"]:
        """Return, by id, whether a token ends in a full stop, an exclamation mark or a question mark."""
        return np.array([text.endswith(_ENDS) for text in self._texts])
