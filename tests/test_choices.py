"""A choice of a field without an implementation is an error and never acts as another choice."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from data_support import encoded_pairs
from support import forward, make_batch, random_params, shapes, tiny

import transformer_jax
from transformer_jax.config import (
    DataConfig,
    DecodeConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    walk,
)
from transformer_jax.config.fields import Choices, names_in_source
from transformer_jax.data.columns import EncodedSplit, RaggedIds
from transformer_jax.data.images import ImageColumn
from transformer_jax.data.sources import load_source
from transformer_jax.data.text_form import readable
from transformer_jax.data.tokenizers import train_tokenizer
from transformer_jax.data.tokenizers.tokenizer import OWN_SPECIAL_IDS
from transformer_jax.decoding.generate import generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import ARCHITECTURES, init_params
from transformer_jax.nn.attention_kernels import choose
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.recurrent_kernels import uses_cudnn
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.batches.pair_rows import reads_source_two_way
from transformer_jax.tasks.metrics.rouge import Rules, corpus_scores
from transformer_jax.tasks.task import TASKS
from transformer_jax.tasks.trained.decode_requests import source_request
from transformer_jax.trackers.tracker import TRACKERS
from transformer_jax.training.hyper import split
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.schedules import learning_rate

CHOICES = {name: field for name, field, _ in walk(ExperimentConfig()) if "choices" in field.metadata}
TABLES = {
    name: field.metadata["choices"] for name, field in CHOICES.items() if isinstance(field.metadata["choices"], Choices)
}
BOGUS = "bogus"
SINCE_2018 = {
    "norm_position": ("sandwich", "output", "peri", "deepnorm"),
    "norm_scale": ("none", "offset"),
    "norm": ("dyt",),
    "residual_scale": ("scalar", "vector"),
    "parallel": ("one_norm", "two_norms"),
    "residual_lambdas_init": ("by_depth",),
    "activation": ("relu2", "leaky_relu2", "reglu", "glu", "bilinear", "swiglu_clamped", "elu", "selu", "softplus"),
    "qk_norm": ("rms_full", "layernorm", "l2"),
    "position_encoding": ("alibi",),
    "attention_sink": ("zero", "learned"),
}
"""Choices of a layer that came after those of the first versions, by their fields."""


def changed(name: str, value: str) -> ExperimentConfig:
    """Return the default config with one field replaced, without validation."""
    section, _, field = name.partition(".")
    config = ExperimentConfig().resolved()
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{field: value})})


def model(field: str, value: str) -> None:
    config = dataclasses.replace(tiny(), **{field: value})
    jax.eval_shape(lambda params, batch: forward(config, params, batch), shapes(config), make_batch())


def attention(value: str) -> None:
    choose(dataclasses.replace(tiny(), attention_implementation=value), "causal")


def text_source(tmp_path, **fields) -> None:
    for locale in ("en", "de", "txt"):
        (tmp_path / f"train.{locale}").write_text("a\n")
    config = DataConfig(source="text", dir=str(tmp_path), valid_split="", test_split="", **fields)
    load_source(config).split("train")


def questions(tmp_path, value: str) -> None:
    question = {"question": "b", "answers": [{"text": "a", "answer_start": 0}]}
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "a", "qas": [question]}]}]}))
    text_source(tmp_path, format="squad", misplaced_answers=value)


def prefix(value: str) -> None:
    ids = EncodedSplit({"ids": RaggedIds(np.array([5, 1], np.int32), np.array([0, 2]))}, OWN_SPECIAL_IDS)
    model = ModelConfig(architecture="decoder_only")
    config = ExperimentConfig(model=model, task=TaskConfig(name="language_model")).resolved()
    config = dataclasses.replace(config, task=dataclasses.replace(config.task, prefix=value))
    training_batches(config, ids).batch(0)


def documents(tmp_path, value: str) -> None:
    (tmp_path / "train.txt").write_text("a\n")
    files = {"source": "text", "dir": str(tmp_path), "format": "documents", "valid_split": "", "test_split": ""}
    load_source(DataConfig(**files, documents=value)).split("train")


def batches(value: str) -> None:
    side = RaggedIds(np.array([5, 1], np.int32), np.array([0, 2]))
    training_batches(changed("data.batching", value), encoded_pairs(side, side))


def reads(value: str) -> None:
    config = dataclasses.replace(tiny(architecture="encoder_only"), inputs=value)
    jax.eval_shape(lambda params, batch: forward(config, params, batch), shapes(config), make_batch())


def resized(value: str) -> None:
    ImageColumn("images", "inputs", (2, 2, 1), resize=value).fitted(np.zeros((2, 2, 1), np.uint8))


def drawings(**fields: str) -> None:
    load_source(DataConfig(source="shapes", num_train_pairs=100, **fields)).split("train")


def pooled(value: str) -> None:
    model = ModelConfig(architecture="encoder_only", emb_dim=8, num_heads=1, num_encoder_layers=1, vocab_size=9)
    model, task = model.resolved(), TASKS["classification"]
    jax.eval_shape(lambda: init_params(model, 0, task.head(TaskConfig(pooling=value), model)))


def recurrent(field: str, value: str) -> None:
    """Compute with the field of a recurrent model; the value of `bridge` is read after the sizes are checked."""
    fields = {"attention": "additive", "bridge": "tanh", field: value}
    config = ModelConfig(architecture="recurrent", emb_dim=8, num_encoder_layers=1, num_decoder_layers=1, vocab_size=9)
    config = dataclasses.replace(config, tie_output=False, **fields).resolved()
    jax.eval_shape(lambda: init_params(config, 0))


@functools.cache
def small_model():
    config = tiny(num_encoder_layers=1, num_decoder_layers=1)
    decoder = ARCHITECTURES[config.architecture].decoder(config)
    return decoder, decoder.prepare(random_params(config))


def decode(field: str, value: str) -> None:
    decoder, params = small_model()
    fields = {"beam_size": 2, "max_new_tokens": 1, "length_penalty_alpha": 1.0, field: value}
    config, ids = DecodeConfig(**fields), np.full((1, 2), 5, np.int32)
    request = source_request((decoder,), config, 3, ids, np.full(1, 2))
    generate((decoder,), (params,), config, Ends(1, (0,)), request)


def optimizer(field: str, value: str) -> None:
    hyper = split(ExperimentConfig().resolved())[1]._replace(weight_decay=0.1)
    params, axes = {"kernel": np.zeros((2, 2), np.float32)}, {"kernel": Axes(("emb",), ("mlp",))}
    config = OptimizerConfig(**{"name": "muon" if field == "muon_scale" else "adam", field: value})
    of = make_optimizer(config, hyper, axes=axes)
    jax.eval_shape(of.update, params, of.init(params), params)


# The code that reads a field, as a function of a temporary folder and the field's value.
USES = {
    "model.architecture": lambda _, value: ARCHITECTURES.config_class(value),
    "task.name": lambda _, value: TASKS.config_class(value),
    **{
        f"model.{field}": lambda _, value, field=field: model(field, value)
        for field in (
            *("norm_position", "norm", "position_encoding", "activation", "init", "dtype", "remat"),
            *("qk_norm", "attention_sink", "mixer", "feed_forward", "norm_scale", "parallel", "residual_scale"),
        )
    },
    **{
        f"model.{field}": lambda _, value, field=field: recurrent(field, value)
        for field in ("cell", "bridge", "attention", "deep_output")
    },
    "model.residual_lambdas_init": lambda _, value: shapes(tiny(residual_lambdas=True, residual_lambdas_init=value)),
    "model.inputs": lambda _, value: reads(value),
    "data.colours": lambda _, value: drawings(colours=value),
    "data.resize": lambda _, value: resized(value),
    "data.unfit_images": lambda _, value: drawings(unfit_images=value),
    "model.attention_implementation": lambda _, value: attention(value),
    "model.recurrent_implementation": lambda _, value: uses_cudnn(
        ModelConfig(architecture="recurrent", recurrent_implementation=value)
    ),
    "data.source": lambda _, value: load_source(DataConfig(source=value, num_train_pairs=100, num_eval_pairs=10)),
    "data.recall_order": lambda _, value: load_source(
        DataConfig(source="recall", num_train_pairs=100, recall_order=value)
    ).split("train"),
    "data.format": lambda tmp_path, value: text_source(tmp_path, format=value),
    "data.encoding": lambda tmp_path, value: text_source(tmp_path, encoding=value),
    "data.misplaced_answers": questions,
    "data.documents": documents,
    "task.prefix": lambda _, value: prefix(value),
    "task.source_mask": lambda _, value: reads_source_two_way(TaskConfig(source_mask=value)),
    "task.best_reference": lambda _, value: corpus_scores(["a"], [["a", "b"]], Rules(True, value)),
    "task.pooling": lambda _, value: pooled(value),
    "data.text_form": lambda _, value: readable("text", DataConfig(text_form=value)),
    "data.tokenizer": lambda _, value: train_tokenizer(["ab abc"] * 9, value, 300),
    "data.batching": lambda _, value: batches(value),
    "optimizer.schedule": lambda _, value: learning_rate(value, 1, split(ExperimentConfig().resolved())[1]),
    **{
        f"optimizer.{field}": lambda _, value, field=field: optimizer(field, value)
        for field in ("name", "muon_scale", "decay_mask", "momentum_dtype", "second_moment_dtype")
    },
    "training.trackers": lambda _, value: [TRACKERS[name] for name in value.split(",")],
    "training.on_nonfinite": lambda _, value: split(changed("training.on_nonfinite", value)),
    "parallel.launcher": lambda _, value: make_launcher(changed("parallel.launcher", value), lambda *args: args, None),
    **{
        f"decode.{field}": lambda _, value, field=field: decode(field, value)
        for field in (
            "method",
            "length_penalty",
            "early_stop",
            "end_among",
            "at_limit",
            "cut_hypotheses",
            "forced_tokens",
        )
    },
}


def test_every_field_with_choices_is_tested():
    assert set(USES) == set(CHOICES) - {"training.best_metric"}  # metrics belong to the task


@pytest.mark.parametrize("name", sorted(USES))
def test_a_name_without_an_implementation_is_an_error(tmp_path, name):
    with pytest.raises((KeyError, ValueError, TypeError, LookupError, ConfigError), match=BOGUS):
        USES[name](tmp_path, BOGUS)


@pytest.mark.parametrize("name", sorted(set(USES) - {"data.tokenizer", "decode.length_penalty"}))
def test_the_default_has_an_implementation(tmp_path, name):
    """Otherwise the test above could not fail."""
    USES[name](tmp_path, CHOICES[name].default)


@pytest.mark.parametrize("name", TABLES)
def test_names_are_the_keys_of_the_table(name):
    """Also in the source of its module."""
    assert tuple(TABLES[name]) == tuple(TABLES[name].table) == names_in_source(TABLES[name].path)


def test_an_addition_to_a_table_is_a_valid_value(monkeypatch):
    table = TABLES["model.activation"].table
    monkeypatch.setitem(table._registered, "square", table["relu"])
    assert ExperimentConfig(model=ModelConfig(activation="square")).resolved().model.activation == "square"


def test_a_missing_table():
    with pytest.raises(AttributeError, match="no table 'NONE'"):
        names_in_source("transformer_jax.nn.norms:NONE")


def test_a_choice_of_a_layer_is_named_in_two_files_in_the_mean():
    """A file counts if it has both the name of the field and the value. Formats of other libraries do not count."""
    root = Path(transformer_jax.__file__).parent
    files = [path.read_text(encoding="utf-8") for path in root.rglob("*.py") if path.parent != root / "convert"]
    counts = {
        (field, value): sum(f'"{value}"' in text and bool(re.search(rf"\b{field}\b", text)) for text in files)
        for field, values in SINCE_2018.items()
        for value in values
    }
    assert min(counts.values()) == 1
    assert np.mean([*counts.values()]) <= 2, counts
