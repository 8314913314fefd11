"""Scores of cheap baselines beside those of a model, in the metrics of its task.

| task | baselines |
|---|---|
| `classification` | majority label, naive Bayes and logistic regression over words |
| `images` | majority label |
| `tagging` | the most frequent tag of every word |
| `language_model` | unigram and 5-gram models with Kneser-Ney smoothing, over words; a 5-gram one over tokens |
| `text_to_text` | the first sentence of the source, and the one with the best ROUGE-1, which the references choose |

They learn from the whole training split, also from examples that training leaves out because of their length. Those of
`text_to_text` learn nothing.

WORKDIR/evaluation/baselines/SPLIT.json has the scores of a split and what they depend on. Checkpoints of a work
directory share it.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ExperimentConfig
from transformer_jax.config.data import RECALL
from transformer_jax.data.datasets import Data
from transformer_jax.data.text_form import readable, sentences_of
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.evaluation.kneser_ney import KneserNey
from transformer_jax.evaluation.label_baselines import (
    LinearLabels,
    MostFrequentTags,
    logistic_regression,
    majority_label,
    naive_bayes,
    presence_of,
    word_counts,
    word_ids,
    words_of,
)
from transformer_jax.host.files import json_text, with_checksum, without_checksum, write_atomically
from transformer_jax.host.terminal import doing
from transformer_jax.readers import read_json_object, through_json
from transformer_jax.readers.records import ANYTHING, FINITE, expect, object_of
from transformer_jax.tasks.images import TOP
from transformer_jax.tasks.label_prediction import KINDS
from transformer_jax.tasks.metrics.chunks import count_chunks
from transformer_jax.tasks.metrics.labels import class_counts, precision_recall_f1
from transformer_jax.tasks.metrics.rouge import best_of, example_scores, rules_of
from transformer_jax.tasks.task import TASKS, TRAIN
from transformer_jax.tasks.token_prediction import exponential

logger = logging.getLogger(__name__)

VERSION = 2
"""Increase it when a baseline changes: scores of another version are not used."""
Rows = dict[str, dict[str, float]]
"""Metrics by the name of a baseline."""
_CHUNK = 1 << 14


def check_has_baselines(config: ExperimentConfig) -> None:
    """Raise ConfigError if the task has no baselines, or its scores are not of whole texts."""
    if problem := why_no_baselines(config):
        raise ConfigError(f"--baselines: {problem}; leave the flag out")


def why_no_baselines(config: ExperimentConfig) -> str:
    """Return why there are no baselines for the task; empty if there are."""
    task = config.task
    if task.name not in _BASELINES:
        return f"task.name='{task.name}' has no baselines; tasks with baselines are {', '.join(_BASELINES)}"
    if task.name == "language_model" and task.prefix != "none":
        return (
            f"task.prefix='{task.prefix}' leaves out the beginning of every text, but the baselines score whole texts"
        )
    if task.name == "language_model" and config.data.source == RECALL:
        return (
            f"data.source='{RECALL}' counts answers alone, but the baselines score whole texts; a guess is right in "
            f"1 of data.recall_keys={config.data.recall_keys} cases"
        )
    return ""


def has_free_baselines(config: ExperimentConfig) -> bool:
    """Return whether the task has baselines that learn nothing, which are beside every score of outputs."""
    return config.task.name in _BASELINES and not _BASELINES[config.task.name].learns


@dataclasses.dataclass(frozen=True)
class TaskBaselines:
    """The baselines of a task on one corpus. folder: of the files of scores."""

    config: ExperimentConfig
    data: Data
    folder: Path

    def __post_init__(self) -> None:
        """Raise ConfigError as `check_has_baselines`, and DataError if the split from which they learn is missing."""
        check_has_baselines(self.config)
        if not has_free_baselines(self.config) and TRAIN not in self.data.source.split_names:
            raise DataError("--baselines: the corpus has no split train, from which the baselines learn")

    def scores(self, split: str) -> Rows:
        """Return the scores of a split: those of its file, or new ones, which are then written.

        Raises: DataError for a bad corpus; CheckpointError if the file cannot be written.
        """
        if (known := self.known_scores(split)) is not None:
            return known
        file, of = self._file(split), self._key(split)
        with doing(f"scoring the baselines of {split}"):
            rows = self._score(split)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"{file.parent}: cannot be made: {error.strerror}") from error
        write_atomically(file, (json_text(with_checksum({"of": of, "baselines": rows}), indent=2) + "\n").encode())
        return rows

    def known_scores(self, split: str) -> Rows | None:
        """Return the scores in the file of a split; None if it is missing, damaged, or of another corpus or version."""
        return _read(self._file(split), self._key(split))

    def seconds_to_learn(self) -> float:
        """Return about how long learning takes on one core, from the size of the training split."""
        return _BASELINES[self.config.task.name].seconds(self.config, self.data)

    def _file(self, split: str) -> Path:
        return self.folder / f"{split}.json"

    @functools.cached_property
    def _score(self) -> Callable[[str], Rows]:
        return _BASELINES[self.config.task.name].learn(self.config, self.data)

    def _key(self, split: str) -> dict[str, Any]:
        """Return everything that determines the scores of a split, as it comes back from JSON."""
        source, task = self.data.source, self.config.task
        return through_json(
            {
                "version": VERSION,
                "task": task.name,
                "chunks": task.chunks,
                "columns": [column.key for column in TASKS[task.name].columns(self.config)],
                "labels": self.data.labels,
                "tokenizer": self.data.tokenizer.sha256 if task.name == "language_model" else "",
                **({"rules": rules_of(task).signature} if task.name == "text_to_text" else {}),
                "corpus": source.fingerprint(),
                "split": split,
                "split_corpus": source.fingerprint(split),
            }
        )


def _read(file: Path, of: Mapping[str, Any]) -> Rows | None:
    """Return the scores in a file; None if it is missing, damaged, or of another corpus or version."""
    try:
        values = read_json_object(file)
        rows = without_checksum(
            expect(values, {"of": ANYTHING, "baselines": object_of(object_of(FINITE)), "checksum": ANYTHING})
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("%s: is damaged and is made again: %s", file, error)
        return None
    return rows["baselines"] if rows["of"] == of else None


def _examples(data: Data, split: str, *features: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of some features of every example."""
    for chunk in data.source.chunks(split, _CHUNK):
        yield from zip(*(chunk.features[name] for name in features), strict=True)


# Labels.


def _classification(config: ExperimentConfig, data: Data) -> Callable[[str], Rows]:
    """Return the function that scores a split."""
    texts = ("inputs", "second") if config.data.second_feature else ("inputs",)
    numbers = {name: number for number, name in enumerate(data.labels)}

    def read(split: str) -> tuple[list[list[tuple[int, str]]], Int[np.ndarray, " examples"]]:
        rows = [(words_of(*values), numbers[label]) for label, *values in _examples(data, split, "targets", *texts)]
        return [words for words, _ in rows], np.array([label for _, label in rows])

    documents, labels = read(TRAIN)
    ids = word_ids(documents)
    counts = word_counts(documents, ids)
    models: dict[str, tuple[LinearLabels, bool]] = {
        "majority label": (majority_label(len(ids), labels, len(numbers)), False),
        "naive Bayes": (naive_bayes(counts, labels, len(numbers)), False),
        "logistic regression": (logistic_regression(presence_of(counts), labels, len(numbers)), True),
    }

    def score(split: str) -> Rows:
        documents, labels = read(split)
        counts = word_counts(documents, ids)
        return {
            name: _label_scores(model.log_probs(presence_of(counts) if is_presence else counts), labels)
            for name, (model, is_presence) in models.items()
        }

    return score


def _label_scores(log_probs: Float[np.ndarray, "N C"], labels: Int[np.ndarray, " N"]) -> dict[str, float]:
    """Return the metrics of `Classification` of log probabilities."""
    by_kind = class_counts(labels, log_probs.argmax(-1), log_probs.shape[1])
    sums = {
        f"{kind}_{label}": total
        for kind, counts in zip(KINDS, by_kind, strict=True)
        for label, total in enumerate(counts.sum(0))
    }
    nll = np.array(-log_probs[np.arange(len(labels)), labels].sum())
    metrics = TASKS["classification"].from_sums({"nll": nll, "weight": np.array(len(labels)), **sums})
    return {name: float(value) for name, value in metrics.items()} | {"examples": len(labels)}


def _images(config: ExperimentConfig, data: Data) -> Callable[[str], Rows]:
    """Return the function that scores a split."""

    def labels_of(split: str) -> Int[np.ndarray, " examples"]:
        encoded = data.splits[split]
        return encoded.values("labels", np.arange(encoded.num_examples))

    shares = majority_label(0, labels_of(TRAIN), len(data.labels)).biases

    def score(split: str) -> Rows:
        labels = labels_of(split)
        gold = shares[labels]
        metrics = {"loss": -gold.mean(), "accuracy": 100.0 * (labels == shares.argmax()).mean()}
        if len(data.labels) > TOP:
            # Of equally frequent labels, those that come first are the first five.
            first = np.argsort(-shares, kind="stable")[:TOP]
            metrics["top_5"] = 100.0 * np.isin(labels, first).mean()
        return {"majority label": {name: float(value) for name, value in metrics.items()} | {"examples": len(labels)}}

    return score


# Tags.


def _tagging(config: ExperimentConfig, data: Data) -> Callable[[str], Rows]:
    """Return the function that scores a split."""
    sentences = [*_examples(data, TRAIN, "words", "tags")]
    try:
        model = MostFrequentTags.of_sentences(*zip(*sentences, strict=True))
    except ValueError as error:
        raise DataError(f"--baselines: {error}") from error

    def score(split: str) -> Rows:
        found = [(tags, model.predict(words)) for words, tags in _examples(data, split, "words", "tags")]
        return {"most frequent tag": tag_scores(found, config.task.chunks)}

    return score


def tag_scores(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], chunks: bool) -> dict[str, float]:
    """Return the metrics of `Tagging`, without the loss, of the true and the predicted tags of every sentence."""
    right = [true == tag for tags, predicted in pairs for true, tag in zip(tags, predicted, strict=True)]
    metrics: dict[str, float] = {"accuracy": 100.0 * sum(right) / len(right), "words": len(right)}
    if chunks:
        counts = [count for tags, predicted in pairs for count in count_chunks(tags, predicted).values()]
        scores = precision_recall_f1(*np.array(counts, np.int64).reshape(-1, 3).sum(0))
        metrics |= {name: 100.0 * float(value) for name, value in scores._asdict().items()}
    return metrics


# Text.


def _language_model(config: ExperimentConfig, data: Data) -> Callable[[str], Rows]:
    """Return the function that scores a split."""

    def lines(split: str) -> list[list[str]]:
        texts = itertools.chain.from_iterable(_examples(data, split, "inputs"))
        return [line.split() for text in texts for line in text.split("\n")]

    def tokens(split: str) -> Iterator[list[int]]:
        for chunk in data.source.chunks(split, _CHUNK):
            encoded = data.tokenizer.encode_batch(chunk.features["inputs"])
            yield from (encoded.ids[start:end].tolist() for start, end in itertools.pairwise(encoded.offsets))

    training = lines(TRAIN)
    of_tokens = KneserNey.of_sentences(tokens(TRAIN), 5, data.tokenizer.vocab_size)
    models = {
        "unigram": KneserNey.of_sentences(training, 1),
        "5-gram Kneser-Ney": KneserNey.of_sentences(training, 5),
    }

    def score(split: str) -> Rows:
        sentences, encoded = lines(split), data.splits[split]
        everything = np.arange(encoded.num_examples)
        words, num_bytes = (int(encoded.values(unit, everything).sum()) for unit in ("words", "bytes"))

        def row(nats: float, unknown_words: int) -> dict[str, float]:
            return {
                "word_perplexity": exponential(nats / words),
                "words": words,
                "bits_per_byte": nats / (math.log(2.0) * num_bytes),
                "bytes": num_bytes,
                "unknown_words": unknown_words,
            }

        rows: Rows = {}
        for name, model in models.items():
            unknown = sum(word not in model.words for sentence in sentences for word in sentence)
            rows[name] = row(-float(model.log_probs(sentences).sum()), unknown)
        return rows | {"5-gram Kneser-Ney of tokens": row(-float(of_tokens.log_probs(tokens(split)).sum()), 0)}

    return score


def _text_to_text(config: ExperimentConfig, data: Data) -> Callable[[str], Rows]:
    """Return the function that scores a split."""
    rules = rules_of(config.task)

    def score(split: str) -> Rows:
        references = TASKS["text_to_text"].references(config, data, split) or []
        documents = [[readable(text, config.data) for text in texts] for texts in _sentences(data, split)]
        chosen = {
            "lead sentence": [sentences[0] for sentences in documents],
            "best sentence (oracle)": [
                best_of(sentences, texts, rules) for sentences, texts in zip(documents, references, strict=True)
            ],
        }
        return {
            name: {metric: 100.0 * values.mean() for metric, values in example_scores(x, references, rules).items()}
            for name, x in chosen.items()
        }

    return score


def _sentences(data: Data, split: str) -> list[list[str]]:
    """Return the sentences of every source."""
    features = data.text(split).features
    return features.get("sentences") or [sentences_of(text) for text in features["inputs"]]


# Time.


def _seconds_of_classification(config: ExperimentConfig, data: Data) -> float:
    """Logistic regression takes most of the time: in about 200 iterations, 4 us for each word and label."""
    names = ("first", "second") if config.data.second_feature else ("first",)
    tokens = sum(int(data.splits[TRAIN].lengths(name).sum()) for name in names)  # at least as many as words
    return 4e-6 * tokens * len(data.labels)


def _seconds_of_tagging(config: ExperimentConfig, data: Data) -> float:
    return 2e-6 * int(data.splits[TRAIN].lengths("tags").sum())


def _seconds_of_language_model(config: ExperimentConfig, data: Data) -> float:
    """5-grams of 5 million words or tokens take about 20 s and 1.5 GB."""
    encoded = data.splits[TRAIN]
    tokens = int(encoded.lengths("ids").sum())
    return 4e-6 * (tokens + int(encoded.values("words", np.arange(encoded.num_examples)).sum()))


def _seconds_of_text_to_text(config: ExperimentConfig, data: Data) -> float:
    """The oracle compares every sentence of the validation split with every reference: 0.2 ms each."""
    if "valid" not in data.source.split_names:
        return 0.0
    references = TASKS["text_to_text"].references(config, data, "valid") or []
    return 2e-4 * sum(len(a) * len(b) for a, b in zip(_sentences(data, "valid"), references, strict=True))


class _Baselines(NamedTuple):
    """The baselines of a task.

    learn: learns them from the training split and returns the function that scores a split. seconds: returns about how
    long `learn` takes on one core. learns: whether `learn` reads the training split at all.
    """

    learn: Callable[[ExperimentConfig, Data], Callable[[str], Rows]]
    seconds: Callable[[ExperimentConfig, Data], float]
    learns: bool = True


_BASELINES = {
    "classification": _Baselines(_classification, _seconds_of_classification),
    "images": _Baselines(_images, lambda config, data: 0.0),
    "tagging": _Baselines(_tagging, _seconds_of_tagging),
    "language_model": _Baselines(_language_model, _seconds_of_language_model),
    "text_to_text": _Baselines(_text_to_text, _seconds_of_text_to_text, learns=False),
}
"""By the name of the task."""
