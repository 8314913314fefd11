"""Prediction of labels, tags and answers for given texts: the parameters of a trained model, ready to be called."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.columns import BadValueError, Column, EncodedSplit
from transformer_jax.data.labels import NamedLabels
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import DataError
from transformer_jax.tasks.answer_spans import Answer, best_answers, windows_of
from transformer_jax.tasks.base import TASKS, Task
from transformer_jax.tasks.head_outputs import log_softmax, outputs_of_batches
from transformer_jax.tasks.lengths import length_problems, position_table_rows
from transformer_jax.tasks.text_generator import check_several
from transformer_jax.typing import Params

T = TypeVar("T")


class Label(NamedTuple):
    """The predicted label of a text, its probability, and the probabilities of all labels by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Tags(NamedTuple):
    """The words of a sentence, the predicted tag of each, and the probabilities [words, labels] of all tags."""

    words: list[str]
    tags: list[str]
    probabilities: Float[np.ndarray, "words labels"]


@dataclasses.dataclass(frozen=True, repr=False)
class Predictor(abc.ABC, Generic[T]):
    """Parameters, tokenizer and names of labels, ready to predict; `config` is resolved."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    labels: tuple[str, ...]

    def __repr__(self) -> str:
        model = self.config.model
        count = sum(x.size for x in jax.tree.leaves(self.params))
        return (
            f"{type(self).__name__}: {model.architecture}, emb_dim {model.emb_dim}, {count:,} parameters\n"
            f"  tokenizer: {self.config.data.tokenizer}, {self.tokenizer.vocab_size:,} ids, sha256 "
            f"{self.tokenizer.sha256[:12]}\n"
            f"  labels: {', '.join(self.labels) or 'none; it answers questions'}"
        )

    @property
    def task(self) -> Task:
        return TASKS[self.config.task.name]

    def problems(self, features: Mapping[str, Sequence[Any]]) -> dict[int, str]:
        """Return the reasons why examples cannot be predicted, by number: they are too long for the model."""
        return self._too_long(self._encoded(features))

    @abc.abstractmethod
    def features(self, lines: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the features of examples, as a source has them; a value of every label is put in its place."""

    @abc.abstractmethod
    def _predictions(
        self, features: Mapping[str, Sequence[Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[T]:
        """Return the predictions of examples. outputs: of the head, one per row of `Task.evaluation_batches`."""

    def predict(self, lines: Sequence[Any]) -> list[T]:
        """Return the prediction for every example.

        Args:
          lines: the examples; see the class.
        Raises: DataError for one text in place of a sequence, and, naming the example, for one that is too long for the
          model.
        """
        check_several("lines", lines)
        if not len(lines):
            return []
        features = self.features(lines)
        encoded = self._encoded(features)
        for number, problem in self._too_long(encoded).items():
            raise DataError(f"example {number + 1}: {problem}")
        tokens, table = self.config.evaluation.tokens_per_batch, position_table_rows(self.config.model)
        batches = self.task.evaluation_batches(self.config, encoded, tokens, table)
        return self._predictions(features, encoded, outputs_of_batches(self.config, self.params, batches))

    def _columns(self) -> tuple[Column, ...]:
        columns = self.task.columns(self.config)
        return tuple(
            dataclasses.replace(column, names=self.labels) if isinstance(column, NamedLabels) else column
            for column in columns
        )

    def _encoded(self, features: Mapping[str, Sequence[Any]]) -> EncodedSplit:
        try:
            return encode_in_memory(features, self._columns(), self.tokenizer)
        except BadValueError as error:
            raise DataError(f"example {error.index + 1}: {error}") from error

    def _too_long(self, encoded: EncodedSplit) -> dict[int, str]:
        (lengths,) = self.task.lengths(self.config, encoded).values()
        return length_problems(self.config, lengths)


class Classifier(Predictor[Label]):
    """A model that predicts a label for each text, or for each pair of texts (a tuple) if it was trained on pairs."""

    def features(self, lines: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the features of texts.

        Raises: DataError for an example of one text if the model reads two, or the reverse.
        """
        number = 2 if self.config.data.second_feature else 1
        rows = [(line,) if isinstance(line, str) else tuple(line) for line in lines]
        for index, row in enumerate(rows, 1):
            if len(row) != number:
                raise DataError(f"example {index}: {len(row)} texts; the model reads {number}")
        names = ("inputs", "second")[:number]
        features = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        return features | {"targets": [self.labels[0]] * len(rows)}

    def _predictions(
        self, features: Mapping[str, Sequence[Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[Label]:
        found = []
        for row in np.exp(log_softmax(np.stack(outputs))):
            best = int(row.argmax())
            by_label = dict(zip(self.labels, map(float, row), strict=True))
            found.append(Label(self.labels[best], float(row[best]), by_label))
        return found


class Tagger(Predictor[Tags]):
    """A model that predicts a tag for each word; an example is a list of words, or a text with spaces between words."""

    def features(self, lines: Sequence[Any]) -> dict[str, list[Any]]:
        words = [line.split() if isinstance(line, str) else list(line) for line in lines]
        for number, row in enumerate(words, 1):
            if not row:
                raise DataError(f"example {number}: has no words")
        return {"words": words, "tags": [[self.labels[0]] * len(row) for row in words]}

    def _predictions(
        self, features: Mapping[str, Sequence[Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[Tags]:
        found = []
        firsts = encoded.ragged("firsts")
        for number, (words, logits) in enumerate(zip(features["words"], outputs, strict=True)):
            first = firsts.starts[number]
            places = np.asarray(firsts.ids[first : first + firsts.lengths[number]]) + 1
            probabilities = np.exp(log_softmax(logits[places]))
            found.append(Tags(words, [self.labels[i] for i in probabilities.argmax(-1)], probabilities))
        return found


class Answerer(Predictor[Answer]):
    """A model that answers questions; an example is a pair of a question and its context."""

    def features(self, lines: Sequence[Any]) -> dict[str, list[Any]]:
        questions, contexts = [], []
        for number, line in enumerate(lines, 1):
            if isinstance(line, str) or len(line) != 2:
                raise DataError(f"example {number}: expected a pair of a question and a context")
            questions.append(line[0])
            contexts.append(line[1])
        unknown: dict[str, list[Any]] = {"answers": [[] for _ in lines], "answer_starts": [[] for _ in lines]}
        return {"questions": questions, "contexts": contexts} | unknown

    def _too_long(self, encoded: EncodedSplit) -> dict[int, str]:
        """Return the reasons why questions cannot be answered: more tokens than `task.question_length`."""
        sizes, limit = encoded.lengths("question"), self.config.task.question_length
        return {
            int(i): f"its question has {sizes[i]} tokens, more than task.question_length={limit}"
            for i in np.flatnonzero(sizes > limit)
        }

    def _predictions(
        self, features: Mapping[str, Sequence[Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[Answer]:
        windows = windows_of(self.config, encoded)
        return best_answers(self.config.task, encoded, windows, outputs, features["contexts"])
