"""Language models: every token of a text is predicted from those before it.

Training batches are windows at random places of the text (`data.batching=windows`), or documents: padded to a few
lengths (`buckets`), or several in a row with segment ids and positions of their own (`packed`). Scores are of the whole
split. Each token is scored once, in windows of `evaluation.max_length` tokens. A window begins with
`evaluation.context` tokens that the one before it has scored; then every token, except at the beginning of a text, is
scored with at least as many tokens before it. Windows cross the ends of documents if those of training did.

With `task.prefix`, the tokens at the beginning of each text attend to each other in both directions and are not
predicted: a prefix LM. The source `recall` says which tokens are answers; the loss and the scores count no others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig
from transformer_jax.config.data import RECALL
from transformer_jax.errors import DataError
from transformer_jax.tasks import token_prediction
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores

if TYPE_CHECKING:
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, EvaluationBatches, Rows, TrainingBatches
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.tasks.trained.language_model import LanguageModel
    from transformer_jax.typing import Params


_OF_WHOLE_TEXTS = ("word_perplexity", "words", "bits_per_byte", "bytes")


class LanguageModelTask(token_prediction.NextTokens):
    """Prediction of every token of a text from those before it; reads the feature `inputs` of a source."""

    architectures = ("decoder_only", RECURRENT)
    batchings = ("buckets", "packed", "windows")
    metrics = (
        *token_prediction.SCORES,
        MetricSpec("tokens", heading="tokens", format="{:,}"),
        MetricSpec("word_perplexity", "min", "", "perplexity per word", "{:.3f}"),
        MetricSpec("words", heading="words", format="{:,}", logged=False),
        MetricSpec("bits_per_byte", "min", "", "bits per byte", "{:.4f}"),
        MetricSpec("bytes", heading="bytes", format="{:,}", logged=False),
    )

    def measured(self, config: ExperimentConfig) -> tuple[MetricSpec, ...]:
        """Return all metrics; if not all tokens count, only those per token."""
        whole = counts_all(config)
        return tuple(spec for spec in self.metrics if whole or spec.name not in _OF_WHOLE_TEXTS)

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the ids of a document, and its size in words and bytes; of `recall`, the answers in place of sizes."""
        from transformer_jax.data.columns import CountedColumn, TextColumn, TextSizeColumn

        if config.data.source == RECALL:
            return TextColumn("ids", "inputs"), CountedColumn("counted", "answers")
        sizes = (TextSizeColumn(unit, "inputs", unit) for unit in ("words", "bytes"))
        return TextColumn("ids", "inputs"), *sizes

    def windows(self, config: ExperimentConfig, split: EncodedSplit) -> EncodedSplit:
        """Return the windows in which a split is scored."""
        from transformer_jax.tasks.batches.windows import scoring_windows

        return scoring_windows(config, split, stream=config.data.batching == "windows")

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return no token; the start token, which a row begins with, may be there."""
        from transformer_jax.data.tokenizers.tokenizer import Frame

        return Frame(optional_start=model.decoder_start_id)

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the tokens of every window of scoring, int32 [windows]."""
        return {"targets": self.windows(config, split).lengths("targets")}

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of some windows of scoring; see `language_model_arrays`."""
        from transformer_jax.tasks.batches.windows import window_arrays

        return window_arrays(config, self.windows(config, split), rows, shape, step)

    def training_batches(self, config: ExperimentConfig, split: EncodedSplit) -> TrainingBatches:
        """Return windows at random places, or documents; documents above `data.max_length` tokens are cut in parts.

        Raises: DataError for such a document without `data.cut_documents`; others as `WindowPlan` and `plan_batches`.
        """
        from transformer_jax.data.datasets import plan_batches
        from transformer_jax.data.windows import WindowPlan, in_windows
        from transformer_jax.tasks.batches.windows import window_arrays

        data = config.data
        if data.batching == "windows":
            return WindowPlan(
                split,
                "ids",
                functools.partial(window_arrays, config),
                tokens_per_batch=data.tokens_per_batch,
                size=data.max_length,
                row_multiple=data.row_multiple,
                seed=config.data_seed,
            )
        if not data.cut_documents:
            _check_whole(split.lengths("ids"), data.max_length)
        parts = in_windows(split, "ids", config.model.decoder_start_id, data.max_length, stream=False)
        return plan_batches(
            config, {"targets": parts.lengths("targets")}, functools.partial(window_arrays, config, parts)
        )

    def evaluation_batches(
        self, config: ExperimentConfig, split: EncodedSplit, tokens_per_batch: int, max_width: int | None
    ) -> EvaluationBatches:
        """Return the windows of scoring in batches."""
        from transformer_jax.tasks.batches.windows import windows_in_batches

        return windows_in_batches(config, self.windows(config, split), tokens_per_batch, max_width)

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"targets": length}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        import jax
        import jax.numpy as jnp

        ids = jax.ShapeDtypeStruct((rows, widths["targets"]), jnp.int32)
        batch = {"decoder_inputs": ids, "targets": ids, "weights": jax.ShapeDtypeStruct(ids.shape, jnp.float32)}
        batch |= {"row_ids": jax.ShapeDtypeStruct((rows,), jnp.int32)}
        return (
            batch
            | ({"targets_segment_ids": ids, "targets_positions": ids} if config.data.batching == "packed" else {})
            | ({"targets_mask": jax.ShapeDtypeStruct(ids.shape, bool)} if config.data.source == RECALL else {})
            | ({"prefix_mask": jax.ShapeDtypeStruct(ids.shape, bool)} if config.task.prefix != "none" else {})
        )

    # Scores and outputs.

    def generator(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, others: Sequence[Any] = ()
    ) -> LanguageModel:
        from transformer_jax.tasks.trained.language_model import LanguageModel

        return LanguageModel(config, params, tokenizer, tuple(others))

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of a whole split, each with its denominator.

        Returns: those of `token_prediction.token_scores`; `word_perplexity` = exp(nats / `words`) and `bits_per_byte` =
          nats / (ln 2 `bytes`), where nats are those of all tokens, with ends of documents. `TextSizeColumn` defines
          words and bytes.
        """
        import numpy as np

        sums, encoded = evaluator.sums(params, split), evaluator.data.splits[split]
        if not counts_all(evaluator.config):
            return Scores(token_prediction.token_scores(sums))
        everything = np.arange(encoded.num_examples)
        words, num_bytes = (int(encoded.values(unit, everything).sum()) for unit in ("words", "bytes"))
        return Scores(
            token_prediction.token_scores(sums)
            | {
                "word_perplexity": token_prediction.exponential(sums["nll"] / words),
                "words": words,
                "bits_per_byte": sums["nll"] / (math.log(2.0) * num_bytes),
                "bytes": num_bytes,
            }
        )


def counts_all(config: ExperimentConfig) -> bool:
    """Return whether the loss counts every token of a text: there is no prefix, and answers alone do not count."""
    return config.task.prefix == "none" and config.data.source != RECALL


def _check_whole(lengths: np.ndarray, limit: int) -> None:
    longer = (lengths > limit).nonzero()[0]
    if len(longer):
        raise DataError(
            f"data.cut_documents=false: {len(longer):,} of {len(lengths):,} training documents have more than "
            f"data.max_length={limit} tokens; the first is document {longer[0] + 1:,} with {lengths[longer[0]]:,}. "
            "Set data.max_length to the longest, or allow cuts"
        )
