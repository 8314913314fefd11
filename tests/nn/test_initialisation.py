"""The initial parameters: every kernel and table has the distribution that its scheme says."""

import jax
import numpy as np
import pytest
from support import tiny

from transformer_jax.models.architecture import init_params
from transformer_jax.models.presets import gpt2

LAYERS = 3


@pytest.fixture(scope="module", params=["decoder_only", "encoder_decoder"])
def normal(request):
    """Parameters by path, as GPT-2's are drawn, with a width that gives many samples."""
    config = tiny(
        architecture=request.param, init="normal", init_std=0.05, emb_dim=64, num_heads=4, head_dim=16, mlp_dim=128,
        num_encoder_layers=LAYERS, num_decoder_layers=LAYERS, vocab_size=100, max_length=70, tie_output=False,
        position_encoding="learned", activation="swiglu",
    )  # fmt: skip
    leaves = jax.tree_util.tree_flatten_with_path(jax.jit(lambda: init_params(config, 3))())[0]
    return request.param, {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def test_normal_parameters(normal):
    """Means, deviations and kurtosis: 3 for a normal distribution, 1.8 for a uniform one."""
    architecture, params = normal
    for path, leaf in params.items():
        if path.endswith("bias"):
            assert not leaf.any(), path
            continue
        if path.endswith("scale"):
            assert (leaf == 1).all(), path
            continue
        sums = 3 * LAYERS if architecture == "encoder_decoder" and path.startswith("decoder") else 2 * LAYERS
        std = 0.05 / sums**0.5 if "/out/" in path else 0.05
        samples = np.asarray(leaf, np.float64).ravel()
        assert abs(samples.mean()) < 5 * std / samples.size**0.5, path
        assert abs(samples.std() / std - 1) < 5 / (2 * samples.size) ** 0.5, path
        assert abs(((samples / samples.std()) ** 4).mean() - 3) < 5 * (24 / samples.size) ** 0.5, path


def test_layers_differ(normal):
    for path, leaf in normal[1].items():
        if "layers" in path and path.endswith("kernel"):
            assert not np.array_equal(leaf[0], leaf[1]), path


def test_the_table_of_gpt2_is_small():
    """Tied to the output, it makes small logits, so that the loss at the first step is about log V."""
    config = gpt2(vocab_size=5_000, emb_dim=192, num_heads=3, num_decoder_layers=2).resolved()
    assert config.init == "normal"
    params = jax.jit(lambda: init_params(config, 0)["embedding"])()
    table = np.asarray(params["embedding"], np.float64)
    assert abs(table.std() / 0.02 - 1) < 0.01
