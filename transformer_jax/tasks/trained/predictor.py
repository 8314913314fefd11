"""Prediction of labels, tags and answers for given texts: the parameters of a trained model, ready to be called."""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import EvaluationBatches
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.images import ImageColumn, Picture, read_picture
from transformer_jax.data.labels import NamedLabels
from transformer_jax.data.sources.templates import filled
from transformer_jax.data.token_cache import encode_in_memory
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import DataError
from transformer_jax.nn.batch_norm import num_parameters
from transformer_jax.tasks.batches.answer_spans import Answer, best_answers, windows_of
from transformer_jax.tasks.label_prediction import rows_of
from transformer_jax.tasks.task import TASKS, Task
from transformer_jax.tasks.trained.head_outputs import best_classes, log_softmax, outputs_of_batches
from transformer_jax.tasks.trained.length_limits import length_problems, position_table_rows
from transformer_jax.tasks.trained.lines import NOT_FINITE
from transformer_jax.tasks.trained.text_generator import check_several, stacks_text
from transformer_jax.typing import Params

T = TypeVar("T")


class Problem(NamedTuple):
    """The reason why an example has no prediction."""

    text: str


class Label(NamedTuple):
    """The predicted label of a text, its probability, and the probabilities of all labels by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Tags(NamedTuple):
    """The words of a sentence, the predicted tag of each, and the probabilities of all tags by name, one dict each."""

    words: list[str]
    tags: list[str]
    probabilities: list[dict[str, float]]


class Readable(NamedTuple):
    """Examples that a model can read, by number, as a source has them; the same encoded; the problems of the others.

    encoded: None if there are no such examples.
    """

    rows: dict[int, dict[str, Any]]
    encoded: EncodedSplit | None
    problems: dict[int, str]


@dataclasses.dataclass(frozen=True, repr=False)
class Predictor(abc.ABC, Generic[T]):
    """Parameters, tokenizer and names of labels, ready to predict; `config` is resolved."""

    config: ExperimentConfig
    params: Params
    tokenizer: Tokenizer
    labels: tuple[str, ...]

    def __repr__(self) -> str:
        model = self.config.model
        count = num_parameters(self.params)
        size = f"{model.image_size} x {model.image_size} pixels in {model.image_channels} channels"
        text = f"{self.config.data.tokenizer}, {self.tokenizer.vocab_size:,} ids, sha256 {self.tokenizer.sha256[:12]}"
        return (
            f"{type(self).__name__}: {stacks_text(model)}, emb_dim {model.emb_dim}, {count:,} parameters\n"
            f"  {f'tokenizer: {text}' if model.inputs == 'tokens' else f'images: {size}'}\n"
            f"  labels: {', '.join(self.labels) or 'none; it answers questions'}"
        )

    @property
    def task(self) -> Task:
        """Return the task that the config names."""
        return TASKS[self.config.task.name]

    def predict(self, examples: Sequence[Any]) -> list[T]:
        """Return the prediction for every example.

        Args:
          examples: see the class.
        Raises: DataError for one text in place of a sequence, and, naming the example, for one that is empty, has
          another form or is too long for the model.
        """
        check_several("examples", examples)
        found: list[T] = []
        for number, prediction in enumerate(self.attempt(examples), 1):
            if isinstance(prediction, Problem):
                raise DataError(f"example {number}: {prediction.text}")
            found.append(prediction)
        return found

    def attempt(self, examples: Sequence[Any]) -> list[T | Problem]:
        """Return the prediction for every example, or the reason why it has none."""
        given = self.readable(examples)
        found: list[T | Problem] = [Problem(given.problems.get(number, "")) for number in range(len(examples))]
        if given.encoded is not None:
            outputs = outputs_of_batches(self.config, self.params, self.batches(given.encoded))
            predictions = self._predictions([*given.rows.values()], given.encoded, outputs)
            for number, prediction in zip(given.rows, predictions, strict=True):
                found[number] = prediction
        return found

    def readable(self, examples: Sequence[Any]) -> Readable:
        """Return the examples that the model can read, and the problems of the others."""
        problems: dict[int, str] = {}
        rows: dict[int, dict[str, Any]] = {}
        for number, example in enumerate(examples):
            try:
                check_text(example)
                rows[number] = self.features(example)
            except ValueError as error:
                problems[number] = str(error)
        if rows:
            numbers, encoded = [*rows], self.encoded([*rows.values()])
            for place, problem in self._too_long(encoded).items():
                problems[numbers[place]] = problem
                del rows[numbers[place]]
        return Readable(rows, self.encoded([*rows.values()]) if rows else None, problems)

    def batches(self, encoded: EncodedSplit) -> EvaluationBatches:
        """Return the batches in which the model reads examples, those of `Readable.encoded`."""
        tokens, table = self.config.evaluation.tokens_per_batch, position_table_rows(self.config.model)
        return self.task.evaluation_batches(self.config, encoded, tokens, table)

    @abc.abstractmethod
    def features(self, example: Any) -> dict[str, Any]:
        """Return an example as a source has it, with any known label in the place of the unknown one.

        Raises: ValueError with the problem of an example of another form, or without text.
        """

    @abc.abstractmethod
    def _predictions(
        self, rows: Sequence[Mapping[str, Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> Sequence[T | Problem]:
        """Return the predictions of examples, or why there is none, as for logits that are not finite.

        Args: outputs: of the head, one per row of `Task.evaluation_batches`.
        """

    def encoded(self, rows: Sequence[Mapping[str, Any]]) -> EncodedSplit:
        """Return rows of `features` as the task reads them."""
        columns = tuple(
            dataclasses.replace(column, names=self.labels) if isinstance(column, NamedLabels) else column
            for column in self.task.columns(self.config)
        )
        return encode_in_memory({name: [row[name] for row in rows] for name in rows[0]}, columns, self.tokenizer)

    def _too_long(self, encoded: EncodedSplit) -> dict[int, str]:
        """Return the reasons why examples are too long, by number."""
        (lengths,) = self.task.lengths(self.config, encoded).values()
        return length_problems(self.config, lengths)


class Classifier(Predictor[Label]):
    """A model that predicts a label for each text, or for each pair of texts (a tuple) if it was trained on pairs.

    Texts are changed as in training: `data.input_template` is filled, and `data.format=labelled` drops outer spaces.
    """

    def features(self, example: Any) -> dict[str, Any]:
        texts = (example,) if isinstance(example, str) else tuple(example)
        names = ("inputs", "second")[: 2 if self.config.data.second_feature else 1]
        if len(texts) != len(names):
            raise ValueError(f"{len(texts)} texts; the model reads {len(names)}")
        if not all(text.strip() for text in texts):
            raise ValueError("has no text")
        data, read = self.config.data, dict(zip(names, texts, strict=True))
        if data.format == "labelled" and data.source == "text":  # such a corpus has texts without outer spaces
            read = {name: text.strip() for name, text in read.items()}
        if data.input_template:
            read["inputs"] = filled(data.input_template, {f"{{{name}}}": text for name, text in read.items()})
        return read | {"targets": self.labels[0]}

    def _predictions(
        self, rows: Sequence[Mapping[str, Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[Label | Problem]:
        found: list[Label | Problem] = []
        for log_probs in log_softmax(np.stack(outputs)):
            best, row = int(best_classes(log_probs)), np.exp(log_probs)
            if best < 0:
                found.append(Problem(NOT_FINITE))
                continue
            found.append(Label(self.labels[best], float(row[best]), _by_label(self.labels, row)))
        return found


class ImageClassifier(Classifier):
    """A model that predicts a label for each image; an example is the path of a PNG or JPEG file, or an array of uint8.

    Files are converted to the channels of the model: grey, or colours. An array is [height, width, channels].
    """

    def features(self, example: Any) -> dict[str, Any]:
        column = next(c for c in self.task.columns(self.config) if isinstance(c, ImageColumn))
        if isinstance(example, np.ndarray):
            if example.dtype != np.uint8 or example.ndim != 3:
                raise ValueError(
                    f"an array of {example.dtype.name} {list(example.shape)}; expected uint8 [height, width, channels]"
                )
            picture = Picture("the array", lambda: example)
        else:
            mode = {1: "L", 3: "RGB"}.get(self.config.model.image_channels)
            picture = read_picture(Path(example), str(example), mode)
        try:
            pixels = column.fitted(picture.load())
        except ValueError as error:
            raise ValueError(f"{picture}: {error}") from error
        return {"inputs": Picture(picture.name, lambda: pixels), "targets": self.labels[0]}


class Tagger(Predictor[Tags]):
    """A model that predicts a tag for each word; an example is a list of words, or a text with spaces between words.

    Only spaces and tabs divide a text, as in files of tagged words; a no-break space is part of a word.
    """

    def features(self, example: Any) -> dict[str, Any]:
        words = [word for word in re.split("[ \t]", example) if word] if isinstance(example, str) else [*example]
        if not words or not all(word.strip() for word in words):
            raise ValueError("has an empty word" if words else "has no words")
        return {"words": words, "tags": [self.labels[0]] * len(words)}

    def _predictions(
        self, rows: Sequence[Mapping[str, Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[Tags | Problem]:
        found: list[Tags | Problem] = []
        firsts = rows_of(encoded, "firsts", np.arange(len(rows)))
        for row, places, logits in zip(rows, firsts, outputs, strict=True):
            log_probs = log_softmax(logits[places + 1])  # [words, labels]
            best, probabilities = best_classes(log_probs), np.exp(log_probs)
            if best.min() < 0:
                found.append(Problem(NOT_FINITE))
                continue
            tags = [self.labels[i] for i in best]
            found.append(Tags(row["words"], tags, [_by_label(self.labels, p) for p in probabilities]))
        return found


class Answerer(Predictor[Answer]):
    """A model that answers questions; an example is a pair of a question and its context."""

    def features(self, example: Any) -> dict[str, Any]:
        if isinstance(example, str) or len(example) != 2:
            raise ValueError("expected a pair of a question and a context")
        question, context = example
        if not question.strip() or not context.strip():
            raise ValueError("has no question" if context.strip() else "has no context")
        return {"questions": question, "contexts": context, "answers": [], "answer_starts": []}

    def _too_long(self, encoded: EncodedSplit) -> dict[int, str]:
        """Return the reasons why questions are too long; contexts are read in windows."""
        sizes, limit = encoded.lengths("question"), self.config.task.question_length
        return {
            int(i): f"its question has {sizes[i]} tokens, more than task.question_length={limit}"
            for i in np.flatnonzero(sizes > limit)
        }

    def _predictions(
        self, rows: Sequence[Mapping[str, Any]], encoded: EncodedSplit, outputs: Sequence[np.ndarray]
    ) -> list[Answer | Problem]:
        windows = windows_of(self.config, encoded)
        answers = best_answers(self.config.task, encoded, windows, outputs, [row["contexts"] for row in rows])
        return [self._problem(answer) or answer for answer in answers]

    def _problem(self, answer: Answer) -> Problem | None:
        if np.isfinite(answer.score):
            return None
        return Problem(NOT_FINITE if np.isnan(answer.score) else "its context has no tokens for this tokenizer")


def check_text(example: Any) -> None:
    """Raise ValueError for half of a surrogate pair in a text, or in one of several texts; UTF-8 has no such thing."""
    for text in [example] if isinstance(example, str) else example if isinstance(example, list | tuple) else []:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"has \\u{ord(text[error.start]):04x}, half of a surrogate pair") from None
        except AttributeError:  # no text; `features` says what is expected
            return


def _by_label(labels: Sequence[str], probabilities: np.ndarray) -> dict[str, float]:
    return dict(zip(labels, map(float, probabilities), strict=True))
