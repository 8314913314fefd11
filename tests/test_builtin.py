"""Configs and studies that come with the package: names, paths, files of the same name, and `transformer-jax list`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax import builtin
from transformer_jax.cli.main import main
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_study(folder):
    folder.mkdir(parents=True)
    (folder / "study.py").write_text("STUDY = None\n")
    return folder


def test_names_are_those_of_the_repository():
    assert {path.name for path in builtin.configs().values()} == {path.name for path in ROOT.glob("configs/*.py")}
    assert set(builtin.studies().values()) == {path.parent for path in ROOT.glob("experiments/*/study.py")}


def test_a_built_in_config_is_read_by_its_name():
    assert read_config("quickstart") == read_config(str(ROOT / "configs" / "quickstart.py"))
    assert read_config("wmt14:big") == read_config(f"{ROOT / 'configs' / 'wmt14.py'}:big")


def test_paths_are_paths():
    assert builtin.config_file("runs/mine.py") == Path("runs/mine.py")
    assert builtin.config_file("mine.py") == Path("mine.py")
    assert builtin.study_folder("experiments/mine") == Path("experiments/mine")
    assert builtin.config_file("~/mine.py") == Path.home() / "mine.py"


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (builtin.config_file, "quickstrat", r"--config=quickstrat: neither in \S+ nor built in .*'quickstart'.* list"),
        (builtin.config_file, "nothing_like_it", r"neither in \S+ nor built in; `transformer-jax list` shows all"),
        (builtin.study_folder, "norm_placment", r"--study=norm_placment: .*did you mean 'norm_placement'"),
        (builtin.config_file, "mine", r"nor built in; there is mine\.py"),
        (builtin.config_file, "configs/quickstart.py", r"does not exist; the built-in one is --config=quickstart"),
        (builtin.study_folder, "experiments/positions", r"does not exist; the built-in one is --study=positions"),
    ],
)
def test_names_that_are_not_found(find, name, message):
    Path("mine.py").write_text("")
    with pytest.raises(ConfigError, match=message):
        find(name)


def test_a_wrong_name_ends_the_command(capsys):
    assert main(["sweep", "--study=norm_placment", "--workdir=runs/a"]) == 2
    assert "did you mean 'norm_placement'" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_file_of_a_built_in_name_wins_with_a_warning(caplog):
    Path("quickstart").write_text("")
    assert builtin.config_file("quickstart") == Path("quickstart")
    write_study(Path("positions"))
    assert builtin.study_folder("positions") == Path("positions")
    assert [record.message.partition(",")[2] for record in caplog.records] == [
        f" not the built-in {kind} of this name" for kind in ("config", "study")
    ]


def test_a_python_file_of_a_built_in_name_needs_its_suffix(caplog):
    """`transformer-jax quickstart` must not execute any quickstart.py that happens to be in the folder."""
    Path("quickstart.py").write_text("")
    assert builtin.config_file("quickstart") == builtin.configs()["quickstart"]
    assert "for the file here write --config=quickstart.py" in caplog.text
    assert builtin.config_file("quickstart.py") == Path("quickstart.py")


def test_a_folder_without_a_study_hides_no_built_in_one(caplog):
    """Such as the work directory of an earlier sweep."""
    Path("positions").mkdir()
    assert builtin.study_folder("positions") == builtin.studies()["positions"]
    assert caplog.records == []


def test_list_shows_names_and_first_lines(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert set(listed["configs"]) == set(builtin.configs())
    assert set(listed["studies"]) == set(builtin.studies())
    for entries in listed.values():
        for name, entry in entries.items():
            assert Path(entry["path"]).exists()
            assert len(entry["description"]) > 20
            assert any(line.split(maxsplit=1) == [name, entry["description"]] for line in lines)


def test_listing_imports_nothing_heavy():
    program = (
        "import sys; from transformer_jax.cli.main import main; main(['list']); "
        "assert not {'jax', 'flax', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
