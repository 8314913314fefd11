"""`import transformer_jax`: the Python of the README."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from support import assert_close

import transformer_jax
from transformer_jax.config import ModelConfig
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


@pytest.mark.parametrize("name", transformer_jax._GONE)
def test_a_name_of_earlier_versions_says_what_to_use_now(name):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}' any more; use ARCHITECTURES\[") as raised:
        getattr(transformer_jax, name)
    architecture = transformer_jax.ARCHITECTURES["encoder_decoder"]
    method = re.search(r"decoder\(config\.model\)\.(\w+)\(", str(raised.value))
    assert method is None or hasattr(architecture.decoder(ModelConfig().resolved()), method[1])


def test_importing_is_light():
    program = "import sys, transformer_jax; assert not {'jax', 'flax', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.slow
def test_the_python_of_the_readme_runs(monkeypatch):
    """The code blocks that need no trained checkpoint, including their last lines."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    study, forward, decoding, _ = blocks
    monkeypatch.chdir(ROOT)
    names: dict = {}
    exec(study, names)
    assert len(grid(names["STUDY"], ROOT, {}).trials) == 4 * 3
    exec(forward, names)
    config, batch = names["config"].model, names["batch"]
    assert config.norm_position == "post"
    length = batch["decoder_inputs"].shape[1]
    assert names["logits"].shape == (1, length, config.vocab_size)
    shape = (config.num_decoder_layers, 1, config.num_heads, length, batch["inputs"].shape[1])
    assert names["weights"]["decoder_cross_attention"].shape == shape
    exec(decoding, names)
    assert names["logits"].shape == (1, 1, config.vocab_size)
    assert names["cache"].index == 4
    with_token = {
        **batch,
        "decoder_inputs": jnp.concatenate([batch["decoder_inputs"], names["token"]], axis=1),
    }
    model = transformer_jax.ARCHITECTURES[config.architecture].module(config)
    expected = model.apply({"params": transformer_jax.init_params(config, seed=0)}, with_token)[0]
    assert_close(names["logits"][:, 0], expected[:, 3])
