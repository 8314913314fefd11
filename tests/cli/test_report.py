"""The report command: its output, files and exit codes."""

import json
import shutil

import pytest
from report_support import STUDY, write_study, write_workdir

from transformer_jax.cli.main import main
from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.sweeps.results import RESULT, TRIALS

FILES = [
    *("declaration.json", "figures", "measurements.csv", "report.html", "report.md", "results.csv", "summary.csv"),
    *("tables.tex", "trials.json"),
]


@pytest.fixture(scope="module")
def prototype(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    write_workdir(root)
    return root


@pytest.fixture
def made(tmp_path, prototype):
    """Return a work directory, and the flags that name it and its study."""
    shutil.copytree(prototype, tmp_path, dirs_exist_ok=True)
    workdir = tmp_path / "runs" / "heads"
    return workdir, [f"--workdir={workdir}", f"--study={tmp_path / 'experiments' / 'heads'}"]


def test_the_table_goes_to_stdout_and_the_files_to_the_work_directory(made, capsys):
    workdir, flags = made
    assert main(["report", *flags]) == 0
    captured = capsys.readouterr()
    assert sorted(path.name for path in (workdir / "report").iterdir()) == FILES
    assert captured.out.startswith(
        "**Answer:**\n\n- num_heads 1 is ahead of all others that were compared in test exact match (p = "
    )
    assert "\n\n| num_heads | test exact match (%), mean ± 95 % | difference | p (Holm) |" in captured.out
    assert captured.out in (workdir / "report" / "report.md").read_text()
    assert str(workdir / "report" / "report.html") in captured.err


def test_json_and_another_folder(made, tmp_path, capsys):
    workdir, flags = made
    assert main(["report", *flags, "--json", f"--output={tmp_path / 'out'}"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert (records[0]["variant"], records[0]["metric"]) == ({"num_heads": "1"}, "test/exact_match")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    assert not (workdir / "report").exists()


def test_the_recorded_folder_is_enough(made, capsys):
    workdir, flags = made
    file = workdir / "study.json"
    values = without_checksum(json.loads(file.read_text()))
    file.write_text(json.dumps(with_checksum(values | {"folder": flags[1].removeprefix("--study=")})))
    assert main(["report", flags[0]]) == 0


def cut_short(workdir):
    file = next(workdir.glob(f"{TRIALS}/*/{RESULT}"))
    file.write_text(file.read_text()[:30])


def without_results(workdir):
    for file in workdir.glob(f"{TRIALS}/*/{RESULT}"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda workdir: (workdir / "study.json").unlink(), "has no study.json"),
        (without_results, "no trial has finished (15 none yet)"),
        (cut_short, "result.json: cannot be read or is cut short"),
        (
            lambda workdir: write_study(workdir.parent.parent, 'figures=(MetricByVariant("test/nothing"),),'),
            "figure MetricByVariant: no trial has measured 'test/nothing'",
        ),
        (
            lambda workdir: write_study(workdir.parent.parent, 'figures=(MetricByAxis("test/loss", x="heads"),),'),
            "figure MetricByAxis of 'test/loss': no axis 'heads' (did you mean 'num_heads'?)",
        ),
        (
            lambda workdir: write_study(workdir.parent.parent, text=STUDY.replace("test/loss", "valid/chrf")),
            "metric 'valid/chrf': no trial has measured it",
        ),
    ],
)
def test_an_error_is_one_message_and_nothing_is_written(made, capsys, damage, message):
    workdir, flags = made
    damage(workdir)
    assert main(["report", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("transformer-jax: error: ")
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert not (workdir / "report").exists()


@pytest.mark.parametrize("flags", [[], ["--workdir=a", "--results=b"]])
def test_one_folder_is_needed(capsys, flags):
    assert main(["report", *flags]) == 2
    assert "give one of --workdir=WORKDIR and --results=FOLDER" in capsys.readouterr().err
