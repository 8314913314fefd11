"""The notebooks run from their first cell to their last, and are committed without outputs."""

import base64
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "examples"
NOTEBOOKS = ("quickstart", "tutorial")

# The smallest values with which every cell still works.
PARAMETERS = {
    "quickstart": """
num_train_steps, num_compare_steps, num_train_pairs = 6, 5, 300
workdir = "runs"
overrides = {
    "model.vocab_size": 400, "model.emb_dim": 16, "model.mlp_dim": 24, "model.num_heads": 2,
    "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "data.num_eval_pairs": 10, "data.num_buckets": 1,
    "data.drop_long": True, "decode.max_extra_length": 0,
}
""",
    "tutorial": """
folder = "tutorial"
study_flags = (
    "--config.model.emb_dim=16 --config.model.mlp_dim=24 --config.model.num_heads=2"
    " --config.model.num_encoder_layers=1 --config.model.num_decoder_layers=1 --config.decode.max_extra_length=0"
)
train_flags = study_flags + (
    " --config.training.eval_every_steps=4 --config.training.checkpoint_every_steps=4"
)
""",
}


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def parameters(notebook):
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_without_outputs(name):
    notebook = read(name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_all_parameters_of_a_notebook_are_replaced(name):
    given, small = {}, {}
    exec(parameters(read(name)).source, given)
    exec(PARAMETERS[name], small)
    assert given.keys() == small.keys()


# The installation.


def installation(name):
    """Return the cells with the address and with the installation."""
    address, install = [cell.source for cell in read(name).cells if cell.cell_type == "code"][:2]
    return address, install


def test_the_notebooks_install_in_the_same_way():
    assert installation("quickstart") == installation("tutorial")
    assert re.fullmatch('address = ".*"', installation("tutorial")[0])


@pytest.fixture
def install(monkeypatch):
    """Return a function that runs the installation where the package is missing; it returns pip's requirement."""

    def run(address=None, devices=(), driver=""):
        commands = []

        def run_command(words, **_):
            commands.append(words)
            return subprocess.CompletedProcess(words, 0, driver)

        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name: None)
            patch.setattr(subprocess, "run", run_command)
            patch.setattr(shutil, "which", lambda name: name if driver else None)
            patch.setattr(Path, "glob", lambda path, pattern: [path] * (pattern[:4] in devices))
            patch.setenv("PATH", os.environ["PATH"])
            given, program = installation("tutorial")
            names = {}
            exec(given if address is None else f"address = {address!r}", names)
            exec(program, names)
        *_, pip, shown = commands
        assert pip[:4] == [sys.executable, "-m", "pip", "install"]
        assert "jax.devices()" in shown[-1]
        return pip[-1]

    return run


@pytest.mark.parametrize(
    ("found", "extra"),
    [
        ({}, ""),
        ({"driver": "550.54.15\n550.54.15\n"}, "[cuda12]"),
        ({"driver": "580.65.06\n"}, "[cuda13]"),
        ({"devices": ["acce"]}, "[tpu]"),
        ({"devices": ["vfio"]}, "[tpu]"),
    ],
)
def test_the_installation_takes_the_extra_of_the_device(install, found, extra):
    assert install("git+https://forge/owner/name", **found) == f"transformer-jax{extra} @ git+https://forge/owner/name"


def test_the_address_that_nobody_has_set_is_named(install):
    with pytest.raises(ValueError, match="set `address` above to where the package is, as in git"):
        install()


# Runs.


def run_notebook(notebook, name, folder):
    """Run a notebook in a folder with small parameters; return its outputs."""
    from nbclient import NotebookClient

    parameters(notebook).source = PARAMETERS[name]
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}})
    client.execute(env=dict(os.environ))
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def of_type(outputs, kind):
    return [output.data[kind] for output in outputs if kind in output.get("data", {})]


def said(outputs):
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


@pytest.mark.slow
def test_the_quickstart_runs(tmp_path):
    outputs = run_notebook(read("quickstart"), "quickstart", tmp_path)
    pictures = of_type(outputs, "image/png")
    assert len(pictures) == 5
    for picture in pictures:
        assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert "finished after 6 steps" in said(outputs)
    assert "Friday, March 7, 2031\n    " in said(outputs)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"first", "post_1", "post_0", "pre_1", "pre_0"}


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path):
    notebook = read("tutorial")
    smaller = {"[:2_000]": "[:200]", "[2_000:]": "[2_360:]", "num_train_steps=300": "num_train_steps=8"}
    for full, small in smaller.items():
        (cell,) = [cell for cell in notebook.cells if full in cell.source]
        cell.source = cell.source.replace(full, small)
    outputs = run_notebook(notebook, "tutorial", tmp_path)
    assert len(of_type(outputs, "image/svg+xml")) == 3
    assert "10 trials of 2 variants" in said(outputs)
    assert said(outputs).count("**Answer:**") == 3
    assert r"\begin{tabular}" in said(outputs)
    assert (tmp_path / "tutorial" / "paper" / "figures" / "1_validation_loss.pdf").read_bytes().startswith(b"%PDF")
