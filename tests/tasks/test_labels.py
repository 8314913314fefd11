"""Metrics of labels, chunks and answers equal the reference programs.

The numbers are those of scikit-learn 1.7, of seqeval 1.2.2 in its default mode (the rules of the script conlleval), and
of SQuAD's evaluate-v1.1.py on the same predictions.
"""

import random

import numpy as np
import pytest

from transformer_jax.errors import DataError
from transformer_jax.tasks.metrics.answers import best_over, exact_match, normalised, word_f1
from transformer_jax.tasks.metrics.chunks import Chunk, check_tags, chunks, count_chunks
from transformer_jax.tasks.metrics.labels import (
    ClassCounts,
    accuracy,
    class_counts,
    macro_f1,
    matthews,
    precision_recall_f1,
)

TRUE = [3, 2, 2, 3, 2, 3, 3, 0, 0, 1, 1, 3, 3, 0, 1, 3, 0, 3, 0, 1, 3, 1, 1, 1, 2, 1, 3, 1, 1, 2]
TRUE += [2, 2, 2, 3, 3, 3, 2, 2, 1, 3, 1, 0, 3, 0, 3, 2, 0, 0, 1, 0, 0, 2, 3, 1, 3, 3, 3, 2, 1, 2]
PREDICTED = [3, 2, 2, 3, 2, 3, 3, 0, 2, 1, 1, 3, 3, 0, 3, 1, 0, 3, 0, 0, 3, 1, 1, 1, 2, 1, 0, 1, 2, 2]
PREDICTED += [3, 1, 0, 3, 3, 3, 2, 2, 4, 3, 2, 0, 3, 4, 3, 0, 2, 4, 1, 0, 0, 3, 3, 1, 3, 0, 3, 2, 1, 2]


def summed(true, predicted, num_classes) -> ClassCounts:
    counts = class_counts(np.array(true), np.array(predicted), num_classes)
    return ClassCounts(*(x.sum(0) for x in counts))


def test_scores_of_classes_are_those_of_scikit_learn():
    """A class that is predicted but never true counts for macro-F1; one that does not occur (6 classes) does not."""
    for num_classes in (5, 6):
        counts = summed(TRUE, PREDICTED, num_classes)
        assert accuracy(counts) == pytest.approx(0.7166666666666667, abs=1e-15)
        assert macro_f1(counts) == pytest.approx(0.5732206119162642, abs=1e-15)
        assert matthews(counts) == pytest.approx(0.625433049661965, abs=1e-15)
    counts = summed([1, 1, 0, 0, 1, 0, 1, 1, 0, 1], [1, 0, 0, 1, 1, 0, 1, 1, 0, 0], 2)
    assert accuracy(counts) == 0.7
    assert macro_f1(counts) == pytest.approx(0.696969696969697, abs=1e-15)
    assert matthews(counts) == pytest.approx(0.408248290463863, abs=1e-15)
    # (TP TN - FP FN) / sqrt((TP + FP)(TP + FN)(TN + FP)(TN + FN)) with TP = 4, TN = 3, FP = 1, FN = 2.
    assert matthews(counts) == pytest.approx((4 * 3 - 1 * 2) / (5 * 6 * 4 * 5) ** 0.5, abs=1e-15)
    assert matthews(summed([0, 1, 0], [0, 0, 0], 2)) == 0


def test_scores_follow_from_sums_of_any_draw():
    true, predicted = np.array(TRUE), np.array(PREDICTED)
    draws = np.random.default_rng(0).choice(len(true), (7, len(true)))
    drawn = ClassCounts(*(x[draws].sum(1) for x in class_counts(true, predicted, 5)))
    for score in (accuracy, macro_f1, matthews):
        of_each = [score(summed(true[draw], predicted[draw], 5)) for draw in draws]
        np.testing.assert_allclose(score(drawn), of_each, rtol=1e-14)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # IOB1, IOB2 and BIOES of the same chunks
        (["O", "I-A", "B-A", "I-B"], [("A", 1, 1), ("A", 2, 2), ("B", 3, 3)]),
        (["O", "B-A", "I-A", "O", "B-B"], [("A", 1, 2), ("B", 4, 4)]),
        (["B-A", "E-A", "S-A", "I-A", "O"], [("A", 0, 1), ("A", 2, 2), ("A", 3, 3)]),
        # sequences that no scheme allows
        (["E-A", "E-A", "I-B", "S-B", "I-B"], [("A", 0, 0), ("A", 1, 1), ("B", 2, 2), ("B", 3, 3), ("B", 4, 4)]),
        (["I-A", "E-A", "I-A", "B-B", "I-A"], [("A", 0, 1), ("A", 2, 2), ("B", 3, 3), ("A", 4, 4)]),
        (["B-A-b", "I-A-b"], [("A-b", 0, 1)]),  # the type may contain a hyphen
        ([], []),
    ],
)
def test_chunks_are_those_of_conlleval(tags, expected):
    assert chunks(tags) == [Chunk(*chunk) for chunk in expected]


@pytest.mark.parametrize(
    ("prefixes", "precision", "recall", "of_types"),
    [
        (
            "BI",
            0.5737704918032787,
            0.5691056910569106,
            {"PER": 0.5333333333333333, "LOC": 0.5057471264367817, "MISC-x": 0.674698795180723},
        ),
        (
            "BIES",
            0.6544117647058824,
            0.6544117647058824,
            {"PER": 0.6666666666666666, "LOC": 0.6511627906976744, "MISC-x": 0.6436781609195403},
        ),
    ],
)
def test_chunk_scores_are_those_of_seqeval(prefixes, precision, recall, of_types):
    true, predicted = _random_tags()[prefixes]
    total = np.zeros(3)
    types: dict[str, np.ndarray] = {}
    for a, b in zip(true, predicted, strict=True):
        for type, counts in count_chunks(a, b).items():
            total += counts
            types[type] = types.get(type, np.zeros(3)) + counts
    scores = precision_recall_f1(*total)
    assert (scores.precision, scores.recall) == pytest.approx((precision, recall), abs=1e-15)
    assert scores.f1 == pytest.approx(2 * precision * recall / (precision + recall), abs=1e-15)
    assert {type: float(precision_recall_f1(*counts).f1) for type, counts in types.items()} == pytest.approx(
        of_types, abs=1e-15
    )


def _random_tags():
    """Return true and predicted tags of 40 sentences by prefixes; the reference programs had the same."""
    rng, made = random.Random(3), {}
    for prefixes in ("BI", "BIES"):
        tags = ["O"] * 2 + [f"{prefix}-{type}" for prefix in prefixes for type in ("PER", "LOC", "MISC-x")]
        true = [[rng.choice(tags) for _ in range(rng.randint(1, 9))] for _ in range(40)]
        made[prefixes] = true, [[tag if rng.random() < 0.6 else rng.choice(tags) for tag in row] for row in true]
    return made


def test_nothing_predicted_scores_zero():
    for true in (0, 3):
        assert precision_recall_f1(0, 0, true) == (0, 0, 0)


def test_tags_of_no_scheme_are_refused():
    check_tags(["O", "B-PER", "I-PER", "E-x-y", "S-LOC"])
    for bad in ("PER", "X-PER", "B", "B-", "-PER", "o"):
        with pytest.raises(DataError, match=rf"the tag '{bad}' is neither O nor .* IOB1, BIO \(IOB2\) and BIOES"):
            check_tags(["O", bad])


@pytest.mark.parametrize(
    ("predicted", "references", "exact", "f1"),
    [
        ("the Denver Broncos!", ["Denver Broncos", "The Broncos"], 1.0, 1.0),
        ("Broncos of Denver", ["Denver Broncos", "The Broncos"], 0.0, 0.8),
        ("a an the", ["The"], 1.0, 0.0),  # nothing is left of both: equal, without a word in common
        ("", ["something"], 0.0, 0.0),
        ("U.S.A.", ["USA"], 1.0, 1.0),
        ("24\u201310", ["24-10"], 0.0, 0.0),  # an en dash: only ASCII punctuation is removed
        ("x x y", ["x y y z"], 0.0, 4 / 7),
        ("theatre and an\tant", ["theatre  and ant"], 1.0, 1.0),
    ],
)
def test_answers_score_as_in_the_script_of_squad(predicted, references, exact, f1):
    assert best_over(exact_match, predicted, references) == exact
    assert best_over(word_f1, predicted, references) == pytest.approx(f1, abs=1e-15)


def test_answers_are_normalised():
    assert normalised(" The  \tQuick, (brown) fox's an-apple ") == "quick brown foxs anapple"
