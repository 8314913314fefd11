"""Translation of a source text to a target text, scored by the loss of the references and by generated outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.tasks.source_to_target import LOSSES, UNFINISHED, SourceToTarget
from transformer_jax.tasks.task import Evaluation, ExampleSums, MetricSpec, PairedBootstrap

if TYPE_CHECKING:
    from transformer_jax.data.datasets import Data
    from transformer_jax.tasks.trained.lines import LineOutputs


class Translation(SourceToTarget):
    """Prediction of a translation from a source text, token by token."""

    metrics = (
        *LOSSES,
        MetricSpec("exact_match", "max", "%", "exact match", "{:.2f}", needs_generation=True),
        MetricSpec("tokenized_bleu", "max", "", "tokenized BLEU", "{:.2f}", needs_generation=True),
        MetricSpec("sacrebleu", "max", "", "sacreBLEU", "{:.2f}", needs_generation=True),
        MetricSpec("chrf", "max", "", "chrF", "{:.2f}", needs_generation=True),
        UNFINISHED,
    )

    def measured(self, config: ExperimentConfig) -> tuple[MetricSpec, ...]:
        """Return all metrics, but `tokenized_bleu` only if the corpus consists of tokens."""
        tokens = config.data.text_form == "moses_bpe"
        return tuple(spec for spec in self.metrics if tokens or spec.name != "tokenized_bleu")

    def output_scores(
        self, evaluator: Evaluation, split: str, outputs: Sequence[LineOutputs], lines: Sequence[str]
    ) -> dict[str, Any]:
        """Return the metrics of `metrics.text`, and these by template family if the corpus has families.

        A corpus of tokens has scores of the tokens too.
        """
        from transformer_jax.data.text_form import join_subwords
        from transformer_jax.tasks.metrics.text import family_scores, tokenized_scores, translation_scores

        config, text = evaluator.config, evaluator.data.text(split)
        references = self.references(config, evaluator.data, split)
        scores = translation_scores(lines, references)
        if config.data.text_form == "moses_bpe":
            tokens = [join_subwords(line) for line in text.features["targets"]]
            scores |= tokenized_scores([join_subwords(output.text) for output in outputs], tokens)
        if "families" in text.features:
            scores["families"] = family_scores(lines, references, text.features["families"])
        return scores

    def references(self, config: ExperimentConfig, data: Data, split: str) -> list[str]:
        """Return the targets of a split as plain text; they are the references of the scores."""
        from transformer_jax.data.text_form import readable

        return [readable(line, config.data) for line in data.text(split).features["targets"]]

    def output_sums(
        self, config: ExperimentConfig, outputs: Sequence[str], references: Sequence[Any]
    ) -> Mapping[str, ExampleSums]:
        """Return exact match, sacreBLEU and chrF."""
        from transformer_jax.tasks.metrics.text import example_sums

        return example_sums(outputs, references)

    def compare_outputs(
        self,
        config: ExperimentConfig,
        systems: Sequence[Sequence[str]],
        references: Sequence[Any],
        samples: int,
        seed: int,
    ) -> PairedBootstrap:
        """Return sacreBLEU's paired bootstrap of translations."""
        from transformer_jax.tasks.metrics.text_bootstrap import paired_bootstrap

        return paired_bootstrap(systems, references, samples, seed)
