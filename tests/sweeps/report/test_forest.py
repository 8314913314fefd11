"""The forest plot: its rows are those of contrasts.csv, its dots those of differences.csv, and it opens the page."""

import csv
import dataclasses
import math
import re
import shutil

import matplotlib
import pytest
from matplotlib.figure import Figure
from report_support import CROSSED, STUDY, metrics_of, write_workdir

from transformer_jax.errors import DataError
from transformer_jax.sweeps.report import forest
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.committed import collect_results
from transformer_jax.sweeps.report.drawing import GROUND, _rc, draw_opening
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.number_text import interval
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results_folder import read_results_folder
from transformer_jax.sweeps.statistics import Difference

ORDER = [f"{heads}/{norm}" for heads in ("1", "2", "4") for norm in ("pre", "post")]
"""The variants in the order in which `metrics_of` numbers them."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return results of which one trial has diverged."""
    made = collect(*write_workdir(tmp_path_factory.mktemp("study"), text=CROSSED))

    def lose(trial):
        if trial.trial.name != "num_heads=4,norm=pre,seed=1":
            return trial
        return dataclasses.replace(trial, result=dataclasses.replace(trial.result, status="diverged", metrics={}))

    variants = [dataclasses.replace(of, trials=tuple(map(lose, of.trials))) for of in made.variants]
    return dataclasses.replace(made, variants=tuple(variants))


@pytest.fixture(scope="module")
def found(results):
    return effects(results)


@pytest.fixture(scope="module")
def written(results, found, tmp_path_factory):
    output = tmp_path_factory.mktemp("report")
    write_report(results, summarise(results), found, output)
    return output


def drawn(found, results):
    """Return the axes of the plot and its alt text."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_rc(results.style))
        canvas = Figure(figsize=(5.2, 3), layout="constrained")
        alt = forest.draw_forest(found, canvas, results)
        canvas.draw_without_rendering()
    return canvas.axes, alt


def heights_of(axes):
    """Return the heights of the rows of a panel, without those of heads."""
    labels = zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    return [y for label, y in labels if label.get_fontweight() == "normal"]


def dots_of(axes):
    """Return the dots of each row as pairs of difference and height."""
    return [line.get_xydata() for line in axes.lines if line.get_color() == forest.GREY and line.get_marker() == "o"]


def test_the_dots_are_the_paired_differences_of_every_seed(results, found):
    axes, _ = drawn(found, results)
    own = [effect for effect in found if effect.metric == "test/exact_match"]
    for effect, dots in zip(own, dots_of(axes[0]), strict=True):
        first, other = (ORDER.index("/".join(term.labels.values())) for term in effect.comparison.terms)
        expected = {
            seed: metrics_of(first, seed)["test/exact_match"] - metrics_of(other, seed)["test/exact_match"]
            for seed in (0, 1, 2)
        }
        lost = any(term.labels == {"num_heads": "4", "norm": "pre"} for term in effect.comparison.terms)
        assert dots[:, 0] == pytest.approx([value for seed, value in expected.items() if seed != 1 or not lost])


def test_a_seed_has_the_same_height_in_all_rows_and_no_two_seeds_in_one(results, found):
    axes, _ = drawn(found, results)
    (panel, *_) = axes
    lifts = [dots[:, 1] - y for dots, y in zip(dots_of(panel), heights_of(panel), strict=True) if len(dots) == 3]
    assert len(lifts) > 2
    for lift in lifts[1:]:
        assert lift == pytest.approx(lifts[0], rel=1e-6)
    assert len({round(float(lift), 6) for lift in lifts[0]}) == 3
    again = dots_of(drawn(found, results)[0][0])
    assert all((one == other).all() for one, other in zip(dots_of(panel), again, strict=True))


def test_bars_are_the_intervals_and_markers_say_the_verdict(results, found):
    (panel, *_), _ = drawn(found, results)
    own = [effect for effect in found if effect.metric == "test/exact_match" and effect.verdict != "not compared"]
    assert {effect.verdict for effect in own} >= {"ahead"}
    for effect, container in zip(own, panel.containers, strict=True):
        marker, _, (bars,) = container
        mean, half_width = effect.difference[:2]
        assert marker.get_xdata() == pytest.approx([mean])
        assert bars.get_segments()[0][:, 0] == pytest.approx([mean - half_width, mean + half_width])
        is_hollow = marker.get_markerfacecolor() == GROUND
        assert is_hollow == (effect.verdict == "undecided")
        assert marker.get_marker() == {"ahead": "D", "equal": "s", "undecided": "D"}[effect.verdict]
    assert any(line.get_xdata() == [0, 0] for line in panel.lines)


def test_words_say_who_is_ahead_and_what_each_row_shows(results, found):
    """A positive difference in a loss is in favour of the second value."""
    (match, loss), _ = drawn(found, results)
    texts = [[text.get_text() for text in panel.texts] for panel in (match, loss)]
    assert texts[0].index("◀ post ahead") < texts[0].index("pre ahead ▶")
    assert "◀ pre ahead" in texts[1]
    assert "post ahead ▶" in texts[1]
    labels = [label.get_text().replace("\n", " ") for label in match.get_yticklabels()]
    assert "norm: pre against post" in labels
    own = [effect for effect in found if effect.metric == "test/exact_match" and effect.axis == "norm"]
    for effect in own:
        said = f"num_heads {effect.labels['num_heads']} "
        lost = effect.labels["num_heads"] == "4"
        assert said + ("not compared" if lost else interval(*effect.difference[:2], sign=True)) in labels
    assert "1 of 6 diverged" in texts[0]
    assert not any("=" in text for text in [*labels, *texts[0]])


def test_the_alt_text_has_the_numbers_of_contrasts_csv(results, found, written):
    alt = next(draw_opening(results, found)).alt
    with (written / "contrasts.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["verdict"]]
    numbers = re.findall(r": ([+-][\d.]+ ± [\d.]+|not compared)", alt)
    by_metric = sorted(lines, key=lambda line: line["metric"] != "test/exact_match")
    assert len(numbers) == len(by_metric)
    for text, line in zip(numbers, by_metric, strict=True):
        half = float(line["difference_half_width"] or "nan")
        expected = (
            "not compared"
            if line["verdict"] == "not compared"
            else interval(float(line["difference"]), half, sign=True)
        )
        assert text == expected


def test_differences_csv_has_every_dot(results, found, written):
    with (written / "differences.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["num_heads", "norm", "axis", "against", "metric", "seed", "difference"]
    axes, _ = drawn(found, results)
    for panel, metric in zip(axes, ("test/exact_match", "test/loss"), strict=True):
        dots = [x for row in dots_of(panel) for x, _ in row]
        assert dots == [float(line["difference"]) for line in lines if line["metric"] == metric]


def test_the_forest_plot_is_the_first_figure_and_before_the_tables(written):
    page, markdown = ((written / name).read_text() for name in ("report.html", "report.md"))
    assert page.index('class="answer"') < page.index("<img") < page.index("<table")
    assert re.search('<img[^>]* alt="([^"]*)"', page)[1].startswith("Paired differences in test exact match (points)")
    assert markdown.index("**Answer:**") < markdown.index("![Paired differences") < markdown.index("\n|")
    assert markdown.index("figures/0_differences.svg") < markdown.index("figures/1_")
    assert page.count("Paired differences in") == 1 + 1  # a panel per metric, in the alt text only
    assert "differences.csv" in page
    assert (written / "figures" / "0_differences.pdf").read_bytes().startswith(b"%PDF-")


def test_without_contrasts_nothing_is_drawn_and_old_files_go(tmp_path, written):
    results = collect(*write_workdir(tmp_path / "study"))
    assert list(draw_opening(results, effects(results))) == []
    (tmp_path / "differences.csv").write_text("")
    write_report(results, summarise(results), [], tmp_path)
    assert not (tmp_path / "differences.csv").exists()
    assert "Paired differences in" not in (tmp_path / "report.html").read_text()


def test_a_declared_width_is_a_band(results, found):
    changed = [dataclasses.replace(e, width=2.5 if e.metric == "test/exact_match" else math.nan) for e in found]
    (match, loss), alt = drawn(changed, results)
    (band,) = match.patches
    assert band.get_x() == -2.5
    assert band.get_width() == 5.0
    assert match.get_xlabel().endswith("shaded: within the declared ± 2.5")
    assert not loss.patches
    assert "The declared width is ± 2.5." in alt


def test_a_metric_without_direction_is_a_panel_only_if_it_is_the_first(results, found):
    without = [metric.name for metric in results.study.metrics if metric.direction]
    assert [name for name, _ in forest.panels(found, results)] == without
    metrics = (dataclasses.replace(results.study.metrics[0], direction=""), *results.study.metrics[1:])
    changed = dataclasses.replace(results, study=dataclasses.replace(results.study, metrics=metrics))
    (match, _), alt = drawn(effects(changed), changed)
    assert "◀ post higher" in [text.get_text() for text in match.texts]
    assert "ahead" not in alt.partition("Paired differences in test loss")[0]


def test_of_many_rows_only_the_first_metric_is_shown_and_at_most_40(results, found):
    many = [effect for effect in found for _ in range(10)]
    (panel,), alt = drawn(many, results)
    assert len(dots_of(panel)) == forest.MOST_ROWS == 40
    rows = sum(effect.metric == many[0].metric for effect in many)
    assert f", the first 40 of {rows}, mean" in alt
    assert panel.get_title(loc="left").replace("\n", " ").endswith(f", the first 40 of {rows}")
    (all_shown,), alt = drawn(many[:40], results)
    assert "the first 40" not in alt + all_shown.get_title(loc="left")
    assert "Not shown here: test loss (nats per token)." in alt


def test_a_single_seed_has_no_bar_and_no_values_leave_an_empty_row(results, found):
    own = [effect for effect in found if effect.metric == "test/exact_match"][:2]
    one = dataclasses.replace(own[0], difference=Difference(1.5, math.nan, math.nan, 1), corrected=math.nan)
    none = dataclasses.replace(own[1], difference=Difference(math.nan, math.nan, math.nan, 0))
    (panel,), alt = drawn([one, none], results)
    (marker,) = [line for line in panel.lines if line.get_marker() == "D"]
    assert marker.get_xdata() == [1.5]
    assert "+1.500, undecided" in alt
    assert "needs" not in alt


def test_contrasts_without_conditions_are_rows_of_one_head(tmp_path):
    results = collect(*write_workdir(tmp_path, 'contrasts=("num_heads",),', STUDY))
    (match, _), alt = drawn(effects(results), results)
    labels = [label.get_text().partition("\n")[0] for label in match.get_yticklabels()]
    assert labels == ["num_heads", *(f"{heads} against 1" for heads in (2, 4, 8, 16))]
    assert [text.get_text() for text in match.texts][:2] == ["◀ 1 ahead", "first named ahead ▶"]
    assert "num_heads: 2 against 1: " in alt


def test_an_edited_table_of_differences_is_refused_and_a_missing_one_is_made_again(written, tmp_path):
    folder = shutil.copytree(written, tmp_path / "results")
    file = folder / "differences.csv"
    before = file.read_text()
    file.write_text(before.replace("pre", "post", 1))
    with pytest.raises(DataError, match=r"differences\.csv: does not match its checksum"):
        read_results_folder(folder)
    file.unlink()
    results = collect_results(folder)
    write_report(results, summarise(results), effects(results), folder)
    assert file.read_text() == before


def test_an_interaction_says_who_gains_and_from_where_to_where(tmp_path):
    text = CROSSED.replace('contrasts=("num_heads", "norm")', 'contrasts=(Interaction("norm", "num_heads"),)')
    results = collect(*write_workdir(tmp_path, text=text))
    found = effects(results)
    (match, _), alt = drawn(found, results)
    labels = [" ".join(label.get_text().split()) for label in match.get_yticklabels()]
    own = [effect for effect in found if effect.metric == "test/exact_match"]
    for effect, label in zip(own, labels[1:], strict=True):
        said = f"pre against post, from num_heads 1 to {effect.labels['num_heads']}"
        assert label == f"{said} {interval(*effect.difference[:2], sign=True)}"
        assert f"norm: {said}: {interval(*effect.difference[:2], sign=True)}" in alt
    assert labels[0] == "norm"
    assert [text.get_text() for text in match.texts][:2] == ["◀ post gains", "pre gains ▶"]
