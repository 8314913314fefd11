"""Fields of the residual stream: factors of sub-layers, the input of the stack in every layer, parallel parts.

`support.STREAMS` compares models that have them with the float64 reference, packed and in cached decoding.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, random_params, shapes, tiny
from training_support import small_config

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.nn.axes import axes_of
from transformer_jax.nn.layer import Layer
from transformer_jax.nn.layer_inputs import LayerInputs
from transformer_jax.nn.masks import causal_mask
from transformer_jax.nn.stack import LAMBDA_INITS, Lambdas, Stack
from transformer_jax.training import init_from
from transformer_jax.training.optimizers import DECAY_MASKS

DECODER = {"architecture": "decoder_only", "num_decoder_layers": 3, "scan_layers": True, "norm_position": "pre"}
REZERO = {**DECODER, "norm": "none", "norm_position": "post", "residual_scale": "scalar"}
X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 16)), jnp.float32)


@functools.partial(jax.jit, static_argnums=0)
def through(config, params, x):
    """Return the output of the decoder's stack [B, T, D]."""
    module = Stack(config, config.num_decoder_layers, causal=True)
    return module.apply({"params": params}, x, jnp.arange(x.shape[1])[None], causal_mask(x.shape[1]), None)


def stack_params(config, **changed):
    """Return random parameters of the stack, with some arrays replaced by the end of their path."""
    params = random_params(config)["decoder"]

    def value(path, leaf):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        new = [number for end, number in changed.items() if text.endswith(end)]
        return jnp.broadcast_to(jnp.asarray(new[0], jnp.float32), leaf.shape) if new else leaf

    return jax.tree_util.tree_map_with_path(value, params)


def test_rezero_at_0_is_the_identity_and_only_its_factors_have_a_gradient():
    config = tiny(**REZERO)
    params = stack_params(config, **{"residual/scale": 0.0})
    np.testing.assert_array_equal(through(config, params, X), X)
    gradient = jax.grad(lambda p: (through(config, p, X) * X[::-1]).sum())(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        is_factor = path[-2].key.endswith("_residual")
        assert (np.abs(leaf) > 1e-3).all() if is_factor else not leaf.any(), path


def test_lambdas_of_a_stack_that_is_the_identity():
    """x0 (((r1 + s1) r2 + s2) r3 + s3), and with r = 1 and s = 0 the input itself."""
    config = tiny(**REZERO, residual_lambdas=True)
    r, s = np.array([1.15, 1.1, 1.05]), np.array([0.2, 0.1, 0.05])
    zero = {"residual/scale": 0.0}
    params = stack_params(config, **zero, **{"stream_lambdas/scale": r, "input_lambdas/scale": s})
    assert_close(through(config, params, X), (((r[0] + s[0]) * r[1] + s[1]) * r[2] + s[2]) * X, 1e-6)
    params = stack_params(config, **zero, **{"stream_lambdas/scale": 1.0, "input_lambdas/scale": 0.0})
    np.testing.assert_array_equal(through(config, params, X), X)


def test_initial_lambdas_fall_with_depth():
    """From r 1.15 and s 0.2 of the first layer to 1.05 and 0.05 of the last; of one layer they are the former."""
    r, s = ((LAMBDA_INITS["by_depth"][number]) for number in (0, 1))
    for layers, streams, inputs in ((4, [1.15, 1.15 - 0.1 / 3, 1.15 - 0.2 / 3, 1.05], [0.2, 0.15, 0.1, 0.05]),
                                    (1, [1.15], [0.2])):  # fmt: skip
        for ends, expected in ((r, streams), (s, inputs)):
            scale = Lambdas(layers, *ends).init(jax.random.key(0))["params"]["scale"]
            assert_close(scale, expected, 1e-6)


@pytest.mark.slow
def test_initial_lambdas_of_a_model_fall_with_depth_in_every_stack():
    config = tiny(num_encoder_layers=2, num_decoder_layers=3, residual_lambdas=True, residual_lambdas_init="by_depth")
    params = jax.jit(lambda: init_params(config, 0))()
    assert_close(params["encoder"]["stream_lambdas"]["scale"], [1.15, 1.05], 1e-6)
    assert_close(params["decoder"]["stream_lambdas"]["scale"], [1.15, 1.1, 1.05], 1e-6)
    assert_close(params["decoder"]["input_lambdas"]["scale"], [0.2, 0.125, 0.05], 1e-6)


def test_lambdas_of_1_and_0_are_the_plain_stack():
    plain, with_lambdas = tiny(**DECODER), tiny(**DECODER, residual_lambdas=True)
    params = stack_params(with_lambdas, **{"stream_lambdas/scale": 1.0, "input_lambdas/scale": 0.0})
    others = {name: part for name, part in params.items() if not name.endswith("_lambdas")}
    np.testing.assert_array_equal(through(with_lambdas, params, X), through(plain, others, X))


def test_parallel_parts_are_a_serial_layer_where_attention_adds_nothing():
    """With an attention output of zero, whose norm is that of the feed-forward part with `one_norm`."""
    outputs = {}
    for parallel in ("none", "one_norm", "two_norms"):
        config = tiny(**DECODER, parallel=parallel)
        params = stack_params(config, **{"self_attention/out/kernel": 0.0, "self_attention/out/bias": 0.0})
        layers = params["layers"]
        assert ("feed_forward_residual" in layers) == (parallel != "one_norm")
        of_both = {"norm": jax.tree.map(lambda leaf: leaf * 0 + 0.7, layers["self_attention_residual"]["norm"])}
        layers |= {name: of_both for name in ("self_attention_residual", "feed_forward_residual") if name in layers}
        outputs[parallel] = through(config, params, X)
        assert np.abs(outputs[parallel] - through(config, params, 2 * X)).max() > 0.1
    assert_close(outputs["one_norm"], outputs["none"], 1e-6)
    assert_close(outputs["two_norms"], outputs["none"], 1e-6)


@functools.partial(jax.jit, static_argnums=0)
def one_layer(config, params, x):
    """Return the output of a layer [B, T, D] by itself, without the final norm of its stack."""
    inputs = LayerInputs(jnp.arange(x.shape[1])[None], causal_mask(x.shape[1]), None)
    return Layer(config, 1).apply({"params": params}, x, inputs).x


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["none", "one_norm", "two_norms"])
def test_parallel_parts_add_what_each_of_them_adds_alone(parallel):
    """So the feed-forward part reads the input of the layer. One that follows attention adds something else."""
    config = tiny(**{**DECODER, "num_decoder_layers": 1}, parallel=parallel)

    def added(*zero):
        params = stack_params(config, **{f"{part}/out/{name}": 0.0 for part in zero for name in ("kernel", "bias")})
        return np.asarray(one_layer(config, jax.tree.map(lambda leaf: leaf[0], params["layers"]), X) - X, np.float64)

    both, attention, feed_forward = added(), added("feed_forward"), added("self_attention")
    assert min(np.abs(attention).max(), np.abs(feed_forward).max()) > 0.1
    difference = np.abs(both - attention - feed_forward).max()
    assert difference > 0.1 if parallel == "none" else difference < 1e-5


@functools.cache
def initial(**fields):
    config = tiny(architecture="decoder_only", num_decoder_layers=4, layer_pattern="AX",
                  layer_kinds="A:; X: mixer=gated_delta, feed_forward=experts", **fields)  # fmt: skip
    leaves = jax.tree_util.tree_leaves_with_path(jax.jit(lambda: init_params(config, 0))())
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def test_outputs_that_start_at_zero():
    """They are the output projections of every mixer and feed-forward part; all other parameters are the same."""
    plain, changed = initial(), initial(zero_init_outputs=True)
    zeros = {path for path in plain if not np.array_equal(plain[path], changed[path])}
    expected = {"layers/self_attention", "layers/feed_forward"}
    expected |= {f"layers_gated_delta_experts/{part}" for part in ("gated_delta", "experts")}
    assert zeros == {f"decoder/{part}/out/kernel" for part in expected}
    assert not any(changed[path].any() for path in zeros)


def test_initial_values():
    fields = {"residual_scale": "vector", "residual_scale_init": 1e-4, "residual_lambdas": True}
    params = initial(**fields, norm="dyt", norm_scale="offset", norm_position="pre")
    expected = {"residual/scale": 1e-4, "stream_lambdas/scale": 1.0, "input_lambdas/scale": 0.0}
    expected |= {"norm/alpha": 0.5, "residual/norm/scale": 0.0, "final_norm/scale": 0.0}
    for end, value in expected.items():
        found = [leaf for path, leaf in params.items() if path.endswith(end)]
        assert found, end
        assert all((leaf == np.float32(value)).all() for leaf in found), end
    assert params["decoder/layers/self_attention_residual/scale"].shape == (2, 16)
    assert params["decoder/stream_lambdas/scale"].shape == (4,)


def test_factors_do_not_decay_and_are_no_matrices():
    """Their names are those of gains, which only the mask `all` lets decay."""
    config = tiny(architecture="decoder_only", norm="dyt", residual_scale="scalar", residual_lambdas=True)
    ends = ("residual/scale", "lambdas/scale", "norm/alpha")
    for name in ("matrices", "all_but_norms_and_biases"):
        found = {
            jax.tree_util.keystr(path, simple=True, separator="/"): decays
            for path, decays in jax.tree_util.tree_leaves_with_path(DECAY_MASKS[name](shapes(config)))
        }
        factors = [path for path in found if path.endswith(ends)]
        assert len(factors) == 6
        assert not any(found[path] for path in factors)
        assert not any(axes_of(path, parameter_axes(config)).is_hidden for path in factors)


# --- refusals ------------------------------------------------------------------------------------------------------


def refused(**fields):
    task = {"decoder_only": "language_model", "encoder_only": "masked_lm"}.get(fields.get("architecture"))
    config = ExperimentConfig(model=ModelConfig(**fields), **({"task": TaskConfig(name=task)} if task else {}))
    with pytest.raises(ConfigError) as error:
        config.resolved()
    return str(error.value)


ONE_NORM = {"norm_position": "pre", "parallel": "one_norm"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (ONE_NORM, ("parallel='one_norm'", "architecture='encoder_decoder'")),
        *(
            (
                {"architecture": "decoder_only", "norm_position": place, "parallel": "two_norms"},
                ("parallel='two_norms'", f"norm_position='{place}'"),
            )
            for place in ("post", "deepnorm", "output", "sandwich", "peri")
        ),
        *(
            (
                {"norm_position": place, "zero_init_outputs": True},
                ("zero_init_outputs=True", f"norm_position='{place}'"),
            )
            for place in ("sandwich", "output", "peri")
        ),
        *(
            (
                {"architecture": "encoder_only", "norm": "batchnorm", **other},
                ("norm='batchnorm'", "{}={!r}".format(*next(iter(other.items())))),
            )
            for other in (
                {"norm_position": "sandwich"},
                {"norm_position": "deepnorm"},
                {"residual_scale": "scalar"},
                {"residual_lambdas": True},
            )
        ),
        (
            {"residual_scale": "scalar", "zero_init_outputs": True},
            ("zero_init_outputs=True", "residual_scale_init=0.0"),
        ),
        ({"norm_position": "peri", "embedding_norm": True}, ("embedding_norm=True", "norm_position='peri'")),
        ({"norm": "none", "norm_scale": "offset"}, ("norm_scale='offset'", "norm='none'")),
        ({"norm": "dyt", "norm_epsilon": 1e-3}, ("norm_epsilon=0.001", "norm='dyt'")),
        ({"residual_scale_init": 0.1}, ("residual_scale_init=0.1", "residual_scale='none'")),
        ({"residual_multiplier": 0.0}, ("residual_multiplier=0.0", "expected more than 0")),
        (
            {"architecture": "recurrent", "residual_lambdas": True},
            ("residual_lambdas=True", "architecture='recurrent'"),
        ),
        ({"norm_position": "sandwhich"}, ("did you mean 'sandwich'?",)),
        ({"residual_lambdas_init": "by_depth"}, ("residual_lambdas_init='by_depth'", "residual_lambdas=False")),
        (
            {"architecture": "recurrent", "residual_lambdas_init": "by_depth"},
            ("residual_lambdas_init='by_depth'", "architecture='recurrent'"),
        ),
    ],
)
def test_what_has_no_meaning_together_is_refused_with_both_fields(fields, words):
    said = refused(**fields)
    assert all(word in said for word in words), said


def test_zeros_and_factors_that_are_not_zero_go_together():
    small_config({"model.residual_scale": "vector", "model.residual_scale_init": 0.1, "model.zero_init_outputs": True})


def test_gains_of_another_form_are_refused():
    """The same array would be another gain; without norms there are none."""

    def check(theirs, ours):
        source = dataclasses.asdict(ModelConfig(**theirs))
        init_from._check_gains("x", source, ModelConfig(**ours))

    for theirs, ours in (("learned", "offset"), ("offset", "learned")):
        with pytest.raises(CheckpointError, match=rf"has model\.norm_scale='{theirs}', but the config has '{ours}'"):
            check({"norm_scale": theirs}, {"norm_scale": ours})
    of_heads = {"norm": "none", "qk_norm": "rms"}
    with pytest.raises(CheckpointError, match=r"has model\.norm_scale='learned', but the config has 'offset'"):
        check(of_heads, {**of_heads, "norm_scale": "offset"})
    check({**of_heads, "qk_norm": "l2"}, {**of_heads, "norm_scale": "offset"})  # no array is in both
    check({"norm": "none"}, {**of_heads, "norm_scale": "offset"})
    check({"norm_scale": "offset"}, {"norm_scale": "offset"})
    check({"norm": "none"}, {"norm_scale": "offset"})
    check({"norm_scale": "none"}, {"norm_scale": "offset"})  # the missing arrays are named elsewhere
