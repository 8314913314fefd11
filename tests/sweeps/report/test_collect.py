"""Reading a work directory, and work directories that are refused."""

import dataclasses
import json
import math
import shutil

import matplotlib
import pytest
from log_support import log_of
from matplotlib.figure import Figure
from report_support import DIVERGED, NAMES, STUDY, write_study, write_workdir

from transformer_jax.builtin import studies
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.sweeps.figures import Curves, MetricByAxis, MetricByVariant
from transformer_jax.sweeps.report import plots
from transformer_jax.sweeps.report.answer import answer
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.drawing import draw_figures
from transformer_jax.sweeps.report.formatting import trials_of
from transformer_jax.sweeps.report.reproduction import sweep_command
from transformer_jax.sweeps.report.sentences import subject
from transformer_jax.sweeps.report.summary import summarise, summary_records
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import RESULT, SPEC, TRIALS
from transformer_jax.sweeps.results import STUDY as RECORD


@pytest.fixture(scope="module")
def prototype(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    write_workdir(root)
    return root


@pytest.fixture
def workdir(tmp_path, prototype):
    shutil.copytree(prototype, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs" / "heads"


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "experiments" / "heads"


def change(file, **values):
    values = without_checksum(json.loads(file.read_text())) | values
    file.write_text(json.dumps(with_checksum(values)))


def trial_of(results, name):
    return next(trial for trial in results.trials if trial.trial.name == name)


def test_variants_are_in_the_order_of_the_study_and_trials_of_their_seeds(workdir, folder):
    results = collect(workdir, folder)
    assert [variant.name for variant in results.variants] == NAMES  # 16 after 8, not after 1
    assert [trial.trial.seed for trial in results.variants[2].trials] == [0, 1, 2]
    assert results.variants[2].counts == {"finished": 2, "diverged": 1}
    assert set(results.variants[2].values("test/loss")) == {0, 2}
    assert results.reference is results.variants[0]
    assert results.metrics[:2] == ["test/exact_match", "test/loss"]
    assert results.logged == ["train/gradient_norm", "train/loss", "train/seconds", "valid/loss"]
    assert list(trial_of(results, DIVERGED).logged("valid/loss")) == [10, 20, 30]


def test_the_study_is_recorded_and_its_code_is_not_run(workdir, folder):
    expected = collect(workdir, folder).study
    (folder / "study.py").write_text("raise SystemExit(7)")
    (folder.parent.parent / "tiny.py").write_text("raise SystemExit(7)")
    for place in (str(folder), str(folder.parent / "gone" / "heads"), None):
        change(workdir / RECORD, folder=place)
        found = collect(workdir)
        assert found.study == expected
        assert found.absent == dict.fromkeys(found.absent, "")
        assert sweep_command(found) is None  # its baseline is code
    change(workdir / RECORD, declaration=None)
    with pytest.raises(ConfigError, match=r"does not contain the study; .* pass --study="):
        collect(workdir)


@pytest.mark.parametrize(
    "damage",
    [
        {"axes": 3},
        {"axes": [{"name": "a"}]},
        {"metrics": [{"name": "x"}]},
        {"seeds": None},
        {"figures": [{"kind": "x"}]},
    ],
    ids=str,
)
def test_a_damaged_declaration(workdir, damage):
    declaration = json.loads((workdir / RECORD).read_text())["declaration"]
    change(workdir / RECORD, declaration=declaration | damage)
    with pytest.raises(DataError, match=r"study.json: does not declare a study"):
        collect(workdir)


def test_the_code_of_a_built_in_study_is_run(workdir, folder):
    """It may draw its own figures."""
    change(workdir / RECORD, study="positions", folder=str(studies()["positions"].absolute()), declaration=None)
    with pytest.raises(ConfigError, match=r"is not a trial of .*positions/study.py"):
        collect(workdir)


def test_folders_that_are_not_a_work_directory_of_a_study(tmp_path, workdir, folder):
    for other in (tmp_path, tmp_path / "nowhere", workdir / RECORD):
        with pytest.raises(ConfigError, match=r"has no study.json.*transformer-jax sweep --study=experiments/NAME"):
            collect(other, folder)
    other = shutil.copytree(folder, folder.with_name("tails"))
    with pytest.raises(ConfigError, match="belongs to the study 'heads', not to 'tails'"):
        collect(workdir, other)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ('8, 16, name="many")', "it has the axes num_heads, and the study has many"),
        ("8)", "the axis 'num_heads' has no value '16' now"),
    ],
)
def test_a_study_that_has_changed_since_the_sweep(workdir, folder, new, message):
    write_study(folder.parent.parent, text=STUDY.replace("8, 16)", new))
    with pytest.raises(ConfigError, match=f"is not a trial of .*study.py as it is now: {message}.*restore the study"):
        collect(workdir, folder)


def test_a_trial_without_a_result_is_included(workdir, folder):
    (workdir / TRIALS / DIVERGED / RESULT).unlink()
    with (workdir / TRIALS / DIVERGED / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "spl')  # a running trial may be writing this
    results = collect(workdir, folder)
    assert results.variants[2].counts == {"finished": 2, "none yet": 1}
    assert list(trial_of(results, DIVERGED).logged("valid/loss")) == [10, 20, 30]


@pytest.mark.parametrize("status", ["failed", "pruned"])
def test_other_ends_have_their_own_status(workdir, folder, status):
    change(workdir / TRIALS / DIVERGED / RESULT, status=status)
    assert collect(workdir, folder).variants[2].counts == {"finished": 2, status: 1}


def test_an_unknown_status(workdir, folder):
    change(workdir / TRIALS / DIVERGED / RESULT, status="lost")
    with pytest.raises(DataError):
        collect(workdir, folder)


@pytest.mark.parametrize("finished", [0, 1])
def test_no_trial_has_finished(workdir, folder, finished):
    for number, file in enumerate(sorted(workdir.glob(f"{TRIALS}/*/{RESULT}"))):
        if number >= finished:
            file.unlink()
    if finished:
        assert len([t for t in collect(workdir, folder).trials if t.status == "finished"]) == 1
    else:
        with pytest.raises(ConfigError, match=r"no trial has finished \(.*\), so .*run or resume them with: .* sweep"):
            collect(workdir, folder)


def test_a_study_in_which_all_trials_diverged_is_reported(workdir, folder, tmp_path):
    for file in workdir.glob(f"{TRIALS}/*/{RESULT}"):
        change(file, status="diverged", metrics={})
    results = collect(workdir, folder)
    rows = summarise(results)
    assert answer(results, rows, [])[0] == "No variant has finished with every seed."
    write_report(results, rows, [], tmp_path / "report")
    assert "3 of 3 diverged" in (tmp_path / "report" / "report.md").read_text()


def test_the_only_variant_that_is_complete_is_named(workdir, folder):
    for file in workdir.glob(f"{TRIALS}/*/{RESULT}"):
        if "num_heads=2," not in file.parent.name:
            change(file, status="diverged", metrics={})
    results = collect(workdir, folder)
    assert answer(results, summarise(results), [])[0].startswith("Only num_heads 2 has finished with every seed")


def test_the_next_metric_decides_if_all_are_equal(workdir, folder):
    for file in workdir.glob(f"{TRIALS}/*/{RESULT}"):
        metrics = json.loads(file.read_text())["metrics"]
        change(file, metrics=metrics and metrics | {"test/exact_match": 0.0})
    results = collect(workdir, folder)
    said = answer(results, summarise(results), [])
    assert said[0] == "No difference could be shown in test exact match: 3 seeds cannot tell the 4 variants apart."
    assert "num_heads 1 is ahead of all others that were compared in test loss" in "".join(said)
    for file in workdir.glob(f"{TRIALS}/*/{RESULT}"):
        metrics = json.loads(file.read_text())["metrics"]
        change(file, metrics=metrics and metrics | {"test/loss": 1.0})
    results = collect(workdir, folder)
    assert not any("ahead" in sentence for sentence in answer(results, summarise(results), []))


def test_metrics_that_are_not_finite_are_not_compared(workdir, folder):
    for file in workdir.glob(f"{TRIALS}/*/{RESULT}"):
        metrics = json.loads(file.read_text())["metrics"]
        change(file, metrics=metrics and metrics | {"test/exact_match": math.nan})
    results = collect(workdir, folder)
    said = answer(results, summarise(results), [])
    assert said[0] == "No variant has a mean of test exact match over all seeds."
    assert "num_heads 1 (test exact match is not finite)" in said[1]


def test_a_metric_that_no_trial_has(workdir, folder):
    write_study(folder.parent.parent, text=STUDY.replace("test/loss", "test/chrf"))
    with pytest.raises(ConfigError, match="'test/chrf': no trial has measured it"):
        collect(workdir, folder)


@pytest.mark.parametrize("name", [RESULT, SPEC])
def test_a_truncated_file_is_named(workdir, folder, name):
    file = workdir / TRIALS / DIVERGED / name
    file.write_text(file.read_text()[:40])
    with pytest.raises(DataError, match=f"{file}: cannot be read or is cut short"):
        collect(workdir, folder)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"study": 3}'])
def test_a_truncated_record_is_named(workdir, folder, text):
    (workdir / RECORD).write_text(text)
    with pytest.raises(DataError, match=f"{workdir / RECORD}: "):
        collect(workdir, folder)


@pytest.mark.parametrize("status", ["pruned", "failed"])
def test_the_log_of_a_stopped_trial_may_end_in_half_a_line(workdir, folder, status):
    change(workdir / TRIALS / DIVERGED / RESULT, status=status)
    with (workdir / TRIALS / DIVERGED / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "spl')
    assert list(trial_of(collect(workdir, folder), DIVERGED).logged("valid/loss")) == [10, 20, 30]


@pytest.mark.parametrize("line", ['{"step": 60, "spl', "[]", '{"step": 60}'])
def test_a_truncated_log_is_named(workdir, folder, line):
    file = workdir / TRIALS / DIVERGED / "metrics.jsonl"
    with file.open("a") as opened:
        opened.write(line)
    with pytest.raises(DataError, match=f"{file}: line 7 is damaged or was cut short"):
        collect(workdir, folder)


def test_a_seed_that_has_not_started_is_counted(workdir, folder):
    shutil.rmtree(workdir / TRIALS / "num_heads=1,seed=2")
    results = collect(workdir, folder)
    first = results.variants[0]
    assert (first.counts, first.is_complete) == ({"finished": 2, "not begun": 1}, False)
    assert trials_of(first) == "2 finished, 1 of 3 not begun"
    rows = summarise(results)
    assert [row.variant.name for row in rows if row.best] == ["num_heads=2"] * 2  # not the better one with fewer seeds
    assert answer(results, rows, [])[0].startswith("num_heads 2 is ahead of all others that were compared")
    assert subject(results).endswith("with seeds 0, 1, 2: 15 trials, 13 finished, 1 diverged, 1 not begun.")
    assert "(1 of 3 not begun)" in draw(results, MetricByVariant("test/loss")).svg.decode()
    assert [record["not_begun"] for record in summary_records(rows) if record["metric"] == "test/loss"] == [
        1,
        0,
        0,
        0,
        0,
    ]
    assert {record["trials"] for record in summary_records(rows)} == {3}


def test_seeds_added_to_the_study_have_not_started(workdir, folder):
    write_study(folder.parent.parent, "seeds=(0, 1, 2, 3, 4),")
    assert collect(workdir, folder).variants[0].counts == {"finished": 3, "not begun": 2}


NORMS = """axes=(
        over("model.num_heads", 1, 2, 4, 8, 16),
        Axis("norm", {name: {"model.norm_position": at} for name, at in dict(a="post", b="pre", c="post").items()}),
    ),
    reference={"num_heads": "2", "norm": "c"},"""


@pytest.fixture
def twice(tmp_path):
    """Return the results of a study in which norm=c, also the reference, has the config of norm=a."""
    return collect(
        *write_workdir(tmp_path, text=STUDY.replace('axes=(over("model.num_heads", 1, 2, 4, 8, 16),),', NORMS))
    )


def test_a_reference_under_another_variant_s_name(twice):
    assert len(twice.variants) == 10
    assert twice.reference is trial_variant(twice, "num_heads=2, norm=a")
    assert twice.absent["num_heads=2, norm=c"] == "num_heads=2, norm=a"
    losses = [row for row in summarise(twice) if row.metric == "test/loss"]
    assert [row.difference is None for row in losses] == [row.variant is twice.reference for row in losses]
    assert all(row.difference.count >= 2 for row in losses if row.difference is not None)


def test_lines_include_a_variant_under_another_name(twice):
    alt = draw(twice, MetricByAxis("test/loss", x="num_heads", by="norm")).alt
    assert "3 lines" in alt
    assert [v.name for v in twice.everywhere[:3]] == [f"num_heads=1, norm={n}" for n in ("a", "b", "c")]
    assert twice.everywhere[2].trials is twice.everywhere[0].trials


def trial_variant(results, name):
    return next(variant for variant in results.variants if variant.name == name)


def draw(results, figure):
    (drawn,) = draw_figures(dataclasses.replace(results, study=dataclasses.replace(results.study, figures=(figure,))))
    return drawn


@pytest.fixture
def decoded(workdir, folder):
    """Return trials of which those of two variants have no log, because those of the first have trained them."""
    for heads in (2, 8):
        for seed in (0, 1, 2):
            place, trainer = (workdir / TRIALS / f"num_heads={n},seed={seed}" for n in (heads, 1))
            change(place / SPEC, trained_by=trainer.name)
            change(place / RESULT, log_sha256=json.loads((trainer / RESULT).read_text())["log_sha256"])
            (place / "metrics.jsonl").unlink()
    return collect(workdir, folder)


def test_a_trial_trained_by_another_one_has_its_log(decoded):
    first, second, *_ = decoded.variants
    for trial, trainer in zip(second.trials, first.trials, strict=True):
        assert trial.logged("valid/loss") == trainer.logged("valid/loss") != {}


def test_equal_curves_are_one_line_with_both_names(decoded):
    axes = Figure().subplots()
    with matplotlib.rc_context({"axes.prop_cycle": plots.cycle(("#0072b2",), "#123456")}):
        alt = plots.curves(Curves("valid/loss"), axes, decoded)
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["1 and 2 and 8", "4 (1 of 3 diverged)", "16"]
    assert len([line for line in axes.lines if line.get_linewidth() == 1.6]) == 3
    assert "lowest num_heads 1 and 2 and 8, " in alt


def test_sentences_name_the_axis_and_tables_do_not(workdir, folder):
    variant = collect(workdir, folder).variants[1]
    assert (variant.name, variant.short_name) == ("num_heads=2", "2")
    two = dataclasses.replace(variant, labels={"a": "1", "b": "2"})
    assert (two.name, two.short_name) == ("a=1, b=2", "a=1, b=2")


@pytest.mark.parametrize(
    ("name", "said"), [("trial.json", "without trial.json, so they are left out"), ("result.json", "without a result")]
)
def test_a_deleted_file_of_a_trial_is_named(tmp_path, caplog, name, said):
    workdir, _ = write_workdir(tmp_path)
    (workdir / "trials" / "num_heads=4,seed=1" / name).unlink()
    collect(workdir)
    assert f"{said}" in caplog.text
    assert "num_heads=4,seed=1" in caplog.text


@pytest.mark.parametrize("name", ["trial.json", "result.json"])
def test_a_changed_number_in_a_file_of_a_trial_is_found(tmp_path, name):
    workdir, _ = write_workdir(tmp_path)
    file = workdir / "trials" / "num_heads=4,seed=1" / name
    file.write_text(file.read_text().replace('"seed": 1', '"seed": 2'))
    with pytest.raises(DataError, match=f"{name}: does not match its checksum"):
        collect(workdir)


def test_the_cost_of_training_is_that_of_all_lines_so_far(workdir, folder):
    """Between lines it is linear; after the last line it is not known."""
    trial = collect(workdir, folder).trials[0]
    with log_of(trial.folder, 0) as log:
        for step, flops in ((10, 100), (20, 300)):
            log.write(step, "train", {"loss": 1.0, "flops": flops})
    change(trial.folder / RESULT, steps=20, log_sha256="")
    trial = collect(workdir, folder).trials[0]
    assert trial.cost("flops", [5, 10, 15, 20, 25]) == {5: 50.0, 10: 100.0, 15: 250.0, 20: 400.0}
    assert trial.cost("step", [5, 25]) == {5: 5.0, 25: 25.0}
    assert trial.cost("seconds", [5]) == {}
