"""`import transformer_jax`: what the README's Python does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", transformer_jax._HOMES)
def test_public_names(name):
    assert getattr(transformer_jax, name).__name__ == name
    assert name in dir(transformer_jax)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"no attribute 'train'; public are ExperimentConfig, read_config"):
        _ = transformer_jax.train


def test_importing_is_light():
    program = "import sys, transformer_jax; assert not {'jax', 'flax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_python_of_the_readme_runs(monkeypatch):
    """The block that needs no trained checkpoint, to its last line."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 2
    monkeypatch.chdir(ROOT)
    names: dict = {}
    exec(blocks[0], names)
    config, batch = names["config"].model, names["batch"]
    assert config.norm_position == "post"
    length = batch["targets"].shape[1]
    assert names["logits"].shape == (1, length, config.vocab_size)
    shape = (config.num_decoder_layers, 1, config.num_heads, length, batch["inputs"].shape[1])
    assert names["weights"]["decoder_cross_attention"].shape == shape
