"""Trials of a results folder in a sweep: which count as finished, which are trained again, and how they compare."""

import dataclasses
import shutil

import pytest
from report_support import write_workdir
from run_support import run_main, write_corpus

from transformer_jax import metrics_file
from transformer_jax.cli.main import main
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.committed_trials import StageTrials, chosen, compare, count_finished, matched
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import RESULT, TRIALS, Result, read_result
from transformer_jax.sweeps.results_folder import CommittedTrial, read_results_folder
from transformer_jax.sweeps.study import Axis, Metric, Study, over
from transformer_jax.sweeps.trials import grid

METRICS = (Metric("test/loss", "min"),)
HEADS = over("model.num_heads", 1, 2, 4)
DECODING = Axis("beam", {"greedy": {}, "beam": {"decode.beam_size": 4}})
START = Axis("start", {"scratch": {"training.new_parameters": True}, "pretrained": {}})


def study(*axes, **fields):
    return Study("?", "configs/quickstart.py", axes or (HEADS,), METRICS, seeds=(0, 1), **fields)


def corpus_of(trial):
    from transformer_jax.data.sources import load_source

    return load_source(trial.config.data).fingerprint()["sha256"]


@pytest.fixture(scope="module")
def corpus():
    return corpus_of(grid(study()).trials[0])


def committed(trial, corpus, status="finished", **metrics):
    """Return a trial as it is in a results folder, with a log of one line."""
    numbers = {"test/loss": 1.5, "test/sacrebleu": 30.0, **metrics} if status == "finished" else {}
    result = Result(trial.labels, trial.seed, status, "", numbers, 8, 1.0, 10, "cpu", {"jax": "1"}, "", corpus)
    lines = [{"step": 8, "split": "train", "loss": 2.5, "seconds": None}]
    return CommittedTrial(trial, result, corpus, lines)


def stage(of, there, workdir, overrides=None):
    return StageTrials(grid(of, overrides).trials, there, of.metrics, workdir)


def changed(of, **fields):
    """Return a committed trial with other values of its config, by section."""
    config = of.trial.config
    for section, values in fields.items():
        config = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})
    return of._replace(trial=dataclasses.replace(of.trial, config=config))


def test_trials_of_equal_config_and_corpus_count(tmp_path, corpus):
    """Paths, and when something is logged or saved, may differ."""
    there = [committed(trial, corpus) for trial in grid(study()).trials]
    there[1] = changed(there[1], data={"cache_dir": "/elsewhere", "dir": ""}, training={"log_every_steps": 7})
    there[2] = committed(there[2].trial, corpus, "diverged")
    now = stage(study(), there, tmp_path)
    found = matched(now, None)
    assert found.notes == []
    assert list(found.study) == [trial.name for trial in now.trials]
    assert count_finished(found, now, None) == (6, [])
    for trial, of in zip(now.trials, there, strict=True):
        folder = tmp_path / TRIALS / trial.name
        result = read_result(folder)
        assert (result.status, result.metrics, result.corpus) == (of.result.status, of.result.metrics, corpus)
        assert metrics_file.read_lines(folder / "metrics.jsonl") == of.lines
        assert result.log_sha256 == metrics_file.digest(folder / "metrics.jsonl")
    assert count_finished(found, now, None) == (0, [])  # they are there already


def test_others_do_not_count_and_the_field_is_named(tmp_path, corpus):
    there = [committed(trial, corpus) for trial in grid(study()).trials]
    there[0] = changed(there[0], model={"emb_dim": 7}, optimizer={"learning_rate": 0.5})
    there[1] = there[1]._replace(corpus="0" * 64)
    there[2] = there[2]._replace(corpus="")
    there[3] = there[3]._replace(result=None)
    there[4] = committed(there[4].trial, corpus, "failed")
    there[5] = there[5]._replace(result=dataclasses.replace(there[5].result, metrics={"test/sacrebleu": 1.0}))
    other = there[0]._replace(trial=dataclasses.replace(there[0].trial, labels={"num_heads": "8"}))
    found = matched(stage(study(), [*there, other], tmp_path), None)
    assert found.study == {}
    emb_dim = grid(study()).trials[0].config.model.emb_dim
    rate = grid(study()).trials[0].config.optimizer.learning_rate
    assert found.notes == [
        f"num_heads=1,seed=0: model.emb_dim: 7 in the results, {emb_dim} now",
        f"num_heads=1,seed=0: optimizer.learning_rate: 0.5 in the results, {rate} now",
        f"num_heads=1,seed=1: its corpus has the sha256 000000000000 in the results, {corpus[:12]} now",
        "num_heads=2,seed=0: its corpus is not known",
        "num_heads=2,seed=1: it has the status 'none yet'",
        "num_heads=4,seed=0: it has the status 'failed'",
        "num_heads=4,seed=1: it lacks the metric test/loss",
        "num_heads=8,seed=0: it is not a trial of the study now",
    ]


def test_a_work_directory_keeps_what_it_has(tmp_path, corpus):
    there = [committed(trial, corpus) for trial in grid(study()).trials]
    now = stage(study(), there, tmp_path)
    own, training, *_ = now.trials
    count_finished(matched(now._replace(committed=there[:1]), None), now, None)
    dataclasses.replace(read_result(now.folder(own)), metrics={"test/loss": 9.0}).write(now.folder(own))
    (now.folder(training) / "checkpoints" / "100").mkdir(parents=True)
    assert count_finished(matched(now, None), now, None)[0] == 4
    assert read_result(now.folder(own)).metrics == {"test/loss": 9.0}
    assert not (now.folder(training) / RESULT).exists()


def test_a_trial_whose_checkpoint_is_needed_is_trained(tmp_path, corpus):
    """Variants that differ in decoding share a training; results have no checkpoints."""
    of = study(HEADS, DECODING)
    now = stage(of, [committed(trial, corpus) for trial in grid(of).trials], tmp_path)
    by_name = {trial.name: trial for trial in now.trials}
    greedy, beam = "num_heads=1,beam=greedy,seed=0", "num_heads=1,beam=beam,seed=0"
    assert by_name[beam].trained_by == greedy
    without = [of for of in now.committed if of.trial.name != beam]
    part = now._replace(committed=without)
    count, notes = count_finished(matched(part, None), part, None)
    assert count == 12 - 2
    assert notes == [f"{greedy} is trained, since {beam} needs its checkpoint"]
    assert not (now.folder(by_name[greedy]) / RESULT).exists()
    assert count_finished(matched(now, None), now, None) == (2, [])
    # The log of both is that of the trial that has trained.
    assert not (now.folder(by_name[beam]) / "metrics.jsonl").exists()
    assert read_result(now.folder(by_name[beam])).log_sha256 == read_result(now.folder(by_name[greedy])).log_sha256
    # The same, if the trial that is needed was counted before.
    (now.folder(by_name[beam]) / RESULT).unlink()
    assert count_finished(matched(part, None), part, None)[1] == notes
    assert not (now.folder(by_name[greedy]) / RESULT).exists()


def test_a_pretraining_counts_if_nothing_needs_its_checkpoint(tmp_path, corpus):
    first = study()
    of = study(HEADS, START, pretraining=first)
    before = stage(first, [committed(trial, corpus) for trial in grid(first).trials], tmp_path / "pretraining")
    now = stage(of, [committed(trial, corpus) for trial in grid(of).trials], tmp_path)
    gone = "num_heads=4,start=scratch,seed=1"
    part = now._replace(committed=[of for of in now.committed if of.trial.name != gone])
    assert count_finished(matched(part, before), part, before)[0] == 11 + 5
    assert not (before.workdir / TRIALS / "num_heads=4,seed=1" / RESULT).exists()
    assert count_finished(matched(now, before), now, before)[0] == 1 + 1
    other = before._replace(committed=[changed(before.committed[0], model={"emb_dim": 7}), *before.committed[1:]])
    notes = matched(now, other).notes
    assert "num_heads=1,start=scratch,seed=0 and 1 more: its pretraining does not count" in notes
    assert matched(now, other._replace(committed=[])).study == {}


def test_the_choice_of_trials_to_train_again(tmp_path, corpus):
    """It does not depend on the order, and no variant comes twice before the others."""
    of = study(HEADS, DECODING)
    there = [committed(trial, corpus) for trial in grid(of).trials]
    found = matched(stage(of, there, tmp_path), None)
    names = chosen(found, 6)
    assert len(set(names)) == 6
    assert all("beam=greedy" in name for name in names)  # those that train themselves
    assert len({name.partition(",")[0] for name in names[:3]}) == 3
    assert chosen(matched(stage(of, there[::-1], tmp_path), None), 2) == names[:2]
    with pytest.raises(ConfigError, match="--verify=7: only 6 trials of the results are finished"):
        chosen(found, 7)


@pytest.mark.parametrize(
    ("metrics", "lines"),
    [
        ({"test/loss": 1.5}, []),
        ({"test/loss": 1.5014}, []),
        ({"test/loss": 1.502}, ["test/loss: 1.5 before, 1.502 now, relative difference 0.0013"]),
        ({"test/loss": float("nan")}, ["test/loss: 1.5 before, nan now, relative difference nan"]),
        ({"train/seconds": 100.0}, []),
    ],
)
def test_a_comparison(corpus, metrics, lines):
    of = committed(grid(study()).trials[0], corpus, **{"train/seconds": 5.0, "x/zero": 0.0})
    again = dataclasses.replace(of.result, metrics={**of.result.metrics, **metrics})
    found = compare(of, again)
    assert found.differing == lines
    assert found.num_metrics == 3
    assert (": DIFFERS: " if lines else ": equal: 3 metrics") in found.text
    assert ("the same machine and versions" in found.text) == bool(lines)
    moved = compare(of, dataclasses.replace(again, machine="gpu", versions={"jax": "2", "flax": "3"}, steps=7))
    assert moved.differing == ["finished at step 8 before, finished at step 7 now", *lines]
    assert moved.text.endswith("- cpu before, gpu now\n  - flax - before, flax 3 now\n  - jax 1 before, jax 2 now")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--verify=2"], "--verify=2: needs --results=FOLDER"),
        (["--results=R", "--dry_run"], "--results: has no effect with --dry_run"),
        (["--results=R", "--search=tpe", "--num_trials=3"], "--results: --search=tpe chooses its variants"),
        (["--results=nowhere"], "--results=nowhere: is not a folder"),
        (["--results=R", "--verify=0"], "--verify=0"),
    ],
)
def test_bad_flags(tmp_path, capsys, flags, message):
    assert main(["sweep", "--study=norm_placement", f"--workdir={tmp_path / 'w'}", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_results_of_another_study(tmp_path, capsys):
    workdir, _ = write_workdir(tmp_path)
    assert main(["report", f"--workdir={workdir}"]) == 0
    flags = [f"--workdir={tmp_path / 'w'}", f"--results={workdir / 'report'}"]
    assert main(["sweep", "--study=norm_placement", *flags]) == 2
    assert "is of the study 'heads', not of 'norm_placement'" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


TEXT = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study("?", "tiny.py", (over("model.num_heads", 1, 2),), (Metric("test/loss"),), seeds=SEEDS)
"""


def write_study_text(folder, seeds):
    (folder / "study.py").write_text(TEXT.replace("SEEDS", str(seeds)))


def sweep(folder, workdir, *flags):
    where = [f"--study={folder}", f"--workdir={workdir}", "--executor=vmap", f"--config.data.dir={folder}"]
    return run_main(["sweep", *where, *flags])


@pytest.mark.slow
def test_a_study_continues_in_another_week(tmp_path, capsys):
    """The trials of its results are not trained again; two of them can be."""
    folder = write_corpus(tmp_path / "study")
    write_study_text(folder, (0, 1))
    assert sweep(folder, tmp_path / "one") == 0
    results = tmp_path / "results"
    assert run_main(["report", f"--workdir={tmp_path / 'one'}", f"--output={results}"]) == 0
    trained = {path.name: read_result(path).metrics for path in (tmp_path / "one" / TRIALS).iterdir()}
    shutil.rmtree(tmp_path / "one")
    moved = shutil.copytree(folder, tmp_path / "moved" / "study")  # the corpus lies elsewhere
    write_study_text(moved, (0, 1, 2))
    capsys.readouterr()
    assert sweep(moved, tmp_path / "two", f"--results={results}") == 0
    assert f"{results}: 4 trials count as finished here" in capsys.readouterr().err
    found = collect(tmp_path / "two")
    assert {trial.trial.name for trial in found.trials if not (trial.folder / "checkpoints").exists()} == set(trained)
    assert [len(variant.trials) for variant in found.variants] == [3, 3]
    assert {trial.trial.name: trial.metrics for trial in found.trials if trial.trial.seed < 2} == trained
    assert found.lost == []
    write_report(found, summarise(found), effects(found), tmp_path / "more")
    assert len(read_results_folder(tmp_path / "more").trials) == 6

    assert sweep(moved, tmp_path / "three", f"--results={results}", "--verify=2") == 0
    out = capsys.readouterr().out
    assert out.count(": equal: ") == 2
    assert len(list((tmp_path / "three" / "verification" / TRIALS).iterdir())) == 2
    assert not (tmp_path / "three" / TRIALS).exists()
    assert sweep(moved, tmp_path / "four", f"--results={results}", "--verify=1", "--config.model.mlp_dim=48") == 2
    err = capsys.readouterr().err
    assert "only 0 trials of the results are finished" in err
    assert "does not count: num_heads=1,seed=0 and 3 more: model.mlp_dim: 24 in the results, 48 now" in err

    again = tmp_path / "three" / "verification" / TRIALS
    for place in again.iterdir():
        result = read_result(place)
        dataclasses.replace(result, metrics={**result.metrics, "test/loss": 77.0}).write(place)
    assert sweep(moved, tmp_path / "three", f"--results={results}", "--verify=2") == 3
    out = capsys.readouterr().out
    assert out.count(": DIFFERS: ") == 2
    assert "77.0 now" in out
