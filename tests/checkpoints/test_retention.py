import math

import pytest

from transformer_jax.checkpoints.retention import Retention

LOSSES = {1: {"loss": 5.0}, 2: {"loss": 1.0}, 3: None, 4: {"loss": math.nan}, 5: {"loss": 1.0}, 6: {"loss": -math.inf}}


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(), {1, 2, 3, 4, 5, 6}),
        (Retention(keep_last=2), {5, 6}),
        (Retention(keep_last=9), {1, 2, 3, 4, 5, 6}),
        (Retention(1, 1, "loss"), {6}),
        (Retention(1, 2, "loss"), {2, 6}),  # of equal ones the oldest
        (Retention(1, 9, "loss"), {1, 2, 5, 6}),
        (Retention(1, 1, "loss", higher_is_better=True), {1, 6}),
        (Retention(1, 2, "loss", higher_is_better=True), {1, 2, 6}),
        (Retention(1, 1, "bleu"), {6}),
    ],
)
def test_kept(retention, kept):
    retention.check()
    assert retention.kept(LOSSES) == kept
    assert retention.kept(dict(reversed(LOSSES.items()))) == kept


def test_ranked_is_best_first():
    assert Retention(best_metric="loss").ranked(LOSSES) == [6, 2, 5, 1]
    assert Retention(best_metric="loss", higher_is_better=True).ranked(LOSSES) == [1, 2, 5, 6]
    assert Retention().ranked(LOSSES) == []


@pytest.mark.parametrize("retention", [Retention(keep_last=0), Retention(keep_best=-1), Retention(keep_best=1)])
def test_nonsense_is_refused(retention):
    with pytest.raises(ValueError, match="keep_"):
        retention.check()
