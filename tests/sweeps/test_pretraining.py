"""Studies with a pretraining: trials start from checkpoints of another study, which the same sweep trains first."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from run_support import metric_lines, run_main, write_corpus

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.results import RESULT, TRIALS, read_result
from transformer_jax.sweeps.study import Axis, Metric, Range, Study, over
from transformer_jax.sweeps.study_json import declaration_of, declared_study
from transformer_jax.sweeps.trials import PRETRAINING, grid, groups
from transformer_jax.sweeps.worker import run_config
from transformer_jax.tasks.flops import training_operations

NORM = over("model.norm_position", "pre", "post", name="norm")
START = Axis("start", {"scratch": {"training.new_parameters": True}, "pretrained": {}})
RATE = Range("optimizer.learning_rate", 0.1, 1.0)
TWICE = Axis("norm", {"a": {}, "b": {}, "c": {"model.num_heads": 2}})
METRICS = (Metric("test/loss", "min"),)


def first(*axes, **fields):
    return Study("First?", "configs/quickstart.py", axes or (NORM,), METRICS, **fields)


def study(*axes, **fields):
    return Study(
        "Second?", "configs/quickstart.py", axes or (NORM, START), METRICS, **{"pretraining": first()} | fields
    )


def equal_twice():
    """Return a pretraining with equal operations, of which two variants are the same."""
    return dataclasses.replace(first(TWICE), baseline="configs/masked_lm.py:wikitext2", equal_flops=True)


def test_a_trial_starts_from_the_trial_of_its_values_and_its_seed():
    found = grid(study()).trials
    assert len(found) == 2 * 2 * 3
    for trial in found:
        path = f"pretraining/trials/norm={trial.labels['norm']},seed={trial.seed}"
        assert trial.starts_from == trial.config.training.init_from == path
        assert run_config(Path("w/trials/t"), trial).training.init_from == f"w/{path}"
        assert trial.config.training.new_parameters == (trial.labels["start"] == "scratch")
    assert {trial.starts_from.rpartition("/")[2] for trial in found} == {t.name for t in grid(first()).trials}


def test_variants_may_differ_in_their_pretraining_alone():
    rates = {"low": {}, "high": {}}
    before = first(Axis("rate", {"low": {}, "high": {"model.dropout_rate": 0.4}}))
    found = grid(study(Axis("rate", rates), pretraining=before))
    assert found.same == {}
    assert len(found.trials) == 6
    # The seeds train as one program; another variant of the pretraining may have another tokenizer.
    assert [len(group) for group in groups(found.trials)] == [3, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: study(pretraining=first(seeds=(0, 1))), r"has the seeds \(0, 1\), and the study \(0, 1, 2\)"),
        (lambda: study(START), "pretraining: the study has no axis 'norm'"),
        (
            lambda: study(Axis("norm", {"pre": {}, "pos": {}})),
            "axis 'norm' has the values pre, post, and that of the study pre, pos",
        ),
        (lambda: study(pretraining=study()), "cannot have a pretraining of its own"),
        (lambda: study(pretraining=first(measure=lambda scorer: {})), "nor `measure`"),
        (lambda: study(settings={"training.init_from": "runs/x"}), r"training\.init_from: cannot be set in a study"),
        (
            lambda: study(RATE, NORM, pretraining=first(RATE)),
            "'learning_rate' is a range; use an Axis",
        ),
        (lambda: grid(study(), {"training.init_from": "runs/x"}), r"--config\.training\.init_from: has no effect"),
        (
            lambda: grid(study(TWICE, pretraining=first(TWICE))),
            "the same experiment twice: norm=b and norm=a; leave",
        ),
        (
            lambda: grid(study(TWICE, pretraining=equal_twice())),
            "the same experiment twice: norm=b and norm=a; leave",
        ),
        (lambda: first(RATE, equal_flops=True), "equal_flops: the range 'optimizer.learning_rate'"),
        (
            lambda: first(over("training.num_train_steps", 5000, 6000), equal_flops=True),
            "equal_flops: axis 'num_train_steps' cannot set training.num_train_steps",
        ),
        (
            lambda: grid(first(equal_flops=True, settings={"training.init_from": "runs/x"})),
            r"norm=post: training\.init_from=runs/x: .*'buckets' depend on the tokenizer of a checkpoint",
        ),
    ],
)
def test_bad_studies(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_trials_of_equal_operations():
    """The steps of the reference are those of its config; the others have as many as cost the same, to half a step."""
    widths = {"wide": {"model.emb_dim": 128}, "narrow": {"model.emb_dim": 64}, "deep": {"model.num_encoder_layers": 9}}
    settings = {"training.num_train_steps": 300, "optimizer.warmup_steps": 10}
    windows = Study("?", "configs/masked_lm.py:wikitext2", (Axis("size", widths),), METRICS, settings=settings)
    equal = dataclasses.replace(windows, equal_flops=True)
    for overrides, of_reference in ({}, 300), ({"training.num_train_steps": "500"}, 500):
        found = {trial.labels["size"]: trial.config for trial in grid(equal, overrides).trials}
        assert found["wide"].training.num_train_steps == of_reference
        assert found["wide"].optimizer.decay_steps == of_reference
        budget = training_operations(found["wide"])
        for config in found.values():
            steps = config.training.num_train_steps
            assert config.optimizer.decay_steps == steps
            assert abs(training_operations(config) - budget) <= 0.5 * training_operations(config) / steps
        assert found["narrow"].training.num_train_steps > of_reference > found["deep"].training.num_train_steps
    assert {trial.config.training.num_train_steps for trial in grid(windows).trials} == {300}


BUDGETS = Axis("budget", {"steps": {}, "flops": {}})


def test_equal_operations_of_some_variants(tmp_path):
    """The reference has equal operations under both budgets: it is compared under both, and trained once."""
    patches = Axis("patch", {str(n): {"model.patch_size": n, "data.rows_per_batch": 8 * n * n} for n in (4, 7, 14)})
    settings = {"training.num_train_steps": 300, "optimizer.warmup_steps": 10}
    metrics = (Metric("test/accuracy"),)
    mixed = Study("?", "images", (patches, BUDGETS), metrics, settings=settings, equal_flops={"budget": "flops"})
    trials, same = grid(mixed)
    assert same == {}
    found = {(trial.labels["patch"], trial.labels["budget"]): trial for trial in trials if trial.seed == 0}
    assert len(found) == 6
    assert {found[patch, "steps"].config.training.num_train_steps for patch in patches.values} == {300}
    budget = training_operations(found["4", "steps"].config)
    for patch in patches.values:
        config = found[patch, "flops"].config
        steps = config.training.num_train_steps
        assert abs(training_operations(config) - budget) <= 0.5 * training_operations(config) / steps
        assert (steps == 300) == (patch == "4")
        assert found[patch, "flops"].trained_by == ("patch=4,budget=steps,seed=0" if patch == "4" else None)
    again = declared_study(json.loads(json.dumps(declaration_of(mixed))), tmp_path)
    assert again.equal_flops == {"budget": "flops"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"budgets": "flops"}, "equal_flops: no axis 'budgets' (did you mean 'budget'?)"),
        ({"budget": "flop"}, "equal_flops: axis 'budget' has no value 'flop' (did you mean 'flops'?)"),
    ],
)
def test_equal_operations_of_variants_that_do_not_exist(where, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        Study("?", "images", (NORM, BUDGETS), METRICS, equal_flops=where)


def test_the_declaration_has_the_pretraining(tmp_path):
    values = json.loads(json.dumps(declaration_of(study(pretraining=first(equal_flops=False)))))
    again = declared_study(values, tmp_path)
    assert declaration_of(again) == values
    assert again.pretraining.axes == (NORM,)


TEXT = """
from transformer_jax.sweeps.study import Axis, Metric, Study, over

NORM = over("model.norm_position", "pre", "post", name="norm")
STUDY = Study(
    question="?",
    baseline="tiny.py",
    axes=(NORM, Axis("start", {"scratch": {"training.new_parameters": True}, "pretrained": {}})),
    metrics=(Metric("test/loss"),),
    seeds=(0, 1),
    contrasts=("start",),
    pretraining=Study("Before?", "tiny.py", (NORM,), (Metric("valid/loss"),), seeds=(0, 1)),
)
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return the folder of a study and the work directory of its sweep."""
    folder = write_corpus(tmp_path_factory.mktemp("study"))
    (folder / "study.py").write_text(TEXT)
    assert run_main(command(folder)) == 0
    return folder, folder / "runs"


def command(folder, *flags):
    where = [f"--study={folder}", f"--workdir={folder / 'runs'}", "--executor=vmap"]
    data = [f"--{prefix}.data.dir={folder}" for prefix in ("config", "pretraining")]
    return ["sweep", *where, *data, "--pretraining.training.num_train_steps=6", *flags]


@pytest.mark.slow
def test_a_sweep_trains_the_pretraining_first_and_then_what_starts_from_it(swept, tmp_path):
    folder, workdir = swept
    before = workdir / PRETRAINING / TRIALS
    assert {path.name for path in before.iterdir()} == {f"norm={n},seed={s}" for n in ("pre", "post") for s in (0, 1)}
    for path in before.iterdir():
        assert read_result(path).steps == 6
        assert "valid/loss" in read_result(path).metrics
    place = workdir / TRIALS / "norm=post,start=pretrained,seed=1"
    # It is the run that the same config makes from the same checkpoint.
    fields = {"model.norm_position": "post", "seed": 1, "training.init_from": before / "norm=post,seed=1"}
    of_hand = [f"--config.{name}={value}" for name, value in (fields | {"data.dir": folder}).items()]
    assert run_main(["train", f"--config={folder / 'tiny.py'}", f"--workdir={tmp_path}", *of_hand]) == 0
    ours, theirs = metric_lines(place), metric_lines(tmp_path)
    assert [line["step"] for line in ours] == [line["step"] for line in theirs]
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], rel=1e-4)
    scratch = workdir / TRIALS / "norm=post,start=scratch,seed=1"
    assert metric_lines(scratch)[0]["loss"] > ours[0]["loss"] + 0.1


@pytest.mark.slow
def test_the_same_command_again_trains_what_is_missing(swept):
    folder, workdir = swept
    results = sorted(workdir.rglob(RESULT))
    [gone, *kept] = [path for path in results if "start=scratch" in str(path)]
    times = {path: path.stat().st_mtime_ns for path in results if path != gone}
    gone.unlink()
    assert run_main(command(folder)) == 0
    assert gone.exists()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert kept
    assert run_main(command(folder, "--pretraining.optimizer.learning_rate=0.5")) == 2


@pytest.mark.slow
def test_reports_of_the_study_and_of_its_pretraining(swept, capsys):
    folder, workdir = swept
    for place, question in ((workdir, "# ?\n"), (workdir / PRETRAINING, "# Before?\n")):
        assert run_main(["report", f"--workdir={place}", f"--study={folder}"]) == 0
        text = (place / "report" / "report.md").read_text()
        assert text.startswith(question)
        assert re.search(r"^transformer-jax sweep .*--pretraining\.training\.num_train_steps=6", text, re.M)
        assert "--config.training.num_train_steps" not in text
        assert run_main(["report", f"--workdir={place}"]) == 0  # from the declarations alone
        report = {path: path.read_bytes() for path in (place / "report").rglob("*") if path.is_file()}
        assert run_main(["report", f"--results={place / 'report'}"]) == 0
        assert {path: path.read_bytes() for path in report} == report
        assert (place / "report" / "pretraining.csv").exists() == (place == workdir)
    assert "| start: pretrained minus scratch | pre |" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_measures_both_stages(swept, capsys):
    folder, _ = swept
    assert run_main([*command(folder), "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert "4 trials of 2 variants, 4 of them trained" in out
    assert "8 trials of 4 variants, 8 of them trained" in out
    assert out.index("these trials are the pretraining") < out.index("8 trials")


def test_overrides_of_a_pretraining_that_is_not_there(tmp_path, capsys):
    folder = write_corpus(tmp_path)
    (folder / "study.py").write_text(TEXT.partition("    pretraining=")[0] + ")\n")
    assert run_main(command(folder)) == 2
    assert "--pretraining.data.dir: the study has no pretraining" in capsys.readouterr().err
