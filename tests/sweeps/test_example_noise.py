"""The noise of the test set in the difference of two variants: its estimate, the coverage with it, and its file."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from transformer_jax.errors import DataError
from transformer_jax.host.files import with_checksum
from transformer_jax.sweeps.results import write_object
from transformer_jax.sweeps.statistics import (
    POWER,
    ExampleNoise,
    example_noise,
    mean_difference,
    seeds_to_find,
    smallest_effect,
    standard_error,
    stein_seeds,
    two_stage_difference,
    with_example_noise,
)
from transformer_jax.sweeps.trial_examples import EXAMPLES, Influences, noise_of_difference, read_examples

EXAMPLE_COUNT = 150


def differences(rng, seeds, spreads):
    """Return differences by seed and example: of seeds, of examples, and of both together, with these spreads."""
    of_seeds, of_examples, of_both = spreads
    return (
        of_seeds * rng.normal(size=(seeds, 1))
        + of_examples * rng.normal(size=(1, EXAMPLE_COUNT))
        + of_both * rng.normal(size=(seeds, EXAMPLE_COUNT))
    )


def test_the_parts_are_those_of_the_analysis_of_variance():
    of = differences(np.random.default_rng(0), 4, (0.3, 1.0, 2.0))
    seeds, count = of.shape
    row, column, mean = of.mean(1, keepdims=True), of.mean(0, keepdims=True), of.mean()
    squares = {
        "whole": ((of - mean) ** 2).sum(),
        "seeds": count * ((row - mean) ** 2).sum(),
        "examples": seeds * ((column - mean) ** 2).sum(),
    }
    rest = (squares["whole"] - squares["seeds"] - squares["examples"]) / ((seeds - 1) * (count - 1))
    found = example_noise(of)
    assert found[:2] == (count, seeds)
    assert found.of_examples == pytest.approx(squares["examples"] / (count - 1) / of.size)
    assert found.residual == pytest.approx(rest / of.size)
    assert found.variance == pytest.approx(found.of_examples - found.residual)
    # The spread of the seeds is known without the examples, and so are their means.
    assert example_noise(of + np.arange(4)[:, None]) == pytest.approx(found)
    assert example_noise(of[::-1, ::-1]) == pytest.approx(found)


def test_examples_without_anything_in_common_add_nothing():
    of = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
    noise, plain = example_noise(of), mean_difference([0.3, 0.1, 0.4], 1.0)
    assert noise.variance == noise.half_width == 0
    assert with_example_noise(plain, 2, noise) == plain


def test_variances_are_added_with_satterthwaites_degrees_of_freedom():
    values, noise = [0.3, 0.1, 0.4, -0.1], ExampleNoise(101, 4, 0.02, 0.005)
    plain = mean_difference(values, 1.0)
    found, of_seeds = with_example_noise(plain, 3, noise), np.var(values, ddof=1) / 4
    assert standard_error(plain, 3) == pytest.approx(math.sqrt(of_seeds))
    total = of_seeds + 0.015
    freedom = total**2 / (of_seeds**2 / 3 + 0.02**2 / 100 + 0.005**2 / 300)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, freedom) * math.sqrt(total))
    assert found.p_value == pytest.approx(2 * stats.t.sf(abs(plain.mean) / math.sqrt(total), freedom))
    assert (found.mean, found.count) == (plain.mean, plain.count)


def test_with_two_stages_the_quantiles_are_weighted():
    values, noise = [0.3, 0.1, -0.2, 0.4, 0.0, 0.9, -0.6, 0.2], ExampleNoise(101, 8, 0.02, 0.005)
    plain = two_stage_difference(values, 5, 1.0, 1.0)
    found, of_seeds = with_example_noise(plain, 4, noise, staged=True), np.var(values[:5], ddof=1) / 8
    total = of_seeds + 0.015
    quantile = (of_seeds * stats.t.ppf(0.975, 4) + 0.015 * stats.t.ppf(0.975, 100)) / total
    assert found.half_width == pytest.approx(quantile * math.sqrt(total))
    assert (found.p_value < 0.05) == (abs(found.mean) > found.half_width)


def test_a_difference_that_every_seed_has_is_tested_on_the_examples():
    plain = mean_difference([0.5, 0.5, 0.5], 1.0)
    assert math.isnan(plain.p_value)
    found = with_example_noise(plain, 2, ExampleNoise(41, 3, 0.01, 0.0))
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 40) * 0.1)
    one = mean_difference([0.5], 1.0)
    assert with_example_noise(one, 0, ExampleNoise(41, 3, 0.01, 0.0)) == one


def test_more_seeds_do_not_find_what_the_test_set_hides():
    noise = ExampleNoise(200, 5, 0.01, 0.0)
    assert seeds_to_find(0.1, 0.2, 0.05, noise=noise) is None
    assert seeds_to_find(0.1, 0.2, 0.05) is not None
    with_noise = seeds_to_find(0.4, 0.2, 0.05, noise=noise)
    assert with_noise is not None
    assert with_noise >= seeds_to_find(0.4, 0.2, 0.05)
    smallest = smallest_effect(0.2, with_noise, 0.05, noise)
    assert smallest <= 0.4 < smallest_effect(0.2, with_noise - 1, 0.05, noise)
    assert smallest > smallest_effect(0.2, with_noise, 0.05)
    assert POWER == 0.8


def covered(seeds, spreads, repeats, width=None):
    """Return how often, in per cent, intervals contain the true difference, 0: of the seeds alone, and of both."""
    rng, hits = np.random.default_rng(0), np.zeros(2)
    for _ in range(repeats):
        of = differences(rng, 10 if width else seeds, spreads)
        means = of.mean(1).tolist()
        count = seeds if width is None else min(10, stein_seeds([means[:seeds]], width))
        of, means = of[:count], means[:count]
        plain, freedom = mean_difference(means, 1.0), count - 1
        if width is not None and (two := two_stage_difference(means, seeds, width, 1.0)) != plain:
            plain, freedom = two, seeds - 1
        noise = example_noise(of - of.mean(1, keepdims=True))
        both = with_example_noise(plain, freedom, noise, staged=width is not None)
        hits += [abs(found.mean) <= found.half_width for found in (plain, both)]
    return 100 * hits / repeats


SPREADS = {
    "seeds": (1.0, 0.0, 0.0),
    "both alike": (0.1, 1.0, 1.0),
    "test set": (0.03, 1.0, 0.5),
    "examples by seeds": (0.0, 1.0, 3.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("name", SPREADS)
def test_intervals_with_both_noises_cover_what_they_say(name, seeds):
    """Over seeds and examples; the figures of docs/studies.md."""
    alone, both = covered(seeds, SPREADS[name], 6000)
    print(f"{name}, {seeds} seeds: {alone:.1f} % of the seeds alone, {both:.1f} % of both")
    assert 94 <= both <= 97
    assert alone < 94 or name != "both alike"


@pytest.mark.slow
@pytest.mark.parametrize("width", [0.25, 0.3, 0.45])
def test_intervals_of_two_stages_cover_with_the_test_set(width):
    alone, both = covered(5, (0.3, 1.0, 1.0), 6000, width)
    print(f"two stages, width {width}: {alone:.1f} % of the seeds alone, {both:.1f} % of both")
    assert 94 <= both <= 97


def test_seeds_alone_cover_too_little():
    alone, both = covered(5, SPREADS["test set"], 300)
    assert alone < 65
    assert both > 91


def test_the_noise_of_a_difference_is_that_of_the_paired_examples():
    rng = np.random.default_rng(1)
    ours, theirs = rng.normal(size=(2, 3, 20))
    theirs += ours  # what both have in common does not count
    terms = [
        (1, {s: Influences("k", of) for s, of in enumerate(theirs)}),
        (-1, {s: Influences("k", of) for s, of in enumerate(ours)}),
    ]
    assert noise_of_difference(terms) == example_noise(theirs - ours)
    assert noise_of_difference([(1, terms[0][1]), (-1, dict(list(terms[1][1].items())[:2]))]) == example_noise(
        (theirs - ours)[:2]
    )
    one_seed = {0: Influences("k", ours[0])}
    other_examples = {s: Influences("other", of) for s, of in enumerate(ours)}
    fewer = {s: Influences("k", of[:10]) for s, of in enumerate(ours)}
    for other in ({}, one_seed, other_examples, fewer):
        assert noise_of_difference([terms[0], (-1, other)]) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("AAAA", "AAAB", 1),
        lambda text: json.dumps(with_checksum({"splits": {}, "metrics": {"test/loss": {"score": 1.0}}})),
        lambda text: json.dumps(
            with_checksum({"splits": {"test": "k"}, "metrics": {"test/loss": {"score": 1.0, "influences": "?"}}})
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change):
    file = tmp_path / EXAMPLES
    write_object(
        file, {"splits": {"test": "k"}, "metrics": {"test/loss": {"score": 1.0, "influences": "AAAAAAAAAAA="}}}
    )
    assert read_examples(tmp_path, {"test/loss": 1.0})["test/loss"].values.tolist() == [0.0, 0.0]
    assert read_examples(tmp_path, {"test/loss": 2.0}) == {}
    file.write_text(change(file.read_text()))
    with pytest.raises(DataError, match=f"{EXAMPLES}: .*; delete it; the noise of the test set is then not known"):
        read_examples(tmp_path, {"test/loss": 1.0})
