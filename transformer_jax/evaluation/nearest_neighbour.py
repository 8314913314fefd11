"""A baseline that only remembers: answer with the target of the training pair whose source is closest.

Sources are bags of words and word pairs, weighted by tf-idf and compared by their cosine:

    similarity(a, b) = sum_t w_a(t) w_b(t) / (|w_a| |w_b|),   w_d(t) = count of t in d * log(N / documents with t)

A model that scores no better than this has learned nothing beyond looking up its training data.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

_WORDS = re.compile(r"\w+|[^\w\s]")


def _terms(text: str) -> list[str]:
    words = _WORDS.findall(text)
    return words + [f"{first} {second}" for first, second in pairwise(words)]


class NearestNeighbour:
    """An inverted index of training sources.

    For 200,000 sentences of 13 words: about 4 s and 0.5 GB to build, 2 ms per query, on one core.
    """

    def __init__(self, inputs: Sequence[str], targets: Sequence[str]) -> None:
        """inputs, targets: the training pairs, at least one."""
        if len(inputs) != len(targets) or not inputs:
            raise ValueError(f"need as many inputs as targets and at least one, not {len(inputs)} and {len(targets)}")
        self._targets = targets
        self._ids: dict[str, int] = {}
        ids = self._ids
        documents = [[ids.setdefault(term, len(ids)) for term in _terms(text)] for text in inputs]
        lengths = np.array([len(document) for document in documents])
        terms = np.fromiter((term for document in documents for term in document), np.int64, int(lengths.sum()))
        # Sorted by term, then document: one entry for each term of each document, with its count.
        keys, counts = np.unique(terms * len(inputs) + np.repeat(np.arange(len(inputs)), lengths), return_counts=True)
        owners, self._documents = keys // len(inputs), (keys % len(inputs)).astype(np.int32)
        document_counts = np.bincount(owners, minlength=len(ids))
        self._starts = np.concatenate([[0], np.cumsum(document_counts)])
        self._idf = np.log(len(inputs) / np.maximum(document_counts, 1))
        weights = counts * self._idf[owners]
        norms = np.sqrt(np.bincount(self._documents, weights=weights**2, minlength=len(inputs)))
        self._weights = (weights / np.maximum(norms, 1e-9)[self._documents]).astype(np.float32)

    def _similarities(self, query: str) -> np.ndarray:
        """Return [training pairs], without the division by the query's norm, which does not change their order."""
        similarities = np.zeros(len(self._targets), np.float32)
        terms, counts = np.unique([self._ids[term] for term in _terms(query) if term in self._ids], return_counts=True)
        for term, count in zip(terms.astype(int), counts, strict=True):
            postings = slice(self._starts[term], self._starts[term + 1])
            # A document occurs only once in the postings of a term, so the indices of this addition are distinct.
            similarities[self._documents[postings]] += count * self._idf[term] * self._weights[postings]
        return similarities

    def predict(self, queries: Iterable[str]) -> list[str]:
        """Return the target of the most similar training source for every query; of equal ones, the first."""
        return [self._targets[int(self._similarities(query).argmax())] for query in queries]
