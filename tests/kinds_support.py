"""Shared by the tests of many commands: a tiny corpus, config and trained run of every kind of task."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from image_support import MODEL as VIT
from image_support import write_folder
from run_support import LOGGED, TOTAL, argv, run_main, write_corpus

ENCODER = {"architecture": "encoder_only", "num_encoder_layers": 1}
DECODER = {"architecture": "decoder_only", "num_decoder_layers": 1}
BOTH = {"num_encoder_layers": 1, "num_decoder_layers": 1}
_RECURRENT = {"architecture": "recurrent", "num_heads": 8, "mlp_dim": None, "norm_position": "post", "max_length": 512}
"""What a recurrent model does not read has its default."""
_DOCUMENTS = {"format": "documents"}
_TABLE = {"format": "tsv", "input_feature": "text", "target_feature": "label"}
# By kind: fields of the task, the model and the data.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "translation": ({"name": "translation"}, BOTH, {}),
    "recurrent": (
        {"name": "translation"},
        _RECURRENT | BOTH | {"attention": "additive", "bidirectional": True, "bridge": "tanh"},
        {},
    ),
    "language_model": ({"name": "language_model"}, DECODER, _DOCUMENTS),
    "masked_lm": ({"name": "masked_lm"}, ENCODER, _DOCUMENTS),
    "span_corruption": ({"name": "span_corruption"}, BOTH, _DOCUMENTS),
    "classification": ({"name": "classification", "num_labels": 2}, ENCODER, _TABLE),
    "tagging": ({"name": "tagging", "num_labels": 3, "chunks": True}, ENCODER, {"format": "conll"}),
    "span_qa": (
        {"name": "span_qa", "question_length": 12, "stride": 8},
        ENCODER | {"token_types": 2},
        {"format": "squad"},
    ),
    "images": ({"name": "images", "num_labels": 3}, {}, {}),
}
_CONFIG = """
from transformer_jax.config import *


def get_config(arg=""):
    task, model, data, steps = {values!r}
    return ExperimentConfig(
        model=ModelConfig(**model),
        task=TaskConfig(**task),
        data=DataConfig(**data),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=2),
        training=TrainingConfig(label_smoothing=0.0, **steps),
        evaluation=EvaluationConfig(tokens_per_batch=512),
        decode=DecodeConfig(),
    ).to_config_dict()
"""
_ANIMALS = ("cat", "dog", "horse", "cow", "owl")


def write_kind(folder: Path, kind: str) -> Path:
    """Write the corpus of a kind of task and tiny.py, its config, whose steps are those of `write_corpus`."""
    task, model, data = KINDS[kind]
    write_corpus(folder)
    if kind == "images":
        write_folder(folder)
        model = VIT | {"dropout_rate": 0.1}
        data = {"source": "image_folder", "batching": "rows", "rows_per_batch": 4, "row_multiple": 2}
    else:
        write_labelled(folder)
        small = {"vocab_size": 290, "emb_dim": 16, "num_heads": 2, "mlp_dim": 24, "max_length": 48}
        model = small | {"norm_position": "pre", "dropout_rate": 0.1} | model
        limits = {"tokenizer": "bpe", "max_length": 40, "tokens_per_batch": 512, "num_buckets": 1, "row_multiple": 2}
        data = {"source": "text"} | limits | data
    steps = {"num_train_steps": TOTAL, "log_every_steps": LOGGED[0], "eval_every_steps": 4}
    steps |= {"checkpoint_every_steps": 5, "keep_last": 2}
    (folder / "tiny.py").write_text(_CONFIG.format(values=(task, model, data, steps)))
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
