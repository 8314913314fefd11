"""A results folder alone gives the report of the work directory, byte for byte, and refuses files that were changed."""

import dataclasses
import json
import re
import shutil

import pytest
from report_support import CROSSED, STUDY, write_study, write_workdir

from transformer_jax.cli.main import main
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.host.files import with_checksum, without_checksum
from transformer_jax.sweeps.report.collect import collect
from transformer_jax.sweeps.report.committed import collect_results
from transformer_jax.sweeps.report.effects import effects
from transformer_jax.sweeps.report.summary import summarise
from transformer_jax.sweeps.report.write import write_report
from transformer_jax.sweeps.results import RESULT, TRIALS, read_result
from transformer_jax.sweeps.results_folder import DECLARATION, TRIALS_FILE, read_results_folder

OWN = """figures=(
        MetricByVariant("test/loss"),
        CustomFigure(lambda axes, results: axes.plot([1, 2], [len(results.trials), 3]), "Mine", "A line."),
        Curves("valid/loss"), MetricByBin("test[*]/exact_match"),
    ),"""


def write(results, output):
    write_report(results, summarise(results), effects(results), output)


def files(folder):
    """Return the content of every file of a report by its name."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_same_files(folder, other):
    one, two = files(folder), files(other)
    assert sorted(one) == sorted(two)
    assert [name for name in one if one[name] != two[name]] == []


@pytest.fixture(scope="module")
def prototype(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    workdir, _ = write_workdir(root)
    write(collect(workdir), root / "results")
    return root


@pytest.fixture
def folder(tmp_path, prototype):
    return shutil.copytree(prototype / "results", tmp_path / "results")


@pytest.mark.parametrize(
    ("text", "code", "state"),
    [
        (STUDY, "with the code", "complete"),
        (CROSSED, "code only before", "incomplete"),
        (STUDY, "without code", "incomplete"),
    ],
)
def test_the_results_folder_alone_gives_the_same_files(tmp_path, text, code, state):
    """A trial may have no result, no log, or a metric that is NaN."""
    workdir, study = write_workdir(tmp_path, OWN, text)
    if state != "complete":
        places = sorted((workdir / TRIALS).iterdir())
        (places[0] / RESULT).unlink()
        result = read_result(places[1])
        dataclasses.replace(result, metrics={**result.metrics, "test/loss": float("nan")}).write(places[1])
        (places[2] / "metrics.jsonl").unlink()
    write(collect(workdir, None if code == "without code" else study), tmp_path / "first")
    shutil.rmtree(workdir)
    if code != "with the code":
        shutil.rmtree(study)
    again = collect_results(tmp_path / "first", study if code == "with the code" else None)
    write(again, tmp_path / "second")
    assert_same_files(tmp_path / "first", tmp_path / "second")
    assert (b"Mine" in (tmp_path / "second" / "report.html").read_bytes()) == (code != "without code")


def test_a_report_of_a_report_of_a_command(folder, tmp_path, capsys):
    """Without --output, the files are written where they were."""
    before = files(folder)
    assert main(["report", f"--results={folder}"]) == 0
    assert "| num_heads | test exact match" in capsys.readouterr().out
    assert files(folder) == before
    (folder / "summary.csv").unlink()
    assert main(["report", f"--results={folder}", f"--output={tmp_path / 'other'}"]) == 0
    assert files(tmp_path / "other") == before


def test_tables_with_line_ends_of_windows_are_not_edited(folder):
    for file in folder.glob("*.csv"):
        file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_results_folder(folder).trials) == 15


def edit(name, old, new):
    def change(folder):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def values(name, **changes):
    """Return a change of a JSON file whose checksum is right."""

    def change(folder):
        found = without_checksum(json.loads((folder / name).read_text()))
        (folder / name).write_text(json.dumps(with_checksum(found | changes)))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            edit("results.csv", "finished", "diverged"),
            r"results\.csv: does not match its checksum .* damaged or edited",
        ),
        (edit("summary.csv", "True", "False"), r"summary\.csv: does not match its checksum"),
        (edit("measurements.csv", "log,10,", "log,11,"), r"measurements\.csv: does not match its checksum"),
        (edit(TRIALS_FILE, '"finished"', '"diverged"'), r"trials\.json: does not match its checksum"),
        (edit(DECLARATION, "test/loss", "test/lose"), r"declaration\.json: does not match its checksum"),
        (lambda folder: (folder / "measurements.csv").unlink(), r"measurements\.csv: is missing; restore it"),
        (lambda folder: (folder / DECLARATION).unlink(), r"declaration\.json: is missing; restore it"),
        (lambda folder: (folder / TRIALS_FILE).unlink(), r"trials\.json: is missing; restore it"),
        (lambda folder: (folder / TRIALS_FILE).write_text("{"), r"trials\.json: cannot be read or is cut short"),
        (values(TRIALS_FILE, format=2), r"trials\.json: has the format 2, written by transformer_jax .*; update it"),
        (values(DECLARATION, format=2), r"declaration\.json: has the format 2"),
        (values(DECLARATION, study="tails"), r"declaration\.json is of 'tails', trials\.json of 'heads'"),
        (values(DECLARATION, search={"name": "best", "pruner": "none"}), "'search' has a value of another kind"),
        (values(TRIALS_FILE, trials=[{}]), "its files are not those of a report: KeyError"),
        (values(DECLARATION, declaration={}), r"declaration\.json: does not declare a study"),
    ],
)
def test_damaged_and_edited_files_are_refused(folder, damage, message):
    damage(folder)
    before = files(folder)
    with pytest.raises(DataError, match=message):
        collect_results(folder)
    assert files(folder) == before


def test_folders_that_are_not_of_results(folder, prototype, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    workdir = prototype / "runs" / "heads"
    for place, message in (
        (tmp_path / "nowhere", "is not a folder"),
        (tmp_path / "empty", "has no trials.json, so it is not a folder that `report` has written"),
        (workdir, f"is the work directory of a sweep; `report` takes it as --workdir={workdir}, and `sweep` needs"),
    ):
        with pytest.raises(ConfigError, match=message):
            collect_results(place)
    with pytest.raises(ConfigError, match="is a results folder; give it as --results="):
        collect(folder)
    other = shutil.copytree(prototype / "experiments" / "heads", tmp_path / "experiments" / "tails")
    with pytest.raises(ConfigError, match="is of the study 'heads', not of 'tails'"):
        collect_results(folder, other)


def test_a_study_that_has_changed_since_is_named(folder, tmp_path, caplog):
    """The report is that of the study now; a value that it has lost is an error."""
    study = write_study(tmp_path, 'seeds=(0, 1, 2, 3), not_shown="Much.",')
    results = collect_results(folder, study)
    assert "differs from the study" in caplog.text
    assert "seeds, not_shown" in caplog.text
    assert results.variants[0].counts == {"finished": 3, "not begun": 1}
    write_study(tmp_path, text=STUDY.replace("1, 2, 4, 8, 16", "1, 2, 4, 8"))
    with pytest.raises(ConfigError, match=r"results: num_heads=16.*has no value '16' now.*as --study$"):
        collect_results(folder, study)


def without_later_files(folder, *more):
    for name in (TRIALS_FILE, DECLARATION, *more):
        (folder / name).unlink()


def test_a_folder_of_an_earlier_version(folder, prototype, tmp_path):
    """With the study's code, the page and the CSV files have everything."""
    before = files(folder)
    without_later_files(folder)
    with pytest.raises(ConfigError, match=r"an earlier version has written it, .* pass --study=FOLDER"):
        collect_results(folder)
    write(collect_results(folder, prototype / "experiments" / "heads"), tmp_path / "again")
    after = files(tmp_path / "again")
    assert {name for name in before if before[name] != after[name]} <= {
        TRIALS_FILE,
        DECLARATION,
        "report.html",
        "report.md",
    }
    # The code of the study was not run before, so the page had no command. What was declared is not known now.
    assert b"1 x &lt;cpu&gt;" in after["report.html"]
    declared = rb"<li>Contrasts, metrics and widths are those declared [^<]*</li>"
    assert re.search(declared, before["report.html"])
    pages = [re.sub(declared, b"", of["report.html"]).partition(b"How it was made")[0] for of in (before, after)]
    assert pages[0] == pages[1]


def test_a_folder_of_an_earlier_version_without_curves(folder, prototype, tmp_path, capsys):
    """A figure without numbers stays as it was, also the next time."""
    without_later_files(folder, "measurements.csv")
    [curves] = (folder / "figures").glob("2_*.svg")
    curves.write_bytes(b"<svg>the old curves</svg>")
    study = f"--study={prototype / 'experiments' / 'heads'}"
    for _ in range(2):
        assert main(["report", f"--results={folder}", study]) == 3
        assert "figure Curves: no trial has logged 'valid/loss'" in capsys.readouterr().err
        assert curves.read_bytes() == b"<svg>the old curves</svg>"
        assert (folder / "figures" / curves.name).with_suffix(".pdf").exists()
    curves.unlink()
    assert main(["report", f"--results={folder}", study, f"--output={tmp_path / 'out'}"]) == 3
    assert "figure 'Valid loss by step' is left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (edit("results.csv", "num_heads,seed", "heads,seed"), "begins with the columns heads, seed, status"),
        (edit("results.csv", "16,0,finished", "17,0,finished"), "'num_heads' has no value '17' in the study now"),
        (edit("results.csv", "16,0,finished", "16,0,over"), "unknown status 'over'"),
        (edit("results.csv", "16,0,finished", "16,0,finished,"), r"results\.csv: row 14 has \d+ columns"),
    ],
)
def test_a_damaged_folder_of_an_earlier_version(folder, prototype, damage, message):
    without_later_files(folder)
    damage(folder)
    with pytest.raises((ConfigError, DataError), match=message):
        collect_results(folder, prototype / "experiments" / "heads")


def test_a_config_that_names_a_module_needs_trust(folder, capsys):
    config = without_checksum(json.loads((folder / TRIALS_FILE).read_text()))["config"]
    values(TRIALS_FILE, config=config | {"task.name": "evil_module:Thing"})(folder)
    assert main(["report", f"--results={folder}"]) == 2
    err = capsys.readouterr().err
    assert "trials.json" in err
    assert "--trust=evil_module" in err
