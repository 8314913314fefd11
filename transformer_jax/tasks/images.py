"""Classification of images (Dosovitskiy et al. 2021): one label per image.

The corpus has images of one size as bytes, and the model divides them into patches on the device. In training they may
be augmented: cropped, flipped, changed by RandAugment and mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig, TaskConfig
from transformer_jax.tasks import label_prediction
from transformer_jax.tasks.label_prediction import KINDS, OneLabel, Predicted
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores

if TYPE_CHECKING:
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.tokenizers import Tokenizer
    from transformer_jax.models.architecture import Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.task import Sums
    from transformer_jax.tasks.trained.predictor import ImageClassifier
    from transformer_jax.typing import Batch, Params

TOP = 5
"""A prediction counts for `top_5` if the right label is among this many."""


class Images(OneLabel):
    """Prediction of one label per image."""

    architectures = ("encoder_only",)
    inputs = ("patches",)
    batchings = ("rows",)
    unit = "images"
    metrics = (
        MetricSpec("loss", "min", "nats per label", "loss"),
        MetricSpec("accuracy", "max", "%", "accuracy", "{:.2f}"),
        MetricSpec("top_5", "max", "%", "top 5", "{:.2f}"),
        MetricSpec("examples", heading="examples", format="{:,}", logged=False),
    )

    def measured(self, config: ExperimentConfig) -> tuple[MetricSpec, ...]:
        """Return the metrics; of 5 labels or fewer without `top_5`, which is 100 % then."""
        return tuple(spec for spec in self.metrics if spec.name != "top_5" or config.task.num_labels > TOP)

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the image as bytes, and the label."""
        from transformer_jax.data.images import ImageColumn
        from transformer_jax.data.labels import LabelColumn

        model = config.model
        shape = (model.image_size, model.image_size, model.image_channels)
        return ImageColumn("images", "inputs", shape, resize=config.data.resize), LabelColumn("labels", "targets")

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the number of patches of every image, with the class token, int32 [examples]; all are equal."""
        import numpy as np

        return {"inputs": np.full(split.num_examples, config.model.num_positions, np.int32)}

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return `inputs` [B, height, width, channels] uint8, `targets` [B] int32, `weights` [B] float32, `row_ids`.

        With `task.mixup`, in training, also `other_targets` [B] int32 and `shares` [B] float32.
        """
        import numpy as np

        from transformer_jax.tasks.batches import augmentation

        task, images = config.task, split.values("images", rows.examples)
        mixture = {}
        if step is not None:
            keys = augmentation.keys_of_rows(config.data_seed, step, rows.row_ids)
            images = augmentation.augmented(task, images, keys)
            if task.mixup:
                partners, shares = augmentation.mixing(task.mixup, split.num_examples, keys)
                of_partners = augmentation.keys_of_rows(config.data_seed, step, rows.row_ids, partner=True)
                others = augmentation.augmented(task, split.values("images", partners), of_partners)
                images = augmentation.mixed(images, others, shares)
                mixture = {"other_targets": split.values("labels", partners).astype(np.int32), "shares": shares}
        return {"inputs": images, **self.labels_of(split, rows), "row_ids": rows.row_ids, **mixture}

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"inputs": config.model.num_positions}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        import jax
        import numpy as np

        model = config.model
        image = (model.image_size, model.image_size, model.image_channels)
        arrays = {
            "inputs": ((rows, *image), np.uint8),
            "targets": ((rows,), np.int32),
            "weights": ((rows,), np.float32),
            "row_ids": ((rows,), np.int32),
        }
        if config.task.mixup:
            arrays |= {"other_targets": ((rows,), np.int32), "shares": ((rows,), np.float32)}
        return {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, dtype) in arrays.items()}

    # The loss.

    def loss(
        self, config: TaskConfig, model: Model, batch: Batch, dropout: Dropout | None, hyper: Any, chunks: int = 1
    ) -> Sums:
        """Return the sums `loss` (label-smoothed), `nll`, `correct` and `weight` over the labels of a batch.

        With `shares`, the sums of an image are share * sums of its label + (1 - share) * sums of the other label
        (Zhang et al. 2018).
        """
        from transformer_jax.tasks.metrics.cross_entropy import cross_entropy

        if "shares" not in batch:
            return super().loss(config, model, batch, dropout, hyper, chunks)
        x = model.features(batch, dropout, hyper.model)
        logits, weights, shares = model.outputs(x, batch, dropout), batch["weights"], batch["shares"]
        own = cross_entropy(logits, batch["targets"], weights * shares, hyper.label_smoothing)
        other = cross_entropy(logits, batch["other_targets"], weights * (1.0 - shares), hyper.label_smoothing)
        return {name: own[name] + other[name] for name in own}

    # Scores and outputs.

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of all images of a split, without augmentation, class weights and label smoothing.

        Returns: `loss` in nats per label, `accuracy` and `top_5` in percent; `examples`; `by_label`, of each label the
          precision, recall and F1 in percent and the number of images; `confusion`, the number of images by their label
          and the predicted one, without zeros. The outputs are the predicted labels.
        """
        import numpy as np

        from transformer_jax.tasks.metrics.labels import class_counts

        statistics, predicted = self._statistics(evaluator, params, split)
        names = evaluator.data.labels
        totals = {name: values.sum() for name, values in statistics.items()}
        metrics: dict[str, Any] = {name: float(value) for name, value in self.from_sums(totals).items()}
        if len(names) <= TOP:
            del metrics["top_5"]
        metrics["examples"] = len(predicted.labels)
        counts = class_counts(predicted.true, predicted.labels, len(names))
        of_classes = [[getattr(counts, kind)[:, i].sum() for kind in KINDS] for i in range(len(names))]
        metrics["by_label"] = label_prediction.by_name(names, of_classes)
        confusion: dict[str, dict[str, int]] = {name: {} for name in names}
        pairs, numbers = np.unique(np.stack([predicted.true, predicted.labels]), axis=1, return_counts=True)
        for row, column, number in zip(*pairs, numbers, strict=True):
            if column >= 0:
                confusion[names[row]][names[column]] = int(number)
        metrics["confusion"] = confusion
        return Scores(metrics, label_prediction.named(names, predicted.labels) if generate else None)

    def _statistics(self, evaluator: Evaluation, params: Params, split: str) -> tuple[dict[str, np.ndarray], Predicted]:
        """Return additive numbers of every image, and the predictions."""
        import numpy as np

        predicted = label_prediction.predicted(evaluator, params, split)
        gold = predicted.of_true
        among_top = (predicted.labels >= 0) & ((predicted.log_probs > gold[:, None]).sum(-1) < TOP)
        statistics = {
            "nll": -gold,
            "weight": np.ones(len(gold)),
            "correct": (predicted.labels == predicted.true).astype(np.float64),
            "among_top": among_top.astype(np.float64),
        }
        return statistics, predicted

    def statistics(self, evaluator: Evaluation, params: Params, split: str) -> Mapping[str, np.ndarray]:
        """Return for each image its loss, and whether its label is the predicted one, or among the first five."""
        return self._statistics(evaluator, params, split)[0]

    def from_sums(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return `loss`, `accuracy` and `top_5`, [...], from sums of `statistics` [...]."""
        return {
            "loss": sums["nll"] / sums["weight"],
            "accuracy": 100.0 * sums["correct"] / sums["weight"],
            "top_5": 100.0 * sums["among_top"] / sums["weight"],
        }

    def predictor(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, labels: Sequence[str]
    ) -> ImageClassifier:
        from transformer_jax.tasks.trained.predictor import ImageClassifier

        return ImageClassifier(config, params, tokenizer, tuple(labels))
