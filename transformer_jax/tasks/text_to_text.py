"""Prediction of a text from a text of any kind, such as a summary from a document, scored by ROUGE.

Classification becomes such a task too, if its labels are words (Raffel et al. 2020, section 2.4). An example may have
several references; training uses the first one. See metrics/rouge.py for the scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.tasks.source_to_target import LOSSES, UNFINISHED, SourceToTarget
from transformer_jax.tasks.task import Evaluation, ExampleSums, MetricSpec, PairedBootstrap

if TYPE_CHECKING:
    from transformer_jax.data.datasets import Data
    from transformer_jax.tasks.trained.lines import LineOutputs


class TextToText(SourceToTarget):
    """Prediction of a text from a source text, token by token."""

    metrics = (
        *LOSSES,
        MetricSpec("exact_match", "max", "%", "exact match", "{:.2f}", needs_generation=True),
        MetricSpec("rouge1", "max", "", "ROUGE-1", "{:.2f}", needs_generation=True),
        MetricSpec("rouge2", "max", "", "ROUGE-2", "{:.2f}", needs_generation=True),
        MetricSpec("rougeL", "max", "", "ROUGE-L", "{:.2f}", needs_generation=True),
        MetricSpec("empty", "min", "", "empty", "{}", needs_generation=True, logged=False),
        UNFINISHED,
    )

    def output_scores(
        self, evaluator: Evaluation, split: str, outputs: Sequence[LineOutputs], lines: Sequence[str]
    ) -> dict[str, Any]:
        """Return the metrics of `metrics.rouge.corpus_scores`; an empty output has ROUGE 0 and is counted."""
        from transformer_jax.tasks.metrics.rouge import corpus_scores, rules_of, warn_of_letters

        references = self.references(evaluator.config, evaluator.data, split)
        warn_of_letters(split, references)
        return corpus_scores(lines, references, rules_of(evaluator.config.task))

    def references(self, config: ExperimentConfig, data: Data, split: str) -> list[list[str]]:
        """Return the references of every example as plain text; one or more."""
        from transformer_jax.data.text_form import readable

        features = data.text(split).features
        several = features.get("references") or [[target] for target in features["targets"]]
        return [[readable(text, config.data) for text in texts] for texts in several]

    def output_sums(
        self, config: ExperimentConfig, outputs: Sequence[str], references: Sequence[Any]
    ) -> Mapping[str, ExampleSums]:
        """Return exact match and ROUGE, by the rules of the config."""
        from transformer_jax.tasks.metrics.rouge import example_sums, rules_of

        return example_sums(outputs, references, rules_of(config.task))

    def compare_outputs(
        self,
        config: ExperimentConfig,
        systems: Sequence[Sequence[str]],
        references: Sequence[Any],
        samples: int,
        seed: int,
    ) -> PairedBootstrap:
        """Return the paired bootstrap of exact match and ROUGE, by the rules of the first system's config."""
        from transformer_jax.tasks.metrics.rouge import paired_bootstrap, rules_of

        return paired_bootstrap(systems, references, rules_of(config.task), samples, seed)
