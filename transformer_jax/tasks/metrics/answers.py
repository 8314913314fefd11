"""Scores of answers to questions, as the official script of SQuAD v1.1 defines them (Rajpurkar et al. 2016, section 6).

An answer is normalised: lower case, without ASCII punctuation, without the articles a, an and the, with single spaces.
Exact match is 1 if the normalised texts are equal. F1 is that of their bags of words: with s words in common,
precision = s / words predicted, recall = s / words of the reference, F1 = 2 precision recall / (precision + recall).
A question with several references has the largest value over them.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Callable, Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised(text: str) -> str:
    """Return an answer as the script compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, reference: str) -> float:
    """Return 1.0 if the normalised answers are equal, else 0.0."""
    return float(normalised(predicted) == normalised(reference))


def word_f1(predicted: str, reference: str) -> float:
    """Return the F1 of the bags of words of two normalised answers; 0.0 if they have no word in common."""
    words, expected = normalised(predicted).split(), normalised(reference).split()
    same = sum((collections.Counter(words) & collections.Counter(expected)).values())
    if not same:
        return 0.0
    precision, recall = same / len(words), same / len(expected)
    return 2 * precision * recall / (precision + recall)


def best_over(score: Callable[[str, str], float], predicted: str, references: Sequence[str]) -> float:
    """Return the largest score of an answer over one or more references."""
    return max(score(predicted, reference) for reference in references)
