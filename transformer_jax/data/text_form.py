"""Forms in which corpora are distributed, and the text that readers expect.

`moses_bpe`: Moses tokens with a space between two, ` , `, some characters escaped as XML has it, `&quot;`, and rare
words split into subwords of which all but the last end in `@@`. Models read and write such text as it is; it is joined
and detokenised where it is scored or shown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from transformer_jax.config import DataConfig

_CONTINUATION = re.compile(r"@@(?:\s+|$)")


def join_subwords(text: str) -> str:
    """Join subwords to Moses tokens: `Hun@@ de` becomes `Hunde`. A mark at the end of the text is dropped."""
    return _CONTINUATION.sub("", text)


def detokenize(text: str, locale: str) -> str:
    """Text as one writes it, of Moses tokens, by the rules of the locale's language; general ones if it has none.

    What tokenising has lost does not come back: `3 , 5` becomes `3, 5` whatever it was before.
    """
    return _detokenizer(re.split("[-_]", locale)[0].lower())(text.split())


def readable(text: str, data: DataConfig) -> str:
    """A target of a corpus, or what a model writes that was trained on it, as one writes it."""
    return _READABLE[data.text_form](text, data.target_locale)


_READABLE = {
    "plain": lambda text, locale: text,
    "moses_bpe": lambda text, locale: detokenize(join_subwords(text), locale),
}


@functools.cache
def _detokenizer(language: str) -> Callable[[list[str]], str]:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(language).detokenize
