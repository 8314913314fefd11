"""Shared by the tests of many commands: a tiny corpus, config and trained run of every kind of task."""

import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from image_support import MODEL as VIT
from image_support import write_folder
from run_support import EVALUATED, LOGGED, ROOT, SAVED, TOTAL, argv, run_main, write_corpus

ENCODER = {"architecture": "encoder_only", "num_encoder_layers": 1}
DECODER = {"architecture": "decoder_only", "num_decoder_layers": 1}
BOTH = {"num_encoder_layers": 1, "num_decoder_layers": 1}
_RECURRENT = {"architecture": "recurrent", "num_heads": 8, "mlp_dim": None, "norm_position": "post", "max_length": 512}
"""What a recurrent model does not read has its default."""
_RECURRENT_DECODER = _RECURRENT | {"num_encoder_layers": 0, "num_decoder_layers": 1, "cell": "gru"}
_BIDIRECTIONAL = _RECURRENT | {"num_encoder_layers": 1, "num_decoder_layers": 0, "bidirectional": True}
_DOCUMENTS = {"format": "documents"}
_TABLE = {"format": "tsv", "input_feature": "text", "target_feature": "label"}
_PACKED = {"batching": "packed", "packed_length": 32, "max_length": 16, "num_buckets": 6}
_IMAGES = {"source": "image_folder", "batching": "rows", "rows_per_batch": 4, "row_multiple": 2}
_PULSE = {"architecture": "outside.pulse:PulseArchitecture", "leak": 0.3}
_PARTS = {
    "position_encoding": "kerple:KERPLE",
    "norm": "scale_norm:SCALE_NORM",
    "norm_position": "gated_sum:GATED_SUM",
    "activation": "mish:MISH",
    "layer_pattern": "MA",
    "layer_kinds": "M: mixer=running_mean:RUNNING_MEAN, feed_forward=squared_relu:SQUARED_RELU; A:",
    "num_decoder_layers": 2,
}
EXAMPLES = ROOT / "examples" / "parts"
"""The folder of the modules of `_PARTS`, which a test puts on Python's path."""
_LONG = {"num_train_steps": 60, "log_every_steps": 20, "eval_every_steps": 25, "checkpoint_every_steps": 30}


class Kind(NamedTuple):
    """The fields of a config; `model` and `task` have defaults for a small model."""

    task: dict[str, Any]
    model: dict[str, Any]
    data: dict[str, Any]
    training: Mapping[str, Any] = MappingProxyType({})
    model_class: str = "transformer_jax.config:ModelConfig"
    task_class: str = "transformer_jax.config:TaskConfig"


def _labelled(task: dict[str, Any], model: dict[str, Any], data: dict[str, Any]) -> Kind:
    """A kind that learns its examples."""
    return Kind(task, {"vocab_size": 300, "emb_dim": 32, "mlp_dim": 64, "dropout_rate": 0.0} | model, data, _LONG)


KINDS: dict[str, Kind] = {
    "translation": Kind({"name": "translation"}, BOTH, {}),
    "packed": Kind({"name": "translation"}, BOTH, _PACKED),
    "pair rows": Kind(
        {"name": "translation", "source_mask": "prefix"}, DECODER, _PACKED | {"max_length": 10, "drop_long": True}
    ),
    "recurrent": Kind(
        {"name": "translation"},
        _RECURRENT
        | BOTH
        | {"attention": "additive", "bidirectional": True, "bridge": "tanh", "teacher_forcing_rate": 0.8},
        {},
    ),
    "language_model": Kind({"name": "language_model"}, DECODER, _DOCUMENTS),
    "recurrent language model": Kind({"name": "language_model"}, _RECURRENT_DECODER, _DOCUMENTS | _PACKED),
    "masked_lm": Kind({"name": "masked_lm"}, ENCODER, _DOCUMENTS),
    "span_corruption": Kind({"name": "span_corruption"}, BOTH, _DOCUMENTS),
    "classification": _labelled({"name": "classification", "num_labels": 2}, ENCODER, _TABLE),
    "decoder classification": _labelled(
        {"name": "classification", "num_labels": 2, "pooling": "last", "pooler": True}, DECODER, _TABLE
    ),
    "recurrent classification": _labelled(
        {"name": "classification", "num_labels": 2, "pooling": "last"}, _RECURRENT_DECODER, _TABLE
    ),
    "text to text": _labelled(
        {"name": "text_to_text", "source_prefix": "film: "},
        BOTH,
        _TABLE | {"label_names": "0=negative,1=positive"},
    ),
    "tagging": Kind({"name": "tagging", "num_labels": 3, "chunks": True}, ENCODER, {"format": "conll"}),
    "recurrent tagging": _labelled(
        {"name": "tagging", "num_labels": 3, "chunks": True},
        _BIDIRECTIONAL | {"tie_output": False},
        {"format": "conll"},
    ),
    "span_qa": _labelled(
        {"name": "span_qa", "question_length": 12, "stride": 8},
        ENCODER | {"token_types": 2},
        {"format": "squad"},
    ),
    "images": Kind({"name": "images", "num_labels": 3}, VIT | {"dropout_rate": 0.1}, _IMAGES),
    "augmented images": Kind(
        {"name": "images", "num_labels": 3, "crop_padding": 2, "flip": True, "rand_augment": 2, "mixup": 0.4},
        VIT | {"norm": "batchnorm"},
        _IMAGES,
    ),
    "architecture from outside": Kind({"name": "translation"}, _PULSE, {}, model_class="outside.pulse:PulseConfig"),
    "parts from outside": Kind({"name": "language_model"}, DECODER | _PARTS, _DOCUMENTS | _PACKED),
    "task from outside": Kind(
        {"name": "outside.counting:Counting"},
        _PULSE,
        {},
        model_class="outside.pulse:PulseConfig",
        task_class="outside.counting:CountingConfig",
    ),
}
_CONFIG = """
from importlib import import_module

from transformer_jax.config import *


def made(path, fields):
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)(**fields)


def get_config(arg=""):
    task, model, data, training, model_class, task_class = {values!r}
    return ExperimentConfig(
        model=made(model_class, model),
        task=made(task_class, task),
        data=DataConfig(**data),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=2),
        training=TrainingConfig(**training),
        evaluation=EvaluationConfig(tokens_per_batch=512),
        decode=DecodeConfig(),
    ).to_config_dict()
"""
_ANIMALS = ("cat", "dog", "horse", "cow", "owl")


def write_kind(folder: Path, kind: str) -> Path:
    """Write the corpus of a kind of run and tiny.py, its config, whose steps are those of `write_corpus` or `_LONG`."""
    found = KINDS[kind]
    write_corpus(folder)
    model, data = found.model, found.data
    if data is _IMAGES:
        write_folder(folder)
    else:
        write_labelled(folder)
        small = {"vocab_size": 290, "emb_dim": 16}
        if found.model_class == Kind._field_defaults["model_class"]:
            small |= {"num_heads": 2, "mlp_dim": 24, "max_length": 48, "norm_position": "pre", "dropout_rate": 0.1}
        model = small | model
        limits = {"tokenizer": "bpe", "max_length": 40, "tokens_per_batch": 512, "num_buckets": 1, "row_multiple": 2}
        data = {"source": "text"} | limits | data
    steps = {"num_train_steps": TOTAL, "log_every_steps": LOGGED[0], "eval_every_steps": EVALUATED[0]}
    training = steps | {"checkpoint_every_steps": SAVED[0], "keep_last": 2, "label_smoothing": 0.0} | found.training
    values = tuple(found._replace(model=model, data=data, training=training))
    (folder / "tiny.py").write_text(_CONFIG.format(values=values))
    return folder


def write_labelled(folder: Path) -> None:
    """Write documents, a table, tagged words and questions, 30 examples for training and 10 of each other split."""
    for split, count in (("train", 30), ("valid", 10), ("test", 10)):
        texts = [f"the {_ANIMALS[i % 5]} saw {_ANIMALS[i // 5 % 5]} number {i}" for i in range(count)]
        (folder / f"{split}.txt").write_text("".join(f"{text}\n" for text in texts))
        rows = "".join(f"{text}\t{i % 5 % 2}\n" for i, text in enumerate(texts))
        (folder / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
        tagged = [zip(text.split(), ("O", "B-X", "O", "B-X", "I-X", "O"), strict=False) for text in texts]
        (folder / f"{split}.conll").write_text("\n".join("".join(f"{w}\t{t}\n" for w, t in words) for words in tagged))
        paragraphs = []
        for i, text in enumerate(texts):
            answers = [{"text": (animal := _ANIMALS[i % 5]), "answer_start": text.index(animal)}]
            asked = {"id": f"q{i}", "question": "who saw it ?", "answers": answers}
            paragraphs.append({"context": text, "qas": [asked]})
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


@functools.cache
def _trained_once(kind: str) -> tuple[Path, tempfile.TemporaryDirectory[str]]:
    holder = tempfile.TemporaryDirectory()
    folder = write_kind(Path(holder.name) / kind, kind)
    assert run_main(argv("train", folder)) == 0
    return folder, holder  # keeps the folder alive


def trained_kind(kind: str) -> Path:
    """Return a corpus with a trained run of a kind, made once per process; read or copy it, do not change it."""
    return _trained_once(kind)[0]
