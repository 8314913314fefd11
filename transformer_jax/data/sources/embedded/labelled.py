"""The embedded corpus with other targets: families of sentences, phrases as chunks of words, answers and headlines.

| `data.target_feature` | inputs                 | targets                                                      |
|-----------------------|------------------------|--------------------------------------------------------------|
| `families`            | a sentence             | the family of its template, such as `dates` or `money`       |
| `phrases`             | a sentence's words     | B-KIND and I-KIND for the words of a phrase, O between two    |
| `answers`             | a sentence, as context | the phrase of the sentence whose number the question asks for |
| `headlines`           | 3 to 5 sentences       | the family of most, and the first phrase; see headlines.py    |

Words are runs of letters and digits, and single marks. All labels follow from the grammar exactly: it knows the phrases
from which it made a sentence, and they stand in it in their order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import nearest
from transformer_jax.data.sources.embedded.headlines import headlines
from transformer_jax.data.sources.source import Source, Split, divided
from transformer_jax.errors import DataError
from transformer_jax.host.files import json_sha256

_WORDS = re.compile(r"\w+|[^\w\s]")
_ORDINALS = ("first", "second", "third", "fourth", "fifth")


class _Span(NamedTuple):
    kind: str
    first: int
    end: int


class LabelledSource:
    """The embedded corpus with other targets; see the module's docstring."""

    def __init__(self, source: Source, feature: str) -> None:
        """Args: feature: a key of `VIEWS`; DataError for another."""
        if feature not in VIEWS:
            raise DataError(
                f"data.target_feature={feature!r}: the embedded corpus has {', '.join(VIEWS)}; without this field its "
                f"targets are translations{nearest(feature, VIEWS)}"
            )
        self._source, self._feature = source, feature
        self._splits: dict[str, Split] = {}

    def _whole(self, name: str) -> Split:
        if name not in self._splits:
            self._splits[name] = Split(VIEWS[self._feature](self._source.split(name).features))
        return self._splits[name]

    @property
    def split_names(self) -> tuple[str, ...]:
        return self._source.split_names

    def num_examples(self, name: str) -> int:
        return self._whole(name).num_examples if self._feature in OF_SEVERAL else self._source.num_examples(name)

    def split(self, name: str) -> Split:
        return self._whole(name)

    def chunks(self, name: str, size: int) -> Iterator[Split]:
        if self._feature in OF_SEVERAL:
            yield from divided(self._whole(name), size)
            return
        for chunk in self._source.chunks(name, size):
            yield Split(VIEWS[self._feature](chunk.features))

    def fingerprint(self, split: str | None = None) -> dict[str, Any]:
        """Return the fingerprint of the corpus, with another sha256."""
        of_source = self._source.fingerprint(split)
        return of_source | {"sha256": json_sha256({"source": of_source["sha256"], "targets": self._feature})}


def _families(features: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {"inputs": features["inputs"], "targets": features["families"]}


def _phrases(features: dict[str, list[Any]]) -> dict[str, list[Any]]:
    words, tags = [], []
    for sentence, phrases in zip(features["inputs"], features["phrases"], strict=True):
        spans = _spans(sentence, phrases)
        found = [(match[0], _tag(match.start(), match.end(), spans)) for match in _WORDS.finditer(sentence)]
        words.append([word for word, _ in found])
        tags.append(_chunked([span for _, span in found]))
    joined = {"inputs": list(map(" ".join, words)), "targets": list(map(" ".join, tags))}
    return joined | {"words": words, "tags": tags}


def _answers(features: dict[str, list[Any]]) -> dict[str, list[Any]]:
    questions, answers, starts = [], [], []
    for sentence, phrases in zip(features["inputs"], features["phrases"], strict=True):
        spans = _spans(sentence, phrases)
        number = len(sentence) % min(len(spans), len(_ORDINALS))
        questions.append(f"the {_ORDINALS[number]} phrase")
        answers.append([sentence[spans[number].first : spans[number].end]])
        starts.append([spans[number].first])
    contexts = features["inputs"]
    inputs = [f"question: {q} context: {c}" for q, c in zip(questions, contexts, strict=True)]
    targets = [texts[0] for texts in answers]
    texts = {"inputs": inputs, "targets": targets, "questions": questions, "contexts": contexts}
    return texts | {"answers": answers, "answer_starts": starts}


VIEWS: dict[str, Callable[[dict[str, list[Any]]], dict[str, list[Any]]]] = {
    "families": _families,
    "phrases": _phrases,
    "answers": _answers,
    "headlines": headlines,
}
"""Functions from the features of the corpus to those with other targets, by the values of `data.target_feature`."""
OF_SEVERAL = frozenset({"headlines"})
"""The views whose examples are made of several sentences, and so of a whole split."""


def _spans(sentence: str, phrases: Sequence[tuple[str, str]]) -> list[_Span]:
    """Return the places of phrases, each a kind and a text, which stand in the sentence in this order."""
    spans, end = [], 0
    for kind, text in phrases:
        first = sentence.index(text, end)
        end = first + len(text)
        spans.append(_Span(kind, first, end))
    return spans


def _tag(first: int, end: int, spans: Sequence[_Span]) -> _Span | None:
    return next((span for span in spans if span.first <= first and end <= span.end), None)


def _chunked(spans: Sequence[_Span | None]) -> list[str]:
    """Return the tag of every word from the phrase that it belongs to."""
    before = [None, *spans[:-1]]
    return [
        "O" if span is None else f"{'I' if span is last else 'B'}-{span.kind}"
        for span, last in zip(spans, before, strict=True)
    ]
