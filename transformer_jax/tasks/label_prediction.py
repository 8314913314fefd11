"""Prediction of labels: what classification, tagging and images share."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.config.task import BALANCED, parse_class_weights
from transformer_jax.tasks.task import Evaluation, MetricSpec, Task

if TYPE_CHECKING:
    import flax.linen as nn
    import numpy as np

    from transformer_jax.data.batching import Arrays, BatchShape, Rows, TrainingBatches
    from transformer_jax.data.columns import EncodedSplit
    from transformer_jax.data.datasets import Data
    from transformer_jax.models.architecture import Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.task import Sums
    from transformer_jax.typing import Batch, Params

LOGGED = (
    MetricSpec("loss", "min", "nats per label"),
    MetricSpec("nll", "min", "nats per label"),
    MetricSpec("accuracy", "max", "%"),
)
"""The averages of labels that training logs; with class weights, all three are weighted."""
READS = frozenset(
    {
        *("task", "model.head_dropout_rate", "training.label_smoothing", "training.z_loss"),
        *("data.coarse_labels", "data.label_names"),
    }
)
"""Fields that tasks with labels read, in the form of `Task.reads`."""
KINDS = ("right", "true", "predicted")
"""Kinds of counts of a class, in the order of `metrics.labels.ClassCounts`."""


class LabelPrediction(Task):
    """The base class of tasks whose targets are labels; with `task.class_weights`, those of training have weights."""

    needs_decoder = False
    logged = LOGGED

    # Defined by each task.

    @abc.abstractmethod
    def training_labels(self, split: EncodedSplit) -> np.ndarray:
        """Return the labels of all examples of the training split, or of all their words; int [labels]."""

    # Batches.

    def training_batches(self, config: ExperimentConfig, split: EncodedSplit) -> TrainingBatches:
        """Return the training batches; their `weights` are the class weights."""
        from transformer_jax.data.datasets import plan_batches

        arrays: Arrays = functools.partial(self.arrays, config, split)
        if config.task.class_weights:
            weights = class_weights(config.task, self.training_labels(split))
            arrays = functools.partial(_with_class_weights, arrays, weights)
        return plan_batches(config, self.lengths(config, split), arrays)

    # The loss.

    def loss(
        self, config: TaskConfig, model: Model, batch: Batch, dropout: Dropout | None, hyper: Any, chunks: int = 1
    ) -> Sums:
        """Return the sums `loss` (label-smoothed), `nll`, `correct` and `weight` over the labels of a batch."""
        from transformer_jax.tasks.metrics.cross_entropy import cross_entropy

        x = model.features(batch, dropout, hyper.model)
        logits = model.outputs(x, batch, dropout)
        return cross_entropy(logits, batch["targets"], batch["weights"], hyper.label_smoothing)

    def means(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Return `loss` and `nll` in nats per label, and `accuracy` in percent."""
        from transformer_jax.tasks.metrics.cross_entropy import cross_entropy_means

        return cross_entropy_means(sums)


class OneLabel(LabelPrediction):
    """The base class of tasks with one label per example, which a vector of the whole sequence predicts."""

    def training_labels(self, split: EncodedSplit) -> np.ndarray:
        """Return the label of every example."""
        import numpy as np

        return split.values("labels", np.arange(split.num_examples))

    def labels_of(self, split: EncodedSplit, rows: Rows) -> dict[str, np.ndarray]:
        """Return `targets` [B] int32 and `weights` [B] float32, 0 for an empty row."""
        import numpy as np

        targets = split.values("labels", rows.examples).astype(np.int32)
        return {"targets": targets, "weights": (rows.examples >= 0).astype(np.float32)}

    def head(self, config: TaskConfig, model: ModelConfig) -> nn.Module:
        """Return the module that pools the vectors of an example and maps them to logits [B, labels]."""
        from transformer_jax.nn.heads import SequenceHead

        return SequenceHead(model, config.num_labels, config.pooling, config.pooler)

    def head_flops(self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int:
        """Return the operations of one vector per example, B in all: 2 B D C, and 2 B D^2 with a pooler."""
        width, task = config.model.emb_dim, config.task
        return 2 * rows * width * (task.num_labels + (width if task.pooler else 0))

    def references(self, config: ExperimentConfig, data: Data, split: str) -> list[str]:
        """Return the labels of a split."""
        return data.text(split).features["targets"]


class Predicted(NamedTuple):
    """The log-probabilities of every example [examples, labels], its true label and the predicted one.

    The predicted label is -1 where an output is not finite.
    """

    log_probs: np.ndarray
    true: np.ndarray
    labels: np.ndarray

    @property
    def of_true(self) -> np.ndarray:
        """The log-probability of the true label, [examples]."""
        import numpy as np

        return self.log_probs[np.arange(len(self.true)), self.true]


def predicted(evaluator: Evaluation, params: Params, split: str) -> Predicted:
    """Return the predictions of a task with one label per example."""
    import numpy as np

    from transformer_jax.tasks.trained.head_outputs import best_classes, log_softmax, outputs_of_split

    log_probs = log_softmax(np.stack(outputs_of_split(evaluator, params, split)))
    true = evaluator.data.splits[split].values("labels", np.arange(len(log_probs)))
    return Predicted(log_probs, true, best_classes(log_probs))


def named(names: Sequence[str], labels: np.ndarray) -> list[str]:
    """Return the names of labels, and "" for label -1; names: of all labels."""
    return [names[label] if label >= 0 else "" for label in labels]


def class_weights(config: TaskConfig, labels: np.ndarray) -> np.ndarray:
    """Return `task.class_weights`, the weight of each class in training, float32 [labels].

    `balanced` gives class k the weight n / (K n_k), with n examples of K classes, n_k of them of this class.

    Args: labels: of all training examples, or of all their words.
    """
    import numpy as np

    if config.class_weights == BALANCED:
        counts = np.bincount(labels, minlength=config.num_labels)
        return (len(labels) / (config.num_labels * np.maximum(counts, 1))).astype(np.float32)
    return np.array(parse_class_weights(config.class_weights), np.float32)


def _with_class_weights(
    arrays: Arrays, class_weights: np.ndarray, rows: Rows, shape: BatchShape, step: int | None
) -> dict[str, np.ndarray]:
    batch = arrays(rows, shape, step)
    return batch | {"weights": batch["weights"] * class_weights[batch["targets"]]}


def by_name(names: Sequence[str], counts: Sequence[Sequence[Any]]) -> dict[str, dict[str, float]]:
    """Return precision, recall and F1 in percent, and the number of true ones, by name.

    Args: counts: of each name, the right ones, the true ones and the predicted ones.
    """
    from transformer_jax.tasks.metrics.labels import precision_recall_f1

    result = {}
    for name, (right, true, predicted) in zip(names, counts, strict=True):
        scores = precision_recall_f1(right, predicted, true)
        percent = {field: 100.0 * float(value) for field, value in scores._asdict().items()}
        result[name] = percent | {"examples": int(true)}
    return result


def rows_of(split: EncodedSplit, name: str, examples: np.ndarray) -> list[np.ndarray]:
    """Return the values of a ragged column of some examples; none for example -1."""
    import numpy as np

    lengths = np.where(examples < 0, 0, split.lengths(name)[examples])
    padded = split.take(name, examples, int(lengths.max(initial=0)))
    return [row[:length] for row, length in zip(padded, lengths, strict=True)]
