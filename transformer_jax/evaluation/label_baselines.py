"""Baselines that predict labels and tags from words alone: frequencies, naive Bayes and logistic regression.

The models of labels have the same form, with c_w the count of word w in a text:

    log p(label | text) = log softmax_label(b_label + sum_w c_w W_{w, label})

* majority label: W = 0, b = log of the label's share of the training examples.
* naive Bayes (multinomial): the same b; W = log((1 + n_{w, label}) / (V + sum_v n_{v, label})), where n counts words in
  the training texts of a label, and V is the number of different words.
* logistic regression: c_w is 1 for a word of the text. W and b minimise the sum of the negative log probabilities of
  the training labels plus |W|^2 / 2. Of two labels, only one has weights.

They equal scikit-learn's `DummyClassifier(strategy="prior")`, `MultinomialNB(alpha=1)` and `LogisticRegression(C=1)`.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.tasks.trained.head_outputs import log_softmax

if TYPE_CHECKING:
    import scipy.sparse

_WORDS = re.compile(r"\w+|[^\w\s]")
_ITERATIONS = 1000
_TOLERANCE = 1e-6
"""Largest slope of the objective per example in any direction of a parameter at which L-BFGS ends."""


def words_of(*texts: str) -> list[tuple[int, str]]:
    """Return the words and punctuation marks of texts in lower case, each with the number of its text."""
    return [(number, word) for number, text in enumerate(texts) for word in _WORDS.findall(text.lower())]


def word_ids(documents: Iterable[Iterable[Hashable]]) -> dict[Hashable, int]:
    """Return the different words of documents with their ids, 0, 1, ... in the order of their first occurrence."""
    ids: dict[Hashable, int] = {}
    for word in itertools.chain.from_iterable(documents):
        ids.setdefault(word, len(ids))
    return ids


def word_counts(documents: Sequence[Iterable[Hashable]], ids: Mapping[Hashable, int]) -> scipy.sparse.csr_array:
    """Return the count of every word in every document, float64 [N, W]; words without an id are left out."""
    import scipy.sparse

    rows = [[ids[word] for word in document if word in ids] for document in documents]
    offsets = np.cumsum([0, *map(len, rows)])
    columns = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(offsets[-1]))
    counts = scipy.sparse.csr_array((np.ones(len(columns)), columns, offsets), shape=(len(rows), len(ids)))
    counts.sum_duplicates()
    return counts


def presence_of(counts: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """Return 1 for each word that occurs in a document, and 0 elsewhere, [N, W]."""
    import scipy.sparse

    return scipy.sparse.csr_array((np.ones_like(counts.data), counts.indices, counts.indptr), shape=counts.shape)


@dataclasses.dataclass(frozen=True)
class LinearLabels:
    """A model of C labels, linear in W words: weights [W, C], biases [C]."""

    weights: Float[np.ndarray, "W C"]
    biases: Float[np.ndarray, " C"]

    def log_probs(self, counts: scipy.sparse.csr_array) -> Float[np.ndarray, "N C"]:
        """Return the log probability of every label for every document; counts [N, W]."""
        return log_softmax(counts @ self.weights + self.biases)  # [N, W] [W, C] -> [N, C]


def majority_label(num_words: int, labels: Int[np.ndarray, " N"], num_labels: int) -> LinearLabels:
    """Return the model that gives every text the labels' shares of the training examples."""
    with np.errstate(divide="ignore"):
        shares = np.log(np.bincount(labels, minlength=num_labels) / len(labels))
    return LinearLabels(np.zeros((num_words, num_labels)), shares)


def naive_bayes(counts: scipy.sparse.csr_array, labels: Int[np.ndarray, " N"], num_labels: int) -> LinearLabels:
    """Return multinomial naive Bayes with add-one smoothing; counts [N, W]."""
    of_labels = counts.T @ np.eye(num_labels)[labels] + 1.0  # [W, N] [N, C] -> [W, C]
    biases = majority_label(counts.shape[1], labels, num_labels).biases
    return LinearLabels(np.log(of_labels / of_labels.sum(0)), biases)


def logistic_regression(
    presence: scipy.sparse.csr_array, labels: Int[np.ndarray, " N"], num_labels: int
) -> LinearLabels:
    """Return logistic regression with an L2 penalty, fitted by L-BFGS.

    Args: presence: 1 for each word of a document, 0 elsewhere, [N, W].
    """
    from scipy.optimize import minimize

    size, num_words = presence.shape
    fixed = 1 if num_labels <= 2 else 0  # labels whose weights and bias are 0
    free = num_labels - fixed
    truth = np.eye(num_labels)[labels]

    def model(flat: np.ndarray) -> LinearLabels:
        all_weights = np.zeros((num_words + 1, num_labels))
        all_weights[:, fixed:] = flat.reshape(num_words + 1, free)
        return LinearLabels(all_weights[:-1], all_weights[-1])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        current = model(flat)
        log_probs = current.log_probs(presence)
        error = np.exp(log_probs) - truth  # [N, C]
        loss = -log_probs[np.arange(size), labels].sum() + 0.5 * (current.weights**2).sum()
        gradient = np.concatenate([presence.T @ error + current.weights, error.sum(0)[None]])[:, fixed:]
        return float(loss) / size, gradient.ravel() / size

    if not free:
        return model(np.zeros(0))
    start = np.zeros((num_words + 1) * free)
    options = {"maxiter": _ITERATIONS, "maxfun": 2 * _ITERATIONS, "gtol": _TOLERANCE, "ftol": 1e-13}
    return model(minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x)


@dataclasses.dataclass(frozen=True)
class MostFrequentTags:
    """The most frequent tag of every word in training; of equally frequent ones, the one that is more frequent overall.

    of_words: tags by word. of_unknown: the tag of all other words, the most frequent one among words that occur once;
    without such words, the most frequent one of all.
    """

    of_words: Mapping[str, str]
    of_unknown: str

    @classmethod
    def of_sentences(cls, sentences: Iterable[Sequence[str]], tags: Iterable[Sequence[str]]) -> MostFrequentTags:
        """Return the model of training sentences with one tag per word; raises ValueError if there are no words."""
        by_word: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        overall: collections.Counter[str] = collections.Counter()
        for words, of_words in zip(sentences, tags, strict=True):
            overall.update(of_words)
            for word, tag in zip(words, of_words, strict=True):
                by_word[word][tag] += 1
        if not overall:
            raise ValueError("the training split has no words")
        once: collections.Counter[str] = collections.Counter()
        for counts in by_word.values():
            if counts.total() == 1:
                once.update(counts)

        def best(counts: collections.Counter[str]) -> str:
            return min(counts, key=lambda tag: (-counts[tag], -overall[tag], tag))

        return cls({word: best(counts) for word, counts in by_word.items()}, best(once or overall))

    def predict(self, words: Iterable[str]) -> list[str]:
        """Return the tag of every word."""
        return [self.of_words.get(word, self.of_unknown) for word in words]
