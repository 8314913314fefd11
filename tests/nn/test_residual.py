import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from support import HYBRIDS, assert_close, shapes, tiny

from transformer_jax.config.model import INSIDE_NORMS
from transformer_jax.models.architecture import init_params, parameter_axes
from transformer_jax.nn.dropout import Dropout, DropoutRates, keep_mask
from transformer_jax.nn.residual import NORM_POSITIONS, Residual, Scales, deepnorm, scaled_initial

RNG = np.random.default_rng(0)
X, KERNEL = RNG.normal(2.0, 3.0, (2, 3, 16)), RNG.normal(size=(16, 16)) / 4
SCALE, BIAS = RNG.normal(size=(2, 16))
OUTPUT = RNG.normal(size=(2, 16))
NORM = {"norm": {"scale": jnp.asarray(SCALE, jnp.float32), "bias": jnp.asarray(BIAS, jnp.float32)}}
NORMS = {**NORM, "output_norm": {"scale": jnp.float32(OUTPUT[0]), "bias": jnp.float32(OUTPUT[1])}}
POSITIONS = ("post", "pre", "sandwich", "output", "peri", "deepnorm")


def apply(config, dropout=None, factor=1.0):
    def around(module, x):
        return module.after(x, factor * jnp.tanh(module.before(x) @ jnp.asarray(KERNEL, jnp.float32)), dropout)

    return Residual(config).apply({"params": NORMS}, jnp.asarray(X, jnp.float32), method=around)


def formula(config, drop=lambda y: y):
    def norm(y, scale=SCALE, bias=BIAS):
        return reference.norm(config, y, {"scale": scale, "bias": bias})

    def f(x):
        return np.tanh(x @ KERNEL)

    match config.norm_position:
        case "post":
            return norm(X + drop(f(X)))
        case "pre":
            return X + drop(f(norm(X)))
        case "sandwich" | "peri":
            return X + drop(norm(f(norm(X)), *OUTPUT))
        case "output":
            return X + drop(norm(f(X), *OUTPUT))
        case "deepnorm":
            return norm(1.4179377 * X + drop(f(X)))  # the encoder of 6 and 6 layers


DEEP = {"num_encoder_layers": 6, "num_decoder_layers": 6}


def test_every_place_of_norms_is_tested():
    assert set(NORM_POSITIONS) == set(POSITIONS)
    assert {name for name, place in NORM_POSITIONS.items() if place.inside} == set(INSIDE_NORMS)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("norm_position", POSITIONS)
def test_the_formula(norm_position, norm):
    config = tiny(**DEEP, norm_position=norm_position, norm=norm)
    assert_close(apply(config), formula(config), 2e-6)


@pytest.mark.parametrize("norm_position", POSITIONS)
def test_dropout_applies_to_the_sublayer_not_to_the_sum(norm_position):
    config = tiny(**DEEP, norm_position=norm_position)
    dropout = Dropout(jnp.uint32(3), jnp.arange(2), DropoutRates(residual=0.4, attention=0.9, activation=0.8))
    keep = np.asarray(keep_mask(dropout.seed, dropout.row_ids, X.shape, 0.4))
    assert_close(apply(config, dropout), formula(config, lambda y: y * keep / 0.6), 2e-6)


def test_post_normalises_the_residual_stream_and_pre_does_not():
    """With a sub-layer that returns zeros, the gradient of "pre" reaches x unchanged and that of "post" does not."""

    def through(norm_position):
        def around(module, x):
            return module.after(x, jnp.zeros_like(module.before(x)), None)

        module = Residual(tiny(norm_position=norm_position))
        jacobian = jax.jacobian(lambda x: module.apply({"params": NORM}, x, method=around)[0, 0])
        return jacobian(jnp.asarray(X, jnp.float32))[:, 0, 0]

    np.testing.assert_array_equal(through("pre"), np.eye(16))
    assert np.abs(through("post") - np.eye(16)).max() > 0.1


@pytest.mark.parametrize("norm_position", POSITIONS)
def test_a_norm_inside_hides_the_size_of_the_output(norm_position):
    """Ten times the sub-layer's output gives the same sum; without such a norm it does not."""
    config = tiny(norm_position=norm_position, norm_epsilon=1e-12)
    difference = np.abs(apply(config, factor=10.0) - apply(config)).max()
    assert difference < 1e-5 if norm_position in ("sandwich", "output", "peri") else difference > 0.1


@pytest.mark.parametrize(
    ("layers", "encoder", "decoder"),
    [((6, 6), (1.417938, 0.496989), (2.059767, 0.343295)), ((18, 1), (1.668411, 0.422378), (1.316074, 0.537285))],
)
def test_numbers_of_deepnorm_for_two_stacks(layers, encoder, decoder):
    config = tiny(num_encoder_layers=layers[0], num_decoder_layers=layers[1])
    assert deepnorm(config, "encoder") == pytest.approx(encoder, rel=3e-6)
    assert deepnorm(config, "decoder") == pytest.approx(decoder, rel=3e-6)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
def test_numbers_of_deepnorm_for_one_stack(architecture):
    """Of 12 layers, whatever the number of layers of a stack that the model does not have."""
    layers = {"num_encoder_layers": 3, "num_decoder_layers": 3, f"num_{architecture.split('_')[0]}_layers": 12}
    config = tiny(**layers, architecture=architecture)
    assert deepnorm(config, config.stacks[0]) == pytest.approx((2.213364, 0.319472), rel=3e-6)


def test_deepnorm_with_1_in_place_of_its_numbers_is_post(monkeypatch):
    ones = NORM_POSITIONS["deepnorm"]._replace(scales=lambda config, stack: Scales(1.0, 1.0))
    monkeypatch.setitem(NORM_POSITIONS._registered, "deepnorm", ones)
    np.testing.assert_array_equal(apply(tiny(norm_position="deepnorm")), apply(tiny(norm_position="post")))


def test_initial_kernels_of_deepnorm():
    """Values, outputs of attention and feed-forward are multiplied by beta of their stack; all others are the same."""
    fields = {"num_encoder_layers": 2, "num_decoder_layers": 3, "activation": "swiglu", "init": "xavier_normal"}
    post, deep = (
        jax.tree_util.tree_leaves_with_path(jax.jit(lambda config=config: init_params(config, 0))())
        for config in (tiny(**fields, norm_position=position) for position in ("post", "deepnorm"))
    )
    scaled = {"encoder": set(), "decoder": set()}
    for (path, before), (_, after) in zip(post, deep, strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        stack, _, rest = name.partition("/layers/")
        beta = {"encoder": 0.87 * (2**4 * 3) ** (-1 / 16), "decoder": 36**-0.25}.get(stack)
        if np.array_equal(before, after):
            continue
        np.testing.assert_allclose(after, beta * np.asarray(before, np.float64), rtol=1e-6)
        scaled[stack].add(rest)
    kernels = {f"self_attention/{name}/kernel" for name in ("value", "out")}
    kernels |= {f"feed_forward/{name}/kernel" for name in ("hidden", "gate", "out")}
    of_memory = {f"cross_attention/{name}/kernel" for name in ("value", "out")}
    assert scaled == {"encoder": kernels, "decoder": kernels | of_memory}


def test_kernels_of_every_part_that_deepnorm_scales():
    """Those that the tables of axes of the parts say, on ones: of 5 layers, 40^(-1/4)."""
    config = tiny(architecture="decoder_only", **HYBRIDS[2], norm_position="deepnorm")
    ones = jax.tree.map(lambda x: jnp.ones(x.shape), shapes(config))
    scaled = jax.tree_util.tree_leaves_with_path(scaled_initial(config, ones, parameter_axes(config)))
    found = {jax.tree_util.keystr(path, simple=True, separator="/") for path, leaf in scaled if (leaf != 1).any()}
    folders = {
        "layers": ("self_attention", "feed_forward"),
        "layers_experts": ("self_attention", "experts"),
        "layers_gated_delta": ("gated_delta", "feed_forward"),
        "layers_gated_delta_experts": ("gated_delta", "experts"),
    }
    expected = set()
    for folder, (mixer, feed_forward) in folders.items():
        expected |= {f"decoder/{folder}/{mixer}/{name}/kernel" for name in ("value", "out")}
        expected |= {f"decoder/{folder}/{feed_forward}/{name}/kernel" for name in ("hidden", "gate", "out")}
    assert found == expected
    factors = sorted({float(number) for _, leaf in scaled for number in np.unique(leaf)})
    assert factors == pytest.approx([40**-0.25, 1.0], rel=1e-6)
    plain = tiny(architecture="decoder_only", **HYBRIDS[2])
    assert scaled_initial(plain, ones, None) is ones
    with pytest.raises(ValueError, match=r"decoder/.*: expected one entry .* none matches"):
        scaled_initial(config, ones, {})


@pytest.mark.parametrize("norm_position", ["sandwich", "output"])
def test_the_stream_grows_by_1_per_sum_whatever_the_initial_kernels(norm_position):
    """With gains of 1, a normalised output of mean square 1 is added, nearly independent of the stream."""
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(64, 8, 16)), jnp.float32)
    for std in (0.01, 1.0):
        y = jnp.asarray(std * rng.normal(size=x.shape), jnp.float32)
        module = Residual(tiny(norm_position=norm_position, norm="rmsnorm", norm_epsilon=1e-12))
        params = {"output_norm": {"scale": jnp.ones(16)}}
        after = module.apply({"params": params}, x, y, None, method="after")
        assert float(jnp.square(after).mean() - jnp.square(x).mean()) == pytest.approx(1.0, abs=0.05)
