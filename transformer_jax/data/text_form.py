"""Forms in which corpora are distributed, and their conversion to plain text.

`moses_bpe`: Moses tokens with a space between two (` , `), some characters escaped as in XML (`&quot;`), and rare words
split into subwords, which all end in `@@` except the last. Models read and write this text unchanged. It is joined and
detokenised before it is scored or shown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from transformer_jax.config import DataConfig

_CONTINUATION = re.compile(r"@@(?:\s+|$)")
_SENTENCE_END = re.compile(r"""(?<=[.!?])\s+|(?<=[.!?]["'\u201d\u2019)\]])\s+""")


def join_subwords(text: str) -> str:
    """Join subwords to Moses tokens: `Hun@@ de` becomes `Hunde`. A mark at the end of the text is dropped."""
    return _CONTINUATION.sub("", text)


def detokenize(text: str, locale: str) -> str:
    """Return plain text of Moses tokens, by the rules of the locale's language, or by general rules if it has none.

    Information lost by tokenising is not restored: `3 , 5` always becomes `3, 5`.
    """
    return _detokenizer(re.split("[-_]", locale)[0].lower())(text.split())


def readable(text: str, data: DataConfig) -> str:
    """Return a target of a corpus, or the output of a model trained on it, as plain text."""
    return _READABLE[data.text_form](text, data.target_locale)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text: they end at a full stop, a question or an exclamation mark before a space.

    Closing quotes and brackets after the mark belong to the sentence. A text without such a mark is one sentence.
    """
    return _SENTENCE_END.split(text.strip())


_READABLE = {
    "plain": lambda text, locale: text,
    "moses_bpe": lambda text, locale: detokenize(join_subwords(text), locale),
}


@functools.cache
def _detokenizer(language: str) -> Callable[[list[str]], str]:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(language).detokenize
