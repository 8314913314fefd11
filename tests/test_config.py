import dataclasses
import math
from typing import Any

import ml_collections
import pytest

from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    EvaluationConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    TaskConfig,
    TrainingConfig,
    base_type,
    field_types,
    nearest,
    problems_of,
    walk,
)
from transformer_jax.config.fields import chosen_names
from transformer_jax.errors import ConfigError, UserError

SECTIONS = {
    "model": ModelConfig,
    "data": DataConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
    "decode": DecodeConfig,
    "parallel": ParallelConfig,
}
FIELDS = [(section, field) for section, cls in SECTIONS.items() for field in dataclasses.fields(cls)]


def config_with(**changes: Any) -> ExperimentConfig:
    """Return the default config with `section__field=value`."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        section, _, field = name.partition("__")
        sections.setdefault(section, {})[field] = value
    classes = SECTIONS | {"task": TaskConfig}
    return ExperimentConfig(**{name: classes[name](**values) for name, values in sections.items()})


def message(**changes: Any) -> str:
    with pytest.raises(ConfigError) as info:
        config_with(**changes).resolved()
    return str(info.value)


def test_the_default_config_is_valid():
    assert not problems_of(ExperimentConfig())
    ExperimentConfig().resolved()


def test_configs_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        ExperimentConfig().model.emb_dim = 3  # ty: ignore[invalid-assignment]


def test_every_field_has_a_description():
    for _, field in FIELDS:
        assert field.metadata["doc"], field.name


# --- derived defaults ----------------------------------------------------------------------------------------------


def test_resolution_sets_all_fields_but_those_for_which_none_is_a_value():
    resolved = ExperimentConfig().resolved()
    assert {name for name, _, value in walk(resolved) if value is None} == {
        "data.input_feature",  # by source and format
        "data.target_feature",
        "decode.length_penalty",  # these two follow from fields that a command overrides
        "decode.length_penalty_alpha",
        "decode.top_k",
        "decode.max_new_tokens",
        "evaluation.max_length",  # data.max_length, which only some tasks read it for
        "model.attention_logit_cap",  # no bound
        "model.attention_multiplier",  # as attention_scale says
        "model.attention_window",  # no window
        "model.output_logit_cap",  # no cap
        "model.head_dropout_rate",  # by tasks with labels
        "model.hidden_dim",  # by recurrent models
        "seed_init",  # `seed`, which differs between the trials of a study
        "seed_data",
        "task.mask_rate",  # these two by tasks that corrupt texts
        "task.whole_word",
        "training.monitor_every_steps",  # no monitor
        "parallel.num_devices",
    }


def test_derived_defaults():
    model = ModelConfig(emb_dim=96, num_heads=6, dropout_rate=0.25).resolved()
    assert (model.num_kv_heads, model.head_dim, model.value_head_dim, model.mlp_dim) == (6, 16, 16, 384)
    assert model.embedding_dropout_rate == 0.25
    resolved = ExperimentConfig(
        model=model, optimizer=OptimizerConfig(warmup_steps=100), training=TrainingConfig(num_train_steps=777)
    ).resolved()
    assert resolved.optimizer.learning_rate == pytest.approx((96 * 100) ** -0.5)
    assert resolved.optimizer.decay_steps == 777


def test_given_values_win_over_derived_defaults():
    fields = {
        "num_kv_heads": 2,
        "head_dim": 10,
        "value_head_dim": 7,
        "mlp_dim": 33,
        "embedding_dropout_rate": 0.0,
    }
    model = ModelConfig(**fields).resolved()
    assert {name: getattr(model, name) for name in fields} == fields
    assert ModelConfig(head_dim=10).resolved().value_head_dim == 10


def test_resolution_is_idempotent():
    resolved = ExperimentConfig().resolved()
    assert resolved.resolved() == resolved


# --- one value by itself -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("model__emb_dim", "512", "model.emb_dim='512': expected int, got str"),
        ("model__emb_dim", 512.0, "model.emb_dim=512.0: expected int, got float"),
        ("model__emb_dim", True, "model.emb_dim=True: expected int, got bool"),
        ("model__emb_dim", None, "model.emb_dim=None: expected int, got NoneType"),
        ("model__head_dim", "a", "model.head_dim='a': expected int, got str"),
        ("model__use_bias", 1, "model.use_bias=1: expected bool, got int"),
        ("model__norm", 3, "model.norm=3: expected str, got int"),
        ("model__emb_dim", 0, "model.emb_dim=0: expected at least 1"),
        ("model__dropout_rate", -0.1, "model.dropout_rate=-0.1: expected at least 0.0"),
        ("model__dropout_rate", 1.0, "model.dropout_rate=1.0: expected less than 1.0"),
        ("model__dropout_rate", math.nan, "model.dropout_rate=nan: expected a finite number"),
        ("optimizer__end_fraction", 1.5, "optimizer.end_fraction=1.5: expected at most 1.0"),
        ("optimizer__learning_rate", math.inf, "optimizer.learning_rate=inf: expected a finite number"),
        ("optimizer__warmup_steps", -1, "optimizer.warmup_steps=-1: expected at least 0"),
        ("parallel__num_devices", 0, "parallel.num_devices=0: expected at least 1"),
        (
            "model__position_encoding",
            "sinusodial",
            "model.position_encoding='sinusodial': expected one of sinusoidal, sinusoidal_2d, learned, rotary, "
            "relative, alibi, none, or MODULE:OBJECT (did you mean 'sinusoidal'?)",
        ),
        ("parallel__fsdp", 0, "parallel.fsdp=0: expected at least 1"),
        ("parallel__launcher", "xyz", "parallel.launcher='xyz': expected one of jit, shard_map, pmap"),
    ],
)
def test_wrong_values(name, value, expected):
    assert message(**{name: value}) == f"config: {expected}"


def test_a_seed_out_of_range():
    for seed in (-1, 2**31):
        with pytest.raises(ConfigError, match=f"seed={seed}: expected at"):
            ExperimentConfig(seed=seed).resolved()


@pytest.mark.parametrize(("section", "field"), FIELDS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_every_field_is_checked(section, field):
    """A value of another type, and one beyond each limit, is refused by the name of the field."""
    expected = base_type(field_types(SECTIONS[section])[field.name])
    wrong: list[Any] = [[1]]
    for limit, step in (("minimum", -1), ("maximum", 1), ("below", 0), ("above", 0)):
        if field.metadata.get(limit) is not None:
            wrong.append(expected(field.metadata[limit] + step))
    if "choices" in field.metadata:
        wrong.append("no such choice")
        names = [] if field.default is None else chosen_names(field, field.default)
        assert all(name in field.metadata["choices"] for name in names)
    for value in wrong:
        name = f"{value!r}: " if field.metadata.get("several") and isinstance(value, str) else ""
        expected_text = f"{section}.{field.name}={value!r}: {name}expected"
        assert expected_text in message(**{f"{section}__{field.name}": value})


def test_limits_themselves_are_valid():
    config_with(model__dropout_rate=0.0, optimizer__end_fraction=1.0, optimizer__clip_norm=0.0).resolved()
    assert ExperimentConfig(seed=2**31 - 1).resolved().seed == 2**31 - 1


# --- relations -----------------------------------------------------------------------------------------------------


OF_ENCODER = {"model__architecture": "encoder_only", "task__name": "masked_lm"}
OF_LABELS = {"model__architecture": "encoder_only", "task__name": "classification"}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"model__num_heads": 7}, ["model.num_heads=7 does not divide emb_dim=512", "model.head_dim"]),
        ({"model__num_kv_heads": 3}, ["model.num_kv_heads=3 does not divide num_heads=8"]),
        (
            {"model__embedding_multiplier": 12.0},
            [
                "model.embedding_multiplier=12 cannot be used with scale_embeddings=True, which is a factor too; set "
                "scale_embeddings=false"
            ],
        ),
        (
            {"model__logits_multiplier": 0.5, "model__scale_logits": True},
            ["model.logits_multiplier=0.5 cannot be used with scale_logits=True", "set scale_logits=false"],
        ),
        (
            {"model__zero_head": True},
            ["model.zero_head=True cannot be used with model.tie_output=True", "set model.tie_output=false"],
        ),
        (
            OF_LABELS | {"model__output_logit_cap": 30.0},
            ["model.output_logit_cap=30.0 has no effect with task.name='classification', only with 'translation',"],
        ),
        (
            OF_LABELS | {"model__logits_multiplier": 0.5},
            ["model.logits_multiplier=0.5 has no effect with task.name='classification', only with 'translation',"],
        ),
        ({"model__output_logit_cap": 0.0}, ["model.output_logit_cap=0.0: expected at least 1e-06"]),
        ({"model__embedding_multiplier": -1.0}, ["model.embedding_multiplier=-1.0: expected at least 1e-06"]),
        ({"training__z_loss": -1.0}, ["training.z_loss=-1.0: expected at least 0"]),
        ({"model__emb_dim": 9, "model__num_heads": 3}, ["model.emb_dim=9 is odd", "sinusoidal"]),
        ({"model__position_encoding": "rotary", "model__head_dim": 5}, ["model.head_dim=5 is odd", "rotary"]),
        (
            {"model__position_encoding": "rotary", "model__rotary_fraction": 0.3},
            ["model.rotary_fraction=0.3 of head_dim=64 is 19.2; position_encoding='rotary' rotates pairs"],
        ),
        (
            {"model__rotary_fraction": 0.5},
            ["model.rotary_fraction=0.5 has no effect with position_encoding='sinusoidal', only with 'rotary'"],
        ),
        (
            {"model__qk_norm_after_rotation": True, "model__position_encoding": "rotary"},
            ["model.qk_norm_after_rotation=True has no effect with qk_norm='none', only with 'rms', 'rms_full', "],
        ),
        (
            {"model__qk_norm_after_rotation": True, "model__position_encoding": "alibi", "model__qk_norm": "rms"},
            ["model.qk_norm_after_rotation=True has no effect with position_encoding='alibi', only with 'rotary'"],
        ),
        (
            {"model__qk_norm": "rms_full", "model__attention_scale": False},
            ["model.qk_norm='rms_full' with attention_scale=false:", "set attention_multiplier"],
        ),
        (
            {"model__qk_norm": "l2", "model__attention_multiplier": 0.5},
            ["model.attention_multiplier=0.5 has no effect with qk_norm='l2', which learns the factor"],
        ),
        (
            {
                **{"model__architecture": "encoder_only", "task__name": "images", "data__source": "shapes"},
                **{"model__inputs": "patches", "model__position_encoding": "alibi", "data__batching": "rows"},
            },
            ["model.position_encoding='alibi' cannot be used with inputs='patches'"],
        ),
        (
            {"model__position_encoding": "relative", "model__relative_num_buckets": 7},
            ["model.relative_num_buckets=7 is odd"],
        ),
        (
            {"model__position_encoding": "relative", "model__relative_max_distance": 16},
            ["model.relative_max_distance=16 must exceed", "relative_num_buckets / 2 = 16"],
        ),
        ({"model__decoder_start_id": 8192}, ["model.decoder_start_id=8192 is outside vocab_size=8192"]),
        (
            {"model__source_vocab_size": 9000},
            [
                "model.source_vocab_size=9000 differs from vocab_size=8192; two sizes need two embedding tables: set "
                "share_embeddings=false"
            ],
        ),
        (
            {"model__source_vocab_size": 9000, "model__share_embeddings": False},
            [
                "model.source_vocab_size=9000 differs from model.vocab_size=8192, but both sides have one tokenizer: "
                "set data.separate_tokenizers=true"
            ],
        ),
        (
            {"data__separate_tokenizers": True},
            [
                "data.separate_tokenizers=true needs two embedding tables, since an id stands for other text on either "
                "side: set model.share_embeddings=false"
            ],
        ),
        (
            {"data__tokenizer": "words", "data__source_vocabulary_file": "x"},
            [
                "data.source_vocabulary_file='x' is read only with separate_tokenizers=true; one vocabulary for both "
                "sides is vocabulary_file"
            ],
        ),
        (
            {"optimizer__schedule": "none", "optimizer__learning_rate": 0.1},
            ["optimizer.warmup_steps=4000", "schedule='none'"],
        ),
        ({"optimizer__schedule": "cosine"}, ["optimizer.learning_rate is unset", "'cosine'"]),
        ({"optimizer__warmup_steps": 0}, ["optimizer.learning_rate is unset", "warmup_steps > 0"]),
        (
            {
                "optimizer__schedule": "linear",
                "optimizer__learning_rate": 0.1,
                "optimizer__warmup_steps": 50,
                "optimizer__decay_steps": 50,
            },
            ["optimizer.decay_steps=50", "must exceed optimizer.warmup_steps=50"],
        ),
        (
            {"model__position_encoding": "learned", "model__max_length": 100},
            ["data.max_length=128 exceeds the learned position table", "model.max_length=100"],
        ),
        ({"training__accumulation_steps": 3}, ["training.accumulation_steps=3 does not divide data.row_multiple=8"]),
        ({"data__tokens_per_batch": 1000}, ["data.tokens_per_batch=1000 cannot hold row_multiple=8 rows"]),
        (
            {"data__tokens_per_batch": 2000, "data__batching": "packed"},
            ["data.tokens_per_batch=2000 cannot hold row_multiple=8 rows of packed_length=256"],
        ),
        (
            {"data__batching": "packed", "data__packed_length": 100, "data__max_length": 101},
            ["data.packed_length=100 cannot hold a pair of max_length=101"],
        ),
        ({"data__packed_length": 128}, ["data.packed_length=128 has no effect with batching='buckets'"]),
        (
            {"data__batching": "packed", "data__num_buckets": 4},
            ["data.num_buckets=4 has no effect with batching='packed'"],
        ),
        ({"data__target_locale": "en"}, ["data.source_locale and data.target_locale are both 'en'"]),
        ({"evaluation__average_checkpoints": 5}, ["evaluation.average_checkpoints=5 exceeds training.keep_last=3"]),
        (
            {"decode__beam_size": 20, "model__vocab_size": 19},
            ["decode.beam_size=20 exceeds model.vocab_size=19"],
        ),
        ({"decode__forbidden_ids": "4,8192"}, ["decode.forbidden_ids: 8192 is outside model.vocab_size=8192"]),
        ({"decode__prefix_ids": "9000"}, ["decode.prefix_ids: 9000 is outside model.vocab_size=8192"]),
        ({"decode__max_new_tokens": 5, "decode__min_length": 6}, ["decode.min_length=6 exceeds max_new_tokens=5"]),
        ({"decode__max_new_tokens": 257}, ["decode.max_new_tokens=257 exceeds model.max_length=256"]),
        ({"decode__length_penalty_alpha": 1.0}, ["decode.length_penalty_alpha=1.0 has no effect", "beam_size=1"]),
        ({"decode__prefix_ids": "5;6"}, ["decode.prefix_ids='5;6': expected ids separated by commas"]),
        ({"decode__forbidden_ids": "-1"}, ["decode.forbidden_ids='-1': expected ids separated by commas"]),
        ({"decode__num_best": 2}, ["decode.num_best=2 exceeds beam_size=1"]),
        (
            {"training__max_skipped_updates": 3},
            ["training.max_skipped_updates=3 has no effect with on_nonfinite='stop'"],
        ),
        (
            {"parallel__launcher": "pmap", "parallel__tensor": 2},
            ["parallel.tensor=2 has no effect with launcher='pmap'"],
        ),
        (
            {"parallel__num_devices": 8, "parallel__fsdp": 3},
            ["parallel.num_devices=8 is not a multiple of fsdp=3 x tensor=1"],
        ),
        ({"decode__top_k": 5}, ["decode.top_k=5 has no effect with method='search'"]),
        ({"decode__top_p": 0.0}, ["decode.top_p=0.0: expected more than 0"]),
        ({"decode__top_p": 1.5}, ["decode.top_p=1.5: expected at most 1.0"]),
        ({"decode__top_k": 0}, ["decode.top_k=0: expected at least 1"]),
        (
            {"decode__method": "sample", "decode__beam_size": 2},
            ["decode.beam_size=2 has no effect with method='sample'"],
        ),
        (
            {"decode__length_penalty": "none", "decode__length_penalty_alpha": 0.6},
            ["decode.length_penalty_alpha=0.6 has no effect with length_penalty='none'"],
        ),
        (
            {"model__norm": "batchnorm"},
            ["model.norm='batchnorm' cannot be used with architecture='encoder_decoder'", "later ones", "encoder_only"],
        ),
        (
            OF_ENCODER | {"model__norm": "batchnorm", "data__row_multiple": 1},
            ["data.row_multiple=1 with model.norm='batchnorm' allows batches of one row", "at least 2"],
        ),
        (
            OF_ENCODER | {"model__norm": "batchnorm", "training__accumulation_steps": 2},
            ["training.accumulation_steps=2 with model.norm='batchnorm'", "set training.accumulation_steps=1"],
        ),
        (
            OF_ENCODER | {"model__norm": "batchnorm", "training__loss_chunks": 2},
            ["training.loss_chunks=2 with model.norm='batchnorm'", "set training.loss_chunks=1"],
        ),
        (
            OF_ENCODER | {"model__norm": "batchnorm", "evaluation__average_checkpoints": 2},
            ["evaluation.average_checkpoints=2 with model.norm='batchnorm'", "set evaluation.average_checkpoints=1"],
        ),
        (
            {"model__norm": "none", "model__norm_epsilon": 1e-5},
            [
                "norm_epsilon=1e-05 has no effect with norm='none', only with 'layernorm', 'rmsnorm' and 'batchnorm', "
                "or with qk_norm='rms', 'rms_full', 'layernorm' and 'l2', or with mixer='gated_delta'; its default is"
            ],
        ),
        (
            {"model__norm": "none", "model__qk_norm": "l2", "model__norm_scale": "offset"},
            [
                "model.norm_scale='offset' has no effect with norm='none', only with 'layernorm', 'rmsnorm', "
                "'batchnorm' and 'dyt', or with qk_norm='rms', 'rms_full' and 'layernorm'; its default is 'learned'"
            ],
        ),
        (
            {"model__architecture": "recurrent", "model__norm_epsilon": 1e-5},
            ["has no effect with architecture='recurrent', only with 'encoder_decoder', 'decoder_only' and 'encoder_"],
        ),
        (
            {"model__architecture": "decoder_only", "model__norm": "batchnorm"},
            ["model.norm='batchnorm' cannot be used with architecture='decoder_only'"],
        ),
        (
            {"model__architecture": "recurrent", "model__norm": "batchnorm"},
            ["model.norm='batchnorm' has no effect with architecture='recurrent'"],
        ),
    ],
)
def test_relations_between_fields(changes, parts):
    text = message(**changes)
    assert text.startswith("config: ")
    assert "\n" not in text  # one problem, and no consequence of it
    for part in parts:
        assert part in text


def test_a_head_of_labels_may_begin_at_zero_whatever_the_output_is_tied_to():
    """And so may an output layer that is a matrix of its own."""
    assert config_with(**OF_LABELS, model__zero_head=True).resolved().model.tie_output
    assert config_with(model__zero_head=True, model__tie_output=False).resolved().model.zero_head


@pytest.mark.parametrize(
    "changes",
    [
        {"model__num_heads": 7, "model__head_dim": 64},
        {"model__norm": "dyt", "model__qk_norm": "l2", "model__norm_epsilon": 1e-5},
        {"model__norm": "none", "model__qk_norm": "rms", "model__norm_scale": "none", "model__norm_epsilon": 1e-5},
        {
            **{"model__architecture": "decoder_only", "task__name": "language_model", "model__norm": "none"},
            **{"model__layer_pattern": "GA", "model__layer_kinds": "G: mixer=gated_delta; A:"},
            "model__norm_epsilon": 1e-5,
        },
        {"model__emb_dim": 9, "model__num_heads": 3, "model__position_encoding": "none"},
        {"model__relative_num_buckets": 7},
        {"model__position_encoding": "learned", "model__max_length": 128},
        {"optimizer__schedule": "none", "optimizer__warmup_steps": 0, "optimizer__learning_rate": 0.1},
        {"optimizer__schedule": "cosine", "optimizer__learning_rate": 0.1},
        {"training__accumulation_steps": 4},
        {"data__tokens_per_batch": 1024},
        OF_ENCODER | {"model__norm": "batchnorm", "data__row_multiple": 2},
        {"model__norm": "none"},
        # Positions start at 0 again with every pair of a row.
        {"model__position_encoding": "learned", "model__max_length": 128, "data__batching": "packed"},
    ],
)
def test_valid_neighbours_of_wrong_relations(changes):
    config_with(**changes).resolved()


# --- all problems at once ------------------------------------------------------------------------------------------


def test_all_problems_are_reported_at_once():
    values = {
        "seed": -3,
        "model": {"emb_dim": "wide", "norm": "layer_norm", "num_head": 4},
        "optimizer": {"beta1": 2.0},
        "trainig": {},
        "data": 5,
    }
    with pytest.raises(ConfigError) as info:
        ExperimentConfig.from_config_dict(values)
    lines = str(info.value).splitlines()
    assert lines[0] == "config: 7 problems"
    assert sorted(lines[1:]) == sorted(
        [
            "  - model.num_head: no such field (did you mean 'num_heads'?)",
            "  - trainig: no such field (did you mean 'training'?)",
            "  - data=5: expected a section of fields",
            "  - seed=-3: expected at least 0",
            "  - model.emb_dim='wide': expected int, got str",
            "  - model.norm='layer_norm': expected one of layernorm, rmsnorm, batchnorm, dyt, none, or MODULE:OBJECT "
            "(did you mean 'layernorm'?)",
            "  - optimizer.beta1=2.0: expected less than 1.0",
        ]
    )


def test_several_relations_are_reported_at_once():
    text = message(model__num_heads=7, data__target_locale="en", evaluation__average_checkpoints=9)
    assert text.startswith("config: 3 problems\n")
    assert text.count("\n  - ") == 3


def test_a_config_error_is_a_user_error():
    assert issubclass(ConfigError, UserError)


def test_nearest_names():
    assert nearest("num_hedas", ["num_heads", "head_dim"]) == " (did you mean 'num_heads'?)"
    assert nearest("zzz", ["num_heads", "head_dim"]) == ""


# --- round trip and overrides --------------------------------------------------------------------------------------


def test_round_trip_through_a_config_dict():
    config = config_with(model__num_heads=4, model__norm_position="pre", data__max_length=64, training__keep_last=9)
    values = config.to_config_dict()
    assert isinstance(values, ml_collections.ConfigDict)
    assert ExperimentConfig.from_config_dict(values) == config.resolved()
    assert ExperimentConfig.from_config_dict(values.lock()) == config.resolved()


def test_round_trip_through_a_plain_dict():
    resolved = ExperimentConfig(seed=4).resolved()
    assert ExperimentConfig.from_config_dict(resolved.to_dict()) == resolved


def test_derived_defaults_follow_overrides():
    values = ExperimentConfig().to_config_dict().lock()
    values.model.emb_dim = 64
    values.model.num_heads = 2
    values.model.dropout_rate = 0.3
    values.training.num_train_steps = 50
    config = ExperimentConfig.from_config_dict(values)
    assert (config.model.head_dim, config.model.mlp_dim, config.model.num_kv_heads) == (32, 256, 2)
    assert config.model.embedding_dropout_rate == 0.3
    assert config.optimizer.learning_rate == pytest.approx((64 * 4000) ** -0.5)
    assert config.optimizer.decay_steps == 50


def test_every_derived_default_can_be_overridden():
    """With a None in a locked ConfigDict that fails, so the placeholder has the field's type."""
    overrides = {
        "model.source_vocab_size": 8192,  # another value needs other fields too
        "model.num_kv_heads": 2,
        "model.head_dim": 10,
        "model.value_head_dim": 6,
        "model.mlp_dim": 100,
        "model.attention_logit_cap": 30.0,
        "model.attention_multiplier": 0.2,
        "model.attention_window": 9,
        "model.qkv_bias": False,
        "model.output_logit_cap": 30.0,
        "model.embedding_dropout_rate": 0.05,
        "optimizer.learning_rate": 0.01,
        "optimizer.decay_steps": 12,
        "parallel.num_devices": 1,
        "training.monitor_every_steps": 7,
        "decode.length_penalty": "average",
        "decode.length_penalty_alpha": 0.5,
        "decode.max_new_tokens": 9,
    }
    unset = {name for name, _, value in walk(ExperimentConfig()) if value is None}
    # Decoding methods read either top_k or length_penalty; sources read different features.
    assert set(overrides) == unset - {
        "decode.top_k",
        "data.input_feature",
        "data.target_feature",
        "evaluation.max_length",
        "model.head_dropout_rate",  # training/test_hyper.py
        "model.hidden_dim",  # only read by recurrent models; models/test_fields.py
        "seed_init",  # training/test_seeds.py
        "seed_data",
        "task.mask_rate",  # tasks/test_corrupted_text.py
        "task.whole_word",
    }
    values = ExperimentConfig().to_config_dict().lock()
    values.update_from_flattened_dict(overrides)
    resolved = {name: value for name, _, value in walk(ExperimentConfig.from_config_dict(values))}
    assert {name: resolved[name] for name in overrides} == overrides
    for name, value in overrides.items():
        section, field = name.split(".")
        with pytest.raises(TypeError):
            ExperimentConfig().to_config_dict().lock()[section][field] = 1 if isinstance(value, str) else "text"


def test_an_integer_is_a_valid_value_of_a_float_field():
    values = ExperimentConfig().to_config_dict().lock()
    values.optimizer.learning_rate = 1
    values.optimizer.clip_norm = 2
    optimizer = ExperimentConfig.from_config_dict(values).optimizer
    assert (optimizer.learning_rate, optimizer.clip_norm) == (1.0, 2.0)
    assert type(optimizer.learning_rate) is type(optimizer.clip_norm) is float
    plain = ExperimentConfig.from_config_dict({"model": {"dropout_rate": 0}, "seed": 3})
    assert type(plain.model.dropout_rate) is float


def test_a_float_is_refused_in_an_integer_field():
    values = ExperimentConfig().to_config_dict().lock()
    with pytest.raises(TypeError):
        values.model.emb_dim = 0.5


def test_a_locked_config_refuses_a_typo():
    values = ExperimentConfig().to_config_dict().lock()
    with pytest.raises((AttributeError, KeyError), match="num_heads"):
        values.model.num_head = 4
    with pytest.raises((AttributeError, KeyError), match="model"):
        values.modle = 4


def test_missing_sections_and_fields_have_their_defaults():
    assert ExperimentConfig.from_config_dict({}) == ExperimentConfig().resolved()
    assert ExperimentConfig.from_config_dict({"model": {}}) == ExperimentConfig().resolved()


def test_configs_hash_by_value():
    """They are keys of compiled programs."""
    assert hash(config_with(model__emb_dim=64)) == hash(config_with(model__emb_dim=64))
    assert config_with(model__emb_dim=64) != config_with(model__emb_dim=32)


@pytest.mark.parametrize(
    ("fields", "name", "alpha"),
    [
        ({}, "none", 0.0),
        ({"beam_size": 4}, "gnmt", 0.6),
        ({"beam_size": 4, "length_penalty": "average"}, "average", 1.0),
        ({"beam_size": 4, "length_penalty_alpha": 0.9}, "gnmt", 0.9),
        ({"length_penalty": "gnmt"}, "gnmt", 0.6),
    ],
)
def test_length_penalty_by_default(fields, name, alpha):
    decode = DecodeConfig(**fields).resolved()
    assert (decode.length_penalty, decode.length_penalty_alpha) == (name, alpha)


def test_a_resolved_config_leaves_the_length_penalty_open():
    """A checkpoint's config is resolved; the penalty depends on the beam size that its evaluation asks for."""
    stored = ExperimentConfig().resolved().to_dict()
    stored["decode"]["beam_size"] = 4
    assert ExperimentConfig.from_config_dict(stored).decode.resolved().length_penalty == "gnmt"


def test_a_stored_config_may_lack_a_section_that_was_added_later():
    stored = ExperimentConfig().resolved().to_dict()
    del stored["decode"]
    assert ExperimentConfig.from_config_dict(stored).decode == DecodeConfig()
    assert "decode" not in stored  # the argument is unchanged
