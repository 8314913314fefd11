"""Every field of ModelConfig is read: each has a value here that changes the model."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import TINY, make_batch, shapes

from transformer_jax.config import DROPOUT_RATES, ModelConfig
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.nn.dropout import Dropout, DropoutRates

SMALL = TINY | {"num_encoder_layers": 1, "num_decoder_layers": 1}

IMAGES = {"image_size": 8, "image_channels": 3, "patch_size": 4}
PATCHES = {"architecture": "encoder_only", "inputs": "patches", **IMAGES}

# Field -> another value, and other fields that must be set for it to matter.
CHANGES = {
    "architecture": ("decoder_only", {}),
    "inputs": ("patches", {"architecture": "encoder_only", **IMAGES}),
    "image_size": (12, PATCHES),
    "image_channels": (1, PATCHES),
    "patch_size": (2, PATCHES),
    "class_token": (False, PATCHES),
    "pixel_mean": ("0.3", PATCHES),
    "pixel_std": ("0.3", PATCHES),
    "vocab_size": (23, {}),
    "source_vocab_size": (23, {"share_embeddings": False}),
    "emb_dim": (24, {}),
    "num_heads": (2, {}),
    "num_kv_heads": (2, {}),
    "head_dim": (6, {}),
    "value_head_dim": (3, {}),
    "mlp_dim": (40, {}),
    "num_encoder_layers": (2, {}),
    "num_decoder_layers": (2, {}),
    "max_length": (14, {"position_encoding": "learned"}),
    "norm_position": ("pre", {}),
    "norm": ("rmsnorm", {"use_bias": False}),
    "norm_epsilon": (1e-3, {}),
    "norm_scale": ("offset", {}),
    "parallel": ("two_norms", {"architecture": "decoder_only", "norm_position": "pre"}),
    "residual_scale": ("vector", {}),
    "residual_multiplier": (0.5, {}),
    "residual_lambdas": (True, {}),
    "position_encoding": ("rotary", {}),
    "rotary_base": (100.0, {"position_encoding": "rotary"}),
    "attention_rotates": (False, {"position_encoding": "rotary"}),
    "attention_window": (2, {}),
    "rotary_fraction": (0.5, {"position_encoding": "rotary"}),
    "qk_norm": ("rms", {}),
    "qk_norm_after_rotation": (True, {"position_encoding": "rotary", "qk_norm": "rms"}),
    "attention_sink": ("zero", {}),
    "feed_forward": ("experts", {}),
    "num_experts": (3, {"feed_forward": "experts"}),
    "experts_per_token": (1, {"feed_forward": "experts"}),
    "mixer": ("gated_delta", {"architecture": "decoder_only"}),
    "layer_pattern": ("AB", {"layer_kinds": "A: attention_window=2; B:", "num_encoder_layers": 2}),
    "layer_kinds": ("A: attention_window=2", {"layer_pattern": "A", "layer_kinds": "A: attention_window=3"}),
    "relative_num_buckets": (8, {"position_encoding": "relative"}),
    "relative_max_distance": (64, {"position_encoding": "relative"}),
    "activation": ("gelu", {}),
    "use_bias": (False, {}),
    "qkv_bias": (False, {}),
    "attention_scale": (False, {}),
    "attention_multiplier": (0.3, {}),
    "attention_logit_cap": (2.0, {}),
    "share_embeddings": (False, {}),
    "tie_output": (False, {}),
    "output_bias": (True, {}),
    "scale_embeddings": (False, {}),
    "scale_logits": (True, {}),
    "embedding_multiplier": (3.0, {"scale_embeddings": False}),
    "logits_multiplier": (0.5, {}),
    "output_logit_cap": (30.0, {}),
    "embedding_norm": (True, {}),
    "token_types": (2, {}),
    "attention_implementation": ("xla", {}),
    "dtype": ("bfloat16", {}),
    "scan_layers": (True, {"num_encoder_layers": 2}),
    "remat": ("full", {}),
}

SMALL_RECURRENT = {
    "architecture": "recurrent",
    "vocab_size": 19,
    "emb_dim": 16,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "dropout_rate": 0.0,
}
# The same for recurrent models.
CHANGES_OF_RECURRENT = {
    "architecture": ("encoder_decoder", {}),
    "vocab_size": (23, {}),
    "source_vocab_size": (23, {"share_embeddings": False}),
    "emb_dim": (24, {}),
    "num_encoder_layers": (2, {"bridge": "tanh"}),
    "num_decoder_layers": (2, {"bridge": "tanh"}),
    "share_embeddings": (False, {}),
    "tie_output": (False, {}),
    "output_bias": (True, {}),
    "scale_embeddings": (False, {}),
    "embedding_multiplier": (3.0, {"scale_embeddings": False}),
    "logits_multiplier": (0.5, {}),
    "output_logit_cap": (30.0, {}),
    "dtype": ("bfloat16", {}),
    "cell": ("gru", {}),
    "hidden_dim": (12, {"tie_output": False}),
    "cell_biases": (0, {}),
    "bidirectional": (True, {"bridge": "tanh"}),
    "bridge": ("linear", {}),
    "attention": ("dot", {}),
    "input_feeding": (True, {"attention": "dot"}),
    "feed_context": (True, {}),
    "deep_output": ("maxout", {}),
}

# Fields that only tasks read, which make the decoder's inputs on the host; the model must not read them.
OF_TASKS = {"decoder_start_id": 1}

# Fields that only new parameters depend on.
OF_PARAMETERS = {
    "init": ("normal", {}),
    "init_std": (0.5, {"init": "normal"}),
    "init_range": (0.5, {"init": "uniform"}),
    "zero_init_outputs": (True, {}),
    "residual_scale_init": (0.5, {"residual_scale": "vector"}),
    "residual_lambdas_init": ("by_depth", {"residual_lambdas": True}),
    "zero_head": (True, {"tie_output": False}),
}

# Rates are arguments of the training step, as DropoutRates; the model must not read them from the config.
ARGUMENTS = {*DROPOUT_RATES, "teacher_forcing_rate"}

# Other values need another machine; nn/test_recurrent_kernels.py.
OF_MACHINES = {"recurrent_implementation"}


@functools.cache
def computation(config, attention_rate=0.1):
    """Return the shapes of the parameters, the program from them to the logits with dropout, and its constants."""
    dropout = Dropout(jnp.uint32(1), jnp.arange(3), DropoutRates(0.1, 0.1, attention_rate, 0.1))

    def apply(params, batch):
        return ARCHITECTURES[config.architecture].module(config).apply({"params": params}, batch, dropout)

    tree = shapes(config)
    parameters = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    image = (3, config.image_size, config.image_size, config.image_channels)
    batch = make_batch() if config.inputs == "tokens" else {"inputs": jnp.zeros(image, jnp.uint8)}
    program = jax.make_jaxpr(apply)(tree, batch)
    constants = [np.asarray(x).tolist() for x in program.consts if x.size < 1000]  # the text has only their shapes
    return str(parameters), str(program), str(constants)


def test_every_field_is_tested():
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    assert fields == {*CHANGES, *CHANGES_OF_RECURRENT, *OF_TASKS, *OF_PARAMETERS, *ARGUMENTS, *OF_MACHINES}
    read = {f.name for f in dataclasses.fields(ModelConfig) if "recurrent" in _readers(f)}
    assert set(CHANGES_OF_RECURRENT) == read - {
        *OF_TASKS,
        *OF_PARAMETERS,
        *ARGUMENTS,
        *OF_MACHINES,
        "max_length",
    }


def test_fields_that_only_new_parameters_depend_on_are_marked():
    """`init_from` and the families of Hugging Face ask the mark; `test_fields_of_parameters` shows that it is right."""
    assert {f.name for f in dataclasses.fields(ModelConfig) if f.metadata.get("initial")} == {*OF_PARAMETERS}


def _readers(field):
    read_by = field.metadata.get("read_by", {})
    of_images = read_by.get("model.inputs") == ("patches",)
    return [] if of_images else read_by.get("model.architecture", ["recurrent"])


@pytest.mark.slow
@pytest.mark.parametrize("field", CHANGES)
def test_another_value_is_another_computation(field):
    value, others = CHANGES[field]
    before = ModelConfig(**SMALL | others).resolved()
    after = ModelConfig(**SMALL | others | {field: value}).resolved()
    assert getattr(before, field) != value
    rate = None if field == "attention_implementation" else 0.1  # only `reference` drops weights
    assert computation(before, rate) != computation(after, rate)


@pytest.mark.slow
@pytest.mark.parametrize("field", CHANGES_OF_RECURRENT)
def test_another_value_is_another_recurrent_computation(field):
    value, others = CHANGES_OF_RECURRENT[field]
    before = ModelConfig(**SMALL_RECURRENT | others).resolved()
    after = ModelConfig(**SMALL_RECURRENT | others | {field: value}).resolved()
    assert getattr(before, field) != value
    assert computation(before) != computation(after)


@pytest.mark.slow
@pytest.mark.parametrize("field", ["norm", "num_heads", "head_dim"])
def test_an_equal_config_is_the_same_computation(field):
    """Otherwise the test above could not fail: nothing in a program's text differs from one trace to the next."""
    _, others = CHANGES[field]
    config = ModelConfig(**SMALL | others).resolved()
    assert computation(config) == computation.__wrapped__(config)


@pytest.mark.parametrize("field", OF_TASKS)
def test_a_field_of_tasks_is_not_read_by_the_model(field):
    before = ModelConfig(**SMALL).resolved()
    after = ModelConfig(**SMALL | {field: OF_TASKS[field]}).resolved()
    assert before != after
    assert computation(before) == computation(after)


@pytest.mark.parametrize(
    "field",
    [pytest.param(f, marks=pytest.mark.slow) if f == "residual_lambdas_init" else f for f in OF_PARAMETERS],
)
def test_fields_of_parameters(field):
    value, others = OF_PARAMETERS[field]
    before, after = (ModelConfig(**SMALL | others | changed).resolved() for changed in ({}, {field: value}))
    assert computation(before) == computation(after)
    path = {
        "zero_head": ("output", "kernel"),
        "residual_scale_init": ("decoder", "layers", "feed_forward_residual", "scale"),
        "residual_lambdas_init": ("decoder", "input_lambdas", "scale"),
    }.get(field, ("decoder", "layers", "feed_forward", "out", "kernel"))

    def initial(config):
        return functools.reduce(lambda node, name: node[name], path, init_params(config, 0))

    first, second = (jax.jit(functools.partial(initial, config))() for config in (before, after))
    assert (first != second).all()


@pytest.mark.slow
@pytest.mark.parametrize("field", sorted(ARGUMENTS))
def test_rates_are_arguments(field):
    metadata = {f.name: f.metadata for f in dataclasses.fields(ModelConfig)}[field]
    assert metadata["hyper"]
    assert metadata["switch"]
    assert computation(ModelConfig(**SMALL).resolved()) == computation(ModelConfig(**SMALL | {field: 0.37}).resolved())
