"""Prediction of labels: the loss, its means and the counts that classification and tagging share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.config.task import BALANCED, parse_class_weights
from transformer_jax.tasks.task import MetricSpec

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.data.columns import EncodedSplit
    from transformer_jax.models.architecture import Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.task import Sums
    from transformer_jax.typing import Batch

LOGGED = (
    MetricSpec("loss", "min", "nats per label"),
    MetricSpec("nll", "min", "nats per label"),
    MetricSpec("accuracy", "max", "%"),
)
"""The averages of labels that training logs; with class weights, all three are weighted."""
READS = frozenset(
    {"task", "model.head_dropout_rate", "training.label_smoothing", "data.coarse_labels", "data.label_names"}
)
"""Fields that tasks with labels read, as of `Task.reads`."""
KINDS = ("right", "true", "predicted")
"""Kinds of counts of a class, in the order of `metrics.labels.ClassCounts`."""


def class_weights(config: TaskConfig, labels: np.ndarray) -> np.ndarray | None:
    """Return the weight of each class in training, float32 [labels]; None if all are 1.

    `balanced` gives class k the weight n / (K n_k), with n examples of K classes, n_k of them of this class.

    Args: labels: of all training examples, or of all their words.
    """
    import numpy as np

    if config.class_weights == BALANCED:
        counts = np.bincount(labels, minlength=config.num_labels)
        return (len(labels) / (config.num_labels * np.maximum(counts, 1))).astype(np.float32)
    weights = parse_class_weights(config.class_weights)
    return np.array(weights, np.float32) if weights else None


def label_sums(model: Model, batch: Batch, dropout: Dropout | None, hyper: Any) -> Sums:
    """Return the sums `loss` (label-smoothed), `nll`, `correct` and `weight` of labels; arguments as of `Task.loss`."""
    from transformer_jax.tasks.metrics.cross_entropy import cross_entropy

    x, _ = model.features(batch, dropout, hyper.model)
    logits = model.outputs(x, batch, dropout)
    return cross_entropy(logits, batch["targets"], batch["weights"], hyper.label_smoothing)


def label_means(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return `loss` and `nll` in nats per label, and `accuracy` in percent."""
    return {
        "loss": sums["loss"] / sums["weight"],
        "nll": sums["nll"] / sums["weight"],
        "accuracy": 100.0 * sums["correct"] / sums["weight"],
    }


def pooled_head_flops(config: ExperimentConfig, rows: int) -> int:
    """Return the operations of `nn.heads.SequenceHead` for B rows: 2 B D C, and 2 B D^2 with a pooler."""
    width, task = config.model.emb_dim, config.task
    return 2 * rows * width * (task.num_labels + (width if task.pooler else 0))


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
