"""Curves by layer: every line has the means of its layer, and colours go from the first layer to the last."""

import dataclasses

import matplotlib
import pytest
from matplotlib.figure import Figure
from report_support import write_workdir

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import CurvesByLayer
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import _rc, default_figures, draw_figures
from transformer_jax.sweeps.report.layer_curves import layer_curves
from transformer_jax.sweeps.study_json import declaration_of, declared_study

FIGURE = CurvesByLayer("monitor/stream_rms_decoder_*")
LAYERS = (0, 2, 10)  # in the order of their numbers, not of their names
STEPS = (20, 40)


def value(variant, seed, layer, step):
    return 1.0 + variant + 0.1 * seed + 0.5 * layer + step / 100


def monitored(results, variants=2):
    """Return results whose trials have logged a value of three layers; one trial of the second variant has diverged."""
    made = []
    for at, variant in enumerate(results.variants[1 : 1 + variants]):
        trials = []
        for trial in variant.trials:
            lines = [
                {"step": step, "split": "monitor"}
                | {f"stream_rms_decoder_{layer}": value(at, trial.trial.seed, layer, step) for layer in LAYERS}
                | {"update_ratio_embedding": 0.1}
                for step in STEPS
            ]
            trials.append(dataclasses.replace(trial, recorded_lines=[*trial.log_lines, *lines]))
        made.append(dataclasses.replace(variant, trials=tuple(trials)))
    return dataclasses.replace(results, variants=tuple(made))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return collect(*write_workdir(tmp_path_factory.mktemp("study")))


def drawn(results, figure=FIGURE):
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_rc(results.style))
        canvas = Figure(figsize=(5.2, 3.2), layout="constrained")
        alt = layer_curves(figure, canvas.subplots(), results)
        canvas.draw_without_rendering()
    *panels, scale = canvas.axes
    return panels, scale, alt


def test_lines_are_means_of_the_finished_seeds(results):
    panels, scale, alt = drawn(monitored(results))
    assert [panel.get_title(loc="left") for panel in panels] == ["num_heads 2", "num_heads 4 (1 of 3 diverged)"]
    for at, (panel, seeds) in enumerate(zip(panels, ((0, 1, 2), (0, 2)), strict=True)):
        assert len(panel.lines) == len(LAYERS)
        for layer, line in zip(LAYERS, panel.lines, strict=True):
            assert line.get_xdata().tolist() == list(STEPS)
            means = [sum(value(at, seed, layer, step) for seed in seeds) / len(seeds) for step in STEPS]
            assert line.get_ydata() == pytest.approx(means)
    colours = [[line.get_color() for line in panel.lines] for panel in panels]
    assert colours[0] == colours[1]
    assert len(set(colours[0])) == len(LAYERS)
    assert [label.get_text() for label in scale.get_yticklabels()] == ["0", "2", "10"]
    assert "num_heads 2: layer 0, 1.500; layer 10, 6.500." in alt
    assert alt.startswith("monitor stream rms decoder against the step, a line for each layer, of 2 variants")


def test_a_variant_whose_seeds_have_all_diverged_shows_them(results):
    given = monitored(results)
    lost = dataclasses.replace(given.variants[1], trials=given.variants[1].trials[1:2])
    assert [trial.status for trial in lost.trials] == ["diverged"]
    panels, _, _ = drawn(dataclasses.replace(given, variants=(lost,)))
    assert panels[0].lines[0].get_ydata() == pytest.approx([value(1, 1, 0, step) for step in STEPS])


def test_a_study_without_figures_shows_the_outputs_of_its_layers(results):
    assert default_figures(monitored(results))[2:] == (FIGURE,)
    assert len(default_figures(results)) == 2


def test_a_figure_without_values_is_refused(results):
    study = dataclasses.replace(results.study, figures=(FIGURE,))
    message = r"no trial has logged 'monitor/stream_rms_decoder_\*'; set training\.monitor_every_steps"
    with pytest.raises(ConfigError, match=message):
        list(draw_figures(dataclasses.replace(results, study=study)))


def test_a_figure_is_recorded_with_its_study(results, tmp_path):
    study = dataclasses.replace(results.study, figures=(dataclasses.replace(FIGURE, title="Sizes", log_y=True),))
    assert declared_study(declaration_of(study), tmp_path).figures == study.figures
    [figure] = draw_figures(dataclasses.replace(monitored(results), study=study))
    assert (figure.title, figure.file) == ("Sizes", "1_sizes.svg")


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        ("monitor/stream_rms_decoder_0", r"expected one '\*' in place of the layer"),
        ("stream_rms_*", "expected SPLIT/NAME"),
    ],
)
def test_bad_quantities(quantity, message):
    with pytest.raises(ConfigError, match=message):
        CurvesByLayer(quantity)
