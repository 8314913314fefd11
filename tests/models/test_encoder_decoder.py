"""The encoder-decoder against the papers; test_every_architecture.py has the tests that all architectures share."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import Model
from support import as_batch, assert_close, forward, make_batch, random_params, scanned, tiny

from transformer_jax.models.architecture import init_params
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.stack import Stack


def padded_batch():
    batch = make_batch()
    inputs = batch["inputs"].at[1, 4:].set(0).at[2, 1:].set(0)
    return as_batch(inputs=inputs, targets=batch["targets"].at[0, 3:].set(0))


# --- against the papers --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(1, 3), (3, 1)])
def test_stacks_of_other_depths(encoder_layers, decoder_layers):
    config = tiny(num_encoder_layers=encoder_layers, num_decoder_layers=decoder_layers, norm_position="pre")
    params, batch = random_params(config), padded_batch()
    assert_close(forward(config, params, batch), Model(config, params)(batch))


# --- parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_initial_values():
    config = tiny(vocab_size=200, emb_dim=32, num_kv_heads=2)
    params = jax.jit(functools.partial(init_params, config))(0)
    flat = {"/".join(k.key for k in path): p for path, p in jax.tree_util.tree_leaves_with_path(params)}
    for path, p in flat.items():
        if path.endswith("/bias"):
            assert not p.any(), path
        elif path.endswith("/scale"):
            assert (p == 1).all(), path
        elif path.endswith("/kernel"):
            # Xavier uniform of one layer, not of the stack, over all heads.
            to_heads = any(f"/{name}/" in path for name in ("query", "key", "value"))
            inputs = p.shape[1] if to_heads else math.prod(p.shape[1:-1])
            outputs = math.prod(p.shape[2:]) if to_heads else p.shape[-1]
            limit = math.sqrt(6 / (inputs + outputs))
            assert 0.95 * limit < jnp.abs(p).max() <= limit, path
            assert not np.array_equal(p[0], p[1]), f"{path}: layers start alike"
    assert float(flat["embedding/embedding"].std()) == pytest.approx(32**-0.5, rel=0.05)
    kernels = {np.asarray(p[0]).tobytes() for path, p in flat.items() if path.endswith("/kernel")}
    assert len(kernels) == sum(path.endswith("/kernel") for path in flat)
    other = jax.jit(functools.partial(init_params, config))(1)
    assert not np.array_equal(other["embedding"]["embedding"], params["embedding"]["embedding"])


# --- the encoder ----------------------------------------------------------------------------------------------------


def encode(config, params, inputs):
    model = EncoderDecoder(config)
    return jax.jit(lambda p, b: model.apply({"params": p}, b, method="encode")[0])(params, {"inputs": inputs})


@pytest.mark.slow
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "learned", "rotary", "relative", "none"])
def test_the_encoder_is_permutation_equivariant_only_without_positions(position_encoding):
    config = scanned(position_encoding=position_encoding)
    params, inputs = random_params(config), make_batch()["inputs"]
    order = jnp.array([3, 0, 6, 1, 5, 2, 4])
    difference = jnp.abs(encode(config, params, inputs[:, order]) - encode(config, params, inputs)[:, order]).max()
    if position_encoding == "none":
        assert difference < 2e-6
    else:
        assert difference > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("position_encoding", "norm_position"), [("relative", "post"), ("rotary", "pre")])
def test_a_source_of_only_padding_is_harmless(position_encoding, norm_position):
    """Its logits and gradients are finite; the encoder's gradients are exactly zero."""
    config = scanned(position_encoding=position_encoding, norm_position=norm_position)
    params, batch = random_params(config), make_batch(2)
    batch = as_batch(inputs=batch["inputs"].at[1].set(0), targets=batch["targets"])

    @jax.jit
    def gradient(row_weights):
        def loss(params):
            logits = EncoderDecoder(config).apply({"params": params}, batch)
            return (jnp.square(logits).mean((1, 2)) * row_weights).sum(), logits

        return jax.grad(loss, has_aux=True)(params)

    grads, logits = gradient(jnp.array([0.0, 1.0]))
    assert np.isfinite(logits).all()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    for path, g in jax.tree_util.tree_leaves_with_path(grads["encoder"]):
        assert not np.any(g), f"encoder{jax.tree_util.keystr(path)}"
    for name in ("query", "key", "value"):
        assert not np.any(grads["decoder"]["layers"]["cross_attention"][name]["kernel"])
    assert np.any(grads["decoder"]["layers"]["self_attention"]["query"]["kernel"])
    with_it, _ = gradient(jnp.array([1.0, 0.0]))
    assert np.any(with_it["encoder"]["layers"]["self_attention"]["query"]["kernel"])


# --- types ----------------------------------------------------------------------------------------------------------


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "position_encoding"), [("layernorm", "relative"), ("rmsnorm", "rotary")])
def test_bfloat16_computes_products_only(norm, position_encoding):
    """Matrix products take bfloat16; parameters, their gradients, softmax, norms and angles are float32."""
    fields = {"norm": norm, "position_encoding": position_encoding, "norm_position": "pre"}
    wide, narrow = scanned(**fields), scanned(**fields, dtype="bfloat16")
    params, batch = random_params(wide), padded_batch()

    def loss(params):
        return jnp.square(EncoderDecoder(narrow).apply({"params": params}, batch).astype(jnp.float32)).mean()

    program = list(equations(jax.make_jaxpr(jax.grad(loss))(params).jaxpr))
    seen = set()
    for equation in program:
        name, types = equation.primitive.name, {v.aval.dtype.name for v in equation.invars if hasattr(v.aval, "dtype")}
        if name == "dot_general":
            assert types == {"bfloat16"}, equation
        if name in ("exp", "rsqrt", "sin", "cos"):
            assert types == {"float32"}, equation
        seen.add(name)
    assert {"dot_general", "exp", "rsqrt"} <= seen
    assert ("sin" in seen) == (position_encoding == "rotary")

    logits = forward(narrow, params, batch)
    assert logits.dtype == jnp.float32
    expected = forward(wide, params, batch)
    assert expected.dtype == jnp.float32
    error = np.abs(np.asarray(logits, np.float32) - expected)
    assert error.mean() < 0.03 * np.abs(expected).mean()
    assert error.max() < 0.05 * np.abs(expected).max()
    assert {g.dtype for g in jax.tree.leaves(jax.eval_shape(jax.grad(loss), params))} == {jnp.dtype("float32")}


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("position_encoding", ["sinusoidal", "rotary", "relative", "none"])
def test_other_encodings_have_no_longest_position(position_encoding):
    config = tiny(position_encoding=position_encoding, max_length=2)
    assert np.isfinite(encode(config, random_params(config), make_batch(1, 40)["inputs"])).all()


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_stack_ends_in_a_norm_only_if_it_is_pre(norm_position):
    config = tiny(norm_position=norm_position)
    x, positions = jnp.ones((1, 3, 16)), jnp.arange(3)[None]
    stack = Stack(config, 2, causal=False)
    params = jax.eval_shape(lambda: stack.init(jax.random.key(0), x, positions, None, None))["params"]
    assert ("final_norm" in params) == (norm_position == "pre")
