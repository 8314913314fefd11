"""Translation of a source text to a target text, scored by the loss of the references and by generated outputs.

A decoder alone reads source and target in one row; see `tasks/batches/pair_rows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig
from transformer_jax.tasks import token_prediction
from transformer_jax.tasks.batches.shapes import pair_template, row_template
from transformer_jax.tasks.task import Evaluation, MetricSpec, PairedBootstrap, Scores

if TYPE_CHECKING:
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import Column, EncodedSplit
    from transformer_jax.data.datasets import Data
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.tasks.trained.lines import LineOutputs
    from transformer_jax.tasks.trained.translator import Translator
    from transformer_jax.typing import Params


class Translation(token_prediction.NextTokens):
    """Prediction of a target text from a source text, token by token."""

    architectures = ("encoder_decoder", "decoder_only", RECURRENT)
    metrics = (
        *token_prediction.SCORES,
        MetricSpec("tokens"),
        MetricSpec("over_length", logged=False),
        MetricSpec("exact_match", "max", "%", "exact match", "{:.2f}", needs_generation=True),
        MetricSpec("tokenized_bleu", "max", "", "tokenized BLEU", "{:.2f}", needs_generation=True),
        MetricSpec("sacrebleu", "max", "", "sacreBLEU", "{:.2f}", needs_generation=True),
        MetricSpec("chrf", "max", "", "chrF", "{:.2f}", needs_generation=True),
        MetricSpec("unfinished", "min", "", "unfinished", "{}", needs_generation=True, logged=False),
    )
    compares_outputs = True

    def measured(self, config: ExperimentConfig) -> tuple[MetricSpec, ...]:
        """Return all metrics, but `tokenized_bleu` only if the corpus consists of tokens."""
        tokens = config.data.text_form == "moses_bpe"
        return tuple(spec for spec in self.metrics if tokens or spec.name != "tokenized_bleu")

    # Columns and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the columns `inputs` and `targets`."""
        from transformer_jax.data.columns import TextColumn

        return TextColumn("inputs", "inputs", side="source"), TextColumn("targets", "targets")

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
        """Return the scores of teacher forcing on all pairs of a split, uncut, and the scores of translations.

        Returns: metrics `loss` in nats per target token without label smoothing, `perplexity` = exp(loss), `accuracy`
          of the next token in percent, `tokens` of the targets with eos, and `over_length`, the number of pairs that
          training leaves out. With `generate`, also the metrics of `metrics.text`, and these by template family if the
          corpus has families. A corpus of tokens has scores of the tokens too. The outputs are the translations as
          plain text.
        """
        metrics = token_prediction.token_scores(evaluator.sums(params, split))
        metrics["over_length"] = self.num_over_length(evaluator, split)
        if not generate:
            return Scores(metrics)
        scores, lines = self._translation_scores(evaluator, params, split)
        return Scores(metrics | scores, lines)

    def _translation_scores(
        self, evaluator: Evaluation, params: Params, split: str
    ) -> tuple[dict[str, Any], list[str]]:
        from transformer_jax.data.text_form import join_subwords, readable
        from transformer_jax.tasks.metrics.text import family_scores, tokenized_scores, translation_scores

        config, text = evaluator.config, evaluator.data.text(split)
        translated = self.translations(evaluator, params, split)
        lines = [readable(t.text, config.data) for t in translated]
        references = self.references(config, evaluator.data, split)
        scores = translation_scores(lines, references)
        if config.data.text_form == "moses_bpe":
            tokens = [join_subwords(line) for line in text.features["targets"]]
            scores |= tokenized_scores([join_subwords(t.text) for t in translated], tokens)
        scores["unfinished"] = sum(t.unfinished for t in translated)
        if "families" in text.features:
            scores["families"] = family_scores(lines, references, text.features["families"])
        return scores, lines

    def translations(self, evaluator: Evaluation, params: Params, split: str) -> list[LineOutputs]:
        """Return translations of every source of a split with the settings of `decode`, in the corpus's own form.

        Raises: DataError as `Evaluation.check`.
        """
        from transformer_jax.tasks.trained.lines import Line

        evaluator.check(split)

        def make(params: Params) -> Translator:
            return self.generator(evaluator.config, params, evaluator.data.tokenizer)

        lines = [Line(source) for source in evaluator.data.text(split).features["inputs"]]
        return evaluator.made_once(params, make).generate_chunk(lines)

    def references(self, config: ExperimentConfig, data: Data, split: str) -> list[str]:
        """Return the targets of a split as plain text; they are the references of the scores."""
        from transformer_jax.data.text_form import readable

        return [readable(line, config.data) for line in data.text(split).features["targets"]]

    def compare_outputs(
        self, systems: Sequence[Sequence[str]], references: Sequence[str], samples: int, seed: int
    ) -> PairedBootstrap:
        """Return sacreBLEU's paired bootstrap of translations."""
        from transformer_jax.tasks.metrics.text_bootstrap import paired_bootstrap

        return paired_bootstrap(systems, references, samples, seed)


def in_rows(config: ExperimentConfig) -> bool:
    """Return whether source and target are in one row, because the model is a decoder alone."""
    return config.model.form == "decoder_only"
