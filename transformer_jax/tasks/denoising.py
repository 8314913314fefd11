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

from transformer_jax.config import ExperimentConfig
from transformer_jax.tasks.corrupted_text import (
    CorruptedToText,
    WithMask,
    frame_size,
    random_ids,
    required_mask,
    special_flags,
    starts_of_words,
    taken,
    vocab_size_of,
    with_marks,
)

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.data.batching import Rows
    from transformer_jax.data.columns import EncodedSplit
    from transformer_jax.data.tokenizers import SpecialIds, Tokenizer
    from transformer_jax.tasks.batches.corruption import TextRows
    from transformer_jax.tasks.trained.text_filler import Filler
    from transformer_jax.typing import Params


class Denoising(CorruptedToText, WithMask):
    """Prediction of a text from its corrupted form; reads the feature `inputs` of a source."""

    def sequence_lengths(
        self, config: ExperimentConfig, special_ids: SpecialIds, lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Return the lengths of `targets`, and as many for `inputs`, which are never longer."""
        return dict.fromkeys(("inputs", "targets"), lengths + frame_size(special_ids))

    def pairs(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, text_keys: np.ndarray
    ) -> Mapping[str, TextRows]:
        """Return the corrupted texts and the whole ones, between their marks."""
        import numpy as np

        from transformer_jax.tasks.batches.corruption import infill, permute_sentences

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
        return {"inputs": with_marks(inputs, special_ids), "targets": with_marks(whole, special_ids)}

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        return {"inputs": length, "targets": length}

    def generator(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, others: Sequence[Any] = ()
    ) -> Filler:
        """Return the generator of whole texts from texts with `<mask>`."""
        from transformer_jax.tasks.trained.text_filler import Filler

        return Filler(config, params, tokenizer, tuple(others), framed=True)
