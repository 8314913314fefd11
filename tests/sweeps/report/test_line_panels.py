"""The rule of curves: colour, line style and panels are axes; scales are shared; labels at the ends or one legend."""

import dataclasses
import itertools

import matplotlib
import pytest
from matplotlib.figure import Figure
from report_support import crossed, write_workdir

from transformer_jax.sweeps.figures import Curves, MetricByAxis, MetricByBin
from transformer_jax.sweeps.report import line_panels, plots
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import _rc

AXES = {"norm": ("post", "pre"), "warmup": ("yes", "no"), "depth": ("2", "6")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


def drawn(draw, figure, results):
    """Return the axes of a figure, its legends and its alt text."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_rc(results.style))
        canvas = Figure(figsize=(5.2, 3.2), layout="constrained")
        alt = draw(figure, canvas.subplots(), results)
        canvas.draw_without_rendering()
    return canvas.axes, canvas.legends, alt


def lines_of(axes):
    """Return the lines of means on axes, in the order of the variants."""
    if axes.containers:
        return [container[0] for container in axes.containers]
    return [line for line in axes.lines if line.get_linewidth() == 1.6]


@pytest.mark.parametrize(
    ("draw", "figure"),
    [
        (plots.curves, Curves("valid/loss")),
        (plots.profile, MetricByBin("test[*]/exact_match", label="length")),
        (plots.lines, MetricByAxis("test/loss", x="x")),
    ],
)
def test_colour_is_the_first_axis_line_style_the_second_and_panels_the_third(made, draw, figure):
    axes = {"x": ("1", "2", "4"), **AXES} if draw is plots.lines else AXES
    results = crossed(made, axes, level=lambda number: 0.1 * number)
    panels, (legend,), alt = drawn(draw, figure, results)
    assert [panel.get_title(loc="left") for panel in panels] == ["depth 2", "depth 6"]
    keys = list(itertools.product(AXES["norm"], AXES["warmup"]))
    by_value = {}
    for panel in panels:
        for (norm, warmup), line in zip(keys, lines_of(panel), strict=True):
            by_value.setdefault(norm, set()).add(line.get_color())
            by_value.setdefault(warmup, set()).add(line.get_linestyle())
    assert all(len(looks) == 1 for looks in by_value.values())
    assert by_value["pre"] != by_value["post"]
    assert by_value["yes"] != by_value["no"]
    assert len({(panel.get_xlim(), panel.get_ylim()) for panel in panels}) == 1
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["norm post", "norm pre", "warmup yes", "warmup no"]
    for text, handle in zip(names, legend.legend_handles, strict=True):
        value = text.split()[1]
        look = handle.get_color() if value in AXES["norm"] else handle.get_linestyle()
        assert by_value[value] == {look}
    assert "norm post, warmup yes, depth 2" in alt
    assert "=" not in alt


def test_panels_hold_the_means_of_their_variants(made):
    results = crossed(made, AXES, level=float)
    panels, _, _ = drawn(plots.curves, Curves("valid/loss"), results)
    ends = [[line.get_ydata()[-1] for line in lines_of(panel)] for panel in panels]
    first = ends[0][0]
    assert [[end - first for end in of] for of in ends] == [
        pytest.approx([0, 2, 4, 6]),  # depth 2: the even variants
        pytest.approx([1, 3, 5, 7]),
    ]


def test_a_value_has_one_colour_in_all_figures(made):
    results = crossed(made, {"norm": ("layernorm", "rmsnorm", "batchnorm"), "warmup": ("yes", "no")})
    fewer = dataclasses.replace(results, variants=results.variants[2:])
    before = lines_of(drawn(plots.curves, Curves("valid/loss"), results)[0][0])
    after = lines_of(drawn(plots.curves, Curves("valid/loss"), fewer)[0][0])
    looks = [[(line.get_color(), line.get_linestyle()) for line in of] for of in (before, after)]
    assert looks[0][2:] == looks[1]


def test_names_are_at_the_ends_of_lines_that_are_apart(made):
    results = crossed(made, {"norm": ("post", "pre")}, level=lambda number: 2.0 * number)
    (axes,), legends, _ = drawn(plots.curves, Curves("valid/loss"), results)
    assert not legends
    for text, line in zip(axes.texts, lines_of(axes), strict=True):
        assert text.xy == pytest.approx(tuple(line.get_xydata()[-1]))
    assert [text.get_text() for text in axes.texts] == ["post", "pre"]


@pytest.mark.parametrize(
    ("values", "level"),
    [
        (("post", "pre"), 0.001),  # collide
        (("post", "a_name_that_is_too_long_there"), 2.0),
    ],
)
def test_otherwise_they_are_in_one_legend(made, values, level):
    results = crossed(made, {"norm": values}, level=lambda number: level * number)
    (axes,), (legend,), _ = drawn(plots.curves, Curves("valid/loss"), results)
    assert not axes.texts
    assert legend.get_title().get_text() == "norm"
    assert [text.get_text() for text in legend.get_texts()] == list(values)


def test_a_number_at_the_end_of_a_line_has_its_axis(made):
    results = crossed(made, {"depth": ("2", "6")}, level=lambda number: 2.0 * number)
    (axes,), _, _ = drawn(plots.curves, Curves("valid/loss"), results)
    assert [text.get_text() for text in axes.texts] == ["depth 2", "depth 6"]


def test_the_second_axis_has_panels_if_one_panel_would_be_too_full(made):
    values = {"norm": ("a", "b", "c"), "size": ("1", "2", "3")}
    panels, (legend,), _ = drawn(plots.curves, Curves("valid/loss"), crossed(made, values))
    assert [panel.get_title(loc="left") for panel in panels] == ["size 1", "size 2", "size 3"]
    assert [text.get_text() for text in legend.get_texts()] == ["norm a", "norm b", "norm c"]
    assert {line.get_linestyle() for panel in panels for line in lines_of(panel)} == {"-"}


def test_lines_that_need_too_many_panels_are_apart_and_only_the_best_are_shown(made):
    values = {name: tuple(f"{name}{number}" for number in range(4)) for name in ("a", "b", "c")}
    results = crossed(made, values)
    assert line_panels.plan([variant.labels for variant in results.variants], results).is_apart
    panels, _, alt = drawn(plots.curves, Curves("valid/loss"), results)
    assert sum(len(lines_of(panel)) for panel in panels) == plots.MOST_LINES
    assert "the 12 best of 64 variants by test exact match" in alt


def test_unfinished_trials_are_named_above_the_panels(made):
    results = crossed(made, AXES)
    lost = dataclasses.replace(results.variants[3], trials=results.variants[3].trials[:2])
    changed = dataclasses.replace(results, variants=(*results.variants[:3], lost, *results.variants[4:]))
    panels, _, alt = drawn(plots.curves, Curves("valid/loss"), changed)
    said = "norm post, warmup no, depth 6 (1 of 3 not begun)"
    assert said in " ".join(panels[0].figure.get_supxlabel().split())
    assert "norm post, warmup no, depth 6: 2 finished, 1 of 3 not begun" in alt


def test_a_training_of_two_variants_has_a_line_in_both_places(made):
    """With two axes, every variant is where its values are."""
    results = crossed(made, {"patch": ("2", "4"), "budget": ("tokens", "flops")})
    one, two, three, _ = results.variants
    same = dataclasses.replace(results.variants[3], trials=three.trials)
    (axes,), (legend,), _ = drawn(
        plots.curves, Curves("valid/loss"), dataclasses.replace(results, variants=(one, two, three, same))
    )
    assert len(lines_of(axes)) == 4
    assert [text.get_text() for text in legend.get_texts()] == ["patch 2", "patch 4", "budget tokens", "budget flops"]


def test_variants_that_differ_in_decoding_only_are_one_line(made):
    results = crossed(made, {"norm": ("post", "pre"), "beam": ("1", "4")}, level=float)
    one, _, three, _ = results.variants
    variants = [
        dataclasses.replace(of, trials=(one if at < 2 else three).trials) for at, of in enumerate(results.variants)
    ]
    (axes,), _, alt = drawn(plots.curves, Curves("valid/loss"), dataclasses.replace(results, variants=tuple(variants)))
    assert len(lines_of(axes)) == 2
    assert [text.get_text() for text in axes.texts] == ["post", "pre"]
    assert "norm post, beam 1 and 4" in alt


def test_labels_of_lines_that_are_several_variants():
    labels = [{"norm": "pre", "beam": "1"}, {"norm": "pre", "beam": "4"}]
    assert line_panels.joined_labels(labels) == {"norm": "pre", "beam": "1 and 4"}
