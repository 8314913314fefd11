"""Places of a forward pass are read and replaced, in every architecture, and cost nothing without a request."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, forward, make_batch, random_params, tiny

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.inspection.places import places, run_with

RECURRENT = {
    **{"architecture": "recurrent", "vocab_size": 19, "emb_dim": 8, "hidden_dim": 6, "num_encoder_layers": 2},
    **{"num_decoder_layers": 2, "tie_output": False, "dropout_rate": 0.0, "attention": "dot"},
}
MODELS = {
    "decoder": {"architecture": "decoder_only", "norm_position": "pre", "scan_layers": True},
    "both": {"architecture": "encoder_decoder", "scan_layers": True},
    "encoder": {"architecture": "encoder_only", "norm_position": "sandwich"},
    "images": {
        **{"architecture": "encoder_only", "inputs": "patches", "image_size": 12, "patch_size": 4, "image_channels": 1},
        **{"position_encoding": "learned", "class_token": True, "pixel_mean": "0.5", "pixel_std": "0.5"},
    },
    "mixed": {
        **{"architecture": "decoder_only", "norm_position": "pre", "layer_pattern": "AB", "num_decoder_layers": 3},
        **{"layer_kinds": "A:; B: mixer=gated_delta", "position_encoding": "rotary"},
    },
    "scaled": {"architecture": "decoder_only", "norm_position": "pre", "residual_multiplier": 0.5},
    "parallel": {"architecture": "decoder_only", "norm_position": "pre", "parallel": "one_norm", "num_kv_heads": 2},
}


def model(name):
    return tiny(**MODELS[name])


def batch_of(config, seed=1):
    if config.inputs == "patches":
        return {"inputs": jnp.asarray(np.random.default_rng(seed).integers(0, 256, (2, 12, 12, 1)), jnp.uint8)}
    batch = make_batch(rows=2, seed=seed)
    wanted = {"encoder_decoder": ("inputs", "inputs_mask", "decoder_inputs"), "encoder_only": ("inputs",)}
    return {name: batch[name] for name in wanted.get(config.architecture, ("decoder_inputs",)) if name in batch}


def stack(config):
    return config.stacks[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_places_are_read_and_their_parts_fit_together(name):
    config = model(name)
    params, batch = random_params(config), batch_of(config)
    read = run_with(config, params, batch, ["*"])
    assert {place: value.shape for place, value in read.places.items()} == places(config, batch)
    assert_close(read.outputs, forward(config, params, batch))
    own = stack(config)
    for layer in range(getattr(config, f"num_{own}_layers")):
        at = {place.removeprefix(f"{own}/{layer}/"): value for place, value in read.places.items()}
        mixer = "gated_delta" if (name, layer) == ("mixed", 1) else "self_attention"
        assert ("self_attention/weights" in at) == (mixer == "self_attention")
        if mixer == "self_attention":
            assert_close(at["self_attention/weights"].sum(-1), np.ones(at["self_attention/weights"].shape[:3]))
        assert at[f"{mixer}/heads"].shape[2:] == (config.num_heads, config.value_head_dim)
        parts = [mixer, *(["cross_attention"] if name == "both" else []), "feed_forward"]
        before = [at["input"], *(at[f"{part}/stream"] for part in parts)]
        for part, start, end in zip(parts, before[:-1], before[1:], strict=True):
            output = at[f"{part}/output"]
            if config.norm_position == "pre":
                assert_close(end, start + output * (0.5 if name == "scaled" else 1))
            elif config.norm_position == "post":
                sums, norm = np.asarray(start + output), params[own]["layers"][f"{part}_residual"]["norm"]
                centred = sums - sums.mean(-1, keepdims=True)
                normed = centred / np.sqrt(centred.var(-1, keepdims=True) + config.norm_epsilon)
                assert_close(end, normed * np.asarray(norm["scale"][layer]) + np.asarray(norm["bias"][layer]))
    assert_close(read.places["logits"], read.outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decoder", "both", "mixed"])
def test_all_values_of_another_run_give_that_run_and_a_layer_without_heads_adds_nothing(name):
    config = model(name)
    params, batch, other = random_params(config), batch_of(config), batch_of(config, seed=5)
    own = stack(config)
    embedding = f"{own}/embedding"
    theirs = run_with(config, params, other, [embedding, "encoder/output"] if name == "both" else [embedding])

    def put(value, new):
        return new

    replace = {place: jax.tree_util.Partial(put, new=value) for place, value in theirs.places.items()}
    assert_close(run_with(config, params, batch, replace=replace).outputs, theirs.outputs)
    unchanged = {
        place: jax.tree_util.Partial(put, new=value)
        for place, value in run_with(config, params, batch, list(theirs.places)).places.items()
    }
    assert_close(run_with(config, params, batch, replace=unchanged).outputs, forward(config, params, batch))


@pytest.mark.slow
def test_without_all_heads_a_layer_adds_the_bias_of_its_output_alone():
    config = tiny(**MODELS["decoder"], use_bias=False, qkv_bias=False)
    params, batch = random_params(config), batch_of(config)
    part = "decoder/1/self_attention"
    with_heads = run_with(config, params, batch, replace={f"{part}/heads": jnp.zeros_like})
    with_output = run_with(config, params, batch, replace={f"{part}/output": jnp.zeros_like})
    np.testing.assert_array_equal(with_heads.outputs, with_output.outputs)
    assert np.abs(with_heads.outputs - forward(config, params, batch)).max() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("feeds_back", [False, True])
def test_recurrent_models_have_places_outside_of_their_loops(feeds_back):
    config = ModelConfig(**RECURRENT, input_feeding=feeds_back).resolved()
    params, batch = random_params(config), make_batch(rows=2)
    read = run_with(config, params, batch, ["*"])
    assert {place: value.shape for place, value in read.places.items()} == places(config, batch)
    layers = [] if feeds_back else ["decoder/0/output", "decoder/1/output"]
    assert [*read.places] == [
        *("encoder/embedding", "encoder/0/output", "encoder/1/output", "encoder/output", "decoder/embedding"),
        *(*layers, *(["decoder/cross_attention/weights"] if not feeds_back else []), "decoder/output"),
        *(["decoder/cross_attention/weights"] if feeds_back else []),
        "logits",
    ]
    weights = read.places["decoder/cross_attention/weights"]
    assert weights.shape == (2, 5, 7)
    assert_close(weights.sum(-1), np.ones((2, 5)))
    assert_close(read.outputs, forward(config, params, batch))
    function = {"decoder/cross_attention/weights": jnp.zeros_like}
    if feeds_back:
        with pytest.raises(ConfigError, match="can be read, but not replaced: it is computed in a loop"):
            run_with(config, params, batch, replace=function)
    else:
        assert np.abs(run_with(config, params, batch, replace=function).outputs - read.outputs).max() > 1e-3


@pytest.mark.slow
def test_other_arrays_of_a_partial_compile_nothing():
    config = model("decoder")
    params, batch = random_params(config), batch_of(config)
    traced = []

    def without(heads, keep):
        traced.append(heads)
        return heads * keep[None, None, :, None]

    def ablated(keep):
        function = jax.tree_util.Partial(without, keep=jnp.asarray(keep, jnp.float32))
        return np.asarray(run_with(config, params, batch, replace={"decoder/0/self_attention/heads": function}).outputs)

    kept, ablated_0 = ablated([1, 1, 1, 1]), ablated([0, 1, 1, 1])
    assert len(traced) == 1
    assert_close(kept, forward(config, params, batch))
    assert np.abs(kept - ablated_0).max() > 1e-3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"read": ["decoder/0/self_atention/weights"]}, "no place 'decoder/0/self_atention/weights' \\(did you mean"),
        ({"replace": {"decoder/7/input": jnp.zeros_like}}, "no place 'decoder/7/input'"),
        ({"read": ["encoder/*"]}, "no place 'encoder/\\*'"),
    ],
)
def test_a_place_that_the_model_does_not_have(asked, message):
    config = model("decoder")
    with pytest.raises(ConfigError, match=message):
        run_with(config, {}, batch_of(config), **asked)


@pytest.mark.slow
def test_a_function_that_returns_another_shape_is_named():
    config = model("decoder")
    with pytest.raises(
        ValueError,
        match="place 'decoder/output': the function returns float32\\[2, 5\\]; expected float32\\[2, 5, 16\\]",
    ):
        run_with(config, random_params(config), batch_of(config), replace={"decoder/output": lambda x: x[..., 0]})


def test_norms_over_the_batch_have_the_places_of_other_norms():
    """Parameters that were only initialised have no running averages, and the places need none."""
    found, expected = (places(tiny(architecture="decoder_only", norm=norm)) for norm in ("batchnorm", "layernorm"))
    assert found == expected
    assert "decoder/0/self_attention/weights" in found
