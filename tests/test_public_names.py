"""`import transformer_jax`, and the Python that the documents show."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_support import trained_folder
from support import assert_close

import transformer_jax
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.search.tuning import TuningGrid
from transformer_jax.sweeps.trials import grid

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", transformer_jax._HOMES)
def test_public_names(name):
    value = getattr(transformer_jax, name)
    assert getattr(value, "__name__", name) == name
    assert value is getattr(importlib.import_module(f"transformer_jax.{transformer_jax._HOMES[name]}"), name)
    assert name in dir(transformer_jax)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"no attribute 'train'; public are ExperimentConfig, read_config"):
        _ = transformer_jax.train


def test_importing_is_light():
    program = "import sys, transformer_jax; assert not {'jax', 'flax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


def check_study(names):
    assert len(grid(names["STUDY"], {}).trials) == 4 * 3
    assert len(grid(names["WALK"], {}).trials) == (4 + 2) * 3
    rates = {t.config.optimizer.learning_rate for t in TuningGrid(Space(names["TUNED"], {})).next([])}
    assert len(rates) == 5
    assert max(rates) / min(rates) == pytest.approx(16)
    sizes = {trial.labels["size"]: trial.config.model.emb_dim for trial in grid(names["TWO_SIZES"], {}).trials}
    assert sizes == {"small": 64, "large": 128}


def check_model(names):
    config, batch = names["config"].model, names["batch"]
    assert config.norm_position == "post"
    length = batch["decoder_inputs"].shape[1]
    assert names["logits"].shape == (1, length, config.vocab_size)
    shape = (1, config.num_heads, length, batch["inputs"].shape[1])
    assert names["ran"].places["decoder/0/cross_attention/weights"].shape == shape
    assert names["step_logits"].shape == (1, 1, config.vocab_size)
    assert names["cache"].index == 4
    with_token = {**batch, "decoder_inputs": jnp.concatenate([batch["decoder_inputs"], names["token"]], axis=1)}
    model = transformer_jax.ARCHITECTURES[config.architecture].module(config)
    expected = model.apply({"params": transformer_jax.init_params(config, seed=0)}, with_token)
    assert_close(names["next_logits"], expected[:, 2])
    assert_close(names["step_logits"][:, 0], expected[:, 3])


CHECKS = {"studies.md": check_study, "python.md": check_model}
TESTED_ELSEWHERE = ("api.md", "reading_tour.md", "tutorial.md")
"""Pages with parts of the source, which `test_docs` compares with it, and one whose programs write files."""
PAGES = [page for folder in ("*.md", "docs/*.md") for page in sorted(ROOT.glob(folder)) if python_blocks(page)]
PAGES = [page for page in PAGES if page.name not in TESTED_ELSEWHERE]


def test_pages_whose_python_is_checked():
    assert set(CHECKS) <= {page.name for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, monkeypatch):
    """All blocks of a page in one namespace; those that need a trained checkpoint, in runs/, are only compiled."""
    monkeypatch.chdir(ROOT)
    names: dict = {}
    for block in python_blocks(page):
        program = compile(block, page.name, "exec")
        if "runs/" not in block:
            exec(program, names)
    CHECKS.get(page.name, lambda _: None)(names)


def test_orbax_alone_reads_a_checkpoint(tmp_path):
    """By the lines of the docs, in a process that does not import this package."""
    [block] = [block for block in python_blocks(ROOT / "docs" / "python.md") if "import orbax" in block]
    assert "transformer_jax" not in block
    step = trained_folder() / "run" / "checkpoints" / "8"
    program = f"""{block.replace("runs/quickstart/checkpoints/1900", str(step))}
import sys
import jax, numpy
assert not any(name.split(".")[0] == "transformer_jax" for name in sys.modules)
leaves = {{jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}}
numpy.savez("params.npz", **leaves)
"""
    subprocess.run([sys.executable, "-P", "-c", program], check=True, cwd=tmp_path, capture_output=True)
    params = transformer_jax.load_translator(step).params
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    with np.load(tmp_path / "params.npz") as found:
        assert set(found) == set(expected)
        for name, leaf in expected.items():
            np.testing.assert_array_equal(found[name], leaf)
    assert "model" in json.loads((step / "record.json").read_text())["record"]["config"]


def test_a_logit_lens_with_head_ablation_takes_at_most_fifteen_lines_of_public_names():
    [block] = [block for block in python_blocks(ROOT / "docs" / "inspection.md") if "tj.logit_lens(" in block]
    assert "tj.without_heads(" in block
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    imported = [line for line in block.splitlines() if "import" in line]
    assert imported == ["import jax.numpy as jnp", "import transformer_jax as tj"]
