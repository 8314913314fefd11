"""Diagrams of models show what the fields choose, and have a block for every parameter."""

import dataclasses
import itertools

import jax
import pytest
from drawing_support import check_layout, texts_of
from outside.pulse import PulseConfig
from test_configs import SPECS, name, read

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig, walk
from transformer_jax.config.fields import Choices
from transformer_jax.inspection.diagram import boxes, described, layers_diagram, model_columns, model_diagram
from transformer_jax.inspection.diagram_parts import HEADS
from transformer_jax.inspection.drawing import Rect, Sum
from transformer_jax.models.architecture import ARCHITECTURES
from transformer_jax.nn.dropout import DropoutRates
from transformer_jax.nn.feed_forward import Activation
from transformer_jax.nn.heads import TokenHead
from transformer_jax.nn.norms import NormKind
from transformer_jax.nn.patches import INPUTS
from transformer_jax.nn.positions import Encoding
from transformer_jax.nn.recurrent import Cell
from transformer_jax.nn.recurrent_attention import Attention
from transformer_jax.nn.residual import NormPosition
from transformer_jax.tasks.task import TASKS, param_shapes

LANGUAGE_MODEL = {"architecture": "decoder_only", "task.name": "language_model"}
LABELS = {"architecture": "encoder_only", "task.name": "classification"}
IMAGES = {"architecture": "encoder_only", "inputs": "patches", "task.name": "images"}
RECURRENT = {"architecture": "recurrent", "num_encoder_layers": 1, "num_decoder_layers": 1, "tie_output": False}
RNN_LABELS = {**RECURRENT, "num_decoder_layers": 0, "task.name": "classification"}
LUONG = {**RECURRENT, "attention": "dot"}
RELATIVE = {"position_encoding": "relative"}


def config_of(**fields) -> ExperimentConfig:
    """Return a config that is not validated; names with `task.` are fields of the task, others of the model."""
    task = {field.removeprefix("task."): value for field, value in fields.items() if field.startswith("task.")}
    model = {field: value for field, value in fields.items() if not field.startswith("task.")}
    small = {"emb_dim": 64, "num_heads": 4, "vocab_size": 100, "max_length": 32, "head_dropout_rate": 0.1}
    sections = {"model": ModelConfig(**{**small, **model}).resolved(), "task": TaskConfig(**task).resolved()}
    return dataclasses.replace(ExperimentConfig().resolved(), **sections)


DRAWN = {
    "architecture": ({}, "encoder_decoder", "recurrent"),
    "inputs": (LABELS, "tokens", "patches"),
    "image_size": (IMAGES, 224, 32),
    "image_channels": (IMAGES, 3, 1),
    "patch_size": (IMAGES, 16, 8),
    "class_token": (IMAGES, True, False),
    "vocab_size": ({}, 100, 200),
    "source_vocab_size": ({"share_embeddings": False}, 100, 200),
    "emb_dim": ({}, 64, 32),
    "num_heads": ({"head_dim": 16}, 4, 8),
    "num_kv_heads": ({}, 4, 2),
    "head_dim": ({}, 16, 8),
    "value_head_dim": ({}, 16, 8),
    "mlp_dim": ({}, 256, 128),
    "num_encoder_layers": ({}, 6, 5),
    "num_decoder_layers": ({}, 6, 5),
    "max_length": ({"position_encoding": "learned"}, 32, 64),
    "norm_position": ({}, "post", "pre"),
    "norm": ({}, "layernorm", "rmsnorm"),
    "norm_scale": ({}, "learned", "offset"),
    "parallel": ({**LABELS, "norm_position": "pre"}, "none", "one_norm"),
    "residual_scale": ({}, "none", "scalar"),
    "residual_scale_init": ({"residual_scale": "vector"}, 0.0, 0.1),
    "residual_multiplier": ({}, 1.0, 0.5),
    "residual_lambdas": ({}, False, True),
    "position_encoding": ({}, "sinusoidal", "rotary"),
    "rotary_base": ({"position_encoding": "rotary"}, 1e4, 5e5),
    "attention_rotates": ({"position_encoding": "rotary"}, True, False),
    "attention_window": ({}, None, 4),
    "rotary_fraction": ({"position_encoding": "rotary"}, 1.0, 0.5),
    "qk_norm": ({}, "none", "rms"),
    "qk_norm_after_rotation": ({"position_encoding": "rotary", "qk_norm": "rms"}, False, True),
    "attention_sink": ({}, "none", "learned"),
    "feed_forward": ({}, "dense", "experts"),
    "num_experts": ({"feed_forward": "experts"}, 8, 4),
    "experts_per_token": ({"feed_forward": "experts"}, 2, 1),
    "mixer": ({"architecture": "decoder_only"}, "attention", "gated_delta"),
    "layer_pattern": ({"layer_kinds": "S: attention_window=2; L:"}, "S", "SL"),
    "layer_kinds": ({"layer_pattern": "S"}, "S: attention_window=2", "S: attention_window=4"),
    "relative_num_buckets": (RELATIVE, 32, 16),
    "relative_max_distance": (RELATIVE, 128, 64),
    "activation": ({}, "relu", "swiglu"),
    "use_bias": ({}, True, False),
    "qkv_bias": ({}, True, False),
    "attention_scale": ({}, True, False),
    "attention_multiplier": ({}, None, 0.3),
    "attention_logit_cap": ({}, None, 30.0),
    "share_embeddings": ({}, True, False),
    "tie_output": ({}, True, False),
    "output_bias": ({}, False, True),
    "scale_embeddings": ({}, True, False),
    "scale_logits": ({}, False, True),
    "embedding_multiplier": ({"scale_embeddings": False}, 1.0, 12.0),
    "logits_multiplier": ({}, 1.0, 0.125),
    "output_logit_cap": ({}, None, 30.0),
    "embedding_norm": ({}, False, True),
    "token_types": ({}, 0, 2),
    "dropout_rate": ({"embedding_dropout_rate": 0.0}, 0.1, 0.0),
    "embedding_dropout_rate": ({}, 0.1, 0.2),
    "attention_dropout_rate": ({}, 0.0, 0.1),
    "activation_dropout_rate": ({}, 0.0, 0.1),
    "final_dropout_rate": ({}, 0.0, 0.1),
    "head_dropout_rate": (LABELS, 0.0, 0.1),
    "cell": (RECURRENT, "lstm", "gru"),
    "hidden_dim": (RECURRENT, 64, 32),
    "cell_biases": (RECURRENT, 1, 2),
    "bidirectional": ({**RECURRENT, "bridge": "tanh"}, False, True),
    "bridge": (RECURRENT, "last", "tanh"),
    "attention": (RECURRENT, "none", "dot"),
    "input_feeding": (LUONG, False, True),
    "feed_context": (RECURRENT, False, True),
    "deep_output": (RECURRENT, "none", "concat"),
    "teacher_forcing_rate": (RECURRENT, 1.0, 0.5),
    "task.name": ({"architecture": "encoder_only"}, "masked_lm", "tagging"),
    "task.prefix": (LANGUAGE_MODEL, "none", "random"),
    "task.source_mask": ({"architecture": "decoder_only"}, "causal", "prefix"),
    "task.num_labels": (LABELS, 2, 3),
    "task.pooling": (LABELS, "first", "mean"),
    "task.pooler": (LABELS, False, True),
}
"""By the name of a field: other fields, and two values that give two pictures."""
NOT_DRAWN = {
    *("pixel_mean", "pixel_std", "norm_epsilon"),  # constants
    *("init", "init_std", "init_range", "zero_init_outputs", "zero_head", "residual_lambdas_init", "decoder_start_id"),
    "dtype",
    *("attention_implementation", "recurrent_implementation", "scan_layers", "remat"),  # how, not what
}


def shapes_of(**fields):
    return model_diagram(config_of(**fields)).shapes


@pytest.mark.parametrize("field", DRAWN)
def test_another_value_of_a_field_is_another_picture(field):
    others, first, second = DRAWN[field]
    diagrams = [shapes_of(**{**others, field: value}) for value in (first, second)]
    assert diagrams[0] != diagrams[1]
    assert diagrams[0] == shapes_of(**{**others, field: first})


def test_every_field_of_the_model_has_its_place():
    """Draw a new field in inspection/diagram_parts.py and name it in DRAWN; or name it in NOT_DRAWN."""
    fields = {field.name for field in dataclasses.fields(ModelConfig)}
    assert {field for field in DRAWN if "." not in field} | NOT_DRAWN == fields
    assert not NOT_DRAWN & set(DRAWN)


def choices():
    for dotted, field, _ in walk(ExperimentConfig()):
        section, _, field_name = dotted.partition(".")
        key = field_name if section == "model" else dotted
        if key in DRAWN and isinstance(field.metadata.get("choices"), Choices):
            yield key, field.metadata["choices"]


CHOICES = {**dict(choices()), "architecture": ARCHITECTURES, "task.name": TASKS}
WIDE = {"deep_output": {**RECURRENT, "attention": "additive"}, "norm": LABELS, "position_encoding": IMAGES}
TASK_OF = {
    **dict.fromkeys(("translation", "text_to_text", "span_corruption", "denoising"), "encoder_decoder"),
    **dict.fromkeys(("classification", "tagging", "span_qa", "masked_lm"), "encoder_only"),
    "language_model": "decoder_only",
}


def of_choice(field, value):
    if field == "task.name":
        return IMAGES if value == "images" else {"architecture": TASK_OF[value], "task.name": value}
    others = WIDE.get(field, DRAWN[field][0])
    return {**others, **({"norm_position": "post"} if value == "none" else {}), field: value}


@pytest.mark.parametrize("field", CHOICES)
def test_every_value_of_a_table_is_a_picture_of_its_own(field):
    """A new value of a table that looks like another needs a line in inspection/diagram_parts.py."""
    pictures = {value: shapes_of(**of_choice(field, value)) for value in CHOICES[field]}
    for one, other in itertools.combinations(pictures, 2):
        assert pictures[one] != pictures[other], f"{field}: {one} and {other} give the same diagram"


OF_OUTSIDE = {"module", "axes"}
"""What a norm or its place from outside may have; it is a box with its name."""


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        (NormPosition, {"before", "after", "final", "inside", "embedding", "scales", *OF_OUTSIDE}),
        (NormKind, {"function", "has_bias", "over_batch", *OF_OUTSIDE}),
        (Activation, {"function", "gated", "linear"}),
        (Encoding, {"added", "rotate", "bias", "has_table", "axes", "bias_axes"}),
        (DropoutRates, {"residual", "embedding", "attention", "activation", "final", "head"}),
        (Cell, {"num_gates", "num_parts", "function", "adds_maps", "forget"}),
        (Attention, {"score", "maps_keys", "maps_queries", "before_cell"}),
    ],
)
def test_the_tables_have_no_part_that_is_not_drawn(entry, parts):
    """Draw a new part of a table's entry in inspection/diagram_parts.py or diagram_recurrent.py, and name it here."""
    assert set(entry._fields) == parts


def test_every_attention_head_and_input_of_the_package_has_a_drawing():
    """Draw a new one in inspection/diagram_parts.py."""
    kinds = {kind for each in ARCHITECTURES for kind in ARCHITECTURES[each].attention_kinds(config_of().model)}
    assert kinds == {"encoder self-attention", "decoder self-attention", "cross-attention"}
    heads = {type(TASKS[task].head(TaskConfig(name=task), config_of().model)) for task in TASKS} - {type(None)}
    assert heads == set(HEADS)
    assert set(INPUTS) == {"tokens", "patches"}


def paths_of(config):
    tree = param_shapes(config)
    return ["/".join(key.key for key in path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


MODELS = {
    "post": {},
    "everything": {
        **{"norm_position": "pre", "position_encoding": "learned", "activation": "geglu", "embedding_norm": True},
        **{"token_types": 2, "tie_output": False, "output_bias": True, "share_embeddings": False},
    },
    "relative": {**RELATIVE, "norm": "rmsnorm", "norm_position": "pre", "use_bias": False},
    "peri": {**LABELS, "norm_position": "peri"},
    "output": {**LANGUAGE_MODEL, "norm_position": "output"},
    "parallel": {
        **{**LANGUAGE_MODEL, "norm_position": "pre", "parallel": "two_norms", "residual_scale": "vector"},
        **{"residual_lambdas": True, "norm": "dyt"},
    },
    "one_norm": {
        **{**LABELS, "norm_position": "pre", "parallel": "one_norm", "residual_scale": "scalar"},
        **{"residual_multiplier": 0.5, "norm": "layernorm", "norm_scale": "offset"},
    },
    "no_gains": {**LABELS, "norm_scale": "none"},
    "no_norm": {**LABELS, "norm": "none", "task.pooler": True, "position_encoding": "rotary"},
    "language_model": {**LANGUAGE_MODEL, "position_encoding": "learned", "norm_position": "pre"},
    "masked_lm": {"architecture": "encoder_only", "task.name": "masked_lm", "output_bias": True},
    "tagging": {"architecture": "encoder_only", "task.name": "tagging"},
    "images": {**IMAGES, "position_encoding": "learned"},
    "no_class_token": {**IMAGES, "class_token": False, "position_encoding": "sinusoidal_2d", "task.pooling": "mean"},
    "additive": {
        **RECURRENT,
        "attention": "additive",
        "bidirectional": True,
        "bridge": "tanh",
        "deep_output": "maxout",
    },
    "luong": {**LUONG, "attention": "general", "input_feeding": True, "share_embeddings": False},
    "zero_bridge": {**LUONG, "bridge": "zero", "cell": "gru", "cell_biases": 2, "output_bias": True},
    "rnn_labels": {**RNN_LABELS, "bidirectional": True},
    "rnn_language_model": {**RECURRENT, "num_encoder_layers": 0, "task.name": "language_model", "tie_output": True},
}


@pytest.mark.parametrize("model", MODELS)
def test_every_parameter_has_its_box_and_every_box_its_parameters(model):
    fields = {"num_encoder_layers": 1, "num_decoder_layers": 1, **MODELS[model]}
    if fields.get("architecture") != "recurrent":
        fields["scan_layers"] = True  # one layer is traced
    config = config_of(**fields)
    found = [box for column in model_columns(config) for box in boxes(column.parts)]
    paths, owners = paths_of(config), {owner for box in found for owner in box.owns}
    for path in paths:
        assert any(path.startswith(owner) for owner in owners), f"{path} has no box"
    for owner in owners:
        assert any(path.startswith(owner) for path in paths), f"no parameter at {owner}"


@pytest.mark.parametrize("spec", SPECS, ids=name)
def test_every_built_in_config_has_a_diagram_whose_texts_do_not_overlap(spec):
    drawing = model_diagram(read(spec))
    check_layout(drawing)
    assert any(isinstance(shape, Rect) for shape in drawing.shapes)


@pytest.mark.parametrize("model", MODELS)
def test_texts_of_many_models_do_not_overlap(model):
    fields = {"dropout_rate": 0.25, "final_dropout_rate": 0.125, "emb_dim": 16_384, **MODELS[model]}
    if fields.get("architecture") != "recurrent":
        fields |= {"attention_dropout_rate": 0.125, "activation_dropout_rate": 0.125, "num_kv_heads": 2}
    check_layout(model_diagram(config_of(**fields)))


def words(**fields):
    return described(model_columns(config_of(**fields)))


def test_gains_that_only_norms_of_queries_and_keys_have_are_named_in_attention():
    fields = {"qk_norm": "rms", "norm_scale": "offset"}
    assert "qk_norm=rms, norm_scale=offset" in words(**fields, norm="none")
    assert "norm_scale" not in words(**fields)  # the norms say it
    assert "norm_scale" not in words(norm="none", qk_norm="rms")


def test_the_order_of_norm_sublayer_and_sum():
    fields = {**LABELS, "num_encoder_layers": 2, "dropout_rate": 0.1, "embedding_dropout_rate": 0.0}
    post, pre = (words(**fields, norm_position=position) for position in ("post", "pre"))
    assert "of ([self-attention (" in post
    assert ", dropout 0.1] with a residual connection, layernorm, [feed-forward (" in post
    assert ", dropout 0.1] with a residual connection, layernorm), pooling: first" in post
    assert "of ([layernorm, self-attention (" in pre
    assert ", dropout 0.1] with a residual connection, [layernorm, feed-forward (" in pre
    assert ", dropout 0.1] with a residual connection), layernorm, pooling: first" in pre
    sandwich, output, peri, deepnorm = (
        words(**fields, norm_position=position) for position in ("sandwich", "output", "peri", "deepnorm")
    )
    assert "of ([layernorm, self-attention (" in sandwich
    assert "), layernorm, dropout 0.1] with a residual connection, [layernorm, feed-forward (" in sandwich
    assert "of ([self-attention (" in output
    assert "), layernorm, dropout 0.1] with a residual connection, [feed-forward (" in output
    assert peri.count("layernorm") == sandwich.count("layernorm") + 1
    assert ", dropout 0.1] with a residual connection, layernorm (of 1.414 x + f(x)), [feed-forward (" in deepnorm


def test_formulas_of_attention_and_feed_forward():
    assert "softmax(Q Kᵀ / √16) V" in words()
    assert "softmax(Q Kᵀ + B) V" in words(**RELATIVE, attention_scale=False)
    assert "softmax(Q Kᵀ) V" in words(qk_norm="l2")
    assert "softmax(0.3 Q Kᵀ + B) V" in words(position_encoding="alibi", attention_multiplier=0.3)
    assert "(swish(x G) ⊙ x W₁) W₂" in words(activation="swiglu", use_bias=False)
    assert "gelu(x W₁ + b₁) W₂ + b₂" in words(activation="gelu")
    assert "(clamped_swish(x G) ⊙ clamped_plus_one(x W₁)) W₂" in words(activation="swiglu_clamped", use_bias=False)


def test_the_decoder_of_a_pair_reads_the_encoder():
    def readers(**fields):
        return [
            box.title
            for column in model_columns(config_of(**fields))
            for box in boxes(column.parts)
            if box.reads_memory
        ]

    assert readers() == ["cross-attention"]
    assert readers(**LABELS) == readers(**LANGUAGE_MODEL) == []
    assert readers(**LUONG) == ["lstm", "dot attention"]
    assert readers(**LUONG, bridge="zero") == ["dot attention"]
    assert readers(**RECURRENT, bridge="zero", feed_context=True) == ["lstm"]
    assert readers(**{**RECURRENT, "attention": "additive"}) == ["additive attention", "lstm"]


def test_layers_side_by_side():
    configs = {position: config_of(norm_position=position) for position in ("post", "pre")}
    drawing = layers_diagram(configs, "norm_position")
    check_layout(drawing)
    assert sum(isinstance(shape, Sum) for shape in drawing.shapes) == 4
    assert sum(text.text == "layernorm" for text in texts_of(drawing)) == 5  # the last is the final norm of "pre"


def test_a_head_without_a_drawing_is_a_box_with_its_name(monkeypatch):
    tagging = {"architecture": "encoder_only", "task.name": "tagging"}
    assert "logits of labels (64 → 2)" in words(**tagging)
    monkeypatch.delitem(HEADS, TokenHead)
    assert words(**tagging).endswith(", TokenHead (head of the task).")


def test_an_architecture_from_outside_is_a_box_with_its_name():
    model = PulseConfig(architecture="outside.pulse:PulseArchitecture", leak=0.3)
    drawing = model_diagram(ExperimentConfig(model=model).resolved())
    check_layout(drawing)
    texts = [text.text for text in texts_of(drawing)]
    assert sum(isinstance(shape, Rect) for shape in drawing.shapes) == 1
    assert {"outside.pulse:PulseArchitecture", "leak = 0.3"} < set(texts)
