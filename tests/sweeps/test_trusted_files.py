"""Files of a study that are read back: each kind of damage is refused, named with exit code 3, or changes nothing."""

import json
import shutil

import pytest
from report_support import write_workdir
from sweep_support import FakeExecutor

from transformer_jax.checkpoints.workdir import CONFIG
from transformer_jax.cli.main import main
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.metrics_file import NAME as LOG
from transformer_jax.metrics_file import format_line
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.results import RESULT, SPEC, STUDY, TRIALS
from transformer_jax.sweeps.search import make_search
from transformer_jax.sweeps.search.search import Listed, SearchOptions
from transformer_jax.sweeps.search.storage import recorded
from transformer_jax.sweeps.study import load_study
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import grid

ONE, OTHER, THIRD = "num_heads=2,seed=1", "num_heads=8,seed=1", "num_heads=2,seed=2"


@pytest.fixture(scope="module")
def prototype(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    write_workdir(root)
    return root


@pytest.fixture
def workdir(tmp_path, prototype):
    shutil.copytree(prototype, tmp_path, dirs_exist_ok=True)
    return tmp_path / "runs" / "heads"


def digit(file):
    """Change a digit of the file, of the loss if it has one."""
    data = file.read_bytes()
    at = data.index(b'loss": ') + 7 if b'loss": ' in data else next(i for i, c in enumerate(data) if chr(c).isdigit())
    file.write_bytes(data[:at] + (b"7" if data[at : at + 1] != b"7" else b"3") + data[at + 1 :])


def cut(file):
    file.write_bytes(file.read_bytes()[:-40])


def cut_at_a_line(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-4]))


def without_a_line(file):
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:2] + lines[3:]))


def delete(file):
    file.unlink()


def empty(file):
    file.write_bytes(b"")


def of_another(name):
    def replace(file):
        other = file.parents[1] / name / file.name
        assert other.read_bytes() != file.read_bytes()
        shutil.copy(other, file)

    return replace


def stale(**fields):
    """Return a damage that puts in the same trial's file of an earlier run: other values, with their checksum."""

    def replace(file):
        values = without_checksum(json.loads(file.read_text()))
        for name, value in fields.items():
            place = values
            *sections, leaf = name.split("__")
            for section in sections:
                place = place[section]
            assert leaf in place
            place[leaf] = value
        file.write_text(json.dumps(with_checksum(values)))

    return replace


REFUSED, NAMED, SAME = "refused", "named", "same"
CASES = [
    *((SPEC, damage, REFUSED, SPEC) for damage in (digit, cut, empty, of_another(OTHER), of_another(THIRD))),
    (SPEC, delete, SAME, "without trial.json, so they are left out: num_heads=2,seed=1"),
    (
        SPEC,
        stale(config__optimizer__clip_norm=0.5),
        REFUSED,
        "are of two trials; restore the right file\n  - opt",
    ),
    *((RESULT, damage, REFUSED, "delete it; the trial is then") for damage in (digit, cut, empty)),
    (RESULT, of_another(OTHER), REFUSED, "is the result of num_heads=8,seed=1, not of num_heads=2,seed=1; delete it"),
    (RESULT, of_another(THIRD), REFUSED, "is the result of num_heads=2,seed=2, not of num_heads=2,seed=1; delete it"),
    (RESULT, delete, SAME, "without a result yet, or it was deleted: num_heads=2,seed=1"),
    (RESULT, stale(steps=40), NAMED, "metrics.jsonl ends at step 50, its result is of step 40"),
    (RESULT, stale(log_sha256="0" * 64), NAMED, "metrics.jsonl is not the one that its result was made from"),
    *((LOG, damage, REFUSED, "is damaged or was cut short") for damage in (digit, cut)),
    *((LOG, damage, NAMED, "metrics.jsonl is missing or empty") for damage in (delete, empty)),
    (LOG, cut_at_a_line, NAMED, "metrics.jsonl ends at step 30, its result is of step 50"),
    (LOG, without_a_line, NAMED, "metrics.jsonl is not the one that its result was made from"),
    (LOG, of_another(OTHER), NAMED, "metrics.jsonl is not the one that its result was made from"),
    (LOG, of_another("num_heads=4,seed=1"), NAMED, "metrics.jsonl ends at step 30, its result is of step 50"),
    *((CONFIG, damage, SAME, "") for damage in (digit, cut, empty, delete)),  # trial.json has the config
    (CONFIG, of_another(THIRD), REFUSED, "are of two trials; restore the right file\n  - seed: 2 in config.json, 1 in"),
]


@pytest.mark.parametrize(("name", "damage", "outcome", "message"), CASES)
def test_a_damaged_file_of_a_trial_is_not_missed_by_a_report(workdir, capsys, caplog, name, damage, outcome, message):
    damage(workdir / TRIALS / ONE / name)
    words = ["report", f"--workdir={workdir}", f"--output={workdir / 'out'}"]
    # Figures take seconds, and an error comes before them.
    if outcome == REFUSED:
        assert main(words) == 2
        captured = capsys.readouterr().err
        assert message in captured
        assert ONE in captured
        assert not (workdir / "out").exists()
        return
    results = collect(workdir)
    assert message in caplog.text
    trial = next((trial for trial in results.trials if trial.folder.name == ONE), None)
    assert len(results.lost) == (outcome == NAMED)
    if outcome == NAMED:
        assert results.lost[0].startswith(str(workdir / TRIALS / ONE / LOG))
        assert trial.log_lines == []
        assert trial.metrics  # its scores have a checksum of their own


@pytest.mark.parametrize("is_lost", [True, False])
def test_the_exit_code_of_a_report_says_whether_a_log_is_lost(workdir, capsys, is_lost):
    if is_lost:
        (workdir / TRIALS / ONE / LOG).unlink()
    assert main(["report", f"--workdir={workdir}"]) == (3 if is_lost else 0)
    captured = capsys.readouterr()
    assert (f"warning: {workdir / TRIALS / ONE / LOG} is missing" in captured.err) == is_lost
    assert (workdir / "report" / "report.html").exists()
    assert captured.out.startswith("**Answer:**")
    assert "\n| num_heads |" in captured.out


def test_a_trained_trial_without_its_result_is_lost(workdir, caplog):
    steps = json.loads((workdir / TRIALS / ONE / SPEC).read_text())["config"]["training"]["num_train_steps"]
    log = workdir / TRIALS / ONE / LOG
    (workdir / TRIALS / ONE / RESULT).unlink()
    assert collect(workdir).unscored == []
    log.write_text(log.read_text() + format_line(steps, "valid", {"loss": 1.0}))
    assert collect(workdir).unscored == [workdir / TRIALS / ONE]


@pytest.mark.parametrize("damage", [digit, cut, empty, of_another(OTHER), of_another(THIRD)])
def test_a_sweep_does_not_take_a_damaged_result_or_that_of_another_trial(workdir, damage):
    study = load_study(workdir.parents[1] / "experiments" / "heads")
    overrides = {"data.cache_dir": str(workdir / "token_cache"), "model.mlp_dim": "40"}
    trials = grid(study, overrides).trials
    executor = FakeExecutor()
    assert all(s.has_ended for s in Sweep(Listed(trials), study.metrics, workdir, executor).standings)
    damage(workdir / TRIALS / ONE / RESULT)
    with pytest.raises(DataError, match=r"result.json: .*delete it; the trial is then scored again"):
        Sweep(Listed(trials), study.metrics, workdir, executor)
    shutil.copy(workdir / TRIALS / THIRD / SPEC, workdir / TRIALS / ONE / SPEC)
    with pytest.raises(ConfigError, match=r"was started with other values: seed \(2 before, 1 now\)"):
        Sweep(Listed(trials), study.metrics, workdir, executor)


@pytest.mark.parametrize("damage", [digit, cut, empty])
def test_a_damaged_record_of_a_study_or_a_search_is_named(workdir, capsys, damage):
    study = load_study(workdir.parents[1] / "experiments" / "heads")
    make_search(study, {}, SearchOptions(), workdir, 1)
    assert recorded(workdir) == SearchOptions()
    for name in ("search.json", STUDY):
        damage(workdir / name)
        assert main(["report", f"--workdir={workdir}"]) == 2
        assert f"{workdir / name}: " in capsys.readouterr().err
