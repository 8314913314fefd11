"""The notebook runs from its first cell to its last, and is committed without outputs."""

import base64
import os
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parent.parent / "examples" / "quickstart.ipynb"

# The smallest values with which every cell still works.
PARAMETERS = """
num_train_steps, num_compare_steps, num_train_pairs = 6, 5, 300
workdir = {workdir!r}
overrides = {{
    "model.vocab_size": 400, "model.emb_dim": 16, "model.mlp_dim": 24, "model.num_heads": 2,
    "model.num_encoder_layers": 1, "model.num_decoder_layers": 1, "data.num_eval_pairs": 10, "data.num_buckets": 1,
    "data.drop_long": True, "decode.max_extra_length": 0,
}}
"""


@pytest.fixture
def notebook():
    return nbformat.read(NOTEBOOK, as_version=4)


def parameters(notebook):
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell


def test_the_notebook_is_committed_without_outputs(notebook):
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_all_parameters_of_the_notebook_are_replaced(notebook):
    given, small = {}, {}
    exec(parameters(notebook).source, given)
    exec(PARAMETERS.format(workdir="x"), small)
    assert given.keys() == small.keys()


@pytest.mark.slow
def test_the_notebook_runs(notebook, tmp_path):
    from nbclient import NotebookClient

    parameters(notebook).source = PARAMETERS.format(workdir=str(tmp_path / "runs"))
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute(env=dict(os.environ))
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [output.data["image/png"] for output in outputs if "data" in output and "image/png" in output.data]
    assert len(pictures) == 5
    for picture in pictures:
        assert base64.b64decode(picture).startswith(b"\x89PNG")
    said = "".join(output.text for output in outputs if output.get("name") == "stdout")
    assert "finished after 6 steps" in said
    assert "Friday, March 7, 2031\n    " in said
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"first", "post_1", "post_0", "pre_1", "pre_0"}
