"""The influence of every example on a score, and scores as functions of sums over examples."""

import math
import random

import numpy as np
import pytest

from transformer_jax.tasks.metrics.bootstrap import paired_bootstrap_of_sums
from transformer_jax.tasks.metrics.jackknife import influences
from transformer_jax.tasks.metrics.rouge import Rules, corpus_scores
from transformer_jax.tasks.metrics.rouge import example_sums as rouge_sums
from transformer_jax.tasks.metrics.text import example_sums, percent, translation_scores
from transformer_jax.tasks.task import ExampleSums

WORDS = ["the", "cat", "sat", "on", "a", "mat", ".", "dog", "ran", ",", "far", "away", "I", "\u00e4"]


def sentences(count, seed, longest=9):
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randrange(longest))) for _ in range(count)]


def outputs_for(references, seed, share=0.4):
    draw, others = random.Random(seed), sentences(len(references), seed + 1)
    return [text if draw.random() < share else other for text, other in zip(references, others, strict=True)]


def ratios(count, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack([rng.gamma(2.0, size=count), rng.integers(5, 30, count).astype(float)], -1)


def test_the_influences_on_a_mean_are_its_deviations():
    values = np.stack([np.random.default_rng(0).normal(size=40), np.ones(40)], -1)
    found = influences(ExampleSums(values, lambda sums: sums[..., 0] / sums[..., 1]))
    np.testing.assert_allclose(found, values[:, 0] - values[:, 0].mean(), atol=1e-12)


def test_the_influences_on_a_ratio_are_those_of_the_linear_one():
    values = ratios(3000)
    found = influences(ExampleSums(values, lambda sums: sums[..., 0] / sums[..., 1]))
    ratio = values[:, 0].sum() / values[:, 1].sum()
    np.testing.assert_allclose(found, (values[:, 0] - ratio * values[:, 1]) / values[:, 1].mean(), atol=2e-3)
    assert found.mean() == pytest.approx(0, abs=1e-12)


def test_one_example_has_no_influence():
    with pytest.raises(ValueError, match="1 examples: their influences need two or more"):
        influences(ExampleSums(ratios(1), percent))


@pytest.mark.parametrize("count", [2, 30])
@pytest.mark.parametrize("seed", range(3))
def test_scores_of_translations_follow_from_sums_over_sentences(count, seed):
    """With sentences without a word, and some that are too short to have n-grams."""
    references = sentences(count, seed)
    translations = outputs_for(references, seed + 10)
    expected = translation_scores(translations, references)
    for name, sums in example_sums(translations, references).items():
        assert float(sums.score(sums.values.sum(0))) == pytest.approx(expected[name], abs=1e-9), name
        for left_out in (0, count - 1):  # also for a part of the sentences, if the part has a score
            rest = [at for at in range(count) if at != left_out]
            parts = [[texts[at] for at in rest] for texts in (translations, references)]
            part = float(sums.score(sums.values.sum(0) - sums.values[left_out]))
            assert part == pytest.approx(translation_scores(*parts)[name], abs=1e-9), name


def test_scores_of_summaries_follow_from_sums_over_examples():
    references = [[text, other] for text, other in zip(sentences(20, 1), sentences(20, 2), strict=True)]
    outputs, rules = sentences(20, 3), Rules(stemmer=True, best_reference="each")
    expected = corpus_scores(outputs, references, rules)
    for name, sums in rouge_sums(outputs, references, rules).items():
        assert float(sums.score(sums.values.sum(0))) == pytest.approx(expected[name], abs=1e-9), name


@pytest.mark.parametrize("name", ["exact_match", "sacrebleu", "chrf"])
def test_the_error_of_a_difference_is_that_of_the_paired_bootstrap(name):
    """The standard deviation of the draws of `compare`, from its interval; both outputs have an example in common."""
    references = sentences(400, 5, longest=20)
    systems = [example_sums(outputs_for(references, seed, share), references) for seed, share in ((7, 0.4), (9, 0.5))]
    one, two = (influences(of[name]) for of in systems)
    error = (two - one).std(ddof=1) / math.sqrt(400)

    values = np.concatenate([of[name].values for of in systems], -1)
    width, score = systems[0][name].values.shape[1], systems[0][name].score

    def difference(sums):
        return score(sums[..., width:]) - score(sums[..., :width])

    drawn = paired_bootstrap_of_sums([values, values], difference, 1000)[0]
    assert error == pytest.approx(drawn.interval / 1.96, rel=0.12)
