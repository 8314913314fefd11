"""The figures that a study may declare."""

import math

import pytest

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import (
    Curves,
    CustomFigure,
    HeatMap,
    MetricByAxis,
    MetricByBin,
    MetricByVariant,
    check_figures,
    number_of,
)
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, over

HEADS = over("model.num_heads", 1, 2, 4)
NORM = over("model.norm_position", "post", "pre")
DEPTH = over("model.num_encoder_layers", 1, 2, name="depth")


def study(*figures, axes=(HEADS, NORM)):
    return Study("Why?", "configs/quickstart.py", axes, (Metric("test/loss", "min"),), figures=figures)


def test_figures_that_fit_their_study():
    figures = (
        MetricByVariant("test/loss"),
        Curves("train/gradient_norm", log_y=True),
        Curves("valid/loss", x="flops"),
        MetricByAxis("test/loss", x="num_heads", by="norm_position", log_x=True),
        HeatMap("test/loss", x="num_heads", y="depth"),
        MetricByBin("test[*]/exact_match"),
        CustomFigure(lambda axes, results: None, "Ours", "A picture"),
    )
    assert study(*figures, axes=(HEADS, NORM, DEPTH)).figures == figures
    study(MetricByAxis("test/loss", x="learning_rate"), axes=(Range("optimizer.learning_rate", 1e-4, 1e-2, log=True),))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: check_figures(["test/loss"], {}),
            "expected MetricByVariant, Curves, CurvesByLayer, MetricByAxis, HeatMap, MetricByBin or CustomFigure, "
            "not 'test/loss'",
        ),
        (lambda: study(MetricByAxis("test/loss", x="num_head")), r"no axis 'num_head' \(did you mean 'num_heads'\?\)"),
        (lambda: study(MetricByAxis("test/loss", x="num_heads", by="norm")), "no axis 'norm'"),
        (lambda: study(MetricByAxis("test/loss", x="num_heads", by="num_heads")), "x and by are both 'num_heads'"),
        (lambda: study(MetricByAxis("test/loss", x="norm_position")), "values that are not numbers: post, pre"),
        (
            lambda: study(
                MetricByAxis("test/loss", x="rate", log_x=True),
                axes=(Axis("rate", {"0": {"model.dropout_rate": 0.0}, "0.1": {"model.dropout_rate": 0.1}}),),
            ),
            "log_x needs values above 0, not 0",
        ),
        (
            lambda: study(HeatMap("test/loss", x="num_head", y="depth")),
            r"HeatMap of .*: no axis 'num_head' \(did you mean",
        ),
        (lambda: study(HeatMap("test/loss", x="num_heads", y="depht"), axes=(HEADS, DEPTH)), "did you mean 'depth'"),
        (lambda: study(HeatMap("test/loss", x="num_heads", y="num_heads")), "x and y are both 'num_heads'"),
        (
            lambda: study(HeatMap("test/loss", x="num_heads", y="norm_position")),
            "figure HeatMap of 'test/loss': the axis 'norm_position' has values that are not numbers: post, pre",
        ),
        (
            lambda: study(
                HeatMap("test/loss", x="num_heads", y="dropout_rate"),
                axes=(HEADS, Range("model.dropout_rate", 0, 1)),
            ),
            "the axis 'dropout_rate' is a range; a heat map needs an axis of values",
        ),
        (lambda: HeatMap("loss", x="a", y="b"), "figure HeatMap: 'loss': expected SPLIT/NAME"),
        (lambda: MetricByVariant("loss"), "figure MetricByVariant: 'loss': expected SPLIT/NAME"),
        (lambda: Curves("valid loss"), "figure Curves: 'valid loss': expected SPLIT/NAME"),
        (lambda: Curves("valid/loss", x="flop"), r"figure Curves of .*: x=.flop.: expected .*did you mean .flops."),
        (lambda: MetricByBin("test/exact_match"), "expected one '\\*' in place of the bin"),
        (lambda: MetricByBin("*[*]/loss"), "expected one '\\*'"),
        (lambda: CustomFigure(lambda axes, results: None, "", "A picture"), "needs a title and an alt text"),
        (
            lambda: CustomFigure(lambda axes, results: None, "Ours", ""),
            "figure CustomFigure 'Ours': needs a title and an alt text",
        ),
    ],
)
def test_wrong_figures_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_bins_are_in_the_order_of_their_numbers():
    names = ["test[11+]/loss", "test[6-10]/loss", "test[1-5]/loss", "test[1-5]/accuracy", "test/loss", "x_test[1]/loss"]
    assert MetricByBin("test[*]/loss").bins(names) == {
        "1-5": "test[1-5]/loss",
        "6-10": "test[6-10]/loss",
        "11+": "test[11+]/loss",
    }


@pytest.mark.parametrize(
    ("label", "number"),
    [
        ("12", 12),
        ("0.003", 0.003),
        ("-1.5e-3", -0.0015),
        ("64_256", None),
        ("post", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_names_of_values_as_numbers(label, number):
    assert number_of(label) == number if number is not None else math.isnan(number_of(label))
