import math

import jax
import jax.numpy as jnp
import pytest

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.models.encoder_decoder import EncoderDecoder, init_params
from transformer_jax.models.flops import activation_bytes, train_flops
from transformer_jax.training.hyper import split
from transformer_jax.training.state import init_state
from transformer_jax.training.step import make_train_step

# What other implementations of these shapes are measured with: 3 (encoder + decoder + 2 B T d V), with
# encoder = L (B S (8 d^2 + 4 d ff) + 4 B S^2 d) and
# decoder = L (B T (12 d^2 + 4 d ff) + 4 B S d^2 + 4 B T^2 d + 4 B T S d).
SHAPES = {
    "tiny": ({"emb_dim": 128, "num_heads": 4, "mlp_dim": 256}, 4, (128, 32, 32), 60_397_977_600),
    "small": ({"emb_dim": 256, "num_heads": 4, "mlp_dim": 1024}, 3, (64, 32, 32), 95_227_478_016),
    "base": ({"emb_dim": 512, "num_heads": 8, "mlp_dim": 2048}, 6, (16, 64, 64), 303_600_500_736),
}


@pytest.mark.parametrize("name", SHAPES)
def test_flops_of_the_benchmark_shapes(name):
    fields, layers, sizes, expected = SHAPES[name]
    config = ModelConfig(vocab_size=8192, num_encoder_layers=layers, num_decoder_layers=layers, **fields)
    assert train_flops(config, *sizes) == expected


def products(jaxpr):
    """Operations of the matrix products of a program, a multiply-add being 2, loops counted by their trips."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * equation.outvars[0].aval.size * math.prod(left[axis] for axis in contracted)
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            if inner := getattr(value, "jaxpr", value if hasattr(value, "eqns") else None):
                total += times * products(inner)
    return total


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"head_dim": 6},
        {"value_head_dim": 10},
        {"head_dim": 6, "value_head_dim": 10, "num_kv_heads": 2},
        {"num_kv_heads": 1},
        {"activation": "swiglu"},
        {"activation": "geglu", "tie_output": False, "share_embeddings": False},
        {"num_encoder_layers": 3, "num_decoder_layers": 1},
        {"scan_layers": True},
    ],
    ids=str,
)
def test_flops_are_three_times_the_products_of_the_forward_pass(fields):
    config = ModelConfig(
        **{"vocab_size": 40, "emb_dim": 16, "num_heads": 4, "mlp_dim": 24, "num_encoder_layers": 2}
        | {"num_decoder_layers": 3, "dropout_rate": 0.0}
        | fields
    ).resolved()
    batch = {"inputs": jnp.ones((5, 7), jnp.int32), "targets": jnp.ones((5, 9), jnp.int32)}
    params = jax.eval_shape(lambda: init_params(config, 0))
    forward = jax.make_jaxpr(lambda p: EncoderDecoder(config).apply({"params": p}, batch)[0])(params)
    assert train_flops(config, 5, 7, 9) == 3 * products(forward.jaxpr)


def test_an_unresolved_config_counts_as_its_resolved_one():
    assert train_flops(ModelConfig(), 2, 3, 4) == train_flops(ModelConfig().resolved(), 2, 3, 4)
    assert activation_bytes(ModelConfig(), 2, 3, 4) == activation_bytes(ModelConfig().resolved(), 2, 3, 4)


def test_logits_in_parts_need_a_part_of_their_bytes():
    whole, parts = (activation_bytes(ModelConfig(), 2, 3, 4, loss_chunks) for loss_chunks in (1, 4))
    assert whole - parts == 12 * 2 * 4 * 8192 * 3 // 4


def test_half_the_bytes_in_bfloat16_but_for_the_logits():
    logits = 12 * 2 * 4 * 8192
    full, half = (activation_bytes(ModelConfig(dtype=dtype), 2, 3, 4) - logits for dtype in ("float32", "bfloat16"))
    assert full == 2 * half > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({"vocab_size": 4096, "num_encoder_layers": 3}, (32, 64, 16)),
        ({"num_heads": 16}, (8, 128, 128)),
        ({"activation": "swiglu", "mlp_dim": 512}, (64, 32, 32)),
        ({"vocab_size": 4096, "remat": "dots", "scan_layers": True}, (32, 64, 16)),
        ({"num_encoder_layers": 6, "num_decoder_layers": 6, "remat": "dots", "scan_layers": True}, (32, 64, 64)),
        ({"num_encoder_layers": 6, "num_decoder_layers": 6, "remat": "full", "scan_layers": True}, (32, 64, 64)),
    ],
    ids=str,
)
def test_activations_are_about_what_the_compiler_allocates(fields, sizes):
    model = {"vocab_size": 64, "emb_dim": 128, "num_heads": 4, "mlp_dim": 256} | {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "norm_position": "pre",
    }
    config = ExperimentConfig(model=ModelConfig(**model | fields)).resolved()
    static, hyper = split(config)
    state = jax.eval_shape(lambda h: init_state(static, h), hyper)
    rows, *lengths = sizes
    shapes = {"inputs": (rows, lengths[0]), "targets": (rows, lengths[1]), "row_ids": (rows,)}
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in shapes.items()}
    compiled = jax.jit(make_train_step(static), donate_argnums=0).lower(state, batch, hyper).compile()
    allocated = compiled.memory_analysis().temp_size_in_bytes
    assert 0.7 < activation_bytes(config.model, *sizes) / allocated < 1.4
