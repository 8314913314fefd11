"""Baselines of labels and tags: against scikit-learn 1.9.1, and by hand."""

import numpy as np
import pytest
from baseline_support import baselines
from labelled_support import FEATURES

from transformer_jax.evaluation.label_baselines import (
    MostFrequentTags,
    logistic_regression,
    majority_label,
    naive_bayes,
    presence_of,
    word_counts,
    word_ids,
    words_of,
)

TRAIN = [
    ("A fine film, with fine actors.", "good"),
    ("a dull film", "bad"),
    ("what joy it is; what a joy!", "good"),
    ("so dull, and long and dull", "bad"),
    ("fine", "good"),
    ("a long joy", "mixed"),
    ("", "good"),
    ("the actors are fine, the film is dull", "mixed"),
    ("dull actors", "bad"),
    ("It is a joy.", "good"),
]
TEST = [
    ("a fine joy", "good"),
    ("a dull, dull film!", "bad"),
    ("", "bad"),
    ("unknown words only", "good"),
    ("long, but a joy", "mixed"),
    ("the film is fine", "mixed"),
    ("long and dull", "bad"),
]
# By the model: scores, and the probability of `bad` for every test text. The texts labelled `mixed` left out, or not.
SCORES = {
    (True, "majority label"): (1.17386980, 28.571429, 14.814815, 0.0),
    (True, "naive Bayes"): (0.58543159, 71.428571, 71.111111, 0.63474545),
    (True, "logistic regression"): (0.75295294, 71.428571, 71.111111, 0.63474545),
    (False, "majority label"): (0.77649900, 40.0, 28.571429, 0.0),
    (False, "naive Bayes"): (0.31156154, 80.0, 80.0, 0.66666667),
    (False, "logistic regression"): (0.52434816, 80.0, 80.0, 0.66666667),
}
PROBS = {
    (True, "majority label"): [0.3] * 7,
    (True, "naive Bayes"): [0.039821, 0.869729, 0.3, 0.3, 0.231914, 0.066953, 0.899905],
    (True, "logistic regression"): [0.100404, 0.565902, 0.245388, 0.245388, 0.195596, 0.097107, 0.697529],
    (False, "majority label"): [0.375] * 5,
    (False, "naive Bayes"): [0.046895, 0.962718, 0.375, 0.375, 0.979268],
    (False, "logistic regression"): [0.184276, 0.585949, 0.327024, 0.327024, 0.690892],
}


def models(pairs):
    """Return the three models of labelled texts by name, with the matrix that each reads, a function of texts."""
    names = sorted({label for _, label in pairs})
    labels, documents = np.array([names.index(label) for _, label in pairs]), [words_of(text) for text, _ in pairs]
    ids = word_ids(documents)
    counts = word_counts(documents, ids)

    def counted(texts):
        return word_counts([words_of(text) for text in texts], ids)

    return {
        "majority label": (majority_label(len(ids), labels, len(names)), counted),
        "naive Bayes": (naive_bayes(counts, labels, len(names)), counted),
        "logistic regression": (
            logistic_regression(presence_of(counts), labels, len(names)),
            lambda texts: presence_of(counted(texts)),
        ),
    }


@pytest.mark.parametrize("with_mixed", [True, False], ids=["three labels", "two labels"])
def test_probabilities_are_those_of_scikit_learn(with_mixed):
    training, tests = ([p for p in pairs if with_mixed or p[1] != "mixed"] for pairs in (TRAIN, TEST))
    for name, (model, matrix) in models(training).items():
        probs = np.exp(model.log_probs(matrix([text for text, _ in tests])))
        np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(probs[:, 0], PROBS[with_mixed, name], atol=2e-5, err_msg=name)


@pytest.mark.parametrize("with_mixed", [True, False], ids=["three labels", "two labels"])
def test_scores_are_those_of_scikit_learn(with_mixed, tmp_path):
    training, tests = (
        {"inputs": [t for t, _ in pairs], "targets": [label for _, label in pairs]}
        for pairs in ([p for p in pairs if with_mixed or p[1] != "mixed"] for pairs in (TRAIN, TEST))
    )
    found = baselines("classification", tmp_path, training, tests, num_labels=3 if with_mixed else 2).scores("valid")
    for name, scores in found.items():
        metrics = [scores[metric] for metric in ("loss", "accuracy", "macro_f1", "matthews")]
        assert metrics == pytest.approx(SCORES[with_mixed, name], abs=2e-5), name
        assert scores["examples"] == len(tests["inputs"])
    assert list(found) == [name for mixed, name in SCORES if mixed]


@pytest.mark.parametrize(
    "pairs",
    [[("a b", "x"), ("b", "x")], [("", "x"), ("", "y"), ("", "x")], [("", "x")]],
    ids=["one label", "no words", "both"],
)
def test_one_label_and_texts_without_words(pairs):
    shares = np.bincount([label == "y" for _, label in pairs]) / len(pairs)
    for name, (model, matrix) in models(pairs).items():
        probs = np.exp(model.log_probs(matrix(["", "a", "unknown"])))
        np.testing.assert_allclose(probs, np.tile(shares, (3, 1)), atol=1e-5, err_msg=name)


def test_the_words_of_a_second_text_are_other_words():
    assert words_of("It's a film.", "It") == [(0, "it"), (0, "'"), (0, "s"), (0, "a"), (0, "film"), (0, "."), (1, "it")]
    features = {"inputs": ["a", "b", "a", "b"], "second": ["b", "b", "a", "a"], "targets": ["x", "y", "y", "x"]}
    ids = word_ids(words_of(*pair) for pair in zip(features["inputs"], features["second"], strict=True))
    assert ids == {(0, "a"): 0, (1, "b"): 1, (0, "b"): 2, (1, "a"): 3}


# Tags.


@pytest.mark.parametrize(
    ("sentences", "tags", "words", "expected"),
    [
        (["a b a"], ["X Y Z"], "a b c", "X Y Y"),  # equally frequent: X before Z; b is the only word that occurs once
        (["a a a b b"], ["X X Y Y Y"], "a b c", "X Y Y"),  # no word occurs once: Y is the most frequent tag
        (["a a b b b"], ["X Y Y Y Y"], "a b c", "Y Y Y"),  # equally frequent for a, but Y is more frequent overall
        (["a", "", "A"], ["X", "", "Y"], "a A", "X Y"),  # the case of letters counts
    ],
)
def test_the_most_frequent_tag_of_a_word(sentences, tags, words, expected):
    model = MostFrequentTags.of_sentences(map(str.split, sentences), map(str.split, tags))
    assert model.predict(words.split()) == expected.split()


def test_a_training_split_without_words_is_an_error():
    with pytest.raises(ValueError, match="no words"):
        MostFrequentTags.of_sentences([[]], [[]])


@pytest.mark.parametrize("chunks", [True, False])
def test_scores_of_tags_are_those_of_the_task(chunks, tmp_path):
    """In training: Ann PER, York I-LOC and B-LOC. Of the chunks Ann and [New York] of the test, only Ann is right."""
    tests = {"words": [["Ann", "saw", "New", "York", "now"]], "tags": [["B-PER", "O", "B-LOC", "I-LOC", "O"]]}
    tests |= {"inputs": ["Ann saw New York now"], "targets": ["B-PER O B-LOC I-LOC O"]}
    scores = baselines("tagging", tmp_path, FEATURES["tagging"], tests, chunks=chunks).scores("valid")
    # York is equally often B-LOC and I-LOC, and B-LOC is more frequent; among the words that occur once it is O.
    of_chunks = {"precision": 100 / 3, "recall": 50.0, "f1": 40.0} if chunks else {}
    assert scores == {"most frequent tag": pytest.approx({"accuracy": 80.0, "words": 5, **of_chunks})}
