"""Tagging of the words of a sentence, such as parts of speech or names (Devlin et al. 2019, section 5.3).

The words are given. The sentence is [start] words [end], and the vector of the first token of a word gives its tag;
other tokens have no weight. Scores are per word. With `task.chunks`, tags mark chunks, scored as conlleval does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.tasks import label_prediction
from transformer_jax.tasks.label_prediction import LabelPrediction
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores

if TYPE_CHECKING:
    import flax.linen as nn
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.datasets import Data
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.tasks.trained.predictor import Tagger
    from transformer_jax.typing import Params

_OF_CHUNKS = ("precision", "recall", "f1")


class Tagging(LabelPrediction):
    """Prediction of one label per word."""

    architectures = ("encoder_only", RECURRENT)
    reads = label_prediction.READS
    batchings = ("buckets",)
    metrics = (
        MetricSpec("loss", "min", "nats per word", "loss"),
        MetricSpec("accuracy", "max", "%", "accuracy", "{:.2f}"),
        MetricSpec("precision", "max", "%", "precision", "{:.2f}"),
        MetricSpec("recall", "max", "%", "recall", "{:.2f}"),
        MetricSpec("f1", "max", "%", "F1", "{:.2f}"),
        MetricSpec("words", heading="words", format="{:,}", logged=False),
        MetricSpec("over_length", logged=False),
    )

    def measured(self, config: ExperimentConfig) -> tuple[MetricSpec, ...]:
        """Return all metrics, but those of chunks only if the tags mark chunks."""
        return tuple(spec for spec in self.metrics if config.task.chunks or spec.name not in _OF_CHUNKS)

    def check_corpus(self, config: ExperimentConfig, data: Data) -> None:
        """Raise DataError if the tags should mark chunks (`task.chunks`), and one belongs to no known scheme."""
        from transformer_jax.tasks.metrics.chunks import check_tags

        if config.task.chunks:
            check_tags(data.labels)

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the tokens of a sentence, the first token of every word, and the tag of every word."""
        from transformer_jax.data.alignment import FirstTokensColumn, WordsColumn
        from transformer_jax.data.labels import TagsColumn

        return WordsColumn("ids", "words"), FirstTokensColumn("firsts", "words"), TagsColumn("tags", "tags")

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return the tokens of `framing.marks`."""
        from transformer_jax.tasks.batches.framing import text_frame

        return text_frame(model, special_ids)._replace(pairs=False)

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the tokens of every sentence, with start and end, int32 [examples]."""
        return {"inputs": split.lengths("ids") + 2}

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of `framing.framed`, and `targets` int32 and `weights` float32, both [B, S]."""
        import numpy as np

        from transformer_jax.tasks.batches.framing import framed, marks

        ids, firsts, tags = (label_prediction.rows_of(split, name, rows.examples) for name in ("ids", "firsts", "tags"))
        width = shape.width("inputs")
        texts = [[row] if example >= 0 else [] for row, example in zip(ids, rows.examples, strict=True)]
        batch = framed(config, marks(config, split.special_ids), texts, rows, width)
        targets, weights = np.zeros((len(texts), width), np.int32), np.zeros((len(texts), width), np.float32)
        for row, (places, labels) in enumerate(zip(firsts, tags, strict=True)):
            targets[row, places + 1] = labels
            weights[row, places + 1] = 1.0
        return batch | {"targets": targets, "weights": weights}

    def training_labels(self, split: EncodedSplit) -> np.ndarray:
        """Return the tags of all words."""
        import numpy as np

        return np.concatenate(label_prediction.rows_of(split, "tags", np.arange(split.num_examples)))

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"inputs": length}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        from transformer_jax.tasks.batches.framing import template

        return template(config, rows, widths, (rows, widths["inputs"]))

    # The loss.

    def head(self, config: TaskConfig, model: ModelConfig) -> nn.Module:
        """Return the module that maps the vector of every token to logits, [B, S, labels]."""
        from transformer_jax.nn.heads import TokenHead

        return TokenHead(model, config.num_labels)

    def head_flops(self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int:
        """Return the operations of the logits of every token: 2 B S D C."""
        return 2 * rows * widths["inputs"] * config.model.emb_dim * config.task.num_labels

    # Scores and outputs.

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of all words of a split, without class weights and label smoothing.

        Returns: `loss` in nats per word, `accuracy` in percent, `words`; `over_length`, the number of sentences that
          training leaves out; with `task.chunks`, `precision`, `recall` and `f1` of chunks in percent, and `by_type`,
          the same by type of chunk. The outputs are the predicted tags of a sentence, joined by spaces.
        """
        statistics, of_types, tags = self._statistics(evaluator, params, split)
        metrics: dict[str, Any] = {
            name: float(value) for name, value in self.from_sums({n: v.sum(0) for n, v in statistics.items()}).items()
        }
        metrics["words"] = int(statistics["weight"].sum())
        metrics["over_length"] = self.num_over_length(evaluator, split)
        if of_types:
            counts = [(right, true, predicted) for right, predicted, true in of_types.values()]
            metrics["by_type"] = label_prediction.by_name([*of_types], counts)
        return Scores(metrics, [" ".join(row) for row in tags] if generate else None)

    def _statistics(
        self, evaluator: Evaluation, params: Params, split: str
    ) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]], list[list[str]]]:
        """Return additive numbers of every sentence, the counts of chunks by type, and the predicted tags."""
        import collections

        import numpy as np

        from transformer_jax.tasks.metrics.chunks import count_chunks
        from transformer_jax.tasks.trained.head_outputs import best_classes, log_softmax, outputs_of_split

        names, has_chunks = evaluator.data.labels, evaluator.config.task.chunks
        outputs = outputs_of_split(evaluator, params, split)
        encoded, examples = evaluator.data.splits[split], np.arange(len(outputs))
        all_firsts, all_tags = (label_prediction.rows_of(encoded, name, examples) for name in ("firsts", "tags"))
        sums: dict[str, list[float]] = collections.defaultdict(list)
        of_types: dict[str, tuple[int, ...]] = {}
        predictions = []
        for logits, firsts, tags in zip(outputs, all_firsts, all_tags, strict=True):
            log_probs = log_softmax(logits[firsts + 1])  # [words, labels]
            predicted = best_classes(log_probs)
            sums["nll"].append(-log_probs[np.arange(len(tags)), tags].sum())
            sums["correct"].append((predicted == tags).sum())
            sums["weight"].append(len(tags))
            predictions.append(label_prediction.named(names, predicted))
            if not has_chunks:
                continue
            counts = count_chunks([names[i] for i in tags], predictions[-1])
            for place, name in enumerate(_CHUNK_SUMS):
                sums[name].append(sum(count[place] for count in counts.values()))
            for type, count in counts.items():
                of_types[type] = tuple(map(sum, zip(of_types.get(type, (0, 0, 0)), count, strict=True)))
        arrays = {name: np.array(values, np.float64) for name, values in sums.items()}
        return arrays, dict(sorted(of_types.items())), predictions

    def statistics(self, evaluator: Evaluation, params: Params, split: str) -> Mapping[str, np.ndarray]:
        """Return for each sentence its loss, its words, those that are right, and counts of chunks."""
        return self._statistics(evaluator, params, split)[0]

    def from_sums(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return `loss` and `accuracy` and, of chunks, `precision`, `recall` and `f1`, [...], from sums [...]."""
        from transformer_jax.tasks.metrics.labels import precision_recall_f1

        found = {"loss": sums["nll"] / sums["weight"], "accuracy": 100.0 * sums["correct"] / sums["weight"]}
        if _CHUNK_SUMS[0] in sums:
            scores = precision_recall_f1(*(sums[name] for name in _CHUNK_SUMS))
            found |= {name: 100.0 * value for name, value in zip(_OF_CHUNKS, scores, strict=True)}
        return found

    def predictor(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, labels: Sequence[str]
    ) -> Tagger:
        from transformer_jax.tasks.trained.predictor import Tagger

        return Tagger(config, params, tokenizer, tuple(labels))

    def references(self, config: ExperimentConfig, data: Data, split: str) -> list[str]:
        """Return the tags of every sentence of a split, joined by spaces."""
        return [" ".join(tags) for tags in data.text(split).features["tags"]]


_CHUNK_SUMS = ("right_chunks", "predicted_chunks", "true_chunks")
"""In the order of `chunks.ChunkCounts`."""
