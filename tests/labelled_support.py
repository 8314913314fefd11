"""Shared by the tests of tasks with labels and answers: tiny configs, corpora in memory, untrained models."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from data_support import prepared

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.data.datasets import Data
from transformer_jax.data.sources import Split
from transformer_jax.data.sources.source import divided
from transformer_jax.data.tokenizers.words import MAGIC, WordTokenizer
from transformer_jax.models.architecture import init_params
from transformer_jax.tasks.task import TASKS

TEXTS = ["a fine film", "a dull film", "what joy it is", "so dull and long and dull", "fine", "a long joy"]
LABELS = ["good", "bad", "good", "bad", "good", "mixed"]
SECONDS = ["yes", "no no", "yes", "no", "yes yes yes yes", "maybe"]
WORDS = [["Ann", "saw", "New", "York"], ["Bob", "slept"], ["York", "saw", "Ann", "Lee", "and", "Bob"]]
TAGS = [["B-PER", "O", "B-LOC", "I-LOC"], ["B-PER", "O"], ["B-LOC", "O", "B-PER", "I-PER", "O", "B-PER"]]
CONTEXTS = ["the film was long and the joy was fine", "Ann saw New York", "so dull"]
QUESTIONS = ["what was long ?", "who saw York ?", "how ?"]
ANSWERS = [["film", "the film"], ["Ann"], ["so dull", "dull"]]
FEATURES: dict[str, dict[str, list[Any]]] = {
    "classification": {"inputs": TEXTS, "second": SECONDS, "targets": LABELS},
    "tagging": {
        "inputs": list(map(" ".join, WORDS)),
        "words": WORDS,
        "tags": TAGS,
        "targets": list(map(" ".join, TAGS)),
    },
    "span_qa": {
        "questions": QUESTIONS,
        "contexts": CONTEXTS,
        "answers": ANSWERS,
        "answer_starts": [[c.index(a) for a in x] for c, x in zip(CONTEXTS, ANSWERS, strict=True)],
    },
}
NUM_LABELS = {"classification": {"num_labels": 3}, "tagging": {"num_labels": 5, "chunks": True}, "span_qa": {}}


class Corpus:
    """A corpus in memory, whose splits are the same examples."""

    split_names = ("train", "valid")

    def __init__(self, **splits: dict[str, list[Any]]) -> None:
        self.splits = {name: Split(features) for name, features in splits.items()}

    def num_examples(self, name):
        return self.splits[name].num_examples

    def chunks(self, name, size):
        return divided(self.splits[name], size)

    def split(self, name):
        return self.splits[name]

    def fingerprint(self, split=None):
        return {"sha256": repr(self.splits), "versions": {}}


def config(task: str, data: dict[str, Any] | None = None, model: dict[str, Any] | None = None, **fields: Any):
    """Return a config of a tiny encoder, for words as tokens."""
    small = {"vocab_size": 24, "emb_dim": 16, "num_heads": 2, "mlp_dim": 16, "dropout_rate": 0.0}
    layers = {"architecture": "encoder_only", "num_encoder_layers": 1}
    if (model or {}).get("architecture") == "decoder_only":
        layers = {"num_decoder_layers": 1}
    sizes = {"tokenizer": "words", "max_length": 16, "tokens_per_batch": 64, "row_multiple": 2, "num_buckets": 2}
    return ExperimentConfig(
        model=ModelConfig(**small | layers | (model or {})),
        task=TaskConfig(name=task, **NUM_LABELS[task] | ({"question_length": 6} if task == "span_qa" else {}) | fields),
        data=DataConfig(**sizes | (data or {})),
    ).resolved()


def data_of(settings: ExperimentConfig, directory: Path, features: dict[str, list[Any]] | None = None) -> Data:
    """Return the corpus of a task, tokenized; its vocabulary are all its words."""
    features = FEATURES[settings.task.name] if features is None else features
    texts = [
        word
        for name in ("inputs", "questions", "contexts", "second")
        for t in features.get(name, [])
        for word in t.split()
    ]
    words = sorted({*texts})[: settings.model.vocab_size - 4]
    words += [f"unused{i}" for i in range(settings.model.vocab_size - 4 - len(words))]
    tokenizer = WordTokenizer(MAGIC + "".join(f"{word}\n" for word in words).encode())
    return prepared(settings, directory, tokenizer, source=Corpus(train=features, valid=features))


class Untrained(NamedTuple):
    settings: ExperimentConfig
    corpus: Data
    params: Any
    predictor: Any


def untrained(task: str, **fields: Any) -> Untrained:
    """Return the model of a task, made once per process; arguments as in `config`. The corpus's folder is gone."""
    return _untrained(task, json.dumps(fields, sort_keys=True))


@functools.cache
def _untrained(task: str, fields: str) -> Untrained:
    settings = config(task, model={"position_encoding": "learned", "max_length": 16}, **json.loads(fields))
    with tempfile.TemporaryDirectory() as folder:
        corpus = data_of(settings, Path(folder))
    params = init_params(settings.model, 1, TASKS[task].head(settings.task, settings.model))
    return Untrained(settings, corpus, params, TASKS[task].predictor(settings, params, corpus.tokenizer, corpus.labels))
