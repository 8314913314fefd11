"""N-gram models against the equations of Chen and Goodman (1998), written out with dictionaries."""

import collections
import math

import numpy as np
import pytest

from transformer_jax.evaluation.kneser_ney import KneserNey, discounts_of

BEGIN, END, UNKNOWN = ("begin",), ("end",), ("unknown",)  # no words, so that texts cannot contain them


def texts(seed: int, count: int, words: str = "abcdefghij") -> list[list[str]]:
    """Return sentences in which some words are frequent and others rare, and some are empty."""
    rng = np.random.default_rng(seed)
    shares = 1.0 / np.arange(1, len(words) + 1)
    return [[*rng.choice([*words], rng.integers(0, 9), p=shares / shares.sum())] for _ in range(count)]


class Reference:
    """The equations of the module's docstring, for one word at a time."""

    def __init__(self, sentences, order):
        self.counts = collections.Counter()
        for sentence in sentences:
            marked = [BEGIN, *sentence, END]
            for end in range(1, len(marked)):
                self.counts.update(tuple(marked[start : end + 1]) for start in range(max(0, end - order + 1), end + 1))
        before = collections.defaultdict(set)
        for gram in self.counts:
            before[gram[1:]].add(gram[0])
        self.adjusted = {
            gram: count if len(gram) == order or gram[0] == BEGIN else len(before[gram])
            for gram, count in self.counts.items()
        }
        self.words = {*(gram[-1] for gram in self.counts), UNKNOWN}
        self.order = order
        self.discounts = {}
        for n in range(1, order + 1):
            of_order = collections.Counter(a for gram, a in self.adjusted.items() if len(gram) == n)
            self.discounts[n] = discounts_of([of_order[k] for k in range(5)])

    def prob(self, history, word):
        if history is None:
            return 1.0 / len(self.words)
        shorter = history[1:] if history else None
        after = {word: self.adjusted[(*history, word)] for word in self.words if (*history, word) in self.adjusted}
        if not after:
            return self.prob(shorter, word)
        discounts, total = self.discounts[len(history) + 1], sum(after.values())
        taken = sum(discounts[min(a, 3)] for a in after.values())
        count = after.get(word, 0)
        return (count - discounts[min(count, 3)] + taken * self.prob(shorter, word)) / total

    def log_probs(self, sentences):
        found = []
        for sentence in sentences:
            marked = [BEGIN, *sentence, END]
            for place in range(1, len(marked)):
                history = tuple(marked[max(0, place - self.order + 1) : place])
                found.append(math.log(self.prob(history, marked[place] if marked[place] in self.words else UNKNOWN)))
        return np.array(found)


@pytest.mark.parametrize(("order", "count"), [(1, 50), (2, 200), (3, 300), (5, 10), (5, 200)])
def test_the_equations_of_chen_and_goodman(order, count):
    training, others = texts(0, count), [*texts(1, 40, "abcdefghijx"), ["x"], ["x", "a", "b"], []]
    expected = Reference(training, order).log_probs(others)
    np.testing.assert_allclose(KneserNey.of_sentences(training, order).log_probs(others), expected, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("history", [[], ["a"], ["a", "b", "a", "c", "a"], ["x", "a"], ["a", "x"]])
@pytest.mark.parametrize(("unseen", "num_words"), [("x", None), ("xyz", 13)])
def test_probabilities_sum_to_one_over_the_vocabulary(order, history, unseen, num_words):
    model = KneserNey.of_sentences(texts(0, 200), order, num_words)
    of_words = [model.log_probs([[*history, word]])[-2] for word in [*"abcdefghij", *unseen]]
    assert np.exp([*of_words, model.log_probs([history])[-1]]).sum() == pytest.approx(1.0, abs=1e-12)


def test_a_bigram_model_by_hand():
    """Counts of counts are 0, so discounts are 0.5, 1 and 1.5. Words: a, b, end and unknown."""
    model = KneserNey.of_sentences([["a", "b"], ["a"]], 2)
    # Different words before a, b and the end: 1, 1 and 2; of the total 4, 0.5 + 0.5 + 1 goes to the uniform 1/4.
    p_a, p_end = 0.5 / 4 + 2 / 4 / 4, 1 / 4 + 2 / 4 / 4
    assert np.exp(model.log_probs([["a"]])) == pytest.approx([1 / 2 + 1 / 2 * p_a, 0.5 / 2 + 1 / 2 * p_end])
    assert np.exp(model.log_probs([["x"]])) == pytest.approx([1 / 2 * (2 / 4 / 4), p_end])


@pytest.mark.parametrize(
    ("counts", "discounts"),
    [
        ((9, 4, 2, 2, 1), (0.0, 0.5, 0.5, 2.0)),  # Y = 1/2
        ((9, 40, 20, 10, 5), (0.0, 0.5, 1.25, 2.0)),
        ((9, 40, 20, 10, 0), (0.0, 0.5, 1.25, 3.0)),
        ((9, 0, 2, 1, 1), (0.0, 0.5, 1.0, 1.5)),
        ((9, 4, 2, 0, 1), (0.0, 0.5, 1.0, 1.5)),
        ((9, 4, 2, 9, 1), (0.0, 0.5, 1.0, 1.5)),  # D_2 would be negative
    ],
)
def test_discounts_are_those_of_counts_of_counts(counts, discounts):
    assert discounts_of(counts) == pytest.approx(discounts)


def test_marks_in_the_text_are_words():
    model = KneserNey.of_sentences([["<s>", "<unk>", "</s>"], ["<unk>"]], 3)
    assert set(model.words) == {"<s>", "<unk>", "</s>"}
    with_names = KneserNey.of_sentences([["a", "b", "c"], ["b"]], 3)
    np.testing.assert_array_equal(model.log_probs([["<unk>", "</s>"]]), with_names.log_probs([["b", "c"]]))


@pytest.mark.parametrize("sentences", [[[]], [[], ["a"]], [["a"]]])
def test_tiny_texts_have_finite_probabilities(sentences):
    assert np.isfinite(KneserNey.of_sentences(sentences).log_probs([[], ["a", "b", "a", "b", "a", "b"]])).all()
