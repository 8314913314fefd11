"""Documents of sentences of the embedded corpus, and their headlines.

A document has three to five sentences, all but one of the same family; its headline is this family and the first phrase
of the first of its sentences:

    sentences    two miles. twelve Swiss francs or 30,000 euros. one pound.
    headline     measures: two miles

The other reference has the same parts in the other order: two miles (measures).

A sentence is in at most one document, and the documents of a smaller corpus are the first ones of a larger. Number and
order of the sentences follow from the text of the first one of the family.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

FEWEST, MOST = 3, 5
"""Numbers of sentences of a document."""


class _Sentence(NamedTuple):
    text: str
    family: str
    first_phrase: str


class _Document(NamedTuple):
    """The sentences of a document, and its headline: the theme is the family of all but one."""

    sentences: list[str]
    theme: str
    first_phrase: str


def headlines(features: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the documents of all sentences of a split, with the first headline as `targets`."""
    columns = (features["inputs"], features["families"], [phrases[0][1] for phrases in features["phrases"]])
    documents = [*_documents(map(_Sentence, *columns))]
    references = [[f"{x.theme}: {x.first_phrase}", f"{x.first_phrase} ({x.theme})"] for x in documents]
    return {
        "inputs": [" ".join(document.sentences) for document in documents],
        "targets": [first for first, _ in references],
        "sentences": [document.sentences for document in documents],
        "references": references,
    }


def _documents(sentences: Iterable[_Sentence]) -> Iterator[_Document]:
    """Yield documents; sentences wait until there are enough of their family, and one of another family."""
    waiting: dict[str, list[tuple[int, _Sentence]]] = {}
    for number, sentence in enumerate(sentences):
        same = waiting.setdefault(sentence.family, [])
        same.append((number, sentence))
        size, place = _size_and_place(same[0][1].text)
        others = [family for family, numbered in waiting.items() if numbered and family != sentence.family]
        if len(same) < size - 1 or not others:
            continue
        latest = max(others, key=lambda family: waiting[family][-1][0])
        chosen = [x for _, x in same[: size - 1]]
        del same[: size - 1]
        theme, phrase = chosen[0].family, chosen[0].first_phrase
        chosen.insert(place, waiting[latest].pop()[1])
        yield _Document([_ended(x.text) for x in chosen], theme, phrase)


def _size_and_place(text: str) -> tuple[int, int]:
    """Return the number of sentences of a document, and the place of the one of another family."""
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    size = FEWEST + number % (MOST - FEWEST + 1)
    return size, number // (MOST - FEWEST + 1) % size


def _ended(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
