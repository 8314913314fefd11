"""The initial parameters: every kernel and table has the distribution that its scheme says."""

import re

import jax
import numpy as np
import pytest
from support import tiny

from transformer_jax.models.architecture import init_params
from transformer_jax.models.presets import gpt2

LAYERS = 3


def drawn(**fields):
    """Return parameters by path, with a width that gives many samples."""
    config = tiny(
        emb_dim=64, num_heads=4, head_dim=8, mlp_dim=128, num_encoder_layers=LAYERS, num_decoder_layers=LAYERS,
        vocab_size=100, max_length=70, tie_output=False, activation="swiglu", **fields,
    )  # fmt: skip
    leaves = jax.tree_util.tree_flatten_with_path(jax.jit(lambda: init_params(config, 3))())[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


@pytest.fixture(
    scope="module",
    params=[("decoder_only", "normal"), ("encoder_decoder", "normal"), ("encoder_only", "plain_normal")],
    ids="-".join,
)
def normal(request):
    """Parameters as GPT-2's and BERT's are drawn."""
    architecture, init = request.param
    types = {"token_types": 40, "embedding_norm": True} if architecture == "encoder_only" else {}
    fields = {"init_std": 0.05, "position_encoding": "learned", **types}
    return architecture, drawn(architecture=architecture, init=init, **fields)


def assert_normal(path, leaf, std):
    """Check mean, deviation and kurtosis: 3 for a normal distribution, 1.8 for a uniform one."""
    samples = np.asarray(leaf, np.float64).ravel()
    assert abs(samples.mean()) < 5 * std / samples.size**0.5, path
    assert abs(samples.std() / std - 1) < 5 / (2 * samples.size) ** 0.5, path
    assert abs(((samples / samples.std()) ** 4).mean() - 3) < 5 * (24 / samples.size) ** 0.5, path


def test_normal_parameters(normal):
    architecture, params = normal
    for path, leaf in params.items():
        if path.endswith("bias"):
            assert not leaf.any(), path
            continue
        if path.endswith("scale"):
            assert (leaf == 1).all(), path
            continue
        sums = 3 * LAYERS if architecture == "encoder_decoder" and path.startswith("decoder") else 2 * LAYERS
        scaled = architecture != "encoder_only" and "/out/" in path
        assert_normal(path, leaf, 0.05 / sums**0.5 if scaled else 0.05)


def test_t5_parameters():
    """The deviations of T5's code, with D = 64, N = 4, H = 8, F = 128; d_kv is H."""
    params = drawn(init="t5", use_bias=False, norm="rmsnorm", position_encoding="relative", relative_num_buckets=64,
                   relative_max_distance=128)  # fmt: skip
    deviations = {
        "query/kernel": (64 * 8) ** -0.5,
        "key/kernel": 64**-0.5,
        "value/kernel": 64**-0.5,
        "attention/out/kernel": (4 * 8) ** -0.5,
        "(hidden|gate)/kernel": 64**-0.5,
        "feed_forward/out/kernel": 128**-0.5,
        "relative_bias/embedding": 64**-0.5,
        "^embedding/embedding": 1.0,
        "output/kernel": 1.0,
    }
    kernels = {path: leaf for path, leaf in params.items() if not path.endswith("scale")}
    for path, leaf in kernels.items():
        (std,) = (std for end, std in deviations.items() if re.search(f"{end}$", path))
        assert_normal(path, leaf, std)


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
