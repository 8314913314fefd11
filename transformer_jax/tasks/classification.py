"""Classification of one text, or of a pair of texts (Devlin et al. 2019, section 4.1).

The sequence is [start] a [end], or [start] a [end] b [end], with token types 0 and 1 if the model has them. The label
is the text of the feature `targets`. A decoder reads the same sequence after its start id, and its last token has seen
the whole text (Radford et al. 2018, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig
from transformer_jax.tasks import label_prediction
from transformer_jax.tasks.label_prediction import KINDS, OneLabel, Predicted
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores

if TYPE_CHECKING:
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.tasks.trained.predictor import Classifier
    from transformer_jax.typing import Params


class Classification(OneLabel):
    """Prediction of one label per example."""

    architectures = ("encoder_only", "decoder_only", RECURRENT)
    reads = frozenset({*label_prediction.READS, "data.input_template", "data.cut_texts"})
    batchings = ("buckets",)
    metrics = (
        MetricSpec("loss", "min", "nats per label", "loss"),
        MetricSpec("accuracy", "max", "%", "accuracy", "{:.2f}"),
        MetricSpec("macro_f1", "max", "%", "macro-F1", "{:.2f}"),
        MetricSpec("matthews", "max", "", "MCC"),
        MetricSpec("examples", heading="examples", format="{:,}", logged=False),
        MetricSpec("over_length", logged=False),
    )

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the ids of one or two texts, and the label."""
        from transformer_jax.data.columns import TextColumn
        from transformer_jax.data.labels import LabelColumn

        second = (TextColumn("second", "second", end=False),) if config.data.second_feature else ()
        return TextColumn("first", "inputs", end=False), *second, LabelColumn("labels", "targets")

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return the tokens of `framing.marks`."""
        from transformer_jax.tasks.batches.framing import text_frame

        return text_frame(model, special_ids)

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the tokens of every sequence, with its marks, int32 [examples]; cut if the config says so."""
        import numpy as np

        from transformer_jax.tasks.batches.framing import sequence_name

        sizes = self._sizes(config, split)
        return {sequence_name(config): np.sum(sizes, axis=0) + 1 + len(sizes)}

    def _sizes(self, config: ExperimentConfig, split: EncodedSplit) -> list[np.ndarray]:
        """Return the tokens of each text of every example, without marks."""
        names = ("first", "second") if config.data.second_feature else ("first",)
        sizes = [split.lengths(name) for name in names]
        return cut_sizes(sizes, config.data.max_length - 1 - len(sizes)) if config.data.cut_texts else sizes

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `framing.framed`, `targets` [B] int32 and `weights` [B] float32."""
        import numpy as np

        from transformer_jax.tasks.batches.framing import framed, marks, sequence_name

        names = ("first", "second") if config.data.second_feature else ("first",)
        sizes = [np.where(rows.examples < 0, 0, size[rows.examples]) for size in self._sizes(config, split)]
        whole = [split.take(n, rows.examples, int(split.lengths(n)[rows.examples].max(initial=0))) for n in names]
        texts = [
            [ids[row, : size[row]] for ids, size in zip(whole, sizes, strict=True)] if example >= 0 else []
            for row, example in enumerate(rows.examples)
        ]
        batch = framed(config, marks(config, split.special_ids), texts, rows, shape.width(sequence_name(config)))
        return batch | self.labels_of(split, rows)

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        from transformer_jax.tasks.batches.framing import sequence_name

        return {sequence_name(config): length}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        from transformer_jax.tasks.batches.framing import template

        return template(config, rows, widths, (rows,))

    # Scores and outputs.

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of all examples of a split, without class weights and label smoothing.

        Returns: `loss` in nats per label, `accuracy` and `macro_f1` in percent, and `matthews`, as `metrics.labels`
          defines them; `examples`; `over_length`, the number of examples that training leaves out; `by_label`, of each
          label the precision, recall and F1 in percent and the number of examples. The outputs are the predicted
          labels.
        """
        statistics, predicted = self._statistics(evaluator, params, split)
        totals = {name: values.sum(0) for name, values in statistics.items()}
        names = evaluator.data.labels
        metrics: dict[str, Any] = {name: float(value) for name, value in self.from_sums(totals).items()}
        metrics["examples"] = len(predicted.labels)
        metrics["over_length"] = self.num_over_length(evaluator, split)
        counts = [[totals[f"{kind}_{i}"] for kind in KINDS] for i in range(len(names))]
        metrics["by_label"] = label_prediction.by_name(names, counts)
        return Scores(metrics, label_prediction.named(names, predicted.labels) if generate else None)

    def _statistics(self, evaluator: Evaluation, params: Params, split: str) -> tuple[dict[str, np.ndarray], Predicted]:
        """Return additive numbers of every example, and the predictions."""
        import numpy as np

        from transformer_jax.tasks.metrics.labels import class_counts

        predicted = label_prediction.predicted(evaluator, params, split)
        counts = class_counts(predicted.true, predicted.labels, predicted.log_probs.shape[1])
        by_class = {
            f"{kind}_{number}": values[:, number]
            for kind, values in zip(KINDS, counts, strict=True)
            for number in range(values.shape[1])
        }
        return {"nll": -predicted.of_true, "weight": np.ones(len(predicted.true))} | by_class, predicted

    def statistics(self, evaluator: Evaluation, params: Params, split: str) -> Mapping[str, np.ndarray]:
        """Return for each example its loss, and the counts of right, true and predicted examples of every class."""
        return self._statistics(evaluator, params, split)[0]

    def from_sums(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return `loss`, `accuracy`, `macro_f1` and `matthews`, [...], from sums of `statistics` [...]."""
        import numpy as np

        from transformer_jax.tasks.metrics.labels import ClassCounts, accuracy, macro_f1, matthews

        size = sum(name.startswith("true_") for name in sums)
        counts = ClassCounts(*(np.stack([sums[f"{kind}_{i}"] for i in range(size)], -1) for kind in KINDS))
        return {
            "loss": sums["nll"] / sums["weight"],
            "accuracy": 100.0 * accuracy(counts),
            "macro_f1": 100.0 * macro_f1(counts),
            "matthews": matthews(counts),
        }

    def predictor(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, labels: Sequence[str]
    ) -> Classifier:
        from transformer_jax.tasks.trained.predictor import Classifier

        return Classifier(config, params, tokenizer, tuple(labels))


def cut_sizes(sizes: Sequence[np.ndarray], room: int) -> list[np.ndarray]:
    """Return the tokens that are left of each text, so that those of an example fit into `room`.

    Of two texts the longer one is cut; if that makes it shorter than the other, both get half of the room, as in BERT's
    `_truncate_seq_pair`.

    Args: sizes: int [examples] of one or two texts.
    """
    import numpy as np

    if len(sizes) == 1:
        return [np.minimum(sizes[0], room)]
    first, second = sizes
    fits, half = first + second <= room, room // 2
    first_left = np.where(second <= half, room - second, np.minimum(first, room - half))
    return [np.where(fits, first, first_left), np.where(fits, second, room - first_left)]
