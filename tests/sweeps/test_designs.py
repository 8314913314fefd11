"""Walks, and the last model without one step each."""

import dataclasses
import json
import re

import pytest
from report_support import BASELINE, write_trial
from run_support import run_main
from sweep_support import FakeExecutor

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.contrasts import Contrast
from transformer_jax.sweeps.designs import LeaveOneOut, Step, Walk, joined
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.results import TRIALS, claim_sweep
from transformer_jax.sweeps.search.random import random_search
from transformer_jax.sweeps.search.search import Listed, Space
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, load_study, over
from transformer_jax.sweeps.study_json import declaration_of, declared_study
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import grid, groups

POST, PRE = {"model.norm_position": "post"}, {"model.norm_position": "pre"}
STEPS = (
    Step("2017", POST | {"model.position_encoding": "sinusoidal"}),
    Step("pre", PRE),
    Step("rotary", {"model.position_encoding": "rotary", "optimizer.learning_rate": 1e-3}),
    Step("rate", {"optimizer.learning_rate": 2e-3}),
)


def study(*axes, **fields):
    return Study("?", "language_model", axes, (Metric("valid/loss", "min"),), **{"seeds": (0, 1)} | fields)


def chosen(config):
    return config.model.norm_position, config.model.position_encoding, config.optimizer.learning_rate


def test_every_step_of_a_walk_is_on_top_of_the_one_before():
    found = grid(study(Walk(STEPS)))
    assert found.same == {}
    assert {trial.labels["model"]: chosen(trial.config) for trial in found.trials} == {
        "2017": ("post", "sinusoidal", 3e-3),
        "pre": ("pre", "sinusoidal", 3e-3),
        "rotary": ("pre", "rotary", 1e-3),
        "rate": ("pre", "rotary", 2e-3),
    }
    assert [trial.name for trial in found.trials][:3] == ["model=2017,seed=0", "model=2017,seed=1", "model=pre,seed=0"]
    # Rates and seeds share a program.
    assert [len(group) for group in groups(found.trials)] == [2, 2, 4]


def test_the_last_model_without_one_step_each():
    """Without `rotary`, the rate is that of the later step; without `rate`, that of `rotary`."""
    found = grid(study(LeaveOneOut(STEPS)))
    assert {trial.labels["model"]: chosen(trial.config) for trial in found.trials} == {
        "rate": ("pre", "rotary", 2e-3),
        "without_pre": ("post", "rotary", 2e-3),
        "without_rotary": ("pre", "sinusoidal", 2e-3),
        "without_rate": ("pre", "rotary", 1e-3),
    }


def test_both_are_one_axis_and_share_what_is_the_same():
    both = joined(Walk(STEPS), LeaveOneOut(STEPS))
    assert [*both.values] == ["2017", "pre", "rotary", "rate", "without_pre", "without_rotary"]
    found = grid(study(both))
    assert found.same == {}
    assert len(found.trials) == 6 * 2
    assert study(both).contrasts == tuple(
        Contrast("model", a, b)
        for a, b in [
            *(("pre", "2017"), ("rotary", "pre"), ("rate", "rotary")),
            *(("without_pre", "rate"), ("without_rotary", "rate")),
        ]
    )


def test_contrasts_of_a_study_may_say_more():
    said = Contrast("model", "pre", "2017", says="{a} is easier than {b}")
    assert study(Walk(STEPS[:3]), contrasts=(said,)).contrasts == (said, Contrast("model", "rotary", "pre"))
    named = study(Walk(STEPS[:3]), contrasts=("model",))  # each against the first, which pre has to have anyway
    assert named.contrasts == ("model", Contrast("model", "rotary", "pre"))
    assert dataclasses.replace(named).contrasts == named.contrasts


def test_other_axes_are_conditions():
    """The walk of every size has the conditions that a contrast has in a grid."""
    sizes = over("model.num_decoder_layers", 1, 3, name="depth")
    found = grid(study(sizes, Walk(STEPS), equal_parameters="model.mlp_dim"))
    assert len(found.trials) == 2 * 4 * 2
    sizes_of = {trial.variant: trial.config.model.mlp_dim for trial in found.trials}
    assert set(sizes_of.values()) == {512}  # each depth has its own baseline variant


def test_steps_that_go_together():
    """A model cannot have fewer heads for keys than it has heads, unless they divide them."""
    heads = (
        Step("start", {"model.num_heads": 8}),
        Step("more", {"model.num_heads": 32, "model.head_dim": 4}),
        Step("grouped", {"model.num_kv_heads": 16}),
        Step("rate", {"optimizer.learning_rate": 1e-3}),
    )
    with pytest.raises(ConfigError) as caught:
        grid(study(LeaveOneOut(heads)))
    assert "model=without_more: config: model.num_kv_heads=16" in str(caught.value)
    assert "the step 'more' cannot be left out alone: list in its `drop`" in str(caught.value)
    for drop in ("grouped", "model.num_kv_heads"):
        steps = [Step(s.name, s.overrides, (drop,)) if s.name == "more" else s for s in heads]
        configs = {trial.labels["model"]: trial.config.model for trial in grid(study(LeaveOneOut(steps))).trials}
        assert (configs["without_more"].num_heads, configs["without_more"].num_kv_heads) == (8, 8)
        assert (configs["without_grouped"].num_heads, configs["without_grouped"].num_kv_heads) == (32, 32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Walk(STEPS[:1]), "1 step(s); a walk has at least two"),
        (lambda: Walk((*STEPS, STEPS[1])), "steps: pre twice"),
        (lambda: Walk((*STEPS, Step("again", PRE))), "step 'again' changes nothing: it sets no field to another value"),
        (lambda: Walk((*STEPS, Step("nothing", {}))), "step 'nothing' changes nothing"),
        (
            lambda: grid(study(Walk((*STEPS, Step("default", {"model.use_bias": True}))))),
            "step 'default' changes nothing: default and rate are the same experiment",
        ),
        (
            lambda: LeaveOneOut((STEPS[0], Step("slow", {"optimizer.learning_rate": 1e-4}), *STEPS[2:])),
            "step 'slow' changes nothing in the last model: later steps set its fields anew",
        ),
        (
            lambda: LeaveOneOut((STEPS[0], Step("x", {"model.num_heads": 2}, ("rotry",)), *STEPS[1:])),
            "step 'x': drop: no later step has the name or sets the field 'rotry' (did you mean 'rotary'?)",
        ),
        (lambda: Walk((STEPS[0], Step("a b", PRE))), "axis 'model': 'a b' is not a name"),
        (lambda: study(Walk(STEPS, "step")), "axis 'step': reports have a column of this name"),
        (lambda: joined(Walk(STEPS), LeaveOneOut(STEPS, "less")), "the designs have the names 'model' and 'less'"),
        (
            lambda: joined(Walk(STEPS), LeaveOneOut((STEPS[0], Step("rate", PRE)))),
            "joined: 'rate' is the name of two values",
        ),
        (lambda: study(Walk((STEPS[0], Step("s", {"seed": 3})))), "cannot set the seed"),
        (
            lambda: random_search(Space(study(Walk(STEPS)), {}), 3, 0),
            "axis 'model' is a walk or leaves steps out: its steps are compared with each other",
        ),
        (
            lambda: grid(study(Walk(STEPS), Range("model.dropout_rate", 0.0, 0.5))),
            "model.dropout_rate is a range",
        ),
        (
            lambda: grid(study(Walk(STEPS)), {"model.norm_position": "pre"}),
            "--config.model.norm_position: has no effect: the axis 'model' sets it in every variant",
        ),
    ],
    ids=range(15),
)
def test_bad_designs(make, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make()


def test_the_declaration_has_the_design(tmp_path):
    of = study(joined(Walk(STEPS), LeaveOneOut(STEPS)), Axis("d", {"a": {}, "b": {"model.dropout_rate": 0.1}}))
    again = declared_study(json.loads(json.dumps(declaration_of(of))), tmp_path)
    assert (again.axes, again.contrasts) == (of.axes, of.contrasts)


TEXT = """
from transformer_jax.sweeps.designs import LeaveOneOut, Step, Walk, joined
from transformer_jax.sweeps.study import Metric, Study

STEPS = (
    Step("base", {}),
    Step("narrow", {"model.num_heads": 1}),
    Step("pre", {"model.norm_position": "pre"}),
)
STUDY = Study(
    question="?",
    baseline="tiny.py",
    axes=(joined(Walk(STEPS), LeaveOneOut(STEPS)),),
    metrics=(Metric("test/loss"), Metric("test/exact_match")),
)
"""


def write(tmp_path):
    folder = tmp_path / "experiments" / "walk"
    folder.mkdir(parents=True)
    (tmp_path / "tiny.py").write_text(BASELINE)
    (folder / "study.py").write_text(TEXT)
    return folder, tmp_path / "runs"


def test_the_report_has_a_contrast_per_step(tmp_path, capsys):
    folder, workdir = write(tmp_path)
    of = load_study(folder)
    claim_sweep(workdir, folder, declaration_of(of))
    for trial in grid(of, {"data.cache_dir": str(workdir / "token_cache")}).trials:
        index = ["base", "narrow", "pre", "without_narrow"].index(trial.labels["model"])
        write_trial(trial, of.metrics, workdir / TRIALS / trial.name, index)
    results = collect(workdir)
    found = {effect.name: effect.difference.mean for effect in effects(results) if effect.metric == "test/loss"}
    assert [*found] == ["model: narrow minus base", "model: pre minus narrow", "model: without_narrow minus pre"]
    losses = {v.labels["model"]: sum(v.values("test/loss").values()) / 3 for v in results.variants}
    for name, difference in found.items():
        a, _, b = name.removeprefix("model: ").partition(" minus ")
        assert difference == pytest.approx(losses[a] - losses[b])
    assert run_main(["report", f"--workdir={workdir}"]) == 0
    assert (workdir / "report" / "contrasts.csv").read_text().startswith("model,axis,against,metric")
    assert (workdir / "report" / "results.csv").read_text().startswith("model,seed,status")
    assert "model: pre minus narrow" in capsys.readouterr().out


def test_a_walk_is_swept_and_goes_on(tmp_path):
    trials = grid(study(Walk(STEPS))).trials
    executor = FakeExecutor()
    assert Sweep(Listed(trials), study(Walk(STEPS)).metrics, tmp_path, executor).run(lambda standings: None)
    assert executor.started == [trial.name for trial in trials]
    (tmp_path / TRIALS / "model=rotary,seed=1" / "result.json").unlink()
    again = FakeExecutor()
    assert Sweep(Listed(trials), study(Walk(STEPS)).metrics, tmp_path, again).run(lambda standings: None)
    assert again.started == ["model=rotary,seed=1"]
