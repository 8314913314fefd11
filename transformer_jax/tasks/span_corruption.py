"""Span corruption (Raffel et al. 2020, section 3.1.4): the decoder writes the spans that the encoder does not see.

Of a text of L tokens, round(`task.mask_rate` * L) are noise, in round(noise / `task.mean_span_length`) spans. In the
inputs, sentinels `<extra_id_0>`, `<extra_id_1>`, ... stand for the spans; the targets are these sentinels, each with
its span behind it. Both end in end-of-sequence. `data.max_length` is the greatest length of either: 512 is that of the
inputs for texts of 568 tokens, whose targets have 114.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.tasks.corrupted_text import CorruptedToText, taken

if TYPE_CHECKING:
    import numpy as np

    from transformer_jax.data.batching import Rows
    from transformer_jax.data.columns import EncodedSplit
    from transformer_jax.data.tokenizers import Frame, SpecialIds, Tokenizer
    from transformer_jax.tasks.batches.corruption import TextRows
    from transformer_jax.tasks.trained.text_filler import Filler
    from transformer_jax.typing import Params


class SpanCorruption(CorruptedToText):
    """Prediction of the spans that sentinels stand for; reads the feature `inputs` of a source."""

    def added_tokens(self, config: ExperimentConfig) -> tuple[str, ...]:
        """Return the sentinels of the longest text."""
        from transformer_jax.tasks.batches.corruption import longest_text

        longest = longest_text(config.data.max_length, config.task.mask_rate, config.task.mean_span_length)
        return tuple(f"<extra_id_{i}>" for i in range(int(self._sizes(config, longest).spans) if longest else 1))

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return only an end-of-sequence token after a text, as in T5."""
        from transformer_jax.data.tokenizers.tokenizer import Frame

        return Frame(end=special_ids.required("eos"))

    def text_length(self, config: ExperimentConfig, special_ids: SpecialIds, width: int) -> int:
        """Return the length of the longest text; raises DataError if the tokenizer has too few sentinels for it."""
        from transformer_jax.tasks.batches.corruption import longest_text

        size = longest_text(width, config.task.mask_rate, config.task.mean_span_length)
        needed, found = int(self._sizes(config, size).spans), len(special_ids.sentinels)
        if needed > found:
            raise DataError(
                f"task.name='span_corruption' needs {needed} sentinels for sequences of max_length={width}, and the "
                f"tokenizer has {found}, <extra_id_0> and so on; lower data.max_length or task.mask_rate, increase "
                "task.mean_span_length, or let the run train a tokenizer"
            )
        return size

    def _sizes(self, config: ExperimentConfig, lengths: Any) -> Any:
        from transformer_jax.tasks.batches.corruption import span_sizes

        return span_sizes(lengths, config.task.mask_rate, config.task.mean_span_length)

    def sequence_lengths(
        self, config: ExperimentConfig, special_ids: SpecialIds, lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Return the lengths of `inputs` and `targets`, which follow from those of the texts."""
        sizes = self._sizes(config, lengths)
        return {"inputs": sizes.inputs, "targets": sizes.targets}

    def pairs(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, text_keys: np.ndarray
    ) -> Mapping[str, TextRows]:
        """Return the texts with sentinels, and their spans."""
        import numpy as np

        from transformer_jax.tasks.batches.corruption import corrupt_spans

        special_ids = texts.special_ids
        pair = corrupt_spans(
            *taken(texts, rows),
            text_keys,
            rate=config.task.mask_rate,
            mean_span_length=config.task.mean_span_length,
            sentinels=np.array(special_ids.sentinels, np.int64),
            end_id=special_ids.required("eos"),
        )
        return pair._asdict()

    def widths(self, config: ExperimentConfig, length: int) -> Mapping[str, int]:
        from transformer_jax.tasks.batches.corruption import longest_text

        longest = longest_text(length, config.task.mask_rate, config.task.mean_span_length)
        sizes = self._sizes(config, longest)
        return {"inputs": int(sizes.inputs), "targets": int(sizes.targets)}

    def generator(
        self, config: ExperimentConfig, params: Params, tokenizer: Tokenizer, others: Sequence[Any] = ()
    ) -> Filler:
        """Return the generator of the spans of texts with `<extra_id_0>` and so on."""
        from transformer_jax.tasks.trained.text_filler import Filler

        return Filler(config, params, tokenizer, tuple(others))
