"""The style of figures: every key changes what is drawn, and wrong files are refused."""

import dataclasses
import json
import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from report_support import CROSSED, crossed, write_workdir

from transformer_jax.cli.main import main
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import Curves, HeatMap, MetricByAxis, MetricByVariant
from transformer_jax.sweeps.report import forest, plots
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.committed import collect_results
from transformer_jax.sweeps.report.drawing import _rc, draw_figures, draw_opening
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.figure_style import Style
from transformer_jax.sweeps.report.heat_map import heat_map
from transformer_jax.sweeps.report.style_file import read_style

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    write_workdir(root, text=CROSSED)
    return root


@pytest.fixture(scope="module")
def results(root):
    return collect(root / "runs" / "heads", root / "experiments" / "heads")


def styled(results, **values):
    return dataclasses.replace(results, style=Style(**values))


def drawn(draw, figure, results):
    """Return the canvas of a figure and its alt text."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_rc(results.style))
        canvas = Figure(figsize=(results.style.width, results.style.height), layout="constrained")
        alt = draw(figure, canvas if draw is forest.draw_forest else canvas.subplots(), results)
        canvas.draw_without_rendering()
    return canvas, alt


def texts_of(canvas):
    return {text.get_text() for text in canvas.findobj(matplotlib.text.Text)}


def test_the_example_of_the_documents_renames_a_committed_study(tmp_path):
    (example,) = re.findall(r"```json\n(\{\n  \"width\".*?)```", (ROOT / "docs" / "studies.md").read_text(), re.S)
    file = tmp_path / "style.json"
    file.write_text(example)
    results = collect_results(ROOT / "experiments" / "norm_placement" / "results")
    style = read_style(file, results)
    assert {field.name for field in dataclasses.fields(Style)} - json.loads(example).keys() == {"colour_map"}
    given = dataclasses.replace(results, style=style)
    (figure,) = draw_opening(given, effects(given))
    assert figure.alt.startswith("Paired differences in sacreBLEU, mean ± 95 %: Pre-LN against Post-LN, with ")
    assert "layers 6" in figure.alt
    assert f'width="{3.3 * 72:.1f}'.rstrip("0") in figure.svg.decode()


def test_the_command_applies_it_to_every_figure(root, tmp_path, capsys):
    file = tmp_path / "style.json"
    file.write_text('{"width": 3.0, "labels": {"norm=pre": "Pre-LN", "test/exact_match": "Score"}}')
    flags = [f"--workdir={root / 'runs' / 'heads'}", f"--output={tmp_path / 'out'}", f"--style={file}"]
    assert main(["report", *flags]) == 0
    figures = list((tmp_path / "out" / "figures").glob("*.svg"))
    assert len(figures) == 3
    assert all(re.search(r'<svg[^>]* width="216(\.0+)?pt"', figure.read_text()) for figure in figures)
    assert (tmp_path / "out" / "figures" / "1_score.svg").exists()
    page = (tmp_path / "out" / "report.html").read_text()
    alts = re.findall('<img[^>]* alt="([^"]*)"', page)
    assert len(alts) == 3
    assert all("Pre-LN" in alt for alt in alts)
    assert "Pre-LN" not in capsys.readouterr().out  # answer and tables keep their names


def test_sizes_font_and_colours(results):
    style = {"width": 4.0, "height": 2.5, "font": "serif", "font_size": 7.0, "colours": ("#010203", "#aabbcc")}
    given = styled(results, **style)
    canvas, _ = drawn(plots.dots, MetricByVariant("test/loss"), given)
    (axes,) = canvas.axes
    assert canvas.get_figwidth() == 4.0
    assert axes.xaxis.label.get_size() == 7.0
    assert axes.xaxis.label.get_family()[0] == "serif"
    assert axes.containers[0][0].get_color() == "#010203"
    assert axes.lines[0].get_color() == "#aabbcc"
    lines, _ = drawn(plots.curves, Curves("valid/loss"), crossed_with(given))
    assert lines.axes[0].lines[0].get_color() == "#010203"
    two = crossed_with(styled(results, height=2.0)), crossed_with(styled(results, height=4.0))
    low, high = (drawn(plots.curves, Curves("valid/loss"), of)[0].axes[0] for of in two)
    assert high.get_window_extent().height > low.get_window_extent().height


@pytest.mark.parametrize("width", [3.3, 5.2])
def test_titles_of_differences_end_within_the_figure(results, width):
    named = {"test/loss": "test loss (nats per token)"}
    given = styled(results, width=width, font="serif", font_size=8.0 if width < 5 else 10.0, labels=named)
    canvas, _ = drawn(forest.draw_forest, effects(given), given)
    edge, lines = canvas.bbox.width, [axes.get_title(loc="left").splitlines() for axes in canvas.axes]
    assert all(axes._left_title.get_window_extent().x1 <= edge for axes in canvas.axes)
    assert " ".join(lines[-1]) == "Difference in test loss (nats per token)"
    assert len(lines[-1]) == (2 if width < 5 else 1)


def crossed_with(results):
    return crossed(results, {"norm": ("post", "pre")}, level=lambda number: 2.0 * number)


def test_labels_take_the_place_of_axes_values_and_metrics(results):
    words = {"norm=pre": "Pre-LN", "post": "after", "num_heads": "heads", "test/loss": "Loss!", "valid/loss": "V"}
    given = styled(results, labels=words)
    forest_canvas, alt = drawn(forest.draw_forest, effects(given), given)
    assert {"Pre-LN against after", "Difference in Loss!", "◀ after ahead"} <= texts_of(forest_canvas)
    assert "with heads 2" in alt
    canvas, _ = drawn(plots.dots, MetricByVariant("test/loss"), given)
    assert {"heads 1, Pre-LN", "heads 1, norm after", "Loss!\n(lower is better)"} <= texts_of(canvas)
    canvas, alt = drawn(plots.lines, MetricByAxis("test/loss", x="num_heads"), given)
    assert {"heads", "Loss!"} <= texts_of(canvas)
    assert "best Pre-LN, heads 1" in alt
    canvas, _ = drawn(plots.curves, Curves("valid/loss"), given)
    assert {"V", "Pre-LN", "norm after"} <= texts_of(canvas)
    for text in texts_of(canvas) | texts_of(forest_canvas):
        assert "num_heads" not in text
    titles = [figure.title for figure in draw_figures(given)]
    assert titles == ["Test exact match", "V by step"]


@pytest.mark.parametrize("words", [r"\frac{$", "$x_1$", "_hidden"])
def test_words_are_shown_as_they_are(results, words):
    given = styled(results, labels=dict.fromkeys(("norm", "pre", "num_heads=1", "test/loss", "valid/loss"), words))
    shown = words.replace("$", r"\$")
    for draw, figure in (
        (forest.draw_forest, effects(given)),
        (plots.dots, MetricByVariant("test/loss")),
        (plots.lines, MetricByAxis("test/loss", x="num_heads")),
        (plots.curves, Curves("valid/loss")),
    ):
        canvas, alt = drawn(draw, figure, given)
        assert any(shown in text for text in texts_of(canvas))
        assert words in alt


def test_labels_and_colours_of_a_heat_map(results):
    made = crossed(results, {"width": ("1", "2"), "depth": ("1", "2")}, level=float)
    given = styled(made, labels={"width": "Breadth", "test/loss": "Loss!"}, colour_map="Greys")
    canvas, _ = drawn(heat_map, HeatMap("test/loss", x="depth", y="width"), given)
    assert {"Breadth", "depth", "Loss!, mean over seeds"} <= texts_of(canvas)
    fills = [patch.get_facecolor() for patch in canvas.axes[0].patches]
    assert all(red == pytest.approx(blue, abs=0.02) for red, _, blue, _ in fills)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "--style=.*json: "),
        ("[]", "a list, not an object"),
        ('{"widht": 3}', r"no key 'widht' \(did you mean 'width'\?\); there are width, height, font, "),
        ('{"width": 0}', "width=0: expected a number from 2 to 20"),
        ('{"width": true}', "width=True: expected a number"),
        ('{"height": "3"}', "height='3': expected a number from 1 to 20"),
        ('{"font_size": 100}', "font_size=100: expected a number from 4 to 40"),
        ('{"font": "DejaVu San"}', r"font='DejaVu San': expected serif, .*did you mean 'DejaVu Sans'"),
        ('{"font": 3}', "font=3: expected serif"),
        ('{"colours": ["#000001"]}', "expected a list of 2 to 12 colours"),
        ('{"colours": "blue"}', "expected a list of 2 to 12 colours"),
        ('{"colours": ["#000001", "red"]}', "'red': expected a colour such as #0072B2"),
        ('{"colours": ["#000001", "#FFFFFF"]}', "#FFFFFF is that of ground, text or grid"),
        ('{"colours": ["#00000a", "#00000A"]}', "has a colour twice"),
        ('{"colour_map": "viridi"}', r"colour_map='viridi': .*did you mean 'viridis'"),
        ('{"colour_map": []}', "expected a colour map"),
        ('{"labels": ["a"]}', "expected an object of words by name"),
        ('{"labels": {"norm": 3}}', "norm: expected 1 to 54 characters"),
        ('{"labels": {"norm": " "}}', "norm: expected 1 to 54 characters"),
        ('{"labels": {"norm": "a\\nb"}}', "norm: expected 1 to 54 characters in one line"),
        ('{"labels": {"nomr": "Norm"}}', r"labels: no axis, value or metric 'nomr' \(did you mean 'norm'\?\)"),
        ('{"labels": {"norm=pr": "Pre"}}', r"no axis, value or metric 'norm=pr' \(did you mean 'norm=pre'\?\)"),
        ('{"labels": {"test/los": "Loss"}}', r"'test/los' \(did you mean 'test/loss'\?\)"),
    ],
)
def test_wrong_files_are_refused(results, tmp_path, text, message):
    file = tmp_path / "style.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_style(file, results)


def test_a_missing_file_is_named_before_anything_is_written(root, tmp_path, capsys):
    flags = [f"--workdir={root / 'runs' / 'heads'}", f"--output={tmp_path / 'out'}", f"--style={tmp_path / 'no.json'}"]
    assert main(["report", *flags]) == 2
    assert "no.json: cannot be read: No such file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
