"""A study that is asked of another config than its own baseline."""

import dataclasses
import json

import pytest
from run_support import run_main

from transformer_jax import builtin
from transformer_jax.data.sources import load_source
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.figures import Curves, CustomFigure, MetricByAxis, MetricByBin, MetricByVariant
from transformer_jax.sweeps.rebased_study import read_baseline, with_baseline
from transformer_jax.sweeps.report.collect import _recorded_study
from transformer_jax.sweeps.results import STUDY, claim_sweep
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, load_study, over
from transformer_jax.sweeps.study_json import declaration_of, declared_study, with_code
from transformer_jax.sweeps.trials import grid

DEPTHS = over("model.num_encoder_layers", 1, 2)
HEADS = over("model.num_heads", 1, 2)


def adapted(study, spec="language_model", **overrides):
    config = read_baseline(spec, overrides)
    return with_baseline(study, spec, config, load_source(config.data).split_names)


def study(**fields):
    given = {"axes": (HEADS,), "metrics": (Metric("test/sacrebleu"), Metric("test/loss"))}
    return Study(**{"question": "?", "baseline": "quickstart", **given, **fields})


@pytest.mark.parametrize(("name", "variants"), [("norm_placement", 8), ("num_heads", 9)])
def test_a_study_of_encoder_decoders_asks_a_language_model(name, variants):
    code = load_study(builtin.studies()[name])
    found, notes = adapted(code)
    assert found.baseline == "language_model"
    assert [metric.name for metric in found.metrics if metric.direction] == ["test/loss"]
    assert notes[-1] == "left out: metrics test/sacrebleu, test/exact_match"
    trials = grid(found, {"training.num_train_steps": "9000"}).trials
    assert len({trial.variant for trial in trials}) == variants
    assert {trial.config.model.architecture for trial in trials} == {"decoder_only"}
    assert {trial.config.training.num_train_steps for trial in trials} == {9000}
    assert not [figure for figure in found.figures if "exact_match" in str(figure) or "bleu" in str(figure)]


def test_fields_axes_and_figures_that_the_config_lacks_are_left_out():
    both = Axis("depth", {n: {"model.num_encoder_layers": n, "model.num_decoder_layers": n} for n in ("1", "2")})
    drawn = CustomFigure(lambda axes, results: None, "Own", "A figure.")
    figures = (
        *(MetricByVariant("test/sacrebleu"), MetricByVariant("test/loss"), MetricByAxis("test/loss", x="num_heads")),
        *(MetricByAxis("test/loss", x="num_encoder_layers"), MetricByBin("test[*]/sacrebleu"), Curves("valid/loss")),
        *(Curves("valid/exact_match"), MetricByVariant("test/chrf")),
    )
    given = study(
        axes=(HEADS, DEPTHS, dataclasses.replace(both, name="both")),
        settings={"model.num_encoder_layers": 2, "training.log_every_steps": 7},
        reference={"num_encoder_layers": "2", "num_heads": "2"},
        contrasts=("num_encoder_layers", "both"),
        figures=(*figures, drawn),
    )
    found, notes = adapted(given)
    assert [axis.name for axis in found.axes] == ["num_heads", "both"]
    assert found.axes[1].values == {n: {"model.num_decoder_layers": n} for n in ("1", "2")}
    assert found.settings == {"training.log_every_steps": 7}
    assert (found.reference, found.contrasts) == ({"num_heads": "2"}, ("both",))
    assert found.figures == (*figures[1:3], Curves("valid/loss"), drawn)
    assert notes == [
        *("left out: fields model.num_encoder_layers", "left out: axes num_encoder_layers"),
        "left out: metrics test/sacrebleu",
    ]


def test_a_field_stays_if_the_study_makes_the_choice_that_reads_it():
    widths = over("data.num_buckets", 4, 6)
    assert adapted(study(axes=(widths,), settings={"data.batching": "buckets"})).study.axes == (widths,)
    with pytest.raises(ConfigError, match=r"is left: the config does not read data\.num_buckets"):
        adapted(study(axes=(widths,)))


def test_sizes_stay_equal_if_the_config_reads_a_field_of_them():
    found, notes = adapted(study(equal_parameters=("model.hidden_dim", "model.mlp_dim")))
    assert found.equal_sizes.fields == ("model.hidden_dim", "model.mlp_dim")
    assert not [note for note in notes if "equal_parameters" in note]
    found, notes = adapted(study(equal_parameters="model.hidden_dim"))
    assert found.equal_sizes is None
    assert "left out: equal_parameters of model.hidden_dim" in notes


def test_a_study_of_translations_alone_ranks_by_the_loss():
    found, _ = adapted(study(metrics=(Metric("test/sacrebleu"), Metric("test/over_length"))))
    assert [(metric.name, metric.direction) for metric in found.metrics] == [("valid/loss", "min")]


@pytest.mark.parametrize("axis", [DEPTHS, Range("model.num_encoder_layers", 1, 3)])
def test_no_axis_is_left(axis):
    with pytest.raises(ConfigError, match=r"--config=language_model: no axis of the study is left: .*num_encoder_la"):
        adapted(study(axes=(axis,)))


def test_the_report_of_another_baseline_needs_no_config(tmp_path):
    folder = builtin.studies()["num_heads"]
    found, _ = adapted(load_study(folder))
    claim_sweep(tmp_path, folder, declaration_of(found), found.baseline)
    record = json.loads((tmp_path / STUDY).read_text())
    again, place, _ = _recorded_study(tmp_path, record)
    assert (again, place) == (found, folder)
    for other in (None, "wikitext2"):
        with pytest.raises(ConfigError, match="was started with --config=language_model; give the same"):
            claim_sweep(tmp_path, folder, declaration_of(found), other)


def test_what_the_study_does_not_show_is_about_its_own_baseline():
    assert adapted(study(not_shown="longer trainings.")).study.not_shown == ""


def test_the_functions_of_a_recorded_study_are_those_of_its_code(tmp_path):
    drawn = CustomFigure(lambda axes, results: None, "Own", "A figure.")
    code = study(measure=lambda scorer: {}, figures=(Curves("valid/loss"), drawn))
    recorded = declared_study(declaration_of(adapted(code).study), tmp_path)
    assert with_code(recorded, code) == adapted(code).study


def test_a_config_file_is_recorded_with_its_folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text((builtin.configs()["language_model"]).read_text())
    monkeypatch.chdir(tmp_path)
    assert adapted(study(), "own.py").study.baseline == str(tmp_path / "own.py")


def test_a_config_that_does_not_exist(tmp_path, capsys):
    command = ["sweep", "--study=num_heads", f"--workdir={tmp_path / 'w'}", "--config=languagemodel"]
    assert run_main(command) == 2
    assert "languagemodel: neither in" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("name", ["decoding", "positions"])
def test_a_study_whose_measure_needs_another_task_is_refused(name):
    with pytest.raises(ConfigError, match=r"the study measures task\.name='translation', not 'language_model'"):
        adapted(load_study(builtin.studies()[name]))
