"""The command `runs`: states, steps, scores and differences of work directories and sweeps, of broken ones too."""

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_jax.cli.main import main
from transformer_jax.host.files import with_checksum, without_checksum

GOLDEN = Path(__file__).parent.parent / "golden"
TRIAL = "norm_position=pre,seed=1"


@pytest.fixture
def runs(tmp_path):
    """A folder with a run at step 3000 of 3060, and a finished sweep of four trials."""
    folder = tmp_path / "runs"
    shutil.copytree(GOLDEN / "workdir", folder / "first", ignore=lambda _, names: {"state"} & {*names})
    shutil.copytree(GOLDEN / "study", folder / "norms")
    return folder


@pytest.fixture
def listed(capsys):
    """Return a function that gives the rows of the command by name."""

    def rows(folder, *flags):
        assert main(["runs", str(folder), "--json", *flags]) == 0
        return {row["name"]: row for row in json.loads(capsys.readouterr().out)["runs"]}

    return rows


def rewrite(file, **changes):
    """Change values of a JSON file with a checksum; `training__patience` is a value of a section."""
    values = without_checksum(json.loads(file.read_text()))
    for name, value in changes.items():
        *sections, leaf = name.split("__")
        place = values
        for section in sections:
            place = place[section]
        place[leaf] = value
    file.write_text(json.dumps(with_checksum(values)))


def rewrite_record(run, **changes):
    """Change the record of the checkpoint of a run, and its checksum."""
    folder = run / "checkpoints" / "3000"
    before = (folder / "record.json").read_bytes()
    values = json.loads(before)
    values["record"].update(changes)
    after = json.dumps(values).encode()
    (folder / "record.json").write_bytes(after)
    sums = (folder / "SHA256SUMS").read_text()
    old, new = (hashlib.sha256(data).hexdigest() for data in (before, after))
    assert old in sums
    (folder / "SHA256SUMS").write_text(sums.replace(old, new))


def lock(run, process, host):
    (run / ".lock").write_text(f"process {process} on {host}\n")


def dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_and_a_sweep(runs, listed):
    rows = listed(runs)
    trials = [f"norms/trials/norm_position={place},seed={seed}" for place in ("post", "pre") for seed in (0, 1)]
    assert list(rows) == ["first", "norms", *trials]
    first = rows["first"]
    assert (first["state"], first["step"], first["total"]) == ("interrupted", 3000, 3060)
    assert (first["metric"], first["best"]) == ("valid/loss", pytest.approx(1.73601297))
    log = [json.loads(line) for line in (runs / "first" / "metrics.jsonl").read_text().splitlines()]
    assert first["hours"] == pytest.approx(sum(line.get("seconds", 0) for line in log) / 3600)
    sweep = {name: rows["norms"][name] for name in ("kind", "state", "why", "step", "total", "best", "differences")}
    assert sweep == {
        **{"kind": "sweep", "state": "finished", "why": "", "step": 4, "total": 4, "best": None},
        "differences": {},
    }
    trial, result = rows[trials[3]], json.loads((runs / "norms" / "trials" / TRIAL / "result.json").read_text())
    assert (trial["kind"], trial["state"], trial["step"], trial["total"]) == ("trial", "finished", 60, 60)
    assert (trial["metric"], trial["best"]) == ("test/loss", result["metrics"]["test/loss"])
    assert trial["hours"] == result["seconds"] / 3600
    assert rows["norms"]["hours"] == pytest.approx(sum(rows[name]["hours"] for name in trials))
    assert [rows[name]["differences"] for name in trials] == [
        {"model.norm_position": "post"},
        {"seed": 1, "model.norm_position": "post"},
        {},
        {"seed": 1},
    ]


@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        (lambda run: rewrite(run / "config.json", training__num_train_steps=3000), "finished", ""),
        (lambda run: lock(run, os.getpid(), socket.gethostname()), "running", ""),
        (lambda run: lock(run, dead_process(), socket.gethostname()), "interrupted", ""),
        (lambda run: lock(run, 1, "elsewhere.example"), "running", ""),
        (lambda run: (run / ".lock").write_text("nonsense"), "interrupted", ""),
        (lambda run: rewrite_record(run, converted={}), "converted", ""),
    ],
    ids=["finished", "here", "dead", "elsewhere", "unknown holder", "converted"],
)
def test_states(runs, listed, change, state, why):
    change(runs / "first")
    row = listed(runs)["first"]
    assert (row["state"], row["why"], row["step"]) == (state, why, 3000)
    assert row["best"] == pytest.approx(1.73601297)


def test_a_log_elsewhere_that_has_not_grown_for_long_is_of_a_run_that_was_interrupted(runs, listed):
    lock(runs / "first", 1, "elsewhere.example")
    for file in (".lock", "metrics.jsonl"):
        os.utime(runs / "first" / file, (time.time() - 7200,) * 2)
    assert listed(runs)["first"]["state"] == "interrupted"


def test_a_run_that_ended_by_its_patience_is_finished(runs, listed):
    rewrite_record(runs / "first", validations={"metric": "loss", "best": 1.5, "stale": 3})
    assert listed(runs)["first"]["state"] == "interrupted"
    rewrite(runs / "first" / "config.json", training__patience=3)
    row = listed(runs)["first"]
    assert (row["state"], row["best"]) == ("finished", 1.5)
    assert row["why"] == "best_metric has not improved in 3 validations"


def test_a_record_with_other_types_is_not_believed(runs, listed, capsys):
    rewrite_record(runs / "first", validations={"metric": "loss", "best": "low", "stale": 0})
    assert (listed(runs)["first"]["metric"], listed(runs)["first"]["best"]) == ("", None)
    rewrite_record(runs / "first", validations=[])
    assert listed(runs)["first"]["state"] == "broken"
    assert main(["runs", str(runs)]) == 0
    assert "Traceback" not in capsys.readouterr().out


def test_updates_that_were_not_finite(runs, listed):
    """Such as those before the checkpoint, after which the run went on with other fields."""
    folder = runs / "first" / "nonfinite"
    folder.mkdir()
    (folder / "step_2999.npz").write_bytes(b"")
    assert listed(runs)["first"]["state"] == "interrupted"
    (folder / "step_3010.npz").write_bytes(b"")
    row = listed(runs)["first"]
    assert (row["state"], row["why"]) == ("failed", "step 3010: a loss or gradient was not finite")
    rewrite(runs / "first" / "config.json", training__on_nonfinite="skip", training__max_skipped_updates=1)
    assert listed(runs)["first"]["state"] == "interrupted"
    rewrite_record(runs / "first", skipped_updates=1)
    assert listed(runs)["first"]["state"] == "failed"


def test_trials_that_wait_fail_or_were_killed(runs, listed):
    trials = runs / "norms" / "trials"
    waiting, failed, killed, _ = sorted(trials.iterdir())
    for name in ("result.json", "metrics.jsonl", "config.json"):
        (waiting / name).unlink()
    rewrite(failed / "result.json", status="failed", why="no memory", metrics={})
    (killed / "result.json").unlink()
    rows = listed(runs)
    assert [rows[f"norms/trials/{trial.name}"]["state"] for trial in (waiting, failed, killed)] == [
        *("waiting", "failed", "interrupted")
    ]
    assert rows[f"norms/trials/{failed.name}"]["why"] == "no memory"
    assert rows[f"norms/trials/{killed.name}"]["step"] == 60
    assert (rows["norms"]["state"], rows["norms"]["step"]) == ("interrupted", 2)
    assert rows["norms"]["why"] == "1 finished, 1 interrupted, 1 failed, 1 waiting"
    (killed / "config.json").unlink()
    assert listed(runs)["norms"]["state"] == "interrupted"


def test_broken_folders_have_a_reason(runs, listed, capsys):
    for name in ("edited", "cut", "folder", "none", "log", "section"):
        shutil.copytree(runs / "first", runs / name)
        if name != "none":
            (runs / name / "checkpoints" / "3000" / "record.json").write_text("{}")
    (runs / "edited" / "config.json").write_text((runs / "first" / "config.json").read_text().replace("3060", "3061"))
    (runs / "cut" / "config.json").write_text("{")
    (runs / "folder" / "config.json").unlink()
    (runs / "folder" / "config.json").mkdir()
    (runs / "none" / "config.json").unlink()
    (runs / "none" / "checkpoints" / "3000" / "record.json").write_text("{}")
    (runs / "log" / "metrics.jsonl").unlink()
    (runs / "log" / "metrics.jsonl").mkdir()
    rewrite(runs / "section" / "config.json", training=7)
    (runs / "norms" / "trials" / TRIAL / "trial.json").write_text("[]")
    (runs / "unborn").mkdir()
    (runs / "unborn" / ".lock").write_text("")
    rows = listed(runs)
    broken = {name: row["why"] for name, row in rows.items() if row["state"] == "broken"}
    assert {*broken} == {"edited", "cut", "folder", "none", "log", "section", f"norms/trials/{TRIAL}"}
    assert broken["edited"] == "config.json: does not match its checksum; it was edited or is damaged"
    assert broken["cut"].startswith("config.json: ")
    assert broken["none"].startswith(
        "has no config.json, and no checkpoint that can be read; checkpoint 3000 cannot be"
    )
    assert "record.json" in broken["none"]
    assert all(broken.values())
    assert (rows["unborn"]["state"], rows["unborn"]["why"]) == ("interrupted", "ended before its first step")
    assert rows["norms"]["why"] == "3 finished, 1 broken"
    assert main(["runs", str(runs)]) == 0
    out, err = capsys.readouterr()
    assert "(config.json: does not match its checksum; it was edited or is damaged)" in out
    assert "Traceback" not in out + err


def test_a_damaged_checkpoint_is_named_beside_what_the_log_says(runs, listed):
    record = runs / "first" / "checkpoints" / "3000" / "record.json"
    record.write_text(record.read_text() + " ")
    row = listed(runs)["first"]
    assert (row["state"], row["best"], row["total"]) == ("interrupted", None, 3060)
    assert row["why"] == "checkpoint 3000 cannot be read: checkpoints/3000: record.json does not match its sha256"


def test_the_config_of_a_checkpoint_is_used_without_config_json(runs, listed):
    (runs / "first" / "config.json").unlink()
    assert (listed(runs)["first"]["state"], listed(runs)["first"]["total"]) == ("interrupted", 3060)


def test_differences(runs, listed):
    shutil.copytree(runs / "first", runs / "second")
    rewrite(runs / "second" / "config.json", optimizer__learning_rate=0.5, training__log_every_steps=7)
    shutil.rmtree(runs / "norms")
    assert [row["differences"] for row in listed(runs).values()] == [{}, {"optimizer.learning_rate": 0.5}]
    rows = listed(runs, "--against=second")
    rate = json.loads((runs / "first" / "config.json").read_text())["optimizer"]["learning_rate"]
    assert [row["differences"] for row in rows.values()] == [{"optimizer.learning_rate": rate}, {}]
    stored = without_checksum(json.loads((runs / "second" / "config.json").read_text()))
    assert "decay_fraction" not in stored["optimizer"]  # written before the field existed
    rewrite(runs / "second" / "config.json", optimizer__decay_fraction=0.2)
    assert {*listed(runs)["second"]["differences"]} == {"optimizer.learning_rate"}
    rewrite(runs / "second" / "config.json", optimizer__decay_fraction=0.3)
    assert {*listed(runs)["second"]["differences"]} == {"optimizer.learning_rate", "optimizer.decay_fraction"}


def test_sort_and_filters(runs, listed):
    shutil.copytree(runs / "first", runs / "late")
    lines = (runs / "first" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs / "first" / "metrics.jsonl").write_text("".join(lines[:3]))
    assert list(listed(runs, "--notrials")) == ["first", "late", "norms"]
    assert list(listed(runs, "--notrials", "--sort=hours")) == ["first", "norms", "late"]
    assert list(listed(runs, "--notrials", "--sort=step", "--reverse"))[-1] == "norms"
    assert list(listed(runs, "--notrials", "--sort=state")) == ["norms", "first", "late"]
    by_score = [row["best"] for row in listed(runs, "--match=norms/*", "--sort=best").values()]
    assert by_score == sorted(by_score)
    assert list(listed(runs, "--sort=best", "--reverse"))[-1] == "norms"  # a sweep has no score, whatever the order
    assert list(listed(runs, "--state=interrupted")) == ["first", "late"]
    assert list(listed(runs, "--state=finished", "--match=*seed=1")) == [
        f"norms/trials/norm_position={place},seed=1" for place in ("post", "pre")
    ]


def test_the_table(runs, capsys):
    lock(runs / "first", os.getpid(), socket.gethostname())
    assert main(["runs", str(runs), "--notrials"]) == 0
    heading, first, norms, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["run", "state", "step", "best", "hours", "differs", "in"]
    assert first.startswith("first  running?  3,000 of 3,060  valid/loss 1.736   0.01  model.emb_dim=20, ")
    assert norms.split() == ["norms", "finished", "4", "of", "4", "trials", "0.00"]
    assert last == "2 rows; configs are compared with the most common value of every field"


def test_a_work_directory_itself(runs, listed):
    assert list(listed(runs / "first")) == ["."]
    assert len(listed(runs / "norms")) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["first/config.json"], "config.json: is a file; expected a folder with work directories or sweeps"),
        (["empty"], "empty: no work directory and no sweep in it"),
        (["", "--sort=colour"], "--sort=colour: "),
        (["", "--state=done"], "--state=done: expected finished, running, "),
        (["", "--state="], "--state=: expected different names"),
        (["", "--match=x*"], "none of the 6 runs is selected by --state, --match and --notrials"),
        (["", "--against=frist"], "--against=frist: no run of this name with a config; there are first, "),
        (["", "--against=norms"], "--against=norms: no run of this name with a config"),
    ],
)
def test_bad_input(runs, capsys, words, message):
    (runs / "empty").mkdir()
    (runs / "empty" / "note.txt").write_text("")
    assert main(["runs", str(runs / words[0]), *words[1:]]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_the_folder_must_be_named(capsys):
    assert main(["runs"]) == 2
    assert "FOLDER is missing" in capsys.readouterr().err


def test_it_imports_nothing_heavy_and_nothing_that_a_file_names(runs, tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')")
    rewrite(runs / "first" / "config.json", task__name="evil:Task")
    program = (
        f"import sys; from transformer_jax.cli.main import main; assert main(['runs', {str(runs)!r}]) == 0; "
        "assert not {'jax', 'flax', 'numpy', 'evil'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "task.name=evil:Task" in done.stdout


def test_links_are_not_followed(runs, listed):
    (runs / "again").symlink_to(runs)
    (runs / ".hidden").mkdir()
    shutil.copytree(runs / "first", runs / ".hidden" / "run")
    assert len(listed(runs)) == 6
