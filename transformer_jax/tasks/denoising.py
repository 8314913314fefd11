"""Denoising (BART; Lewis et al. 2020, section 2.2): the decoder writes the whole text that the encoder sees corrupted.

First the sentences change their order: of a text's sentences, the share `task.permute_sentences`. A sentence ends at a
token that ends in a full stop, a question mark or an exclamation mark, and at the end of a document. Then spans of
words become one mask each, `task.mask_rate` of the words in spans of Poisson lengths with mean `task.mean_span_length`;
see `corruption.infill`. With `task.whole_word=false`, every token counts as a word.

Inputs and targets are `<s> x </s>`. With `model.decoder_start_id` = `</s>`, as in BART, the decoder reads `</s> <s> x`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import RECURRENT, ExperimentConfig
from transformer_jax.tasks import token_prediction
from transformer_jax.tasks.batches.shapes import pair_template
from transformer_jax.tasks.corrupted_text import (
    MASK,
    CorruptedText,
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
from transformer_jax.tasks.task import MetricSpec

if TYPE_CHECKING:
    import jax
    import numpy as np

    from transformer_jax.data.batching import BatchShape, Rows
    from transformer_jax.data.columns import EncodedSplit
    from transformer_jax.data.tokenizers import SpecialIds, Tokenizer
    from transformer_jax.tasks.trained.text_filler import Filler
    from transformer_jax.typing import Params


class Denoising(token_prediction.NextTokens, CorruptedText):
    """Prediction of a text from its corrupted form; reads the feature `inputs` of a source."""

    architectures = ("encoder_decoder", RECURRENT)
    metrics = (*token_prediction.SCORES, MetricSpec("tokens", heading="tokens", format="{:,}"))

    def added_tokens(self, config: ExperimentConfig) -> tuple[str, ...]:
        """Return the mask."""
        return (MASK,)

    def text_length(self, config: ExperimentConfig, special_ids: SpecialIds, width: int) -> int:
        """Return the width without start and end; raises DataError if the tokenizer has no mask."""
        required_mask(config, special_ids)
        return width - frame_size(special_ids)

    def sequence_lengths(
        self, config: ExperimentConfig, special_ids: SpecialIds, lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Return the lengths of `targets`, and as many for `inputs`, which are never longer."""
        return dict.fromkeys(("inputs", "targets"), lengths + frame_size(special_ids))

    def corrupted(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, shape: BatchShape, text_keys: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the arrays of a batch; see `sequence_to_sequence_arrays`."""
        import numpy as np

        from transformer_jax.tasks.batches.corruption import infill, permute_sentences
        from transformer_jax.tasks.batches.sequences import sequence_to_sequence_arrays

        task, special_ids, vocab_size = config.task, texts.special_ids, vocab_size_of(config, texts)
        whole = taken(texts, rows)
        ids, lengths = whole
        if task.permute_sentences:
            if texts.token_kinds is None:
                raise ValueError("sentences need the tokenizer of the split")
            ends = texts.token_kinds.ends_sentence[ids] | (ids == special_ids.end_of_text)
            ids = permute_sentences(ids, lengths, text_keys, ends, task.permute_sentences)
        is_special = special_flags(special_ids, vocab_size)
        starts = starts_of_words(texts, ids, is_special) if task.whole_word else np.ones(ids.shape, bool)
        inputs = infill(
            ids,
            lengths,
            text_keys,
            starts,
            rate=task.mask_rate,
            mean_span_length=task.mean_span_length,
            mask_id=required_mask(config, special_ids),
            random_ids=random_ids(special_ids, vocab_size),
            random_share=task.random_share,
        )
        sides = {"inputs": with_marks(inputs, special_ids), "targets": with_marks(whole, special_ids)}
        split, numbered = as_split(texts, rows, sides)
        return sequence_to_sequence_arrays(split, numbered, shape, config.model.decoder_start_id)

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"inputs": length, "targets": length}

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        return pair_template(rows, widths, config.data.batching == "packed")

    def generator(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, others: Sequence[Any] = ()
    ) -> Filler:
        """Return the generator of whole texts from texts with `<mask>`."""
        from transformer_jax.tasks.trained.text_filler import Filler

        return Filler(config, params, tokenizer, tuple(others), framed=True)
