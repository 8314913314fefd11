"""The paired bootstrap of metrics that follow from sums, against the formula written out and against sacreBLEU's."""

import numpy as np
import pytest

from transformer_jax.errors import DataError
from transformer_jax.evaluation.significance import compare_statistics
from transformer_jax.tasks.metrics import bootstrap
from transformer_jax.tasks.metrics.bootstrap import paired_bootstrap_of_sums
from transformer_jax.tasks.metrics.text_bootstrap import paired_bootstrap
from transformer_jax.tasks.task import TASKS

RNG = np.random.default_rng(1)
COUNT = 40
RIGHT = [np.stack([RNG.random(COUNT) < rate, np.ones(COUNT)], -1).astype(np.float64) for rate in (0.7, 0.6, 0.65)]


def percent(sums):
    return 100 * sums[..., 0] / sums[..., 1]


def by_hand(systems, samples, seed):
    """Return the scores of the whole set and of the draws, one draw at a time."""
    draws = np.random.default_rng(seed).choice(COUNT, size=(samples, COUNT))
    on_draws = [[percent(sum(system[i] for i in draw)) for draw in draws] for system in systems]
    return [percent(sum(system)) for system in systems], np.array(on_draws)


@pytest.mark.parametrize("together", [1 << 22, 7 * COUNT])
def test_the_numbers_are_the_formula(monkeypatch, together):
    monkeypatch.setattr(bootstrap, "_DRAWN_TOGETHER", together)
    samples, seed = 60, 7
    whole, drawn = by_hand(RIGHT, samples, seed)
    found = paired_bootstrap_of_sums(RIGHT, percent, samples, seed)
    assert (found[0].difference, found[0].p_value, found[0].always_equal) == (None, None, False)
    for score, of_whole, on_draws in zip(found, whole, drawn, strict=True):
        assert score.score == pytest.approx(of_whole)
        assert score.mean == pytest.approx(on_draws.mean())
        ordered = np.sort(on_draws)
        # 95 % of 60 draws are all but the lowest and the highest.
        assert 2 * score.interval == pytest.approx(ordered[-2] - ordered[1])
    counts = []
    for score, of_whole, on_draws in zip(found[1:], whole[1:], drawn[1:], strict=True):
        distances = abs(on_draws - drawn[0])
        counts.append(sum(distances - distances.mean() > abs(of_whole - whole[0])))
        assert score.difference == pytest.approx(of_whole - whole[0])
        assert score.p_value == (counts[-1] + 1) / (samples + 1)
    assert max(counts) > 1


def test_draws_are_those_of_sacrebleu():
    """The chrF of lines that are each all right or all wrong follows from the share of right ones."""
    lines = [["yes" if right else "" for right in system[:, 0]] for system in RIGHT]
    theirs = paired_bootstrap(lines, ["yes"] * COUNT, samples=50, seed=3).scores["chrf"]

    def chrf(sums):  # F2 of a precision of 1 and this recall
        recall = sums[..., 0] / sums[..., 1]
        return 100 * 5 * recall / (4 + recall)

    ours = paired_bootstrap_of_sums(RIGHT, chrf, samples=50, seed=3)
    for our, their in zip(ours, theirs, strict=True):
        assert (our.score, our.mean, our.interval) == pytest.approx(their[:3], rel=1e-4)
        assert our.p_value == their.p_value


def test_equal_systems():
    found = paired_bootstrap_of_sums([RIGHT[0], RIGHT[0], RIGHT[1]], percent, samples=50)
    assert (found[1].difference, found[1].p_value, found[1].always_equal) == (0.0, 1 / 51, True)
    assert not found[2].always_equal


def test_equal_scores_that_differ_on_draws():
    systems = [np.array([[1.0, 1.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 1.0]])]
    (_, score) = paired_bootstrap_of_sums(systems, percent, samples=50)
    assert (score.difference, score.always_equal) == (0.0, False)
    assert score.p_value > 1 / 51


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"systems": RIGHT[:1]}, r"shapes \[\(40, 2\)\]: expected two systems"),
        ({"systems": [RIGHT[0], RIGHT[1][1:]]}, r"shapes \[\(40, 2\), \(39, 2\)\]: expected two systems"),
        ({"systems": [RIGHT[0][:0], RIGHT[1][:0]]}, "expected two systems"),
        ({"samples": 0}, "samples=0, seed=12345: expected at least 1"),
        ({"seed": 0}, "seed=0: expected at least 1"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        paired_bootstrap_of_sums(**({"systems": RIGHT, "from_sums": percent} | change))


def test_every_metric_of_a_task_that_follows_from_the_statistics():
    systems = [{"loss": 2 * r[:, 0], "nll": r[:, 0], "correct": r[:, 0], "weight": r[:, 1]} for r in RIGHT]
    result = compare_statistics(TASKS["translation"], systems, samples=60, seed=7)
    assert list(result.scores) == ["loss", "accuracy"]  # in the order of the task's metrics; no BLEU
    assert result.scores["accuracy"] == paired_bootstrap_of_sums(RIGHT, percent, 60, 7)
    assert result.signatures == {"loss": "bs:60|seed:7", "accuracy": "bs:60|seed:7"}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_have_no_p_value(bad):
    broken = [RIGHT[0], RIGHT[1].copy()]
    broken[1][3, 0] = bad
    with pytest.raises(ValueError, match="not finite"):
        paired_bootstrap_of_sums(broken, percent, 10, 1)
    good = {"nll": np.ones(COUNT), "weight": np.ones(COUNT), "exact": np.ones(COUNT), "f1": np.ones(COUNT)}
    good |= {"questions": np.ones(COUNT)}
    other = good | {"nll": np.where(np.arange(COUNT) == 3, bad, 1.0)}
    with pytest.raises(DataError, match=f"checkpoint 2: 'nll' of example 4 is {bad}; the model's output is not finite"):
        compare_statistics(TASKS["span_qa"], [good, other], 10, 1)
    compare_statistics(TASKS["span_qa"], [good, good], 10, 1)
