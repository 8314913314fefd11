"""The source of every value, the fields that derived defaults follow from, and the defaults that overrides move."""

import dataclasses

import pytest

from transformer_jax.config import ExperimentConfig, ModelConfig, OptimizerConfig, TaskConfig, TrainingConfig, walk
from transformer_jax.config.problems import unread_by
from transformer_jax.config.sources import ReadConfig, causes_of, derived_fields, moved_defaults
from transformer_jax.config_file import read_with_sources
from transformer_jax.host.files import json_text

SOURCES = {
    ("model.num_heads", "file"),
    ("model.norm", "default"),
    ("model.emb_dim", "flag"),
    ("model.norm_position", "flag"),  # with the value of the default
    ("model.head_dim", "derived from model.emb_dim and model.num_heads"),
    ("model.value_head_dim", "derived from model.head_dim"),
    ("model.mlp_dim", "flag"),
    ("optimizer.learning_rate", "derived from model.emb_dim and optimizer.warmup_steps"),
    ("parallel.num_devices", "default"),
    ("decode.max_new_tokens", "flag"),  # set to None, which is a value of its own
    ("seed", "file"),
}
FLAGS = {
    "model.emb_dim": "64",
    "model.norm_position": "post",
    "model.mlp_dim": "256",
    "decode.max_new_tokens": "None",
}


def set_fields(config, **fields):
    """Return a config with other values; a name is SECTION__FIELD."""
    for name, value in fields.items():
        section, _, leaf = name.partition("__")
        changed = dataclasses.replace(getattr(config, section), **{leaf: value})
        config = dataclasses.replace(config, **{section: changed})
    return config


@pytest.fixture
def python_file(tmp_path):
    file = tmp_path / "some.py"
    file.write_text(
        "from transformer_jax.config import *\n\n\ndef get_config(arg=''):\n"
        "    return ExperimentConfig(seed=3, model=ModelConfig(emb_dim=32, num_heads=2)).to_config_dict()\n"
    )
    return file


@pytest.fixture
def json_file(python_file):
    file = python_file.with_suffix(".json")
    file.write_text(json_text(read_with_sources(str(python_file)).config.to_dict()))
    return file


@pytest.mark.parametrize("kind", ["python_file", "json_file"])
def test_sources(kind, request):
    """A config.json has values for derived fields too, which count as derived while they are equal."""
    read = read_with_sources(str(request.getfixturevalue(kind)), FLAGS)
    assert {(name, str(read.sources()[name])) for name, _ in SOURCES} == SOURCES
    assert set(read.sources()) == {name for name, _, _ in walk(read.config)}


DENOISING = ExperimentConfig(model=ModelConfig(), task=TaskConfig(name="denoising"))
LABELS = ExperimentConfig(model=ModelConfig(architecture="encoder_only"), task=TaskConfig(name="classification"))
RECURRENT = ExperimentConfig(model=ModelConfig(architecture="recurrent"))
OTHER_VALUES = {
    "model.vocab_size": 100,
    "model.num_heads": 4,
    "model.emb_dim": 64,
    "model.head_dim": 24,
    "model.use_bias": False,
    "model.dropout_rate": 0.3,
    "optimizer.warmup_steps": 7,
    "training.num_train_steps": 9,
    "task.name": "masked_lm",
}


def derived_values(config):
    resolved = config.resolved()
    values = {name: value for name, _, value in walk(resolved)}
    return {name: values[name] for name in derived_fields(config, resolved)}


@pytest.mark.parametrize("config", [ExperimentConfig(), DENOISING, LABELS, RECURRENT], ids=lambda c: c.task.name)
def test_derived_defaults_follow_from_the_fields_that_they_name_and_no_others(config):
    named, before = derived_fields(config, config.resolved()), derived_values(config)
    moving = {name: set() for name in named}
    unread = unread_by(config.resolved())
    for field, value in OTHER_VALUES.items():
        if field in unread or (field == "task.name" and config is not DENOISING):
            continue
        of_task = {"model__architecture": "encoder_only"} if field == "task.name" else {}
        other = set_fields(config, **{field.replace(".", "__"): value}, **of_task)
        for name, now in derived_values(other).items():
            if name in before and now != before[name]:
                moving[name].add(field)
    assert all(named.values())
    assert moving == {name: set(causes_of(name, named)).difference(unread) for name in named}


BASE = ExperimentConfig(model=ModelConfig(emb_dim=128, num_heads=4, mlp_dim=512), optimizer=OptimizerConfig())
COSINE = ExperimentConfig(
    optimizer=OptimizerConfig(schedule="cosine", learning_rate=1e-3, warmup_steps=10),
    training=TrainingConfig(num_train_steps=100),
)


@pytest.mark.parametrize(
    ("base", "fields", "expected"),
    [
        (BASE, {}, []),
        (BASE, {"training__log_every_steps": 3}, []),
        (
            BASE,
            {"optimizer__warmup_steps": 100},
            ["optimizer.learning_rate=0.00884 follows from optimizer.warmup_steps (0.0014 in the file)"],
        ),
        (BASE, {"optimizer__warmup_steps": 100, "optimizer__learning_rate": 0.1}, []),
        (
            BASE,
            {"model__num_heads": 8},
            [
                "model.num_kv_heads=8 follows from model.num_heads (4 in the file)",
                "model.head_dim=16 follows from model.num_heads (32 in the file)",
                "model.value_head_dim=16 follows from model.num_heads (32 in the file)",
            ],
        ),
        (
            BASE,
            {"model__head_dim": 8},
            ["model.value_head_dim=8 follows from model.head_dim (32 in the file)"],
        ),
        (
            BASE,
            {"model__emb_dim": 256, "model__head_dim": 32, "optimizer__warmup_steps": 1000},
            [
                "optimizer.learning_rate=0.00198 follows from model.emb_dim and optimizer.warmup_steps "
                "(0.0014 in the file)"
            ],
        ),
        (BASE, {"training__num_train_steps": 7}, []),  # no schedule that ends reads decay_steps
        (
            COSINE,
            {"training__num_train_steps": 70},
            ["optimizer.decay_steps=70 follows from training.num_train_steps (100 in the file)"],
        ),
        (
            RECURRENT,  # which does not read the fields of heads
            {"model__emb_dim": 256, "optimizer__learning_rate": 0.1},
            ["model.hidden_dim=256 follows from model.emb_dim (512 in the file)"],
        ),
        (
            DENOISING,
            {"task__name": "masked_lm", "model__architecture": "encoder_only"},
            [
                "task.mask_rate=0.15 follows from task.name (0.3 in the file)",
                "task.whole_word=False follows from task.name (True in the file)",
            ],
        ),
    ],
)
def test_moved_defaults(base, fields, expected):
    assert [str(moved) for moved in moved_defaults(base, set_fields(base, **fields))] == expected


def test_a_file_that_needs_a_flag_moves_nothing():
    after = set_fields(BASE, optimizer__learning_rate=0.1)
    given = {"optimizer": {"schedule": "cosine"}}  # which has no default for the learning rate
    assert ReadConfig(after.resolved(), after, given, frozenset()).moved_defaults() == []


def test_moved_defaults_of_a_file(python_file, json_file):
    for file in (python_file, json_file):
        (moved,) = read_with_sources(str(file), {"model.dropout_rate": "0.2"}).moved_defaults()
        assert str(moved) == "model.embedding_dropout_rate=0.2 follows from model.dropout_rate (0.1 in the file)"
