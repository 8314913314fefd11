import functools

import jax
import jax.numpy as jnp
import pytest
from flops_support import products

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.tasks.task import TASKS
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

# The operations with which other implementations of these shapes are measured: 3 (encoder + decoder + 2 B T d V), with
# encoder = L (B S (8 d^2 + 4 d ff) + 4 B S^2 d) and decoder = L (B T (12 d^2 + 4 d ff) + 4 B S d^2 + 4 B T^2 d + 4 B T
# S d).
RECURRENT = {"architecture": "recurrent", "hidden_dim": 12, "bridge": "tanh", "tie_output": False}
SHAPES = {
    "tiny": ({"emb_dim": 128, "num_heads": 4, "mlp_dim": 256}, 4, (128, 32, 32), 60_397_977_600),
    "longer source": ({"emb_dim": 128, "num_heads": 4, "mlp_dim": 256}, 4, (128, 48, 32), 69_860_327_424),
    "small": ({"emb_dim": 256, "num_heads": 4, "mlp_dim": 1024}, 3, (64, 32, 32), 95_227_478_016),
    "base": ({"emb_dim": 512, "num_heads": 8, "mlp_dim": 2048}, 6, (16, 64, 64), 303_600_500_736),
}


def train_flops(config, rows, source, target):
    return ARCHITECTURES[config.architecture].train_flops(config, rows, {"inputs": source, "targets": target})


def activation_bytes(config, rows, source, target, loss_chunks=1):
    widths = {"inputs": source, "targets": target}
    return ARCHITECTURES[config.architecture].activation_bytes(config, rows, widths, loss_chunks)


@pytest.mark.parametrize("name", SHAPES)
def test_flops_of_the_benchmark_shapes(name):
    fields, layers, sizes, expected = SHAPES[name]
    config = ModelConfig(vocab_size=8192, num_encoder_layers=layers, num_decoder_layers=layers, **fields)
    assert train_flops(config, *sizes) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"head_dim": 6},
        {"value_head_dim": 10},
        {"head_dim": 6, "value_head_dim": 10, "num_kv_heads": 2},
        {"num_kv_heads": 1},
        {"activation": "swiglu"},
        # Experts are counted as if only those of a token were computed; without biases, whose mean is a product.
        {"feed_forward": "experts", "num_experts": 3, "experts_per_token": 3, "use_bias": False},
        {"activation": "geglu", "tie_output": False, "share_embeddings": False},
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
        {"scan_layers": True},
        {"architecture": "decoder_only"},
        {"architecture": "decoder_only", "value_head_dim": 10, "num_kv_heads": 2, "activation": "geglu"},
        RECURRENT | {"attention": "additive", "bidirectional": True, "deep_output": "maxout", "cell_biases": 2},
        RECURRENT | {"attention": "general", "input_feeding": True, "cell": "gru", "deep_output": "concat"},
        RECURRENT | {"attention": "dot", "cell": "rnn"},
        RECURRENT | {"num_encoder_layers": 0, "bridge": "last"},
        RECURRENT | {"num_decoder_layers": 0, "bidirectional": True},
    ],
    ids=str,
)
def test_flops_are_three_times_the_products_of_the_forward_pass(fields):
    config = ModelConfig(
        **{"vocab_size": 40, "emb_dim": 16, "num_heads": 4, "mlp_dim": 24, "num_encoder_layers": 2}
        | {"num_decoder_layers": 3, "dropout_rate": 0.0}
        | fields
    ).resolved()
    batch = {"inputs": jnp.ones((5, 7), jnp.int32), "decoder_inputs": jnp.ones((5, 9), jnp.int32)}
    params, module = jax.eval_shape(lambda: init_params(config, 0)), ARCHITECTURES[config.architecture].module(config)
    forward = jax.make_jaxpr(lambda p: module.apply({"params": p}, batch))(params)
    assert train_flops(config, 5, 7, 9) == 3 * products(forward.jaxpr)


def test_an_unresolved_config_counts_as_its_resolved_one():
    assert train_flops(ModelConfig(), 2, 3, 4) == train_flops(ModelConfig().resolved(), 2, 3, 4)
    assert activation_bytes(ModelConfig(), 2, 3, 4) == activation_bytes(ModelConfig().resolved(), 2, 3, 4)


def test_a_stack_without_a_memory_needs_the_activations_of_an_encoder():
    """The same layers over the same tokens; only the logits and the decoder's extra layers differ."""
    fields = {"vocab_size": 64, "num_encoder_layers": 3, "num_decoder_layers": 3}
    both, one = (ModelConfig(**fields, architecture=name) for name in ("encoder_decoder", "decoder_only"))
    width, heads, mlp, tokens = 512, 8, 2048, 2 * 5
    layer = tokens * (14 * width + 2 * mlp) + 3 * 2 * heads * 5 * 5
    with_memory = tokens * (24 * width + 2 * mlp) + 3 * 2 * heads * (5 * 5 + 5 * 5)
    embeddings, logits = 6 * width * tokens, 3 * tokens * 64
    assert activation_bytes(one, 2, 5, 5) == 4 * (3 * layer + embeddings + logits)
    assert activation_bytes(both, 2, 5, 5) == 4 * (3 * (layer + with_memory) + 2 * embeddings + logits)


ONE_STACK = {
    **{"architecture": "decoder_only", "vocab_size": 64, "emb_dim": 128, "num_heads": 4, "mlp_dim": 256},
    **{"num_decoder_layers": 4, "norm_position": "pre", "position_encoding": "none"},
}
ADDED = {
    "sandwich": ({"norm_position": "sandwich"}, 6, 0),
    "output": ({"norm_position": "output"}, 0, 0),
    "vector": ({"residual_scale": "vector", "residual_scale_init": 0.1}, 2, 0),
    "lambdas": ({"residual_lambdas": True}, 1, 0),
    "one norm": ({"parallel": "one_norm"}, -4, 0),
    "two norms": ({"parallel": "two_norms"}, -3, 0),
    "qk_norm": ({"qk_norm": "rms_full", "num_kv_heads": 4}, 7, 0),
    "cap": ({"attention_logit_cap": 20.0}, 0, 1),
    "sinks": ({"attention_sink": "learned"}, 0, 0),
}
"""Fields, and what they add to a layer: multiples of D a token, and numbers for every head and pair of tokens."""


@pytest.mark.parametrize("name", ADDED)
def test_what_a_field_adds_to_the_activations(name):
    fields, widths, numbers = ADDED[name]
    plain, changed = (activation_bytes(ModelConfig(**ONE_STACK | more), 8, 1, 64) for more in ({}, fields))
    assert changed - plain == 4 * 4 * (widths * 128 * 8 * 64 + numbers * 8 * 4 * 64**2)


def test_norms_of_the_embedding_and_of_cross_attention_are_counted():
    peri = ModelConfig(**ONE_STACK | {"norm_position": "peri"})
    sandwich = ModelConfig(**ONE_STACK | {"norm_position": "sandwich"})
    assert activation_bytes(peri, 8, 1, 64) - activation_bytes(sandwich, 8, 1, 64) == 4 * 3 * 128 * 8 * 64
    both = {**ONE_STACK, "architecture": "encoder_decoder", "num_encoder_layers": 1, "num_decoder_layers": 1}
    plain, capped, normed = (
        activation_bytes(ModelConfig(**both | more), 8, 16, 64)
        for more in ({}, {"attention_logit_cap": 20.0}, {"norm_position": "sandwich"})
    )
    assert capped - plain == 4 * 8 * 4 * (16**2 + 64**2 + 64 * 16)
    assert normed - plain == 4 * 3 * 128 * 8 * (2 * 16 + 3 * 64)
    without_norms = ModelConfig(**both | {"norm": "none", "norm_position": "sandwich"})
    assert activation_bytes(without_norms, 8, 16, 64) == plain


def test_logits_in_parts_need_a_part_of_their_bytes():
    whole, parts = (activation_bytes(ModelConfig(), 2, 3, 4, loss_chunks) for loss_chunks in (1, 4))
    assert whole - parts == 12 * 2 * 4 * 8192 * 3 // 4


def test_bfloat16_halves_the_bytes_except_for_the_logits():
    logits = 12 * 2 * 4 * 8192
    full, half = (activation_bytes(ModelConfig(dtype=dtype), 2, 3, 4) - logits for dtype in ("float32", "bfloat16"))
    assert full == 2 * half > 0


def test_a_remat_policy_without_an_estimate_counts_as_none():
    full, none, other = (activation_bytes(ModelConfig(remat=name), 2, 3, 4) for name in ("full", "none", "other"))
    assert full < none == other


@functools.cache
def allocated(**fields):
    """Return the bytes that XLA allocates for a step of ONE_STACK over 8 rows of 64 tokens."""
    config = ExperimentConfig(
        model=ModelConfig(**ONE_STACK | fields), task=TaskConfig(name="language_model")
    ).resolved()
    return allocated_by(config, 8, {"targets": 64})


def allocated_by(config, rows, widths):
    static, hyper = split(config)
    state = jax.eval_shape(lambda h: init_state(static, h), hyper)
    batch = TASKS[config.task.name].batch_template(config, rows, widths)
    compiled = jax.jit(make_train_step(static), donate_argnums=0).lower(state, batch, hyper).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ADDED)
def test_what_a_field_adds_is_about_what_the_compiler_adds(name):
    """Within half the width of a layer a token: of 14, the estimate of a layer without these fields."""
    fields, widths, numbers = ADDED[name]
    added = (allocated(**fields) - allocated()) / 4 / 4
    expected = widths * 128 * 8 * 64 + numbers * 8 * 4 * 64**2
    assert added == pytest.approx(expected, abs=0.5 * 128 * 8 * 64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"num_heads": 16, "activation": "swiglu", "mlp_dim": 512}, (8, 128, 128)),
        ({"feed_forward": "experts", "num_experts": 4, "activation": "swiglu", "mlp_dim": 512}, (8, 128, 128)),
        ({"num_encoder_layers": 3, "num_decoder_layers": 6, "remat": "dots", "scan_layers": True}, (32, 64, 64)),
        ({"num_encoder_layers": 6, "num_decoder_layers": 6, "remat": "full", "scan_layers": True}, (32, 64, 64)),
        (
            RECURRENT | {"hidden_dim": 96, "attention": "additive", "bidirectional": True, "deep_output": "maxout"},
            (64, 64, 32),
        ),
        (RECURRENT | {"hidden_dim": 96, "cell": "gru", "attention": "dot", "deep_output": "concat"}, (2, 512, 512)),
        (RECURRENT | {"hidden_dim": 96, "attention": "additive", "dtype": "bfloat16"}, (64, 64, 64)),
    ],
    ids=str,
)
def test_activations_are_about_what_the_compiler_allocates(fields, sizes):
    model = {"vocab_size": 64, "emb_dim": 128, "num_encoder_layers": 2, "num_decoder_layers": 2}
    if "architecture" not in fields:
        model |= {"num_heads": 4, "mlp_dim": 256, "norm_position": "pre"}
    config = ExperimentConfig(model=ModelConfig(**model | fields)).resolved()
    rows, *lengths = sizes
    widths = dict(zip(("inputs", "targets"), lengths, strict=True))
    assert 0.7 < activation_bytes(config.model, *sizes) / allocated_by(config, rows, widths) < 1.4
