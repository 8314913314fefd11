"""Heat maps: every cell has the mean of its variant in ink that can be read, and the colours have one scale."""

import dataclasses
import itertools

import matplotlib
import pytest
from matplotlib.figure import Figure
from report_support import crossed, write_workdir

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import HeatMap
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import IN_THE_DARK, _rc, draw_figures
from transformer_jax.sweeps.report.heat_map import contrast, heat_map
from transformer_jax.sweeps.report.number_text import NOTHING, number_text
from transformer_jax.sweeps.statistics import estimate
from transformer_jax.sweeps.study_json import declaration_of, declared_study

FIGURE = HeatMap("test/loss", x="depth", y="width")
AXES = {"width": ("128", "32", "64"), "depth": ("2", "10")}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


def drawn(results, figure=FIGURE):
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_rc(results.style))
        canvas = Figure(figsize=(5.2, 3.2), layout="constrained")
        alt = heat_map(figure, canvas.subplots(), results)
        canvas.draw_without_rendering()
    return canvas.axes, alt


def mean(variant):
    return estimate([*variant.values("test/loss").values()]).mean


def cells(axes):
    """Return text and fill by the names of column and row, which are those of the first panel."""
    first = axes.figure.axes[0]
    x_names, y_names = (
        [of.get_text() for of in labels] for labels in (first.get_xticklabels(), first.get_yticklabels())
    )
    fills = {(round(p.get_x() + 0.5), round(p.get_y() + 0.5)): p.get_facecolor() for p in axes.patches}
    return {
        (x_names[round(x)], y_names[round(y)]): (text, fills[round(x), round(y)])
        for text in axes.texts
        for x, y in [text.get_position()]
    }


def test_cells_have_the_means_and_axes_are_in_the_order_of_their_numbers(made):
    results = crossed(made, AXES, level=lambda number: 1.5 * number)
    (axes,), alt = drawn(results)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["2", "10"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["32", "64", "128"]
    found = cells(axes)
    assert len(found) == 6
    for variant in results.variants:
        text, _ = found[variant.labels["depth"], variant.labels["width"]]
        assert text.get_text() == number_text(mean(variant))
        assert f"depth {variant.labels['depth']}, width {variant.labels['width']}: {number_text(mean(variant))}" in alt
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("depth", "width")


@pytest.mark.parametrize("colour_map", ["cividis", "viridis", "Greys", "RdBu"])
def test_numbers_can_be_read_on_light_and_dark_pages(made, colour_map):
    """A contrast of 4.5 to 1 at least (WCAG 2.2), and colours that no theme changes."""
    results = crossed(made, {"width": tuple(map(str, range(1, 9))), "depth": ("2", "10")}, level=float)
    results = dataclasses.replace(results, style=dataclasses.replace(results.style, colour_map=colour_map))
    (axes,), _ = drawn(results)
    for text, fill in cells(axes).values():
        ink = matplotlib.colors.to_hex(text.get_color())
        assert contrast(ink, matplotlib.colors.to_hex(fill)) >= 4.5
        assert ink not in IN_THE_DARK
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # the example of WCAG


def test_other_axes_have_panels_with_one_scale_of_colours(made):
    results = crossed(made, {"norm": ("post", "pre"), **AXES}, level=lambda number: float(number % 6))
    panels, alt = drawn(results)
    assert [panel.get_title(loc="left") for panel in panels] == ["norm post", "norm pre"]
    one, other = map(cells, panels)
    assert one.keys() == other.keys()
    for place in one:  # equal means in both panels
        assert one[place][0].get_text() == other[place][0].get_text()
        assert one[place][1] == other[place][1]
    assert len({fill for _, fill in one.values()}) == 6
    assert "norm post: depth 2, width 128: " in alt
    higher = crossed(made, {"norm": ("post", "pre"), **AXES}, level=lambda number: float(number))
    fills = [{fill for _, fill in cells(panel).values()} for panel in drawn(higher)[0]]
    assert not fills[0] & fills[1]


def test_cells_without_trials_are_empty_and_unfinished_ones_marked(made):
    results = crossed(made, AXES)
    lost = dataclasses.replace(results.variants[1], trials=results.variants[1].trials[:2])
    pending = tuple(dataclasses.replace(trial, result=None) for trial in results.variants[2].trials)
    none = dataclasses.replace(results.variants[2], trials=pending)
    changed = dataclasses.replace(results, variants=(results.variants[0], lost, none, *results.variants[4:]))
    changed.__dict__["absent"] = {"width=32, depth=10": ""}
    (axes,), alt = drawn(changed)
    texts = {place: text.get_text() for place, (text, _) in cells(axes).items()}
    assert texts["10", "128"] == number_text(mean(lost)) + "*"
    assert texts["2", "32"] == NOTHING + "*"
    assert ("10", "32") not in texts
    assert "*: not all trials have finished" in " ".join(axes.get_title(loc="left").split())
    assert "depth 10, width 128: " in alt
    assert "(1 of 3 not begun)" in alt


def test_it_is_declared_recorded_and_drawn(made, tmp_path):
    results = crossed(made, AXES, level=float)
    study = dataclasses.replace(made.study, figures=())
    object.__setattr__(study, "figures", (FIGURE,))
    again = declared_study({**declaration_of(study), "axes": declaration_of(results.study)["axes"]}, tmp_path)
    assert again.figures == (FIGURE,)
    object.__setattr__(results.study, "figures", (FIGURE,))
    (figure,) = draw_figures(results)
    assert figure.title == "Test loss by depth and width"
    assert figure.file == "1_test_loss_by_depth_and_width.svg"
    object.__setattr__(results.study, "figures", (dataclasses.replace(FIGURE, metric="test/los"),))
    with pytest.raises(
        ConfigError, match=r"figure HeatMap: no trial has measured 'test/los'; .*did you mean 'test/loss'"
    ):
        list(draw_figures(results))


def test_of_many_panels_the_first_are_shown(made):
    results = crossed(
        made,
        {"norm": tuple(map(str, itertools.islice(itertools.count(), 13))), "width": ("1", "2"), "depth": ("1", "2")},
    )
    panels, _ = drawn(results)
    assert len(panels) == 12
    assert "the first 12 of 13 panels" in " ".join(panels[0].figure.get_suptitle().split())
