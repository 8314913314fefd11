"""Masked language models (Devlin et al. 2019, section 3.1): tokens are predicted from those on both sides.

A row is a text between its start and its end, `[CLS] x [SEP]` or `<s> x </s>`. Each token is chosen with probability
`task.mask_rate`, or each word with all its tokens (`task.whole_word`); special tokens and padding never are. Of the
chosen tokens, `task.random_share` become a random token, `task.keep_share` stay, and the others become the mask. Only
they are predicted: logits are computed for them alone.

A row has room for `corruption.most_chosen` predictions. Of a row with more chosen tokens, one in 10^9, the last ones
are not predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig, ModelConfig, TaskConfig
from transformer_jax.tasks import token_prediction
from transformer_jax.tasks.corrupted_text import (
    WithMask,
    as_split,
    frame_size,
    random_ids,
    required_mask,
    special_flags,
    starts_of_words,
    taken,
    vocab_size_of,
    with_marks,
)
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores

if TYPE_CHECKING:
    import flax.linen as nn
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import EncodedSplit
    from transformer_jax.data.tokenizers import SpecialIds
    from transformer_jax.models.architecture import Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.task import Sums
    from transformer_jax.typing import Batch, Params


class MaskedLM(WithMask):
    """Prediction of masked tokens; reads the feature `inputs` of a source."""

    architectures = ("encoder_only",)
    needs_decoder = False
    metrics = (
        *token_prediction.SCORES,
        MetricSpec("masked", heading="masked tokens", format="{:,}"),
    )

    def sequence_lengths(
        self, config: ExperimentConfig, special_ids: SpecialIds, lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Return the lengths of `inputs`."""
        return {"inputs": lengths + frame_size(special_ids)}

    def corrupted(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, shape: BatchShape, text_keys: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a batch with S places and T predictions per row.

        Returns: `inputs`, `inputs_mask` [B, S], for packed rows segment ids and positions; `targets`, `weights` and
          `places` [B, T], see `transformer_jax.typing`; `row_ids` [B].
        """
        import numpy as np

        from transformer_jax.tasks.batches.corruption import TextRows, mask_tokens
        from transformer_jax.tasks.batches.sequences import sequences

        task, special_ids, vocab_size = config.task, texts.special_ids, vocab_size_of(config, texts)
        width = shape.width("inputs")
        ids, lengths = with_marks(taken(texts, rows), special_ids)
        is_special = special_flags(special_ids, vocab_size)
        maskable = (np.arange(ids.shape[1]) < lengths[:, None]) & ~is_special[ids]
        masked = mask_tokens(
            ids,
            maskable,
            text_keys,
            rate=task.mask_rate,
            mask_id=required_mask(config, special_ids),
            random_ids=random_ids(special_ids, vocab_size),
            random_share=task.random_share,
            keep_share=task.keep_share,
            starts=starts_of_words(texts, ids, is_special) if task.whole_word else None,
        )
        columns = {"inputs": masked.ids, "targets": ids, "chosen": masked.chosen.astype(np.int32)}
        split, numbered = as_split(texts, rows, {name: TextRows(column, lengths) for name, column in columns.items()})
        pad = special_ids.pad or 0
        inputs, targets = (sequences(split, name, numbered, width, pad) for name in ("inputs", "targets"))
        chosen = sequences(split, "chosen", numbered, width, 0).ids > 0
        places, weights = _first_places(chosen, predictions(task, width))
        batch = {
            "inputs": inputs.ids,
            "inputs_mask": inputs.mask,
            "targets": np.where(weights > 0, np.take_along_axis(targets.ids, places, axis=1), pad).astype(np.int32),
            "weights": weights,
            "places": places,
            "row_ids": rows.row_ids,
        }
        if inputs.segment_ids is not None and inputs.positions is not None:
            batch |= {"inputs_segment_ids": inputs.segment_ids, "inputs_positions": inputs.positions}
        return batch

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"inputs": length, "targets": predictions(config.task, length)}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        import jax
        import jax.numpy as jnp

        inputs = jax.ShapeDtypeStruct((rows, widths["inputs"]), jnp.int32)
        targets = jax.ShapeDtypeStruct((rows, widths["targets"]), jnp.int32)
        batch = {"inputs": inputs, "inputs_mask": jax.ShapeDtypeStruct(inputs.shape, bool)}
        batch |= {"targets": targets, "places": targets, "weights": jax.ShapeDtypeStruct(targets.shape, jnp.float32)}
        packed = {"inputs_segment_ids": inputs, "inputs_positions": inputs}
        batch |= {"row_ids": jax.ShapeDtypeStruct((rows,), jnp.int32)}
        return batch | (packed if config.data.batching == "packed" else {})

    def head(self, config: TaskConfig, model: ModelConfig) -> nn.Module:
        """Return BERT's head: a dense layer, norm, and logits over the vocabulary."""
        from transformer_jax.nn.heads import MaskedLMHead

        return MaskedLMHead(model)

    def head_flops(self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]) -> int:
        """Return the operations for the places that may be predicted: 2 B T (D^2 + D V)."""
        width = config.model.emb_dim
        count = rows * predictions(config.task, widths["inputs"])
        return 2 * count * width * (width + config.model.vocab_size)

    def loss(
        self, config: TaskConfig, model: Model, batch: Batch, dropout: Dropout | None, hyper: Any, chunks: int = 1
    ) -> Sums:
        """Return the sums `loss` (label-smoothed), `nll`, `correct` and `weight` over the chosen tokens."""
        import jax.numpy as jnp

        from transformer_jax.tasks.metrics.cross_entropy import chunked_cross_entropy

        x = model.features(batch, dropout, hyper.model)  # [B, S, D]
        x = jnp.take_along_axis(x, batch["places"][..., None], axis=1)  # [B, T, D]
        smoothing, targets, weights = hyper.label_smoothing, batch["targets"], batch["weights"]
        return chunked_cross_entropy(lambda x: model.outputs(x, batch), x, targets, weights, smoothing, chunks)

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of the masked tokens of a whole split, the same tokens in every evaluation.

        Returns: `loss` in nats per masked token, without label smoothing; `perplexity` = exp(loss), which is not that
          of a language model; `accuracy` in percent; `masked`, the number of these tokens, with those that a random
          token replaced and those that stayed.
        """
        scores = token_prediction.token_scores(evaluator.sums(params, split))
        return Scores({"masked" if name == "tokens" else name: value for name, value in scores.items()})


def predictions(task: TaskConfig, width: int) -> int:
    """Return the number of predictions of a row of `width` places: enough for all chosen tokens.

    With whole words there is no bound below the width, since a word may have any number of tokens.
    """
    from transformer_jax.tasks.batches.corruption import most_chosen

    return width if task.whole_word else most_chosen(width, task.mask_rate)


def _first_places(chosen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of up to `count` chosen tokens of every row, int32 [B, count], and weights: 1, or 0 behind."""
    import numpy as np

    number = np.cumsum(chosen, axis=1) - 1
    row, place = np.nonzero(chosen & (number < count))
    places, weights = np.zeros((len(chosen), count), np.int32), np.zeros((len(chosen), count), np.float32)
    places[row, number[row, place]] = place
    weights[row, number[row, place]] = 1.0
    return places, weights
