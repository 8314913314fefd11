"""Scores of parameters on a split: the losses of teacher forcing, and of translations."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.data.batching import EvaluationBatches
from transformer_jax.data.datasets import Data
from transformer_jax.data.text_form import join_pieces, readable
from transformer_jax.evaluation.lengths import check_lengths, position_capacity
from transformer_jax.evaluation.scores import family_scores, token_scores, translation_scores
from transformer_jax.evaluation.translate import Line, Translation, Translator
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.parallel.placement import Rows, mesh_of, on_one_device
from transformer_jax.training.losses import LossSums, chunked_cross_entropy
from transformer_jax.typing import Array, Batch, Params

TRANSLATION_METRICS = ("exact_match", "sacrebleu", "chrf")
_LOGGED = (*TRANSLATION_METRICS, "tokenized_bleu")


@functools.partial(jax.jit, static_argnames=("config", "num_chunks"))
def loss_sums(config: ModelConfig, params: Params, batch: Batch, num_chunks: int = 1) -> LossSums:
    """Sums of the loss without label smoothing over a batch; compiled once per shape in a process.

    Args:
      num_chunks: parts that the logits are computed in.
    """
    model = EncoderDecoder(config)
    x, _ = model.apply({"params": params}, batch, method=EncoderDecoder.decoder_output)

    def logits(x: Array) -> Any:
        return model.apply({"params": params}, x, method=EncoderDecoder.logits)

    return chunked_cross_entropy(logits, x, batch["targets"], None, num_chunks)


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """Scores parameters of one model on the splits of one corpus; `config` is resolved."""

    config: ExperimentConfig
    data: Data

    def check(self, split: str) -> None:
        """Raises DataError if there is no such split, or the model cannot take one of its pairs."""
        ids = self.data.splits[split]
        lengths = np.maximum(ids.input_lengths, ids.target_lengths)
        check_lengths(self.config, lengths, lambda index: f"split '{split}', pair {index + 1}")

    def losses(self, params: Params, split: str) -> dict[str, float | int]:
        """Teacher forcing over every pair of a split, none left out or cut.

        Returns: `loss` in nats per target token without label smoothing, `perplexity` = exp(loss), `accuracy` of the
          next token in percent, `tokens` of the targets, with eos.
        Raises: DataError as `check`.
        """
        self.check(split)
        batches = EvaluationBatches(
            self.data.splits[split],
            tokens_per_batch=self.config.evaluation.tokens_per_batch,
            row_multiple=self.config.data.row_multiple,
            max_width=position_capacity(self.config.model),
        )
        # Fetched at the end, so that the device does not wait for the host between batches.
        parts = []
        for batch in _placed(batches, params):
            parts.append(loss_sums(self.config.model, params, batch, self.config.training.loss_chunks))
            if mesh_of(params) is not None and jax.default_backend() == "cpu":
                # CPU devices that exchange numbers in several programs at once may wait for each other for ever.
                jax.block_until_ready(parts[-1])
        loss, correct, weight = (
            math.fsum(float(getattr(part, name)) for part in jax.device_get(parts))
            for name in ("nll", "correct", "weight")
        )
        return {
            "loss": loss / weight,
            "perplexity": math.exp(min(loss / weight, 700.0)),
            "accuracy": 100.0 * correct / weight,
            "tokens": int(weight),
        }

    def translations(self, params: Params, split: str) -> list[Translation]:
        """Translations of every source of a split, as the config's `decode` says, in the corpus's own form.

        Raises: DataError as `check`.
        """
        self.check(split)
        lines = [Line(source) for source in self.data.text(split).inputs]
        return Translator(self.config, on_one_device(params), self.data.tokenizer).translate_chunk(lines)

    def references(self, split: str) -> list[str]:
        """What translations are scored against: the targets of a split, as one writes them."""
        return [readable(line, self.config.data) for line in self.data.text(split).targets]

    def translation_scores(self, params: Params, split: str) -> tuple[dict[str, Any], list[str]]:
        """Scores of the translations, by template family too where the corpus has them; and the translations.

        The translations are as one writes them. Where the corpus is tokens, these are scored too, as `token_scores` has
        it.
        """
        text, translations = self.data.text(split), self.translations(params, split)
        lines, references = [readable(t.text, self.config.data) for t in translations], self.references(split)
        scores = translation_scores(lines, references)
        if self.config.data.text_form == "moses_bpe":
            scores |= token_scores([join_pieces(t.text) for t in translations], list(map(join_pieces, text.targets)))
        scores["unfinished"] = sum(translation.unfinished for translation in translations)
        if text.families is not None:
            scores["families"] = family_scores(lines, references, text.families)
        return scores, lines

    def validation(self, params: Params) -> dict[str, Any]:
        """What the training loop logs: losses, and translation metrics if one of them ranks the checkpoints."""
        metrics: dict[str, Any] = self.losses(params, "valid")
        if self.config.training.best_metric in TRANSLATION_METRICS:
            scores, _ = self.translation_scores(params, "valid")
            metrics |= {name: scores[name] for name in _LOGGED if name in scores}
        return metrics


def _placed(batches: EvaluationBatches, params: Params) -> Iterator[Any]:
    """The batches, their rows divided among the devices that parameters lie on."""
    mesh = mesh_of(params)
    if mesh is None:
        yield from (batch for batch, _ in batches)
        return
    rows = Rows(mesh)
    for number in range(len(batches)):
        yield rows.placed(batches.batch(number, rows.local(batches.num_rows(number)))[0])


def make_validate(config: ExperimentConfig, data: Data) -> Callable[[Params], dict[str, Any]]:
    """What `training.run.train` is handed: the function that scores parameters on the validation split.

    Raises: DataError now, not at the first evaluation, if there is no such split or it has a pair that is too long.
    """
    evaluator = Evaluator(config, data)
    evaluator.check("valid")
    return evaluator.validation
