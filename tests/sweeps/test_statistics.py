"""Means with their uncertainty, against SciPy's own."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from report_support import paired_difference
from scipy import stats

from transformer_jax.sweeps.statistics import (
    POWER,
    estimate,
    holm,
    power,
    seeds_to_find,
    smallest_effect,
)

VALUES = [3.1, 2.7, 3.6, 4.0, 3.3]
OTHERS = [2.9, 2.0, 3.5, 3.1, 3.4]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_interval_is_students(count):
    values = VALUES[:count]
    mean, half_width, n = estimate(values)
    low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
    assert n == count
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


def test_one_value_has_no_interval_and_none_no_mean():
    assert estimate([2.0])[:1] == (2.0,)
    assert math.isnan(estimate([2.0]).half_width)
    assert math.isnan(estimate([]).mean)


def test_differences_are_of_pairs():
    ours, theirs = dict(enumerate(VALUES)), dict(enumerate(OTHERS))
    difference = paired_difference(ours, theirs)
    expected = stats.ttest_rel(VALUES, OTHERS)
    low, high = expected.confidence_interval()
    assert difference.p_value == pytest.approx(expected.pvalue)
    assert (difference.mean - difference.half_width, difference.mean + difference.half_width) == pytest.approx(
        (low, high)
    )
    # A seed that only one of the two variants has is not a pair.
    assert paired_difference(ours | {9: 100.0}, {8: 0.0} | theirs) == difference


def test_differences_without_spread():
    same = paired_difference({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert same[:2] == (0.0, 0.0)
    assert math.isnan(same.p_value)
    for ours, theirs in (({0: 1.0, 1: 2.0}, {0: 0.5, 1: 1.5}), ({0: 0.3, 1: 0.4}, {0: 0.1, 1: 0.2})):
        assert math.isnan(paired_difference(ours, theirs).p_value)
    assert math.isnan(paired_difference({0: 1.0}, {0: 0.5}).p_value)
    assert math.isnan(paired_difference({0: math.inf, 1: math.inf}, {0: 0.5, 1: 0.6}).p_value)


def test_numbers_of_any_size():
    mean, half_width, _ = estimate([1e304, 0.0, 5e303])
    assert mean == pytest.approx(5e303)
    assert half_width == pytest.approx(1e304 * estimate([1.0, 0.0, 0.5]).half_width)
    assert paired_difference({0: 1e-200, 1: 2e-200}, {0: 0.0, 1: 0.0}).p_value == pytest.approx(
        paired_difference({0: 1.0, 1: 2.0}, {0: 0.0, 1: 0.0}).p_value
    )
    for values in ([math.inf, 1.0], [math.inf, -math.inf], [math.nan, 1.0]):
        assert all(map(math.isnan, estimate(values)[:2]))
    assert math.isnan(paired_difference({0: math.inf, 1: 1.0}, {0: 1.0, 1: math.inf}).mean)


NUMBERS = st.floats(-1e3, 1e3).map(lambda value: round(value, 6))


@given(st.lists(NUMBERS, min_size=2, max_size=12, unique=True))
def test_intervals_equal_those_of_scipy(values):
    mean, half_width, _ = estimate(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high), rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=12))
def test_paired_tests_equal_those_of_scipy(pairs):
    ours, theirs = (np.array(values) for values in zip(*pairs, strict=True))
    assume(np.std(ours - theirs) > 1e-3)
    found = paired_difference(dict(enumerate(ours.tolist())), dict(enumerate(theirs.tolist())))
    expected = stats.ttest_rel(ours, theirs)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.mean == pytest.approx(np.mean(ours - theirs), rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_is_the_closed_test_of_bonferroni(p_values):
    """A hypothesis is rejected if Bonferroni rejects every set of hypotheses that contains it (Marcus et al. 1976)."""
    numbers = range(len(p_values))
    sets = [set(s) for size in numbers for s in itertools.combinations(numbers, size + 1)]
    expected = [max(min(1.0, len(s) * min(p_values[j] for j in s)) for s in sets if i in s) for i in numbers]
    assert holm(p_values) == pytest.approx(expected, rel=1e-12)


def test_holm_of_a_worked_example_and_without_tests():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    corrected = holm([math.nan, 0.01, 0.03])
    assert math.isnan(corrected[0])
    assert corrected[1:] == pytest.approx([0.02, 0.03])
    assert holm([]) == []


@pytest.mark.parametrize(
    ("effect", "count", "level"), [(1.0, 4, 0.05), (0.5, 34, 0.05), (2.0, 5, 0.01), (0.2, 12, 0.05)]
)
def test_power_is_that_of_students_noncentral_distribution(effect, count, level):
    quantile = stats.t.ppf(1 - level / 2, count - 1)
    expected = stats.nct.sf(quantile, count - 1, effect * math.sqrt(count))
    assert (
        power(2 * effect, 2.0, count, level) == power(-effect, 1.0, count, level) == pytest.approx(expected, abs=5e-4)
    )


@pytest.mark.parametrize(("effect", "seeds"), [(0.5, 34), (0.8, 15), (1.0, 10), (1.5, 6)])
def test_seeds_to_find_an_effect_are_those_of_published_tables(effect, seeds):
    """Of a paired t-test at 5 % with 80 % power (Cohen 1988; G*Power 3.1), effects in standard deviations."""
    assert seeds_to_find(effect, 1.0, 0.05) == seeds_to_find(-2 * effect, 2.0, 0.05) == seeds
    assert smallest_effect(1.0, seeds, 0.05) <= effect < smallest_effect(1.0, seeds - 1, 0.05)


def test_seeds_to_find_what_cannot_be_found():
    assert seeds_to_find(0.1, 1.0, 0.05) is None
    assert seeds_to_find(0.0, 1.0, 0.05) is None
    assert seeds_to_find(1.0, math.nan, 0.05) is None
    assert seeds_to_find(1.0, 0.0, 0.05) == 2
    assert math.isnan(smallest_effect(1.0, 1, 0.05))


@given(st.floats(0.01, 100), st.integers(2, 40), st.sampled_from([0.05, 0.01, 0.00625]))
def test_the_smallest_effect_is_found_with_the_stated_power(spread, count, level):
    assert power(smallest_effect(spread, count, level), spread, count, level) == pytest.approx(POWER, abs=1e-6)
