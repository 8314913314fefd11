"""The library's attention equals the reference, and the documented implementation is chosen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, random_params, tiny
from training_support import distance, small_config, uneven_batch

from transformer_jax.errors import ConfigError
from transformer_jax.inspection.places import run_with
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.nn.attention import dot_product_attention
from transformer_jax.nn.attention_kernels import choose, library_attention
from transformer_jax.nn.masks import causal_mask, padding_mask, segment_mask
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import batch_gradient

B, T, S, H = 3, 5, 6, 8


def heads(length, number, seed):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((B, length, number, H)), jnp.float32)


def masks():
    """Masks by kind; the second row of `lengths` and the padding of `any` allow nothing."""
    is_token = jnp.asarray(np.arange(S) < np.array([[4], [0], [6]]))
    segments = jnp.array([[1, 1, 2, 2, 0], [1, 2, 3, 0, 0], [1, 1, 1, 1, 1]])
    keys = jnp.array([[1, 2, 2, 0, 0, 0], [3, 3, 1, 2, 0, 0], [1, 1, 1, 1, 1, 0]])
    return {
        "none": (S, None),
        "lengths": (S, padding_mask(is_token)),
        "causal": (T, causal_mask(T)),
        "any": (S, segment_mask(segments, keys)),
    }


@pytest.mark.parametrize("kind", ["none", "lengths", "causal", "any"])
@pytest.mark.parametrize(("query_heads", "kv_heads"), [(4, 4), (4, 2), (2, 1)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_outputs_and_gradients_equal_the_reference(kind, query_heads, kv_heads, with_bias):
    length, mask = masks()[kind]
    arrays = heads(T, query_heads, 0), heads(length, kv_heads, 1), heads(length, kv_heads, 2)
    bias = jnp.asarray(np.random.default_rng(3).standard_normal((1, query_heads, T, length)), jnp.float32)
    arrays = (*arrays, bias)

    def of(function):
        def loss(query, key, value, bias):
            output = function(query, key, value, bias if with_bias else None)
            return jnp.square(output).sum(), output

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3), has_aux=True))(*arrays)

    allowed = None if mask is None else mask.allowed
    (_, expected), gradients = of(lambda q, k, v, b: dot_product_attention(q, k, v, allowed, b, 0.4)[0])
    (_, actual), actual_gradients = of(lambda q, k, v, b: library_attention(q, k, v, mask, b, 0.4, "xla"))
    assert_close(actual, expected, 1e-6)
    assert distance(actual_gradients, gradients) < 1e-5


def test_a_query_that_may_attend_to_nothing_gets_zeros():
    _, mask = masks()["any"]
    output = library_attention(heads(T, 2, 0), heads(S, 2, 1), heads(S, 2, 2), mask, None, 1.0, "xla")
    nothing = ~np.asarray(mask.allowed)[:, 0].any(-1)
    assert nothing.sum() == 3
    np.testing.assert_array_equal(np.asarray(output)[nothing], 0.0)
    assert (np.abs(np.asarray(output)[~nothing]) > 0).all()


@pytest.mark.slow
def test_a_model_has_the_same_gradients_by_either():
    fields = {"model.position_encoding": "relative", "model.num_kv_heads": 1}
    results = []
    for name in ("reference", "xla"):
        config = small_config({"model.attention_dropout_rate": 0.0, "model.attention_implementation": name, **fields})
        static, hyper = split(config)
        state = init_state(static, hyper)
        results.append(
            jax.jit(functools.partial(batch_gradient, static))(state.params, uneven_batch(), jnp.int32(0), hyper)
        )
    assert distance(*results) < 1e-5


@pytest.mark.slow
def test_weights_can_be_read_with_every_implementation():
    """They come from the reference; the logits are the same with either implementation."""
    config, batch = tiny(attention_implementation="xla"), uneven_batch()
    batch = {name: jnp.asarray(array) for name, array in batch.items()}
    params = random_params(config)
    logits = EncoderDecoder(config).apply({"params": params}, batch)
    ran = run_with(config, params, batch, ["*/weights"])
    kinds = {"encoder/self_attention", "decoder/self_attention", "decoder/cross_attention"}
    assert ran.places.keys() == {f"{stack}/{n}/{part}/weights" for n in range(2) for stack, part in
                                 (kind.split("/") for kind in kinds)}  # fmt: skip
    assert_close(logits, ran.outputs, 1e-5)


GPU = {"dtype": "bfloat16", "head_dim": 64}
CHOICES = [
    ({}, "causal", "cpu", "reference", "on a CPU"),
    ({}, "causal", "tpu", "xla", "JAX computes on a TPU"),
    ({}, "causal", "gpu", "xla", "dtype='float32'"),
    (GPU, "causal", "gpu", "cudnn", "on a GPU, with a causal mask"),
    (GPU, "lengths", "gpu", "cudnn", "on a GPU, with a mask of lengths"),
    (GPU, "none", "gpu", "cudnn", "on a GPU, with no mask"),
    (GPU, "any", "gpu", "xla", "mask of packed rows or of a window as a bias"),
    (GPU | {"head_dim": 12}, "causal", "gpu", "xla", "head_dim=12"),
    (GPU | {"head_dim": 256}, "causal", "gpu", "xla", "head_dim=256"),
    (GPU | {"position_encoding": "relative"}, "causal", "gpu", "xla", "position_encoding='relative'"),
    (GPU | {"value_head_dim": 32}, "causal", "gpu", "reference", "value_head_dim=32 is not head_dim=64"),
    (GPU | {"attention_dropout_rate": 0.1}, "causal", "gpu", "reference", "attention_dropout_rate is not 0"),
    (GPU | {"attention_logit_cap": 30.0}, "causal", "gpu", "reference", "attention_logit_cap is set"),
    (GPU | {"attention_sink": "learned"}, "causal", "gpu", "reference", "attention_sink='learned'"),
    (GPU | {"position_encoding": "alibi"}, "causal", "gpu", "xla", "position_encoding='alibi' adds a bias"),
    (GPU | {"attention_multiplier": 0.1, "qk_norm": "rms_full"}, "causal", "gpu", "cudnn", "on a GPU"),
    ({"attention_implementation": "xla"}, "any", "cpu", "xla", "asked for"),
    (GPU | {"attention_implementation": "cudnn"}, "causal", "gpu", "cudnn", "asked for"),
    (GPU | {"attention_implementation": "reference"}, "causal", "gpu", "reference", "asked for"),
]


@pytest.mark.parametrize(("fields", "kind", "backend", "name", "why"), CHOICES)
def test_the_choice(fields, kind, backend, name, why):
    choice = choose(tiny(**fields), kind, backend=backend)
    assert choice.name == name
    assert why in choice.why
    assert choose(tiny(**fields), kind, backend=backend, needs_weights=True).name == "reference"


@pytest.mark.parametrize(
    ("fields", "kind", "backend", "message"),
    [
        (
            {"attention_implementation": "cudnn"} | GPU,
            "causal",
            "cpu",
            "'cudnn' is not possible: JAX computes on a CPU",
        ),
        ({"attention_implementation": "cudnn"}, "causal", "gpu", "'cudnn' is not possible: dtype='float32'"),
        (
            {"attention_implementation": "cudnn"} | GPU,
            "any",
            "gpu",
            "'cudnn' is not possible: it takes the mask of packed",
        ),
        (
            {"attention_implementation": "xla", "attention_dropout_rate": 0.1},
            "any",
            "cpu",
            "'xla' .*: attention_dropout",
        ),
        (
            {"attention_implementation": "xla", "attention_logit_cap": 30.0},
            "any",
            "tpu",
            "model.attention_implementation='xla' is not possible: attention_logit_cap is set",
        ),
        (
            {"attention_implementation": "cudnn", "attention_sink": "zero"} | GPU,
            "causal",
            "gpu",
            "model.attention_implementation='cudnn' is not possible: attention_sink='zero'",
        ),
        (
            {"attention_implementation": "xla", "value_head_dim": 3},
            "any",
            "tpu",
            "'xla' is not possible: value_head_dim=3",
        ),
    ],
)
def test_an_unavailable_implementation_is_refused(fields, kind, backend, message):
    with pytest.raises(ConfigError, match=message):
        choose(tiny(**fields), kind, backend=backend)


@pytest.mark.skipif(
    jax.default_backend() != "gpu", reason="cuDNN is on a GPU; tests run on the CPU unless JAX_PLATFORMS says"
)
@pytest.mark.parametrize("kind", ["lengths", "causal"])
def test_cudnn_equals_the_reference(kind):
    """In bfloat16, with rows of only padding: outputs, and gradients, which are all finite."""
    length, mask = masks()[kind]
    arrays = [
        jnp.tile(heads(n, 4, seed), (1, 1, 1, 8)).astype(jnp.bfloat16) for seed, n in enumerate((T, length, length))
    ]

    def of(function):
        def loss(query, key, value):
            output = function(query, key, value).astype(jnp.float32)
            return jnp.square(output).sum(), output

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)

    (_, expected), gradients = of(lambda q, k, v: dot_product_attention(q, k, v, mask.allowed, None, 0.125)[0])
    (_, actual), actual_gradients = of(lambda q, k, v: library_attention(q, k, v, mask, None, 0.125, "cudnn"))
    assert distance(actual, expected) < 0.02
    assert distance(actual_gradients, gradients) < 0.02
