"""Tests that every architecture of the package must pass, with the same batches."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import Model
from support import (
    ATTENTIONS,
    HYBRIDS,
    STREAMS,
    as_batch,
    assert_close,
    covering_params,
    forward,
    make_batch,
    random_params,
    scanned,
    shapes,
    slow_but,
    tiny,
)

from transformer_jax.errors import DataError
from transformer_jax.inspection.attention import capture
from transformer_jax.models import architecture as architectures
from transformer_jax.models.architecture import init_params
from transformer_jax.nn.dropout import Dropout, DropoutRates, drop
from transformer_jax.nn.embeddings import TokenEmbedding

ARCHITECTURES = ("encoder_decoder", "decoder_only", "encoder_only")
every_architecture = pytest.mark.parametrize("architecture", slow_but("encoder_decoder", ARCHITECTURES))


def module(config, **options):
    return architectures.ARCHITECTURES[config.architecture].module(config, **options)


def read_by(config, batch):
    """Return the batch without arrays that the architecture does not read."""
    if config.architecture == "encoder_decoder":
        return batch
    of_encoder = config.architecture == "encoder_only"
    return {name: array for name, array in batch.items() if name.startswith(("inputs", "types")) == of_encoder}


def first_ids(batch):
    return batch["decoder_inputs" if "decoder_inputs" in batch else "inputs"][:, 0]


def padded_batch(config):
    batch = make_batch()
    inputs = batch["inputs"].at[1, 4:].set(0).at[2, 1:].set(0)
    types = jnp.asarray(np.random.default_rng(2).integers(0, 3, inputs.shape), jnp.int32)
    return read_by(config, as_batch(inputs=inputs, types=types, targets=batch["targets"].at[0, 3:].set(0)))


# Examples of 7 + 3, 4 + 5 and 1 + 5 tokens: in rows of their own, padded on the right, or the first two in one row.
LENGTHS = {"inputs": (7, 4, 1), "targets": (3, 5, 5)}
PLACES = {
    False: {"inputs": [(0, 0), (1, 0), (2, 0)], "targets": [(0, 0), (1, 0), (2, 0)]},  # row and first slot
    True: {"inputs": [(0, 0), (0, 7), (1, 0)], "targets": [(0, 0), (0, 3), (1, 0)]},
}
SHAPES = {False: {"inputs": (3, 7), "targets": (3, 5)}, True: {"inputs": (2, 12), "targets": (2, 9)}}


def examples():
    """Return the examples one by one: a batch of one row without padding each."""
    rng = np.random.default_rng(3)
    ids = {name: [rng.integers(4, 19, (1, n)).astype(np.int32) for n in LENGTHS[name]] for name in LENGTHS}
    types = [rng.integers(0, 3, (1, n)).astype(np.int32) for n in LENGTHS["inputs"]]
    columns = zip(ids["inputs"], types, ids["targets"], strict=True)
    return [as_batch(inputs=inputs, types=kinds, targets=targets) for inputs, kinds, targets in columns]


def together(packed):
    """Return the examples as one batch."""
    arrays = {}
    for side in ("inputs", "targets"):
        names = (side, "types") if side == "inputs" else (side,)
        rows = {name: np.zeros(SHAPES[packed][side], np.int32) for name in names}
        segments, positions = np.zeros_like(rows[side]), np.zeros_like(rows[side])
        for (row, first), example in zip(PLACES[packed][side], examples(), strict=True):
            slots = slice(first, first + example[side].shape[1])
            for name in names:
                rows[name][row, slots] = example[name][0]
            segments[row, slots] = segments[row].max() + 1
            positions[row, slots] = np.arange(slots.stop - slots.start)
        arrays |= rows
        if packed:
            arrays |= {f"{side}_segment_ids": segments, f"{side}_positions": positions}
    return as_batch(**arrays)


# --- against the papers --------------------------------------------------------------------------------------------


WITH_STATES = [
    pytest.param({**fields, "architecture": "decoder_only", "packed": packed}, id=f"{fields['layer_pattern']}-{packed}")
    for fields, packed in zip(HYBRIDS, (True, False, True), strict=True)
]
OTHER_STREAMS = [
    pytest.param(
        {**fields, "packed": packed},
        id=f"{fields['architecture']}-{fields['norm_position']}-{packed}",
        marks=pytest.mark.slow if fields["norm_position"] in ("deepnorm", "output") else (),
    )
    for fields, packed in zip(STREAMS, (True, False, True, True, False), strict=True)
]


WITH_OPTIONS = [
    pytest.param(
        {**fields, "architecture": architecture, "packed": packed},
        id=f"{fields['qk_norm']}-{architecture}",
        marks=pytest.mark.slow if fields["qk_norm"] == "layernorm" else (),
    )
    for fields, architecture, packed in zip(
        ATTENTIONS, ("encoder_decoder", "encoder_decoder", "encoder_only"), (True, True, False), strict=True
    )
]


@pytest.mark.parametrize(
    "fields",
    [
        *covering_params(architecture=ARCHITECTURES, packed=(False, True)),
        *WITH_STATES,
        *OTHER_STREAMS,
        *WITH_OPTIONS,
    ],
)
def test_logits_equal_the_float64_reference(fields):
    """The reference sees every example alone: padding, other rows and packed neighbours change nothing."""
    config, params, packed = with_params(fields)
    check_examples(config, params, packed, forward(config, params, read_by(config, together(packed))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        *({"architecture": architecture, "packed": architecture != "encoder_only"} for architecture in ARCHITECTURES),
        {"architecture": "encoder_decoder", "packed": False, "scan_layers": True, "num_kv_heads": 2},
        *(param.values[0] for param in [WITH_STATES[1], *WITH_OPTIONS]),
    ],
)
def test_attention_weights_equal_the_float64_reference(fields):
    config, params, packed = with_params(fields)
    found = capture(config, params, read_by(config, together(packed)))
    stacks = stacks_of(config)
    expected_kinds = {f"{name}_self_attention" for name in stacks}
    assert found.weights.keys() == expected_kinds | ({"decoder_cross_attention"} if len(stacks) == 2 else set())
    check_examples(config, params, packed, *found)


def with_params(fields):
    config = tiny(**{name: value for name, value in fields.items() if name != "packed"})
    return config, random_params(config), fields["packed"]


SIDES = {"encoder": "inputs", "decoder": "targets"}


def stacks_of(config):
    return [name for name in SIDES if config.architecture in ("encoder_decoder", f"{name}_only")]


def check_examples(config, params, packed, logits, weights=None):
    """Compare the logits of `together(packed)`, and attention weights by kind, with those of every example alone."""
    stacks, sides = stacks_of(config), SIDES
    # Without norms, logits of attention are large, and so is their rounding.
    tolerance = 1e-3 if config.norm == "none" else 1e-5
    model = Model(config, params)
    for number, example in enumerate(examples()):
        expected = model(read_by(config, example))
        places, slots = {}, {}
        for name in stacks:
            row, first = PLACES[packed][sides[name]][number]
            places[name], slots[name] = row, slice(first, first + LENGTHS[sides[name]][number])
        assert_close(logits[places[stacks[-1]], slots[stacks[-1]]], expected[0], tolerance)
        for kind, found in (weights or {}).items():
            stack, _, attention = kind.partition("_")
            layers = model.weights if stack == "decoder" else model.memory_weights
            keys = slots["encoder" if attention == "cross_attention" else stack]
            of_row = found[:, places[stack], :, slots[stack]]  # [L, N, T, S]
            without = [number for number, layer in enumerate(layers) if attention not in layer]
            assert np.isnan(of_row[without]).all()
            of_row = np.delete(of_row, without, axis=0)
            expected = np.stack([layer[attention][0] for layer in layers if attention in layer])
            assert_close(of_row[..., keys], expected, tolerance)
            assert not np.delete(of_row, np.r_[keys], axis=-1).any(), "weights outside of the example"


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
TREES = {  # of the encoder-decoder: (fields, leaves that come or change, leaves that go)
    "default": ({}, {}, []),
    "two_vocabularies": (
        {"share_embeddings": False, "source_vocab_size": 11},
        {"source_embedding/embedding": (11, 16)},
        [],
    ),
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
    "no norm": (
        {"norm": "none", "norm_position": "pre", "embedding_norm": True},
        {},
        [path for path in DEFAULT_TREE if "/norm/" in path],
    ),
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
    "scaled logits": ({"scale_logits": True}, {}, []),
    "embedding norm": (
        {"embedding_norm": True},
        both("embedding_norm/scale", (16,)) | both("embedding_norm/bias", (16,)),
        [],
    ),
    "types": ({"token_types": 3}, {"encoder/type_embedding/embedding": (3, 16)}, []),
}


@every_architecture
@pytest.mark.parametrize("name", TREES)
def test_the_parameter_tree(name, architecture):
    """A model of one stack has that stack of an encoder-decoder, without the parameters that read the other."""
    fields, added, gone = TREES[name]
    expected = {k: v for k, v in (DEFAULT_TREE | added).items() if k not in gone}
    if architecture != "encoder_decoder":
        others = ("encoder/" if architecture == "decoder_only" else "decoder/", "source_embedding/")
        expected = {k: v for k, v in expected.items() if not k.startswith(others) and "/cross_attention" not in k}
    assert paths(tiny(**fields, architecture=architecture)) == expected


class Head(nn.Module):
    """Reads every argument of a head: hidden states, the batch, the table of token embeddings, and dropout."""

    @nn.compact
    def __call__(self, x, batch, embedding, dropout=None):
        kernel = self.param("kernel", nn.initializers.normal(1.0), (x.shape[-1], 3))
        bias = self.param("bias", nn.initializers.zeros, (3,))
        first = embedding[first_ids(batch)]  # [B, D]
        return drop(x.mean(1), dropout, "head") @ kernel + first @ kernel + bias[None]


@pytest.mark.slow
@every_architecture
def test_a_head_adds_its_parameters_and_changes_no_other(architecture):
    config = tiny(architecture=architecture, norm_position="pre", position_encoding="learned")
    plain, params = init_params(config, 7), init_params(config, 7, Head())
    head = params.pop("head")
    assert jax.tree.map(jnp.shape, head) == {"kernel": (16, 3), "bias": (3,)}
    assert jax.tree.structure(params) == jax.tree.structure(plain)
    jax.tree.map(np.testing.assert_array_equal, params, plain)


@pytest.mark.slow
@every_architecture
def test_a_head_replaces_the_logits(architecture):
    config = tiny(architecture=architecture)
    params, batch = random_params(config), padded_batch(config)
    rng = np.random.default_rng(0)
    head = {"kernel": jnp.asarray(rng.normal(size=(16, 3)), jnp.float32), "bias": jnp.arange(3.0)}
    model = architectures.Model(module(config, head=Head()), {**params, "head": head})
    x = model.features(batch)
    first = params["embedding"]["embedding"][first_ids(batch)]
    expected = (np.asarray(x, np.float64).mean(1) + np.asarray(first, np.float64)) @ np.asarray(head["kernel"])
    outputs = model.outputs(x, batch)
    assert outputs.shape == (3, 3)
    assert_close(outputs, expected + np.arange(3.0), 2e-6)
    others = [Dropout(jnp.uint32(0), jnp.arange(3), DropoutRates(head=rate)) for rate in (None, 0.5)]
    assert_close(model.outputs(x, batch, others[0]), outputs, 0)
    assert np.abs(model.outputs(x, batch, others[1]) - outputs).max() > 0.01
    # An unused projection to the vocabulary is not created.
    assert "output" not in init_params(tiny(architecture=architecture, tie_output=False), 0, Head())
    assert "output" in init_params(tiny(architecture=architecture, tie_output=False), 0)


@pytest.mark.slow
@every_architecture
def test_logits_are_computed_from_features_whole_or_in_parts(architecture):
    config = scanned(architecture=architecture, norm_position="pre")
    params, batch = random_params(config), padded_batch(config)
    model = architectures.Model(module(config), params)
    x = model.features(batch)
    length = 7 if architecture == "encoder_only" else 5
    assert x.shape == (3, length, 16)
    logits = forward(config, params, batch)
    assert_close(model.outputs(x, batch), logits, 2e-6)
    parts = [model.outputs(x[:, start : start + 2], batch) for start in range(0, length, 2)]
    assert_close(jnp.concatenate(parts, axis=1), logits, 2e-6)


# --- dependencies of an output ------------------------------------------------------------------------------------


def influence(config, params, batch):
    """Return d (a projection of logits[t]) / d embedding of decoder inputs [T, T', D] and source tokens [T, S, D].

    The latter is None without an encoder, the former without a decoder.
    """
    batch = read_by(config, batch)
    widths = [batch[name].shape[1] for name in ("decoder_inputs", "inputs") if name in batch]
    assert len(set(widths)) == len(widths)
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, config.vocab_size)), jnp.float32)

    def projections(added):
        def add(embed, args, kwargs, context):
            x = embed(*args, **kwargs)
            is_embedding = isinstance(context.module, TokenEmbedding) and context.method_name == "__call__"
            return x + added[x.shape[1]] if is_embedding else x

        with nn.intercept_methods(add):
            return (module(config).apply({"params": params}, batch) * weight).sum(-1)[0]

    gradients = jax.jit(jax.jacrev(projections))({n: jnp.zeros((1, n, config.emb_dim)) for n in widths})
    found = [np.asarray(gradients[n][:, 0]) for n in widths]
    return {"decoder_only": (*found, None), "encoder_only": (None, *found)}.get(config.architecture, found)


@pytest.mark.parametrize(
    ("architecture", "packed", "position_encoding"),
    [
        ("encoder_decoder", False, "relative"),
        ("encoder_decoder", True, "sinusoidal"),
        ("decoder_only", False, "rotary"),
        ("decoder_only", True, "relative"),
        ("encoder_only", False, "learned"),
        ("encoder_only", True, "none"),
    ],
)
def test_which_tokens_influence_which_logits(architecture, packed, position_encoding):
    """A gradient is exactly 0 unless both tokens are of one example, and the decoder's token is not later."""
    norm_position = "pre" if packed else "post"
    fields = {"position_encoding": position_encoding, "norm_position": norm_position, "num_kv_heads": 2}
    config = scanned(**fields, architecture=architecture)
    row = 0 if packed else 1  # two examples, or one of 4 + 5 tokens and padding
    batch = jax.tree.map(lambda x: x[row : row + 1], together(packed))
    targets, sources = influence(config, random_params(config), batch)
    owners = {}
    for side in LENGTHS:
        owners[side] = np.zeros(SHAPES[packed][side][1], int)
        for number, (at, first) in enumerate(PLACES[packed][side]):
            if at == row:
                owners[side][first : first + LENGTHS[side][number]] = number + 1
    own = owners["inputs" if architecture == "encoder_only" else "targets"]
    for t in np.flatnonzero(own):
        for other in range(0 if targets is None else len(own)):
            expected = other <= t and own[other] == own[t]
            assert np.any(targets[t, other]) == expected, f"logits[{t}] and decoder input {other}"
        for s in range(0 if sources is None else len(owners["inputs"])):
            assert np.any(sources[t, s]) == (owners["inputs"][s] == own[t]), f"logits[{t}] and source token {s}"


# --- attention weights ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_architecture
@pytest.mark.parametrize("scan_layers", [False, True])
def test_attention_weights_are_those_of_the_masks(scan_layers, architecture):
    config = tiny(num_kv_heads=2, num_encoder_layers=3, scan_layers=scan_layers, architecture=architecture)
    params, batch = random_params(config), make_batch()
    inputs = batch["inputs"].at[1, 4:].set(0).at[2].set(0)
    batch = as_batch(inputs=inputs, targets=batch["targets"].at[0, 3:].set(0))
    source = np.asarray(batch["inputs_mask"])[:, None, None, :]
    batch = read_by(config, batch)
    logits, weights = capture(config, params, batch)
    assert_close(logits, forward(config, params, batch), 1e-6)
    causal = np.tril(np.ones((5, 5), bool))[None, None]
    allowed = {
        "encoder_self_attention": np.broadcast_to(source, (3, 3, 4, 7, 7)),
        "decoder_self_attention": np.broadcast_to(causal, (2, 3, 4, 5, 5)),
        "decoder_cross_attention": np.broadcast_to(source, (2, 3, 4, 5, 7)),
    }
    if architecture != "encoder_decoder":
        name = f"{architecture.removesuffix('_only')}_self_attention"
        allowed = {name: allowed[name]}
    assert weights.keys() == allowed.keys()
    for name, mask in allowed.items():
        w = weights[name]
        assert w.shape == mask.shape, name
        assert (w[~mask] == 0).all(), name
        assert (w[mask] > 0).all(), name
        np.testing.assert_allclose(w.sum(-1), mask.any(-1).astype(float), rtol=0, atol=1e-6)
        assert len({layer.tobytes() for layer in w}) == len(w), "layers are alike"


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "source", "target"),
    [("encoder_decoder", 13, 5), ("encoder_decoder", 7, 13), ("decoder_only", 7, 13), ("encoder_only", 13, 5)],
)
def test_a_learned_table_that_is_too_short_is_an_error(architecture, source, target):
    config = tiny(position_encoding="learned", max_length=12, architecture=architecture)
    params = random_params(config)
    with pytest.raises(DataError, match=r"13 positions.*model\.max_length=12"):
        forward(config, params, read_by(config, make_batch(1, source, target)))
    length = 12 if architecture == "encoder_only" else 11
    assert forward(config, params, read_by(config, make_batch(1, 12, 11))).shape == (1, length, 19)
