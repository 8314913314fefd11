"""Prediction of a target text from a source text: what translation and `text_to_text` share.

A decoder alone reads source and target in one row; see `tasks/batches/pair_rows.py`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig
from transformer_jax.tasks import token_prediction
from transformer_jax.tasks.batches.shapes import pair_template, row_template
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores

if TYPE_CHECKING:
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.tasks.trained.lines import LineOutputs
    from transformer_jax.tasks.trained.translator import Translator
    from transformer_jax.typing import Params


LOSSES = (*token_prediction.SCORES, MetricSpec("tokens"), MetricSpec("over_length", logged=False))
"""Metrics of teacher forcing."""
UNFINISHED = MetricSpec("unfinished", "min", "", "unfinished", "{}", needs_generation=True, logged=False)
"""Number of outputs that were cut off at their greatest length."""


class SourceToTarget(token_prediction.NextTokens):
    """Prediction of a target text from a source text, token by token. A subclass scores the outputs."""

    architectures = ("encoder_decoder", "decoder_only", RECURRENT)
    compares_outputs = True

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the columns `inputs` and `targets`, with `task.source_prefix` and `task.text_start` in front."""
        from transformer_jax.data.columns import PrefixedTextColumn, TextColumn

        prefix, start = config.task.source_prefix, config.task.text_start
        inputs, targets = TextColumn("inputs", "inputs", side="source"), TextColumn("targets", "targets")
        if prefix or start:
            inputs = PrefixedTextColumn("inputs", "inputs", side="source", prefix=prefix, start=start)
        if start:
            targets = PrefixedTextColumn("targets", "targets", start=True)
        return inputs, targets

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return the end of a source; none in the rows of a decoder, where the target follows."""
        from transformer_jax.data.tokenizers.tokenizer import Frame

        return Frame() if model.form == "decoder_only" else Frame(end=special_ids.required("eos"))

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the tokens of `inputs` and `targets`, with eos; int32 [examples] each.

        Of a decoder alone, `targets` are both in one row.
        """
        if in_rows(config):
            from transformer_jax.tasks.batches.pair_rows import pair_lengths

            return {"targets": pair_lengths(split)}
        return {name: split.lengths(name) for name in ("inputs", "targets")}

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a batch; see `sequence_to_sequence_arrays` and `pair_row_arrays`."""
        from transformer_jax.tasks.batches.sequences import sequence_to_sequence_arrays

        if in_rows(config):
            from transformer_jax.tasks.batches.pair_rows import pair_row_arrays

            return pair_row_arrays(config, split, rows, shape)

        return sequence_to_sequence_arrays(split, rows, shape, config.model.decoder_start_id)

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"targets": length} if in_rows(config) else {"inputs": length, "targets": length}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        packed = config.data.batching == "packed"
        if in_rows(config):
            from transformer_jax.tasks.batches.pair_rows import reads_source_two_way

            return row_template(rows, widths, packed, reads_source_two_way(config.task))
        return pair_template(rows, widths, packed)

    # Scores and outputs.

    def generator(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, others: Sequence[Any] = ()
    ) -> Translator:
        from transformer_jax.tasks.trained.row_translator import RowTranslator
        from transformer_jax.tasks.trained.translator import Translator

        return (RowTranslator if in_rows(config) else Translator)(config, params, tokenizer, tuple(others))

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of teacher forcing on all pairs of a split, uncut, and the scores of outputs.

        Returns: metrics `loss` in nats per target token without label smoothing, `perplexity` = exp(loss), `accuracy`
          of the next token in percent, `tokens` of the targets with eos, and `over_length`, the number of pairs that
          training leaves out. With `generate`, also those of `output_scores`, `unfinished`, and the outputs as plain
          text.
        """
        from transformer_jax.data.text_form import readable

        metrics = token_prediction.token_scores(evaluator.sums(params, split))
        metrics["over_length"] = self.num_over_length(evaluator, split)
        if not generate:
            return Scores(metrics)
        outputs = self.outputs(evaluator, params, split)
        lines = [readable(output.text, evaluator.config.data) for output in outputs]
        scores = self.output_scores(evaluator, split, outputs, lines)
        return Scores(metrics | scores | {"unfinished": sum(output.unfinished for output in outputs)}, lines)

    @abc.abstractmethod
    def output_scores(
        self, evaluator: Evaluation, split: str, outputs: Sequence[LineOutputs], lines: Sequence[str]
    ) -> dict[str, Any]:
        """Return the metrics of a split's outputs.

        Args:
          outputs: of every example, in the corpus's own form; lines: the same as plain text.
        """

    def outputs(self, evaluator: Evaluation, params: Params, split: str) -> list[LineOutputs]:
        """Return the output for every source of a split with the settings of `decode`, in the corpus's own form.

        Raises: DataError as `Evaluation.check`.
        """
        from transformer_jax.tasks.trained.lines import Line

        evaluator.check(split)

        def make(params: Params) -> Translator:
            return self.generator(evaluator.config, params, evaluator.data.tokenizer)

        lines = [Line(source) for source in evaluator.data.text(split).features["inputs"]]
        return evaluator.made_once(params, make).generate_chunk(lines)


def in_rows(config: ExperimentConfig) -> bool:
    """Return whether source and target are in one row, because the model is a decoder alone."""
    return config.model.form == "decoder_only"
