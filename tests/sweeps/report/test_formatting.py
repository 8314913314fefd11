"""Numbers and names as they are shown in reports."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transformer_jax.sweeps.report.formatting import metric_label
from transformer_jax.sweeps.report.number_text import NOTHING, digits_apart, interval, number_text, p_value
from transformer_jax.sweeps.statistics import Estimate
from transformer_jax.tasks.task import TASKS, MetricSpec
from transformer_jax.tasks.translation import Translation

NAN = math.nan


@pytest.mark.parametrize(
    ("mean", "half_width", "text"),
    [
        (97.2345, 0.512, "97.23 ± 0.51"),
        (64.4, 25.1, "64 ± 25"),
        (0.0123456, 0.000123, "0.01235 ± 0.00012"),
        (1234.5, 210.0, "1234 ± 210"),
        (5.0, 0.0, "5.000 ± 0.000"),
        (0.0, 0.0, "0.00 ± 0.00"),
        (-3.14159, NAN, "-3.142"),
        (NAN, NAN, NOTHING),
        (math.inf, NAN, "inf"),
    ],
)
def test_intervals(mean, half_width, text):
    assert interval(mean, half_width) == text


def test_differences_have_signs():
    assert interval(0.5, 0.25, sign=True) == "+0.50 ± 0.25"
    assert interval(-0.5, 0.25, sign=True) == "-0.50 ± 0.25"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_shown_numbers_are_rounded(mean, half_width):
    texts = interval(mean, half_width).split(" ± ")
    for text, value in zip(texts, (mean, half_width), strict=True):
        place = 10.0 ** -len(text.partition(".")[2])
        assert abs(float(text) - value) <= 0.5 * place + 1e-15 * abs(value)
    assert float(texts[1]) == pytest.approx(half_width, rel=0.051)


@pytest.mark.parametrize(("value", "text"), [(0.04321, "0.043"), (0.00042, "4.2e-04"), (0.0, "0"), (1.0, "1.000")])
def test_p_values(value, text):
    assert p_value(value) == text
    assert p_value(NAN) == NOTHING


def test_numbers_of_a_trial():
    assert [number_text(value) for value in (12, 12.3456, 0.00123456, math.inf)] == ["12", "12.35", "0.001235", "inf"]


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("test/exact_match", "test exact match (%)"),
        ("test[5-8]/exact_match", "test[5-8] exact match (%)"),
        ("valid/loss", "valid loss (nats per token)"),
        ("test/sacrebleu", "test sacreBLEU"),
        ("test/over_length", "test over length"),
        ("train/gradient_norm", "train gradient norm"),
        ("train/nll", "train nll (nats per token)"),
        ("train/tokens_per_s", "train tokens per s (1/s)"),
        ("decode[16]/ms", "decode[16] ms"),
    ],
)
def test_labels_have_units(metric, label):
    assert metric_label(metric, TASKS["translation"]) == label


class Ages(Translation):
    """Declares its own metrics."""

    metrics = (MetricSpec("loss", "min", "years", "error"), MetricSpec("median_error", "min", "years"))


def test_labels_come_from_the_task():
    assert metric_label("test/loss", Ages()) == "test error (years)"
    assert metric_label("test/median_error", Ages()) == "test median error (years)"
    assert metric_label("test/exact_match", Ages()) == "test exact match"  # a metric of the study's own


@pytest.mark.parametrize(
    ("estimates", "shown"),
    [
        ([(97.2347, 0.5), (97.2312, 0.5), (96.0, 0.5)], ["97.235 ± 0.500", "97.231 ± 0.500", "96.00 ± 0.50"]),
        ([(97.2, 0.5), (97.2, 0.1)], ["97.20 ± 0.50", "97.20 ± 0.10"]),  # equal means
        ([(3.0001, NAN), (3.0002, NAN), (NAN, NAN)], ["3.0001", "3.0002", NOTHING]),
        ([(50.4, 30.0), (50.3, 2.0)], ["50 ± 30", "50.3 ± 2.0"]),
        ([(1 + 1e-12, 0.1), (1.0, 0.1)], ["1.00000000 ± 0.10000000"] * 2),
    ],
)
def test_the_best_never_reads_like_another(estimates, shown):
    found = [Estimate(mean, half_width, 3) for mean, half_width in estimates]
    digits = digits_apart(found, 0)
    assert [interval(e.mean, e.half_width, digits=d) for e, d in zip(found, digits, strict=True)] == shown
