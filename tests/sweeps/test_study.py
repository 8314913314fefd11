"""Studies: their files, and the errors in them."""

import json
import sys
from pathlib import Path
from unittest import mock

import pytest

from transformer_jax import builtin
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, load_study, over, zipped
from transformer_jax.sweeps.trials import grid
from transformer_jax.tasks.task import TASKS

TRANSLATION = TASKS["translation"]
HEADS = over("model.num_heads", 1, 2, 4)
SCORE = Metric("test/sacrebleu", "max")


def study(**fields):
    return Study(
        **{"question": "Why?", "baseline": "configs/quickstart.py", "axes": (HEADS,), "metrics": (SCORE,)} | fields
    )


def for_translation(*metrics, **fields):
    return study(metrics=metrics, **fields).for_task(TRANSLATION)


def test_a_metric_has_the_direction_that_its_task_declares():
    names = ("test/chrf", "test/loss", "test/unfinished", "test/over_length", "train/nll", "train/gradient_norm")
    found = for_translation(*map(Metric, names)).metrics
    assert [metric.direction for metric in found] == ["max", "min", "min", "", "min", ""]
    assert (
        for_translation(Metric("train/gradient_norm", "min")).metrics[0].direction == "min"
    )  # no direction is declared


def test_a_study_s_own_metric_keeps_its_direction():
    own = (Metric("test/loss", "min"), Metric("shuffled/loss", "max"), Metric("shuffled/accuracy"))
    measured = study(metrics=own, measure=lambda scorer: {})
    assert measured.for_task(TRANSLATION, ("train", "test")).metrics == own


def test_an_axis_of_a_field_names_its_values_as_they_are_written():
    assert Axis("num_heads", {str(n): {"model.num_heads": n} for n in (1, 2, 4)}) == HEADS
    rates = over("optimizer.learning_rate", 1e-3, 0.5, name="rate")
    assert (rates.name, list(rates.values)) == ("rate", ["0.001", "0.5"])


def test_zipped_axes_vary_together():
    widths = over("model.emb_dim", 64, 128)
    together = zipped(widths, over("model.mlp_dim", 256, 512))
    assert together.name == "emb_dim_mlp_dim"
    assert together.values == {
        "64_256": {"model.emb_dim": 64, "model.mlp_dim": 256},
        "128_512": {"model.emb_dim": 128, "model.mlp_dim": 512},
    }
    with pytest.raises(ConfigError, match=r"equally many values, but have {'emb_dim': 2, 'num_heads': 3}"):
        zipped(widths, HEADS)
    with pytest.raises(ConfigError, match=r"'64_1': 'model.emb_dim' is set to 64 and to 1"):
        zipped(widths, over("model.emb_dim", 1, 2, name="other"))


def test_the_first_values_are_the_reference():
    axes = (HEADS, over("model.norm_position", "post", "pre"))
    assert study(axes=axes).reference_variant == {"num_heads": "1", "norm_position": "post"}
    assert study(axes=axes, reference={"num_heads": "4"}).reference_variant["num_heads"] == "4"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: over("model.num_heads", 1), "axis 'num_heads': 1 value"),
        (lambda: Axis("a b", {"x": {}, "y": {}}), "'a b' is not a name"),
        (lambda: Axis("a", {"x/y": {}, "y": {}}), "'x/y' is not a name"),
        (lambda: Range("optimizer.learning_rat", 0.1, 1), "no field 'optimizer.learning_rat' .did you mean 'opt"),
        (lambda: Range("optimizer.learning_rate", 1, 0.1), "from 1 to 0.1"),
        (lambda: Range("model.norm_position", 0, 1), "range of 'model.norm_position': the field is not a number"),
        (lambda: Range("model.use_bias", 0, 1), "the field is not a number"),
        (lambda: Range("model.num_heads", 1.5, 4), "from 1.5 to 4, but the field is an integer"),
        (lambda: Range("optimizer.learning_rate", 0, 1, log=True), "log needs a low end above 0"),
        (lambda: Metric("sacrebleu", "max"), "expected SPLIT/METRIC"),
        (lambda: Metric("test/sacrebleu", "up"), "'max', 'min' or nothing"),
        (
            lambda: for_translation(Metric("test/tokens")),
            "metric 'test/tokens' is the study's first",
        ),
        (lambda: for_translation(Metric("test/loss", "max")), "'test/loss', 'max': the task declares it as 'min'"),
        (lambda: for_translation(Metric("train/nll", "max")), "'train/nll', 'max': the task declares it as 'min'"),
        (lambda: study(contrasts=("heads",)), "contrasts: no axis with named values 'heads'"),
        (lambda: study(contrasts=("num_heads", "num_heads")), "contrasts: num_heads twice"),
        (lambda: study(axes=()), "at least one axis"),
        (lambda: study(axes=(over("model.num_heads", 1, 2, name="steps"),)), "axis 'steps': reports have a column"),
        (lambda: study(axes=(over("model.num_heads", 1, 2, name="p_value"),)), "axis 'p_value': reports have a column"),
        (lambda: study(metrics=()), "at least one axis, one metric"),
        (lambda: study(seeds=()), "and one seed"),
        (lambda: study(seeds=(0, 1, 0)), "seeds: 0 twice"),
        (lambda: study(axes=(HEADS, HEADS)), "axes: num_heads twice"),
        (
            lambda: study(axes=(over("model.num_head", 1, 2),)),
            "axis 'num_head', '1': no field 'model.num_head'",
        ),
        (lambda: study(axes=(over("seed", 1, 2),)), "list the seeds in `seeds`"),
        (lambda: study(settings={"seed": 3}), "settings: cannot set the seed"),
        (
            lambda: for_translation(Metric("test/sacrblue", "max")),
            "'test/sacrblue': 'test' has the metrics .*sacrebleu'",
        ),
        (lambda: for_translation(Metric("train/chrf", "max")), "'train/chrf': 'train' has the metrics loss, nll"),
        (lambda: over("optimizer.learning_rate", 1e-3, 0.001), "axis 'learning_rate': '0.001' is the name of two"),
        (lambda: study(settings={"training.steps": 3}), "settings: no field 'training.steps'"),
        (lambda: study(reference={"heads": "1"}), "reference: no axis 'heads'"),
        (lambda: study(reference={"num_heads": "3"}), "reference: axis 'num_heads' has no value '3'"),
    ],
)
def test_wrong_studies_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_metrics_that_this_corpus_does_not_have():
    def check(name, **fields):
        study(metrics=(Metric(name),), **fields).for_task(TRANSLATION, ("train", "valid", "test"))

    check("test/loss")
    check("train/nll")
    with pytest.raises(ConfigError, match="metric 'start/entropy' is the study's first"):
        check("start/entropy", measure=lambda scorer: {})
    with pytest.raises(ConfigError, match=r"'tset/loss': the corpus has no split 'tset' to score, only valid, test "):
        check("tset/loss")
    with pytest.raises(ConfigError, match=r"'test/exact_mach': 'test' has the metrics .*did you mean 'exact_match'"):
        check("test/exact_mach", measure=lambda scorer: {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("STUDY = 3\n", "does not define STUDY"),
        ("\nimport nothing_of_this_name\n", "No module named .* .line 2"),
        ("from transformer_jax.sweeps.study import over\nover('model.num_heads', 1)\n", "1 value"),
        ("def\n", "study.py"),
    ],
)
def test_files_that_are_not_a_study(tmp_path, text, message):
    folder = tmp_path / "experiments" / "heads"
    folder.mkdir(parents=True)
    (folder / "study.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_study(folder)


def test_a_missing_study():
    with pytest.raises(ConfigError, match=r"there are .*positions.* .did you mean 'positions'\?"):
        load_study(Path(__file__).parent.parent.parent / "experiments" / "postions")


OWN = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study("?", BASELINE, (over("model.num_heads", 1, 2),), (Metric("test/loss"),))
"""


def own_study(folder, baseline):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.py").write_text(OWN.replace("BASELINE", repr(baseline)))
    return load_study(folder)


def test_a_baseline_is_looked_for_beside_the_study_then_around_it_then_among_those_built_in(tmp_path, monkeypatch):
    here, study_folder = tmp_path / "here", tmp_path / "experiments" / "mine"
    here.mkdir()
    monkeypatch.chdir(here)
    found = own_study(study_folder, "quickstart")
    assert found.find_baseline() == str(builtin.configs()["quickstart"])
    found = own_study(study_folder, "configs/wmt14.py:big")
    assert found.find_baseline() == f"{builtin.root() / 'configs' / 'wmt14.py'}:big"
    found = own_study(study_folder, "base.py:wide")
    with pytest.raises(ConfigError) as raised:
        grid(found)
    assert f"neither in {study_folder} nor in {tmp_path} nor in {here}, nor among the built-in" in str(raised.value)
    for folder in (here, tmp_path, study_folder):
        (folder / "base.py").write_text("")
        assert found.find_baseline() == f"{folder / 'base.py'}:wide"


def test_a_study_in_any_folder(tmp_path):
    config = {"model": {"emb_dim": 32, "mlp_dim": 64}}
    (tmp_path / "base.json").write_text(json.dumps(config))
    found = own_study(tmp_path, "base.json")
    assert [trial.config.model.num_heads for trial in grid(found).trials] == [1, 1, 1, 2, 2, 2]
    assert {trial.config.model.emb_dim for trial in grid(found).trials} == {32}


def test_a_study_within_the_folder_of_another_has_its_modules_and_its_baseline(tmp_path, monkeypatch):
    outer = tmp_path / "experiments" / "mine"
    inner = outer / "longer"
    inner.mkdir(parents=True)
    for folder in (outer.parent, outer, inner):
        (folder / "__init__.py").write_text("")
    (tmp_path / "base.json").write_text(json.dumps({"model": {"emb_dim": 32, "mlp_dim": 64}}))
    (outer / "sizes.py").write_text("HEADS = (1, 4)\n")
    (inner / "study.py").write_text(
        "from experiments.mine.sizes import HEADS\n"
        + OWN.replace("BASELINE", "'base.json'").replace('"model.num_heads", 1, 2', '"model.num_heads", *HEADS')
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    with mock.patch.dict(sys.modules):
        found = load_study(inner)
    assert list(found.axes[0].values) == ["1", "4"]
    assert found.find_baseline() == str(tmp_path / "base.json")
