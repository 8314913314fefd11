"""Scores of predicted labels: functions of counts per class, which add up over examples.

With n examples, of which c are predicted right, and t_k true and p_k predicted examples of class k:

    accuracy = c / n
    F1_k     = 2 right_k / (t_k + p_k);   macro-F1 = mean of F1_k over the classes with t_k + p_k > 0
    MCC      = (c n - sum_k t_k p_k) / sqrt((n^2 - sum_k p_k^2) (n^2 - sum_k t_k^2))

MCC is the correlation of Matthews for any number of classes (Gorodkin 2004, "Comparing two K-category assignments by a
K-category correlation coefficient"); for two classes it is (TP TN - FP FN) / sqrt((TP+FP)(TP+FN)(TN+FP)(TN+FN)). It is
0 if all examples, or all predictions, are of one class. All three agree with scikit-learn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int


class ClassCounts(NamedTuple):
    """Counts by class, [..., C]: examples that are predicted right, true examples, and predictions."""

    right: np.ndarray
    true: np.ndarray
    predicted: np.ndarray


def class_counts(
    true: Int[np.ndarray, " examples"], predicted: Int[np.ndarray, " examples"], num_classes: int
) -> ClassCounts:
    """Return the counts of each example by class, float64 [examples, C]; their sums over examples are those of a split.

    Args:
      true, predicted: classes, 0 to num_classes - 1.
    """
    classes = np.arange(num_classes)
    is_true, is_predicted = true[:, None] == classes, predicted[:, None] == classes
    return ClassCounts(*(x.astype(np.float64) for x in (is_true & is_predicted, is_true, is_predicted)))


def accuracy(counts: ClassCounts) -> Float[np.ndarray, "*draws"]:
    """Return the share of right predictions; counts [..., C] -> [...]."""
    return ratio(counts.right.sum(-1), counts.true.sum(-1))


def macro_f1(counts: ClassCounts) -> Float[np.ndarray, "*draws"]:
    """Return the mean F1 of the classes that occur among labels or predictions; counts [..., C] -> [...]."""
    total = counts.true + counts.predicted
    f1 = ratio(2.0 * counts.right, total)
    return ratio(f1.sum(-1), (total > 0).sum(-1))


def matthews(counts: ClassCounts) -> Float[np.ndarray, "*draws"]:
    """Return Matthews' correlation coefficient, 0 where it is not defined; counts [..., C] -> [...]."""
    n = counts.true.sum(-1)
    numerator = counts.right.sum(-1) * n - (counts.true * counts.predicted).sum(-1)
    spread = [n**2 - (x**2).sum(-1) for x in (counts.predicted, counts.true)]
    return ratio(numerator, np.sqrt(spread[0] * spread[1]))


class ChunkScores(NamedTuple):
    """Precision, recall and F1 of chunks, 0 to 1, each [...]."""

    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray


def precision_recall_f1(right: Any, predicted: Any, true: Any) -> ChunkScores:
    """Return precision = right / predicted, recall = right / true and F1 = 2 right / (predicted + true).

    Each is 0 where its divisor is 0. Args: counts [...].
    """
    right, both = np.asarray(right, np.float64), np.asarray(predicted) + np.asarray(true)
    return ChunkScores(ratio(right, predicted), ratio(right, true), ratio(2.0 * right, both))


def ratio(numerator: Any, denominator: Any) -> np.ndarray:
    """Return numerator / denominator, and 0 where the denominator is 0."""
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)
