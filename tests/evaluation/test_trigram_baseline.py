"""The two-sided trigram baseline: estimates by hand, weights that raise the likelihood, and the task's own places."""

import math

import numpy as np
import pytest
from corruption_support import VOCABULARY, config_of, corpus, parts

from transformer_jax.evaluation.trigram_baseline import Places, TwoSidedTrigrams, all_places, main, masked_places
from transformer_jax.tasks.batches.of_split import evaluation_batches


def places(*triples):
    return Places(*np.array(triples, np.int64).T)


# c(2) = 3 and c(3) = 1 of N = 5 tokens, and V = 10.
TRAINING = places((1, 2, 4), (1, 2, 4), (1, 3, 4), (5, 2, 4), (5, 6, 7))


def test_estimates_by_hand():
    model = TwoSidedTrigrams(TRAINING, 10)
    asked = places((1, 2, 4), (1, 3, 4), (5, 2, 7), (8, 2, 9), (1, 6, 7))
    expected = [
        [4 / 15, 2 / 3, 3 / 4, 2 / 3],
        [2 / 15, 1 / 3, 1 / 4, 1 / 3],
        [4 / 15, 1 / 2, 0.0, 0.0],
        [4 / 15, 4 / 15, 4 / 15, 4 / 15],  # no neighbour was seen
        [2 / 15, 0.0, 1.0, 2 / 15],  # 1 and 7 were never seen together
    ]
    np.testing.assert_allclose(model.estimates(asked), expected, rtol=1e-12)
    assert model.classes(asked).tolist() == [2, 2, 1, 0, 0]
    np.testing.assert_allclose(model.log_probs(asked), np.log(np.mean(expected, axis=1)), rtol=1e-12)


def test_probabilities_sum_to_one():
    model = TwoSidedTrigrams(TRAINING, 10)
    model.fit(places((1, 2, 4), (5, 6, 7), (8, 3, 9)))
    for left, right in ((1, 4), (5, 7), (8, 9), (1, 7)):
        total = np.exp(model.log_probs(places(*((left, token, right) for token in range(10))))).sum()
        assert total == pytest.approx(1.0)


def test_weights_maximise_the_likelihood():
    """Against a grid of all weights, for the class that has two estimates."""
    rng = np.random.default_rng(0)
    training = places(*rng.integers(0, 4, (300, 3)))
    model = TwoSidedTrigrams(training, 4)
    held_out = places(*np.minimum(rng.geometric(0.5, (200, 3)) - 1, 3))
    before = model.log_probs(held_out).sum()
    model.fit(held_out)
    after, estimates, classes = model.log_probs(held_out).sum(), model.estimates(held_out), model.classes(held_out)
    assert after > before
    for number in np.unique(classes):
        here = estimates[classes == number]
        best = max(
            np.log(here @ np.array([a, b, c, 10 - a - b - c]) / 10).sum()
            for a in range(11)
            for b in range(11 - a)
            for c in range(11 - a - b)
            if a + b + c > 0
        )
        assert np.log(here @ model.weights[number]).sum() > best - 0.1
    assert after == pytest.approx(model.log_probs(held_out).sum())


@pytest.mark.parametrize("batching", ["buckets", "windows"])
def test_it_is_scored_on_the_tokens_that_the_task_masks(tmp_path, batching):
    config = config_of(tmp_path / "corpus", "masked_lm", {"batching": batching})
    split = corpus(config, tmp_path / "corpus").splits["valid"]
    every, masked = all_places(config, split), masked_places(config, split)
    weights = sum(batch["weights"].sum() for batch, _ in evaluation_batches(config, split))
    assert len(masked.token) == weights
    assert {*zip(*masked, strict=True)} <= {*zip(*every, strict=True)}
    if batching == "buckets":
        assert sorted(every.token.tolist()) == sorted(id for text in parts(22) for id in text)
    model = TwoSidedTrigrams(every, VOCABULARY)
    model.fit(masked)
    assert model.log_probs(masked).mean() > -0.5 * math.log(VOCABULARY)


def test_a_checkpoint_that_is_not_there(tmp_path, capsys):
    assert main([f"--checkpoint={tmp_path / 'nowhere'}"]) == 2
    assert "nowhere" in capsys.readouterr().err
