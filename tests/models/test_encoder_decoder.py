import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from reference import Model
from support import assert_close, covering_params, forward, make_batch, random_params, shapes, tiny

from transformer_jax.errors import DataError
from transformer_jax.models.encoder_decoder import EncoderDecoder, init_params, shift_right
from transformer_jax.nn.dropout import Dropout, DropoutRates
from transformer_jax.nn.embeddings import TokenEmbedding
from transformer_jax.nn.stacks import EncoderLayer, Stack

# Every position encoding, with either norm placement.
ENCODINGS = [
    ("sinusoidal", "post"),
    ("learned", "pre"),
    ("rotary", "post"),
    ("relative", "pre"),
    ("none", "post"),
]


def scanned(**fields):
    """Layers as a loop, for tests where that cannot matter: it compiles faster, and equals unrolled layers (below)."""
    return tiny(**fields, scan_layers=True)


def padded_batch():
    batch = make_batch()
    inputs = batch["inputs"].at[1, 4:].set(0).at[2, 1:].set(0)
    return {"inputs": inputs, "targets": batch["targets"].at[0, 3:].set(0)}


# --- against the papers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", covering_params())
def test_logits_and_weights_equal_the_float64_reference(fields):
    config = tiny(**fields)
    params, batch = random_params(config), padded_batch()
    logits, weights = forward(config, params, batch, return_weights=True)
    model = Model(config, params)
    assert_close(logits, model(batch))
    assert weights.keys() == {"encoder_self_attention", "decoder_self_attention", "decoder_cross_attention"}
    for name, expected in (("encoder", model.memory_weights), ("decoder", model.weights)):
        for key in expected[0]:
            assert_close(weights[f"{name}_{key}"], np.stack([layer[key] for layer in expected]))


@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(1, 3), (3, 1)])
def test_stacks_of_other_depths(encoder_layers, decoder_layers):
    config = tiny(num_encoder_layers=encoder_layers, num_decoder_layers=decoder_layers, norm_position="pre")
    params, batch = random_params(config), padded_batch()
    assert_close(forward(config, params, batch)[0], Model(config, params)(batch))


def test_shift_right():
    targets = jnp.array([[5, 6, 7, 1], [8, 1, 0, 0]])
    np.testing.assert_array_equal(shift_right(targets, 3), [[3, 5, 6, 7], [3, 8, 1, 0]])


def test_shift_right_restarts_every_segment():
    targets = jnp.array([[5, 6, 1, 7, 1, 8, 1, 0]])
    segments = jnp.array([[1, 1, 1, 2, 2, 3, 3, 0]])
    np.testing.assert_array_equal(shift_right(targets, 3, segments)[0, :7], [3, 5, 6, 3, 7, 3, 8])


def test_the_decoder_starts_with_the_start_id():
    params, batch = random_params(tiny()), make_batch()
    first = [forward(tiny(decoder_start_id=i), params, batch)[0][:, 0] for i in (3, 5)]
    assert np.abs(first[0] - first[1]).max() > 0.1


# --- parameters ----------------------------------------------------------------------------------------------------


def paths(config):
    leaves = jax.tree_util.tree_leaves_with_path(shapes(config))
    assert all(leaf.dtype == jnp.float32 for _, leaf in leaves)
    return {"/".join(key.key for key in path): leaf.shape for path, leaf in leaves}


def attention_paths(prefix):
    return {
        f"{prefix}/query/kernel": (2, 16, 4, 4),
        f"{prefix}/query/bias": (2, 4, 4),
        f"{prefix}/key/kernel": (2, 16, 4, 4),
        f"{prefix}/key/bias": (2, 4, 4),
        f"{prefix}/value/kernel": (2, 16, 4, 4),
        f"{prefix}/value/bias": (2, 4, 4),
        f"{prefix}/out/kernel": (2, 4, 4, 16),
        f"{prefix}/out/bias": (2, 16),
        f"{prefix}_residual/norm/scale": (2, 16),
        f"{prefix}_residual/norm/bias": (2, 16),
    }


def feed_forward_paths(prefix):
    return {
        f"{prefix}/hidden/kernel": (2, 16, 24),
        f"{prefix}/hidden/bias": (2, 24),
        f"{prefix}/out/kernel": (2, 24, 16),
        f"{prefix}/out/bias": (2, 16),
        f"{prefix}_residual/norm/scale": (2, 16),
        f"{prefix}_residual/norm/bias": (2, 16),
    }


DEFAULT_TREE = {
    "embedding/embedding": (19, 16),
    **attention_paths("encoder/layers/self_attention"),
    **feed_forward_paths("encoder/layers/feed_forward"),
    **attention_paths("decoder/layers/self_attention"),
    **attention_paths("decoder/layers/cross_attention"),
    **feed_forward_paths("decoder/layers/feed_forward"),
}


def both(name, shape):
    return {f"encoder/{name}": shape, f"decoder/{name}": shape}


def replaced(*names, by):
    return {path: by(shape) for path, shape in DEFAULT_TREE.items() if any(f"/{n}/" in f"/{path}/" for n in names)}


BIASES = [path for path in DEFAULT_TREE if path.endswith("/bias")]
TREES = {  # fields: (leaves that come or change, leaves that go)
    "default": ({}, {}, []),
    "unshared": ({"share_embeddings": False}, {"source_embedding/embedding": (19, 16)}, []),
    "untied": ({"tie_output": False}, {"output/kernel": (16, 19)}, []),
    "three tables": (
        {"tie_output": False, "share_embeddings": False},
        {"source_embedding/embedding": (19, 16), "output/kernel": (16, 19)},
        [],
    ),
    "unscaled": ({"scale_embeddings": False}, {}, []),
    "pre": (
        {"norm_position": "pre"},
        both("final_norm/scale", (16,)) | both("final_norm/bias", (16,)),
        [],
    ),
    "rmsnorm": ({"norm": "rmsnorm"}, {}, [path for path in BIASES if "/norm/" in path]),
    "no biases": ({"use_bias": False}, {}, BIASES),
    "learned": ({"position_encoding": "learned"}, both("position_embedding/learned/embedding", (12, 16)), []),
    "relative": ({"position_encoding": "relative"}, both("relative_bias/embedding", (6, 4)), []),
    "rotary": ({"position_encoding": "rotary"}, {}, []),
    "none": ({"position_encoding": "none"}, {}, []),
    "swiglu": (
        {"activation": "swiglu"},
        both("layers/feed_forward/gate/kernel", (2, 16, 24)) | both("layers/feed_forward/gate/bias", (2, 24)),
        [],
    ),
    "scanned": ({"scan_layers": True}, {}, []),
    "one key head": (
        {"num_kv_heads": 1},
        replaced("key", "value", by=lambda shape: (*shape[:-2], 1, shape[-1])),
        [],
    ),
    "bfloat16": ({"dtype": "bfloat16"}, {}, []),
}


@pytest.mark.parametrize("name", TREES)
def test_the_parameter_tree(name):
    fields, added, gone = TREES[name]
    assert paths(tiny(**fields)) == {k: v for k, v in (DEFAULT_TREE | added).items() if k not in gone}


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
            # Xavier uniform of one layer, not of the stack, with all heads counted.
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


# --- what an output may depend on ----------------------------------------------------------------------------------


def influence(config, params, batch):
    """d (a projection of logits[t]) / d embedding of every decoder input [T, T', D] and source token [T, S, D]."""
    source, target = batch["inputs"].shape[1], batch["targets"].shape[1]
    assert source != target
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, config.vocab_size)), jnp.float32)

    def projections(added):
        def add(embed, args, kwargs, context):
            x = embed(*args, **kwargs)
            is_embedding = isinstance(context.module, TokenEmbedding) and context.method_name == "__call__"
            return x + added[x.shape[1]] if is_embedding else x

        with nn.intercept_methods(add):
            return (EncoderDecoder(config).apply({"params": params}, batch)[0] * weight).sum(-1)[0]

    zeros = {n: jnp.zeros((1, n, config.emb_dim)) for n in (source, target)}
    gradients = jax.jit(jax.jacrev(projections))(zeros)
    return np.asarray(gradients[target][:, 0]), np.asarray(gradients[source][:, 0])


@pytest.mark.parametrize(("position_encoding", "norm_position"), ENCODINGS)
def test_causality_by_gradient(position_encoding, norm_position):
    config = scanned(position_encoding=position_encoding, norm_position=norm_position, num_kv_heads=2)
    batch = make_batch(1)
    batch["inputs"] = batch["inputs"].at[0, 5:].set(0)
    targets, sources = influence(config, random_params(config), batch)
    for t in range(5):
        for other in range(5):
            assert np.any(targets[t, other]) == (other <= t), f"logits[{t}] and decoder input {other}"
        for s in range(7):
            assert np.any(sources[t, s]) == (s < 5), f"logits[{t}] and source token {s}, of which 5 are no padding"


def packed_batch():
    """Two pairs in one row, the same pairs in two rows, and where the packed row's targets are of which pair."""
    rng = np.random.default_rng(3)

    def row(first, second, width):
        pad = [0] * (width - len(first) - len(second))
        return (
            jnp.array([[*first, *second, *pad]], jnp.int32),
            jnp.array([[1] * len(first) + [2] * len(second) + pad], jnp.int32),
            jnp.array([[*range(len(first)), *range(len(second)), *pad]], jnp.int32),
        )

    packed, separate = {}, {}
    for name, lengths, width in (("inputs", (4, 3), 9), ("targets", (3, 5), 10)):
        first, second = (rng.integers(4, 19, n) for n in lengths)
        ids, segments, positions = row(first, second, width)
        packed |= {name: ids, f"{name}_segment_ids": segments, f"{name}_positions": positions}
        longest = max(lengths)
        separate[name] = jnp.array([np.pad(x, (0, longest - len(x))) for x in (first, second)], jnp.int32)
    return packed, separate, [slice(0, 3), slice(3, 8)]


@pytest.mark.parametrize(("position_encoding", "norm_position"), ENCODINGS)
def test_packed_rows_equal_separate_ones(position_encoding, norm_position):
    config = scanned(position_encoding=position_encoding, norm_position=norm_position)
    params = random_params(config)
    packed, separate, places = packed_batch()
    logits, _ = forward(config, params, packed)
    expected, _ = forward(config, params, separate)
    for row, place in enumerate(places):
        assert_close(logits[0, place], expected[row, : place.stop - place.start], 2e-6)


def test_segments_do_not_see_each_other():
    config = scanned(position_encoding="relative")
    packed, _, _ = packed_batch()
    targets, sources = influence(config, random_params(config), packed)
    for t in range(8):
        for other in range(10):
            assert np.any(targets[t, other]) == (other <= t and (other < 3) == (t < 3))
        for s in range(9):
            assert np.any(sources[t, s]) == (s < 4 if t < 3 else 4 <= s < 7)


@pytest.mark.parametrize(("position_encoding", "norm_position"), ENCODINGS)
def test_padding_and_other_rows_do_not_change_an_output(position_encoding, norm_position):
    config = scanned(position_encoding=position_encoding, norm_position=norm_position)
    params, batch = random_params(config), make_batch()
    alone = {"inputs": batch["inputs"][:1, :4], "targets": batch["targets"][:1, :3]}
    expected, _ = forward(config, params, alone)
    batch = {name: batch[name].at[0, ids.shape[1] :].set(0) for name, ids in alone.items()}
    logits, _ = forward(config, params, batch)
    assert_close(logits[:1, :3], expected, 2e-6)
    order = jnp.array([2, 0, 1])
    reordered, _ = forward(config, params, jax.tree.map(lambda x: x[order], batch))
    assert_close(reordered, logits[order], 1e-6)


def encode(config, params, inputs):
    model = EncoderDecoder(config)
    return jax.jit(lambda p, b: model.apply({"params": p}, b, method="encode")[0])(params, {"inputs": inputs})


@pytest.mark.parametrize("position_encoding", [name for name, _ in ENCODINGS])
def test_only_without_positions_is_the_encoder_permutation_equivariant(position_encoding):
    config = scanned(position_encoding=position_encoding)
    params, inputs = random_params(config), make_batch()["inputs"]
    order = jnp.array([3, 0, 6, 1, 5, 2, 4])
    difference = jnp.abs(encode(config, params, inputs[:, order]) - encode(config, params, inputs)[:, order]).max()
    if position_encoding == "none":
        assert difference < 2e-6
    else:
        assert difference > 0.01


@pytest.mark.parametrize(("position_encoding", "norm_position"), [("relative", "post"), ("rotary", "pre")])
def test_a_source_of_only_padding_is_harmless(position_encoding, norm_position):
    """Its logits are finite, and its gradients too: exactly zero all through the encoder."""
    config = scanned(position_encoding=position_encoding, norm_position=norm_position)
    params, batch = random_params(config), make_batch(2)
    batch["inputs"] = batch["inputs"].at[1].set(0)

    @jax.jit
    def gradient(row_weights):
        def loss(params):
            logits = EncoderDecoder(config).apply({"params": params}, batch)[0]
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


# --- attention weights ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan_layers", [False, True])
def test_returned_weights(scan_layers):
    config = tiny(num_kv_heads=2, num_encoder_layers=3, scan_layers=scan_layers)
    params, batch = random_params(config), padded_batch()
    batch["inputs"] = batch["inputs"].at[2].set(0)
    plain, nothing = forward(config, params, batch)
    logits, weights = forward(config, params, batch, return_weights=True)
    assert not nothing
    assert_close(logits, plain, 1e-6)
    source = np.asarray(batch["inputs"] != 0)[:, None, None, :]
    causal = np.tril(np.ones((5, 5), bool))[None, None]
    allowed = {
        "encoder_self_attention": np.broadcast_to(source, (3, 3, 4, 7, 7)),
        "decoder_self_attention": np.broadcast_to(causal, (2, 3, 4, 5, 5)),
        "decoder_cross_attention": np.broadcast_to(source, (2, 3, 4, 5, 7)),
    }
    assert weights.keys() == allowed.keys()
    for name, mask in allowed.items():
        w = np.asarray(weights[name])
        assert w.shape == mask.shape, name
        assert (w[~mask] == 0).all(), name
        assert (w[mask] > 0).all(), name
        np.testing.assert_allclose(w.sum(-1), mask.any(-1).astype(float), rtol=0, atol=1e-6)
        assert len({layer.tobytes() for layer in w}) == len(w), "layers are alike"


# --- the same computation in another form --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_position": "pre", "position_encoding": "relative"},
        pytest.param({"activation": "swiglu", "num_kv_heads": 2, "num_encoder_layers": 3}, marks=pytest.mark.slow),
    ],
    ids=["pre", "post"],
)
def test_scanned_layers_equal_unrolled_ones(fields):
    """Same parameters, outputs and gradients, with dropout on: a layer has the same mask in both."""
    batch = padded_batch()
    dropout = Dropout(jnp.uint32(11), jnp.arange(3), DropoutRates(0.1, 0.2, 0.3, 0.4))

    def run(scan_layers):
        config = tiny(**fields, scan_layers=scan_layers)
        params = random_params(config)

        def loss(params):
            logits = EncoderDecoder(config).apply({"params": params}, batch, dropout)[0]
            return jnp.square(logits).mean(), logits

        return jax.tree.map(jnp.shape, params), *jax.jit(jax.grad(loss, has_aux=True))(params)

    scanned, unrolled = run(True), run(False)
    assert scanned[0] == unrolled[0]
    assert_close(scanned[2], unrolled[2], 2e-6)
    largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(unrolled[1]))
    jax.tree.map(lambda a, b: assert_close(a / largest, b / largest, 2e-6), scanned[1], unrolled[1])


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.parametrize(("norm", "position_encoding"), [("layernorm", "relative"), ("rmsnorm", "rotary")])
def test_bfloat16_computes_products_only(norm, position_encoding):
    """Matrix products take bfloat16; parameters, their gradients, softmax, norms and angles are float32."""
    fields = {"norm": norm, "position_encoding": position_encoding, "norm_position": "pre"}
    wide, narrow = scanned(**fields), scanned(**fields, dtype="bfloat16")
    params, batch = random_params(wide), padded_batch()

    def loss(params):
        return jnp.square(EncoderDecoder(narrow).apply({"params": params}, batch)[0].astype(jnp.float32)).mean()

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

    logits, _ = forward(narrow, params, batch)
    assert logits.dtype == jnp.float32
    expected, _ = forward(wide, params, batch)
    assert expected.dtype == jnp.float32
    error = np.abs(np.asarray(logits, np.float32) - expected)
    assert error.mean() < 0.03 * np.abs(expected).mean()
    assert error.max() < 0.05 * np.abs(expected).max()
    assert {g.dtype for g in jax.tree.leaves(jax.eval_shape(jax.grad(loss), params))} == {jnp.dtype("float32")}


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), [(13, 5), (7, 13)])
def test_a_learned_table_that_is_too_short_is_an_error(source, target):
    config = tiny(position_encoding="learned", max_length=12)
    params = random_params(config)
    with pytest.raises(DataError, match=r"13 positions.*model\.max_length=12"):
        forward(config, params, make_batch(1, source, target))
    assert forward(config, params, make_batch(1, 12, 11))[0].shape == (1, 11, 19)


@pytest.mark.parametrize("position_encoding", ["sinusoidal", "rotary", "relative", "none"])
def test_other_encodings_have_no_longest_position(position_encoding):
    config = tiny(position_encoding=position_encoding, max_length=2)
    assert np.isfinite(encode(config, random_params(config), make_batch(1, 40)["inputs"])).all()


@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_a_stack_ends_in_a_norm_only_if_it_is_pre(norm_position):
    config = tiny(norm_position=norm_position)
    x, positions = jnp.ones((1, 3, 16)), jnp.arange(3)[None]
    stack = Stack(config, EncoderLayer, 2, causal=False)
    params = jax.eval_shape(lambda: stack.init(jax.random.key(0), x, positions, None, None))["params"]
    assert ("final_norm" in params) == (norm_position == "pre")
