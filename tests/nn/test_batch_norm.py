"""BatchNorm against its definition, against `flax.linen.BatchNorm`, and of padded against unpadded batches."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import Model
from support import assert_close, forward, random_params, scanned, tiny

from transformer_jax.config import NORMS_OVER_BATCH
from transformer_jax.models.architecture import init_params, initial
from transformer_jax.nn.batch_norm import (
    MOMENTUM,
    RUNNING,
    STATISTICS,
    batch_norm,
    initial_running,
    num_parameters,
    updated_running,
    with_running,
)
from transformer_jax.nn.collected import COLLECTED, added
from transformer_jax.nn.heads import MaskedLMHead
from transformer_jax.nn.norms import NORMS, Norm

RNG = np.random.default_rng(0)
X = RNG.normal(1.5, 3.0, (3, 5, 16)).astype(np.float32)
IS_TOKEN = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
SCALE, BIAS = RNG.normal(size=(2, 16)).astype(np.float32)
CONFIG = tiny(norm="batchnorm", architecture="encoder_only", norm_epsilon=1e-3)


def trained(x, is_token, config=CONFIG):
    """Return the output of a training pass, and the sums of its statistics."""
    params = {"scale": jnp.asarray(SCALE), "bias": jnp.asarray(BIAS)}
    is_token = None if is_token is None else jnp.asarray(is_token)
    y, collected = Norm(config).apply({"params": params}, jnp.asarray(x), is_token, mutable=[COLLECTED])
    return y, collected[COLLECTED][STATISTICS]


def evaluated(x, running, config=CONFIG):
    params = {"scale": jnp.asarray(SCALE), "bias": jnp.asarray(BIAS)}
    return Norm(config).apply({"params": with_running(params, running)}, jnp.asarray(x))


def test_literal_numbers():
    """Two tokens of one feature, 1 and 5: mean 3, variance 4, unbiased variance 8."""
    config = tiny(norm="batchnorm", architecture="encoder_only", emb_dim=1, num_heads=1, norm_epsilon=0.0)
    variables = {"params": {"scale": jnp.array([2.0]), "bias": jnp.array([10.0])}}
    x, is_token = jnp.array([[[1.0], [99.0]], [[5.0], [99.0]]]), jnp.array([[True, False], [True, False]])
    y, collected = Norm(config).apply(variables, x, is_token, mutable=[COLLECTED])
    assert np.asarray(y)[:, 0, 0].tolist() == [8.0, 12.0]
    sums = collected[COLLECTED][STATISTICS]
    assert {name: float(value.sum()) for name, value in sums.items()} == {"weight": 2, "mean": 6, "variance": 16}
    running = updated_running(initial_running(sums), sums)
    assert_close(running["running_mean"], [0.1 * 3], 1e-6)
    assert_close(running["running_variance"], [0.9 * 1 + 0.1 * 8], 1e-6)
    assert_close(batch_norm(x, jnp.array([1.0]), jnp.array([4.0]), jnp.ones(1), None, 0.0)[1, 0], [2.0], 1e-6)


@pytest.mark.parametrize("is_token", [None, IS_TOKEN], ids=["all", "masked"])
def test_a_training_pass_equals_flax(is_token):
    """Flax's running variance is that of the biased variance; the original one is of the unbiased."""
    module = nn.BatchNorm(use_running_average=False, momentum=MOMENTUM, epsilon=1e-3)
    variables = {
        "params": {"scale": jnp.asarray(SCALE), "bias": jnp.asarray(BIAS)},
        "batch_stats": {"mean": jnp.zeros(16), "var": jnp.ones(16)},
    }
    mask = None if is_token is None else jnp.asarray(is_token)[..., None]
    expected, stats = module.apply(variables, jnp.asarray(X), mask=mask, mutable=["batch_stats"])
    y, sums = trained(X, is_token)
    tokens = np.ones(X.shape[:2], bool) if is_token is None else is_token
    assert_close(y[tokens], expected[tokens], 1e-5)
    running, count = updated_running(initial_running(sums), sums), tokens.sum()
    assert sums["weight"] == count
    assert_close(running["running_mean"], stats["batch_stats"]["mean"], 1e-6)
    assert_close((running["running_variance"] - 0.9) * (count - 1) / count, stats["batch_stats"]["var"] - 0.9, 1e-5)


def test_masked_statistics_equal_those_without_padding():
    """Values of padding change neither outputs, nor statistics, nor gradients."""
    flat = X[IS_TOKEN][None]  # [1, tokens, D]
    y, sums = trained(X, IS_TOKEN)
    expected, expected_sums = trained(flat, None)
    assert_close(y[IS_TOKEN][None], expected, 1e-5)
    jax.tree.map(lambda a, b: assert_close(a, b, 1e-5), sums, expected_sums)
    other = np.where(IS_TOKEN[..., None], X, 1e6)
    assert np.array_equal(trained(other, IS_TOKEN)[0][IS_TOKEN], y[IS_TOKEN])

    def loss(x, is_token):
        outputs = trained(x, is_token)[0]
        return (outputs**3 if is_token is None else jnp.where(is_token[..., None], outputs**3, 0)).sum()

    gradient, of_flat = jax.grad(loss)(jnp.asarray(X), IS_TOKEN), jax.grad(loss)(jnp.asarray(flat), None)
    assert_close(gradient[IS_TOKEN][None], of_flat, 1e-4)
    assert not np.any(gradient[~IS_TOKEN])


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_tokens_leave_the_running_averages(count):
    is_token = np.arange(15).reshape(3, 5) < count
    y, sums = trained(X, is_token)
    assert np.isfinite(y).all()
    assert_close(y[is_token], np.broadcast_to(BIAS, (count, 16)), 1e-6)  # x - mean is 0
    old = {"running_mean": jnp.full(16, 0.5), "running_variance": jnp.full(16, 2.5)}
    new = updated_running(old, sums)
    assert all(np.array_equal(new[name], old[name]) for name in RUNNING)


def test_evaluation_reads_the_running_averages_alone():
    mean, variance = RNG.normal(size=16), RNG.uniform(0.5, 2.0, 16)
    running = {"running_mean": jnp.asarray(mean, jnp.float32), "running_variance": jnp.asarray(variance, jnp.float32)}
    y = evaluated(X, running)
    assert_close(y, (X - mean) / np.sqrt(variance + 1e-3) * SCALE + BIAS, 1e-5)
    assert np.array_equal(evaluated(X[:1, :2], running), y[:1, :2])
    low = evaluated(jnp.asarray(X, jnp.bfloat16), running)
    assert low.dtype == jnp.bfloat16
    assert_close(low, y, 2**-6)


def test_variance_survives_a_large_mean():
    y, _ = trained(X + 10_000, IS_TOKEN)
    assert_close(y[IS_TOKEN], trained(X, IS_TOKEN)[0][IS_TOKEN], 1e-3)


def test_parameters_without_running_averages_cannot_be_evaluated():
    with pytest.raises(ValueError, match=r"no running_mean; evaluate .* as TrainState\.evaluated"):
        evaluated(X, {})


def test_sums_of_several_passes_are_added():
    one, other = ({"a": {"weight": jnp.float32(n), "mean": jnp.full(2, float(n))}} for n in (1, 2))
    both = added(one, added(other, {"b": {"weight": jnp.float32(7)}}))
    assert jax.tree.map(lambda x: x.tolist(), both) == {"a": {"weight": 3.0, "mean": [3.0, 3.0]}, "b": {"weight": 7.0}}
    assert added({}, one) == one


# --- models --------------------------------------------------------------------------------------------------------

FIELDS = [
    {"norm_position": "post", "embedding_norm": True},
    {"norm_position": "pre", "use_bias": False, "scan_layers": True},
]


def random_running(statistics):
    def value(path, leaf):
        low, high = (0.5, 2.0) if path[-1].key == "running_variance" else (-0.5, 0.5)
        return jnp.asarray(RNG.uniform(low, high, leaf.shape), jnp.float32)

    return jax.tree_util.tree_map_with_path(value, statistics)


@pytest.mark.parametrize("fields", FIELDS, ids=["post", "pre"])
def test_an_encoder_equals_the_float64_reference(fields):
    config = tiny(norm="batchnorm", architecture="encoder_only", **fields)
    statistics = initial(config, 0).running
    params = with_running(random_params(config), random_running(statistics))
    inputs = RNG.integers(4, 19, (3, 7)).astype(np.int32)
    batch = {"inputs": inputs, "inputs_mask": np.arange(7) < np.array([[7], [4], [1]])}
    logits = forward(config, params, batch)
    assert_close(logits, Model(config, params)(batch))
    alone = forward(config, params, {name: array[1:2, :4] for name, array in batch.items()})
    assert_close(logits[1:2, :4], alone, 2e-6)  # padding and other rows do not matter
    # Every norm of the parameters has averages, of its layers.
    norms = {path.rpartition("/")[0] for path in paths(params) if path.endswith("/scale")}
    assert {path.rpartition("/")[0] for path in paths(statistics)} == norms
    assert {leaf.shape for leaf in jax.tree.leaves(statistics)} == {(2, 16), (16,)}
    assert num_parameters(params) == sum(x.size for x in jax.tree.leaves(init_params(config, 0)))


def paths(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]


def test_the_head_of_masked_tokens_counts_the_predicted_ones():
    config = scanned(norm="batchnorm", architecture="encoder_only")
    head, table = MaskedLMHead(config), jnp.asarray(RNG.normal(size=(19, 16)), jnp.float32)
    params = head.init(jax.random.key(0), jnp.asarray(X), {}, table)["params"]
    batch = {"weights": jnp.asarray(IS_TOKEN, jnp.float32)}
    apply = jax.jit(lambda x, batch: head.apply({"params": params}, x, batch, table, mutable=[COLLECTED]))
    logits, collected = apply(jnp.asarray(X), batch)
    assert collected[COLLECTED]["norm"][STATISTICS]["weight"] == IS_TOKEN.sum()
    expected, _ = apply(jnp.asarray(X[IS_TOKEN][None]), {})
    assert_close(logits[IS_TOKEN][None], expected, 1e-5)


def test_other_norms_have_no_averages():
    for norm in ("layernorm", "rmsnorm", "none"):
        assert initial(tiny(norm=norm, architecture="encoder_only"), 0).running == {}
    params = init_params(tiny(), 0)
    assert with_running(params, {}) is params


def test_no_norm_is_the_identity():
    config = tiny(norm="none")
    module = Norm(config)
    assert module.init(jax.random.key(0), jnp.asarray(X)) == {}
    assert np.array_equal(module.apply({}, jnp.asarray(X)), X)


def test_the_config_names_all_norms_with_statistics_over_a_batch():
    assert set(NORMS_OVER_BATCH) == {name for name, kind in NORMS.items() if kind.over_batch}
