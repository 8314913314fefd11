"""The baseline that answers with the nearest training pair; data/test_embedded.py has its scores on the corpus."""

import itertools

import numpy as np

from transformer_jax.evaluation.nearest_neighbour import NearestNeighbour


def test_nearest_by_hand():
    inputs = ["the red house", "the green house", "a red car", "one two three", "three two one"]
    targets = ["R", "G", "C", "123", "321"]
    queries = ["red house", "a green garden", "car", "two three", "two one", "unknown words"]
    assert NearestNeighbour(inputs, targets).predict(queries) == ["R", "G", "C", "123", "321", "R"]


def test_nearest_is_the_cosine_of_tf_idf():
    """Against the formula of the module's docstring, with dense matrices."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefg"), size=rng.integers(2, 9))) for _ in range(60)]
    terms = [words + [f"{a} {b}" for a, b in itertools.pairwise(words)] for words in map(str.split, texts)]
    vocabulary = sorted(set(itertools.chain.from_iterable(terms[20:])))  # the terms of the training sentences
    counts = np.array([[document.count(term) for term in vocabulary] for document in terms], float)
    weights = counts * np.log(40 / (counts[20:] > 0).sum(0))
    weights /= np.maximum(np.linalg.norm(weights, axis=1, keepdims=True), 1e-9)
    similarities = weights[:20] @ weights[20:].T  # [queries, training sentences]
    predictions = NearestNeighbour(texts[20:], [str(row) for row in range(40)]).predict(texts[:20])
    found = similarities[np.arange(20), [int(row) for row in predictions]]
    np.testing.assert_allclose(found, similarities.max(1), atol=1e-6)
    assert similarities.max(1).min() > similarities.mean(1).max(), "a random answer would pass"
