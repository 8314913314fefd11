"""Answers to questions as spans of a context (Devlin et al. 2019, section 4.2).

The sequence is [start] question [end] context [end]. A context that does not fit is read in windows, whose beginnings
are `task.stride` tokens apart; the last window ends with the context. Every token has a start and an end logit. The
targets are the first and the last token of the answer, and 0, the place of [start], in a window without the whole
answer. The loss is the mean of the cross-entropies of start and end, over the tokens of the window.

A span from token i to token j of a window has the score start_i + end_j. The answer is the best span over all windows
of the question with i <= j and at most `task.max_answer_length` tokens; its text is that of its characters in the
context. Exact match and F1 are those of SQuAD's script; see metrics/answers.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores, Task

if TYPE_CHECKING:
    import flax.linen as nn
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, EvaluationBatches, Rows, TrainingBatches
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.datasets import Data
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.models.architecture import Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.batches.answer_spans import Answer
    from transformer_jax.tasks.task import Sums
    from transformer_jax.tasks.trained.predictor import Answerer
    from transformer_jax.typing import Batch, Params


class SpanQA(Task):
    """Prediction of the first and the last token of an answer."""

    architectures = ("encoder_only", RECURRENT)
    needs_decoder = False
    reads = frozenset({"task", "training.label_smoothing", "training.z_loss"})
    batchings = ("buckets",)
    logged = (MetricSpec("loss", "min", "nats per end"), MetricSpec("accuracy", "max", "%"))
    metrics = (
        MetricSpec("loss", "min", "nats per end", "loss"),
        MetricSpec("exact_match", "max", "%", "exact match", "{:.2f}"),
        MetricSpec("f1", "max", "%", "F1", "{:.2f}"),
        MetricSpec("questions", heading="questions", format="{:,}", logged=False),
        MetricSpec("windows", heading="windows", format="{:,}", logged=False),
    )

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the ids of question and context, the characters of the context's tokens, and those of the answers."""
        from transformer_jax.data.alignment import CharactersColumn
        from transformer_jax.data.columns import IdsColumn, TextColumn, TextLengthsColumn

        return (
            TextColumn("question", "questions", end=False),
            TextColumn("context", "contexts", end=False),
            CharactersColumn("token_starts", "contexts"),
            CharactersColumn("token_ends", "contexts", ends=True),
            IdsColumn("answer_starts", "answer_starts"),
            TextLengthsColumn("answer_lengths", "answers"),
        )

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return the tokens of `framing.marks`."""
        from transformer_jax.tasks.batches.framing import text_frame

        return text_frame(model, special_ids)

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the tokens of every window, with marks, int32 [windows]."""
        return {"inputs": self._windows(config, split).lengths}

    def _windows(self, config: ExperimentConfig, split: EncodedSplit) -> Any:
        from transformer_jax.tasks.batches.answer_spans import windows_of

        return windows_of(config, split)

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of some windows; see `answer_spans.answer_arrays`."""
        from transformer_jax.tasks.batches.answer_spans import answer_arrays

        return answer_arrays(config, split, self._windows(config, split), rows, shape, step)

    def training_batches(self, config: ExperimentConfig, split: EncodedSplit) -> TrainingBatches:
        """Return the training batches; windows of questions without an answer at its place are left out."""
        from transformer_jax.data.datasets import plan_batches
        from transformer_jax.tasks.batches.answer_spans import answer_arrays

        windows = self._windows(config, split).answerable()
        arrays = functools.partial(answer_arrays, config, split, windows)
        return plan_batches(config, {"inputs": windows.lengths}, arrays)

    def evaluation_batches(
        self, config: ExperimentConfig, split: EncodedSplit, tokens_per_batch: int, max_width: int | None
    ) -> EvaluationBatches:
        """Return the windows of all questions in batches."""
        from transformer_jax.data.batching import EvaluationBatches
        from transformer_jax.tasks.batches.answer_spans import answer_arrays

        windows = self._windows(config, split)
        return EvaluationBatches(
            {"inputs": windows.lengths},
            functools.partial(answer_arrays, config, split, windows),
            tokens_per_batch=tokens_per_batch,
            row_multiple=config.data.row_multiple,
            max_width=max_width,
        )

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"inputs": length}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        from transformer_jax.tasks.batches.framing import template

        return template(config, rows, widths, (rows, 2))

    # The loss.

    def head(self, config: TaskConfig, model: ModelConfig) -> nn.Module:
        """Return the module that maps the vector of every token to a start and an end logit, [B, S, 2]."""
        from transformer_jax.nn.heads import TokenHead

        return TokenHead(model, 2)

    def head_flops(self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int:
        """Return the operations of the logits of every token: 4 B S D."""
        return 2 * rows * widths["inputs"] * config.model.emb_dim * 2

    def loss(
        self, config: TaskConfig, model: Model, batch: Batch, dropout: Dropout | None, hyper: Any, chunks: int = 1
    ) -> Sums:
        """Return the sums `loss` (label-smoothed), `nll`, `correct` and `weight` over the ends of a batch's answers."""
        from transformer_jax.tasks.metrics.cross_entropy import cross_entropy

        x = model.features(batch, dropout, hyper.model)
        # Without dropout of the head, as in the code of Devlin et al. 2019, `create_model` of run_squad.py.
        logits = model.outputs(x, batch).swapaxes(1, 2)  # [B, S, 2] -> [B, 2, S]
        is_token = batch["inputs_mask"][:, None, :]
        return cross_entropy(logits, batch["targets"], batch["weights"], hyper.label_smoothing, is_token)

    def means(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Return `loss` in nats per end, and `accuracy`, the percentage of right ends."""
        from transformer_jax.tasks.metrics.cross_entropy import cross_entropy_means

        means = cross_entropy_means(sums)
        return {name: means[name] for name in ("loss", "accuracy")}

    # Scores and outputs.

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of the answers to all questions of a split.

        Returns: `loss` in nats per end, over all windows; `exact_match` and `f1` in percent over the questions; the
          numbers of `questions` and `windows`. The outputs are the answers.
        """
        statistics, answers = self._statistics(evaluator, params, split)
        sums = {name: values.sum(0) for name, values in statistics.items()}
        metrics: dict[str, Any] = {name: float(value) for name, value in self.from_sums(sums).items()}
        metrics |= {"questions": len(answers), "windows": int(sums["windows"])}
        return Scores(metrics, [answer.text for answer in answers] if generate else None)

    def _statistics(
        self, evaluator: Evaluation, params: Params, split: str
    ) -> tuple[dict[str, np.ndarray], list[Answer]]:
        """Return additive numbers of every question, and the answers."""
        import numpy as np

        from transformer_jax.tasks.batches.answer_spans import best_answers, window_losses
        from transformer_jax.tasks.metrics.answers import best_over, exact_match, word_f1
        from transformer_jax.tasks.trained.head_outputs import outputs_of_split

        config, encoded, text = evaluator.config, evaluator.data.splits[split], evaluator.data.text(split)
        logits, windows = outputs_of_split(evaluator, params, split), self._windows(config, encoded)
        answers = best_answers(config.task, encoded, windows, logits, text.features["contexts"])
        references = text.features["answers"]
        nll, weight = window_losses(windows, logits)
        count = len(answers)
        return {
            "nll": np.bincount(windows.questions, nll, count),
            "weight": np.bincount(windows.questions, weight, count),
            "windows": np.bincount(windows.questions, minlength=count).astype(np.float64),
            "exact": _scored(exact_match, answers, references, best_over),
            "f1": _scored(word_f1, answers, references, best_over),
            "questions": np.ones(count),
        }, answers

    def statistics(self, evaluator: Evaluation, params: Params, split: str) -> Mapping[str, np.ndarray]:
        """Return for each question its loss, its windows, and the exact match and F1 of its answer."""
        return self._statistics(evaluator, params, split)[0]

    def from_sums(self, sums: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return `loss`, `exact_match` and `f1`, [...], from sums of `statistics` [...]."""
        import numpy as np

        return {
            "loss": sums["nll"] / np.maximum(sums["weight"], 1.0),
            "exact_match": 100.0 * sums["exact"] / sums["questions"],
            "f1": 100.0 * sums["f1"] / sums["questions"],
        }

    def predictor(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, labels: Sequence[str]
    ) -> Answerer:
        from transformer_jax.tasks.trained.predictor import Answerer

        return Answerer(config, params, tokenizer, ())

    def references(self, config: ExperimentConfig, data: Data, split: str) -> list[str]:
        """Return the question and the answers of every example of a split."""
        features = data.text(split).features
        return [
            " | ".join([question, *answers])
            for question, answers in zip(features["questions"], features["answers"], strict=True)
        ]


def _scored(score: Any, answers: Sequence[Answer], references: Sequence[Sequence[str]], best_over: Any) -> np.ndarray:
    import numpy as np

    pairs = zip(answers, references, strict=True)
    return np.array([best_over(score, answer.text, texts) for answer, texts in pairs], np.float64)
