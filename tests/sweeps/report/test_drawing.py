"""Figures show the numbers of the summary, and have descriptions."""

import dataclasses
import itertools
import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure
from report_support import DIVERGED, metrics_of, write_workdir

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import Curves, CustomFigure, MetricByAxis, MetricByBin, MetricByVariant
from transformer_jax.sweeps.report import line_panels, plots
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import GROUND, IN_THE_DARK, INK, _height, _rc, draw_figures
from transformer_jax.sweeps.report.figure_style import COLOURS
from transformer_jax.sweeps.report.variants import Variant
from transformer_jax.sweeps.statistics import estimate
from transformer_jax.sweeps.study import Axis

FIRST_HEADS = (1, 2, 4, 8, 16)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


@pytest.fixture
def axes(monkeypatch):
    """Axes on which all lines are drawn, however many."""
    monkeypatch.setattr(line_panels, "MOST_TOGETHER", plots.MOST_LINES)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["axes.prop_cycle"] = plots.cycle(COLOURS, "#123456")
        yield Figure().subplots()


def drawn(results, *figures):
    study = dataclasses.replace(results.study, figures=figures)
    return list(draw_figures(dataclasses.replace(results, study=study)))


def with_variants(results, variants, names=("num_heads",)):
    """Return the results with other variants, with values that no study declares."""
    study = dataclasses.replace(results.study, figures=())
    made = []
    for name in names:
        axis = Axis(name, {"a": {}, "b": {}})
        object.__setattr__(axis, "values", {v.labels[name]: {} for v in variants})
        made.append(axis)
    object.__setattr__(study, "axes", tuple(made))
    return dataclasses.replace(results, study=study, variants=tuple(variants))


def losses(index):
    seeds = (0, 2) if index == 2 else (0, 1, 2)
    return [metrics_of(index, seed)["test/loss"] for seed in seeds]


def bars_of(container):
    """Return the ends of the error bars."""
    (collection,) = container[2]
    return [segment[:, 1] for segment in collection.get_segments()]


def test_dots_are_means_with_intervals_and_every_trial(axes, results):
    alt = plots.dots(MetricByVariant("test/loss"), axes, results)
    for row, container in enumerate(axes.containers):
        found = estimate(losses(row))
        assert container[0].get_xydata().tolist() == [pytest.approx([found.mean, row])]
        (segment,) = container[2][0].get_segments()
        ends = [found.mean - found.half_width, found.mean + found.half_width]
        assert segment[:, 0] == pytest.approx(ends)
    trials = [line.get_xdata().tolist() for line in axes.lines if len(line.get_xdata()) > 1]
    assert trials == [losses(row) for row in range(5)]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["1 (reference)", "2", "4\n(1 of 3 diverged)", "8", "16"]
    assert axes.get_ylim() == (4.5, -0.5)  # the first is at the top
    assert axes.get_xlabel() == "test loss (nats per token)\n(lower is better)"
    assert "best num_heads 1, 0.1305; worst num_heads 16, 0.7323." in alt
    assert alt.endswith("num_heads 4: 2 finished, 1 of 3 diverged.")


def test_curves_are_means_of_finished_trials_and_show_the_others(axes, results):
    alt = plots.curves(Curves("valid/loss"), axes, results)
    thick = [line for line in axes.lines if line.get_linewidth() == 1.6]
    for index, line in enumerate(thick):
        expected = [3 / step + estimate(losses(index)).mean + 0.1 for step in range(10, 60, 10)]
        assert line.get_xdata().tolist() == [10, 20, 30, 40, 50]
        assert line.get_ydata() == pytest.approx(expected)
    thin, cross = (line for line in axes.lines if line not in thick)
    assert thin.get_xdata().tolist() == [10, 20, 30]
    assert thin.get_color() == cross.get_color() == thick[2].get_color()
    assert (cross.get_marker(), cross.get_xdata().tolist()) == ("x", [30])
    assert len({(line.get_color(), line.get_linestyle()) for line in thick}) == 5
    (legend,) = axes.figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["1", "2", "4 (1 of 3 diverged)", "8", "16"]
    assert legend.get_title().get_text() == "num_heads"
    assert "against the step from 10 to 50" in alt
    assert "lowest num_heads 1, 0.2905; highest num_heads 16, 0.8923." in alt


def test_curves_against_the_seconds_of_training(axes, results):
    """Every ten steps took 1.5 seconds; the diverged trial is a thin line with a cross at its end."""
    alt = plots.curves(Curves("valid/loss", x="seconds"), axes, results)
    lines = [line.get_xdata().tolist() for line in axes.lines]
    assert lines == [*[[1.5, 3.0, 4.5, 6.0, 7.5]] * 3, [1.5, 3.0, 4.5], [4.5], *[[1.5, 3.0, 4.5, 6.0, 7.5]] * 2]
    assert axes.get_xlabel() == "seconds of training, with compilation"
    assert "against the seconds of training, with compilation from 1.5 to 7.5" in alt


@pytest.mark.parametrize("direction", ["min", "max"])
def test_the_best_is_one_whose_trials_have_all_finished(axes, results, direction):
    metric = dataclasses.replace(results.study.metrics[1], direction=direction)
    study = dataclasses.replace(results.study, metrics=(metric,))
    changed = dataclasses.replace(results, study=study, variants=results.variants[1:3])
    for alt in (
        plots.dots(MetricByVariant("test/loss"), axes, changed),
        plots.lines(MetricByAxis("test/loss", x="num_heads"), axes, changed),
    ):
        assert re.search("best num_heads.2, .*; worst num_heads.2, ", alt)


def test_a_variant_without_finished_trials_is_shown(axes, results):
    one = next(trial for trial in results.trials if trial.trial.name == DIVERGED)
    lost = dataclasses.replace(results.variants[2], trials=(one,), seeds=(1,))
    changed = dataclasses.replace(results, variants=(*results.variants[:2], lost))
    plots.dots(MetricByVariant("test/loss"), axes, changed)
    assert [label.get_text() for label in axes.get_yticklabels()][2] == "4\n(1 of 1 diverged)"
    assert len(axes.containers) == 2
    axes.clear()
    alt = plots.lines(MetricByAxis("test/loss", x="num_heads"), axes, changed)
    cross = next(line for line in axes.lines if line.get_marker() == "x")
    assert cross.get_xdata().tolist() == [4]
    assert alt.endswith("num_heads 4: 1 of 1 diverged.")
    axes.clear()
    plots.curves(Curves("valid/loss"), axes, changed)
    assert [line.get_xdata().tolist() for line in axes.lines if line.get_marker() == "x"] == [[30]]


def test_lines_over_a_numeric_axis(axes, results):
    alt = plots.lines(MetricByAxis("test/loss", x="num_heads", log_x=True), axes, results)
    (container,) = axes.containers
    found = [estimate(losses(index)) for index in range(5)]
    points = [[heads, e.mean] for heads, e in zip(FIRST_HEADS, found, strict=True)]
    assert container[0].get_xydata().tolist() == [pytest.approx(point) for point in points]
    ends = [[e.mean - e.half_width, e.mean + e.half_width] for e in found]
    assert bars_of(container) == [pytest.approx(end) for end in ends]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert "best num_heads 1, 0.1305" in alt


def two_axes(results):
    """Return the five variants as those of two axes: depth 1 to 3 with norm pre, and 1, 2 with norm post."""
    labels = [(1, "pre"), (2, "pre"), (3, "pre"), (1, "post"), (2, "post")]
    variants = [
        dataclasses.replace(variant, labels={"depth": str(depth), "norm": norm, "rest": "x"})
        for variant, (depth, norm) in zip(results.variants, labels, strict=True)
    ]
    return with_variants(results, variants, ("depth", "norm", "rest"))


@pytest.mark.parametrize("by", ["", "norm"])
def test_there_is_a_line_for_every_value_of_another_axis(axes, results, by):
    alt = plots.lines(MetricByAxis("test/loss", x="depth", by=by), axes, two_axes(results))
    assert [container[0].get_xdata().tolist() for container in axes.containers] == [[1, 2, 3], [1, 2]]
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["pre (1 of 9 diverged)", "post"]
    assert legend.get_title().get_text() == "norm"
    assert axes.get_title("left") == ("other axes: rest x" if by else "")
    rest = "" if by else ", rest x"
    assert f"2 lines, means over seeds with 95 % intervals: best norm pre{rest}, depth 1, 0.1305" in alt


def test_bins_of_few_examples_are_marked(axes, results):
    def counted(trial):
        pairs = {"test[1-5]/pairs": 20.0, "test[6-10]/pairs": 19.0, "test[11+]/pairs": 1.0}
        metrics = trial.metrics and {**trial.metrics, **pairs}
        return dataclasses.replace(trial, result=dataclasses.replace(trial.result, metrics=metrics))

    variants = [dataclasses.replace(v, trials=tuple(map(counted, v.trials))) for v in results.variants]
    given = dataclasses.replace(results, variants=tuple(variants))
    alt = plots.profile(MetricByBin("test[*]/exact_match", "length", counts="test[*]/pairs"), axes, given)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1-5", "6-10*", "11+*"]
    assert axes.get_xlabel() == "length (*: fewer than 20 examples)"
    assert " With fewer than 20 examples: 6-10, 11+." in alt


def test_profiles_over_bins(axes, results):
    alt = plots.profile(MetricByBin("test[*]/exact_match", label="length"), axes, results)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1-5", "6-10", "11+"]
    for index, container in enumerate(axes.containers):
        assert container[0].get_ydata() == pytest.approx([90 - 9.7 * at - index for at in range(3)])
        assert container[0].get_xdata() == pytest.approx([0, 1, 2], abs=0.2)
    assert axes.get_ylabel() == "test exact match (%)"
    assert "In 1-5: lowest num_heads 16, 86.00; highest num_heads 1, 90.00. In 11+: " in alt


@pytest.mark.parametrize(("draw", "most"), [(plots.dots, plots.MOST_DOTS), (plots.curves, plots.MOST_LINES)])
def test_of_very_many_variants_only_the_best_are_shown_with_a_note(axes, results, draw, most):
    base = results.variants[0].trials
    variants = []
    for number in range(most + 3):
        metrics = {"test/exact_match": float(number), "test/loss": 1.0}
        trials = tuple(
            dataclasses.replace(
                t,
                folder=t.folder / str(number),
                recorded_lines=t.log_lines,
                result=dataclasses.replace(t.result, metrics=metrics),
            )
            for t in base
        )
        variants.append(Variant({"num_heads": f"v{number}"}, trials))
    figure = MetricByVariant("test/exact_match") if draw is plots.dots else Curves("valid/loss")
    alt = draw(figure, axes, with_variants(results, variants))
    said = f"the {most} best of {most + 3} variants by test exact match"
    assert axes.get_title("left") == said
    assert said in alt
    if draw is plots.dots:
        assert [label.get_text() for label in axes.get_yticklabels()] == [f"v{n}" for n in range(3, most + 3)]


@pytest.mark.slow
@pytest.mark.parametrize("label", ["_hidden", "$x_1$", "$", "a" * 200, r"\frac{$"])
def test_labels_are_shown_as_they_are(results, label):
    variants = [dataclasses.replace(results.variants[0], labels={"num_heads": label}), results.variants[1]]
    for figure in draw_figures(with_variants(results, variants)):
        ElementTree.fromstring(figure.svg)  # no warning about mathematics or missing labels
        assert label in figure.alt


def long_named(results, count):
    """Return variants of four axes, whose names take one to four lines next to a row."""
    names = ("position_encoding", "norm_position", "num_encoder_layers", "learning_rate_schedule")
    variants = []
    for number in range(count):
        long = ("_and_" + "x" * 8) * (number % 3)
        trials = results.variants[number % 5].trials
        variants.append(Variant(dict.fromkeys(names, f"{number}{long}"), trials))
    return with_variants(results, variants, names)


def test_labels_of_rows_do_not_overlap(results):
    changed = long_named(results, 20)
    with matplotlib.rc_context():
        matplotlib.rcParams.update(_rc(changed.style))
        figure = Figure(figsize=(5.2, _height(MetricByVariant("test/loss"), changed)), layout="constrained")
        plots.dots(MetricByVariant("test/loss"), axes := figure.subplots(), changed)
        figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(boxes) == 20
    assert all(above.y0 > below.y1 for above, below in itertools.pairwise(boxes))


def test_long_names_in_a_legend_are_not_cut(axes, results):
    names = [f"value_{number} " + "and_more_words " * number for number in range(5)]
    variants = [Variant({"num_heads": n.strip()}, v.trials) for n, v in zip(names, results.variants, strict=True)]
    plots.curves(Curves("valid/loss"), axes, with_variants(results, variants))
    (legend,) = axes.figure.legends
    for text, variant in zip(legend.get_texts(), variants, strict=True):
        assert text.get_text().replace("\n", " ").partition(" (")[0] == variant.labels["num_heads"]
        assert max(map(len, text.get_text().splitlines())) <= 54


def test_a_figure_follows_the_theme_of_the_page(results):
    """In Chromium: test_browser.py. Every colour of the light page has another on a dark one."""
    (figure,) = drawn(results, MetricByVariant("test/loss", title="Losses, at last"))
    assert (figure.file, figure.title) == ("1_losses_at_last.svg", "Losses, at last")
    style, body = figure.svg.decode().split("</style>")
    assert "@media (prefers-color-scheme: dark) {" in style
    assert set(re.findall("(?:fill|stroke): (#[0-9a-f]+)", body)) == {*IN_THE_DARK, "#0072b2", "#d55e00"}
    for light, dark in IN_THE_DARK.items():
        for kind in ("fill", "stroke"):
            assert f'[style*="{kind}: {light}"] {{{kind}: {dark} !important}}' in style
    assert "<dc:date>" not in style


def test_a_study_can_draw_its_own_figure(results):
    seen = []

    def draw(axes, given):
        seen.append((matplotlib.rcParams["text.color"], matplotlib.rcParams["axes.facecolor"]))
        axes.plot([variant.trials[0].result.parameters for variant in given.variants])

    figures = (
        CustomFigure(draw, "Ours", "Sizes"),
        CustomFigure(draw, "Ours too", lambda given: f"{len(given.variants)} sizes"),
    )
    assert [figure.alt for figure in drawn(results, *figures)] == ["Sizes", "5 sizes"]
    assert seen == [(INK, GROUND)] * 2

    def fails(axes, given):
        raise KeyError("depth")

    with pytest.raises(ConfigError, match="figure 'Ours': its function raised KeyError: 'depth'"):
        drawn(results, CustomFigure(fails, "Ours", "Sizes"))
    with pytest.raises(ConfigError, match="figure 'Ours': its function raised ValueError"):  # when it is drawn
        drawn(results, CustomFigure(lambda axes, given: axes.set_title("$\\frac$") and None, "Ours", "Sizes"))
    with pytest.raises(ConfigError, match="raised ValueError: an empty alt text"):
        drawn(results, CustomFigure(draw, "Ours", lambda given: ""))


def test_the_user_s_matplotlib_settings_change_nothing(results):
    (before,) = drawn(results, MetricByVariant("test/loss"))
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "none"}):
        (after,) = drawn(results, MetricByVariant("test/loss"))
        assert matplotlib.rcParams["font.size"] == 30
    assert before == after


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        (
            MetricByVariant("test/los"),
            r"figure MetricByVariant: no trial has measured 'test/los'; .*did you mean 'test/loss'",
        ),
        (
            MetricByAxis("test/chrf", x="num_heads"),
            "figure MetricByAxis: no trial has measured 'test/chrf'; there are test/exact",
        ),
        (Curves("train/los"), r"figure Curves: no trial has logged 'train/los'; .*did you mean 'train/loss'"),
        (MetricByBin("valid[*]/loss"), r"no trial has measured a metric 'valid\[\*\]/loss'; there are test/exact"),
    ],
)
def test_a_figure_of_unknown_metrics_or_axes_is_refused(results, figure, message):
    with pytest.raises(ConfigError, match=message):
        drawn(results, figure)


def test_curves_against_a_cost_that_was_not_logged_are_left_out(results, caplog):
    [kept] = drawn(results, Curves("valid/loss", x="flops"), MetricByVariant("test/loss"))
    assert kept.file.startswith("2_")
    assert "figure Curves of 'valid/loss' is not drawn: no trial has logged 'train/flops'" in caplog.text


@pytest.mark.parametrize(
    ("draw", "figure"),
    [
        (plots.curves, Curves("valid/loss")),
        (plots.profile, MetricByBin("test[*]/exact_match", label="length")),
    ],
)
def test_many_lines_are_small_multiples(results, draw, figure):
    canvas = Figure()
    with matplotlib.rc_context({"axes.prop_cycle": plots.cycle(COLOURS, "#123456")}):
        draw(figure, canvas.subplots(), results)
    assert not canvas.legends
    assert [axes.get_title(loc="left") for axes in canvas.axes] == [
        *("num_heads 1", "num_heads 2", "num_heads 4 (1 of 3\ndiverged)", "num_heads 8", "num_heads 16")
    ]
    shared = {(axes.get_xlim(), axes.get_ylim()) for axes in canvas.axes}
    assert len(shared) == 1
    greys = [sum(line.get_color() == line_panels.GREY for line in axes.lines) for axes in canvas.axes]
    assert greys == [4] * 5
    assert [axes.get_subplotspec().rowspan.start for axes in canvas.axes] == [0, 0, 0, 1, 1]
    bottom = [axes.xaxis.get_tick_params()["labelbottom"] for axes in canvas.axes]
    assert bottom == [False, False, True, True, True]  # the third has no panel below it


def test_pdfs_have_no_date_and_embed_their_fonts(results):
    (figure,) = drawn(results, MetricByVariant("test/loss"))
    assert figure.pdf.startswith(b"%PDF-")
    assert b"CreationDate" not in figure.pdf
    assert b"/Type3" not in figure.pdf
    assert b"/FontFile2" in figure.pdf
    assert figure == drawn(results, MetricByVariant("test/loss"))[0]
