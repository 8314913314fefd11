"""The common part of the tasks that learn to undo the corruption of texts: windows, keys, batches, refusals.

A text is a part of a document (`data.batching` = `buckets` or `packed`) or of the stream of all documents, across their
ends (`windows`). In training, the corruption of a row of the global batch follows from the seed, the step and the row,
and of a packed row from the place in the row too; so it is the same on every mesh, and after a resume. In evaluation it
follows from the number of the text alone, so that all evaluations of a split predict the same tokens.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.config import RECURRENT, ExperimentConfig, ModelConfig
from transformer_jax.data.batching import Batch, BatchShape, EvaluationBatches, Rows, TrainingBatches
from transformer_jax.data.columns import Column, EncodedSplit, Ragged, TextColumn
from transformer_jax.data.order import CORRUPTION_STREAM
from transformer_jax.data.packing import numbers_within
from transformer_jax.data.tokenizers.tokenizer import Frame, SpecialIds
from transformer_jax.data.windows import IdWindows, WindowPlan, in_windows
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.tasks import token_prediction
from transformer_jax.tasks.batches import corruption
from transformer_jax.tasks.batches.random_bits import keys
from transformer_jax.tasks.batches.sequences import sequence_to_sequence_arrays
from transformer_jax.tasks.batches.shapes import pair_template
from transformer_jax.tasks.task import MetricSpec

if TYPE_CHECKING:
    import jax

_EVALUATION, _TRAINING = range(2)
MASK = "<mask>"
"""The mask token of tokenizers that this project trains."""


class CorruptedText(token_prediction.TokenPrediction):
    """Prediction of what was lost in a corrupted text; reads the feature `inputs` of a source."""

    batchings = ("buckets", "packed", "windows")

    # Defined by each task.

    @abc.abstractmethod
    def text_length(self, config: ExperimentConfig, special_ids: SpecialIds, width: int) -> int:
        """Return the greatest length of a text, in tokens, whose sequences have at most `width` tokens each.

        Raises: DataError for a tokenizer without the special tokens that the task needs.
        """

    @abc.abstractmethod
    def sequence_lengths(
        self, config: ExperimentConfig, special_ids: SpecialIds, lengths: np.ndarray
    ) -> Mapping[str, np.ndarray]:
        """Return the greatest lengths of the sequences of texts, by name, from the lengths of the texts."""

    @abc.abstractmethod
    def corrupted(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, shape: BatchShape, text_keys: np.ndarray
    ) -> Batch:
        """Return the arrays of a batch.

        Args:
          texts: the windows, in the column `targets`. text_keys: keys of the texts of `rows.examples`.
        """

    def text_frame(self, model: ModelConfig, special_ids: SpecialIds) -> Frame:
        """Return the start and the end of a text, if the tokenizer has these tokens; see `with_marks`."""
        return Frame(special_ids.start_of_text, special_ids.end_of_text)

    # Windows and batches.

    def columns(self, config: ExperimentConfig) -> tuple[Column, ...]:
        """Return the ids of a document, with its end."""
        return (TextColumn("ids", "inputs"),)

    def texts(self, config: ExperimentConfig, split: EncodedSplit) -> EncodedSplit:
        """Return the windows of a split, in the column `targets`; without ends of documents, except within windows."""
        size, stream = self.checked_text_length(config, split.special_ids), config.data.batching == "windows"
        return in_windows(split, "ids", config.model.decoder_start_id, size, stream=stream, end=False)

    def checked_text_length(self, config: ExperimentConfig, special_ids: SpecialIds) -> int:
        """Return `text_length` for sequences of `data.max_length`; raises ConfigError if it is not at least 1."""
        size = self.text_length(config, special_ids, config.data.max_length)
        if size < 1:
            raise ConfigError(
                f"config: data.max_length={config.data.max_length} leaves no token of text beside the special tokens "
                f"of task.name='{config.task.name}'; increase it"
            )
        return size

    def lengths(self, config: ExperimentConfig, split: EncodedSplit) -> Mapping[str, np.ndarray]:
        """Return the greatest lengths of the sequences of every window, int64 [windows] by name."""
        return self._lengths_of(config, self.texts(config, split))

    def _lengths_of(self, config: ExperimentConfig, texts: EncodedSplit) -> Mapping[str, np.ndarray]:
        return self.sequence_lengths(config, texts.special_ids, texts.lengths("targets"))

    def arrays(
        self, config: ExperimentConfig, split: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> Batch:
        """Return the arrays of some windows; see `corrupted`."""
        return self._arrays(config, self.texts(config, split), rows, shape, step)

    def _arrays(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
    ) -> Batch:
        return self.corrupted(config, texts, rows, shape, keys_of(config.data_seed, rows, step))

    def training_batches(self, config: ExperimentConfig, split: EncodedSplit) -> TrainingBatches:
        """Return windows at random places of the stream, or parts of documents.

        Raises: ConfigError, DataError as `text_length`, `checked_text_length` and the classes of plans.
        """
        from transformer_jax.data.datasets import plan_batches

        data, special_ids = config.data, split.special_ids
        arrays = functools.partial(self._arrays, config)
        if data.batching == "windows":
            size = self.checked_text_length(config, special_ids)
            widths = self.sequence_lengths(config, special_ids, np.array([size]))
            return WindowPlan(
                split,
                "ids",
                arrays,
                tokens_per_batch=data.tokens_per_batch,
                size=size,
                row_multiple=data.row_multiple,
                seed=config.data_seed,
                widths={name: int(width[0]) for name, width in widths.items()},
            )
        texts = self.texts(config, split)
        return plan_batches(config, self._lengths_of(config, texts), functools.partial(arrays, texts))

    def evaluation_batches(
        self, config: ExperimentConfig, split: EncodedSplit, tokens_per_batch: int, max_width: int | None
    ) -> EvaluationBatches:
        """Return the windows in batches; each token of the split is in one of them."""
        texts = self.texts(config, split)
        return EvaluationBatches(
            self._lengths_of(config, texts),
            functools.partial(self._arrays, config, texts),
            tokens_per_batch=tokens_per_batch,
            row_multiple=config.data.row_multiple,
            max_width=max_width,
        )


class WithMask(CorruptedText):
    """A text with masks in place of some tokens, between its start and its end."""

    def added_tokens(self, config: ExperimentConfig) -> tuple[str, ...]:
        """Return the mask."""
        return (MASK,)

    def text_length(self, config: ExperimentConfig, special_ids: SpecialIds, width: int) -> int:
        """Return the width without start and end; raises DataError if the tokenizer has no mask."""
        required_mask(config, special_ids)
        return width - frame_size(special_ids)


class CorruptedToText(token_prediction.NextTokens, CorruptedText):
    """The encoder reads the corrupted text, and the decoder writes what was lost."""

    architectures = ("encoder_decoder", RECURRENT)
    metrics = (*token_prediction.SCORES, MetricSpec("tokens", heading="tokens", format="{:,}"))

    @abc.abstractmethod
    def pairs(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, text_keys: np.ndarray
    ) -> Mapping[str, corruption.TextRows]:
        """Return `inputs` and `targets` of the texts of some rows; arguments as in `corrupted`."""

    def corrupted(
        self, config: ExperimentConfig, texts: EncodedSplit, rows: Rows, shape: BatchShape, text_keys: np.ndarray
    ) -> Batch:
        """Return the arrays of a batch; see `sequence_to_sequence_arrays`."""
        split, numbered = as_split(texts, rows, self.pairs(config, texts, rows, text_keys))
        return sequence_to_sequence_arrays(split, numbered, shape, config.model.decoder_start_id)

    def batch_template(
        self, config: ExperimentConfig, rows: int, widths: Mapping[str, int]
    ) -> dict[str, jax.ShapeDtypeStruct]:
        return pair_template(rows, widths, config.data.batching == "packed")


def keys_of(seed: int, rows: Rows, step: int | None) -> np.ndarray:
    """Return the key of every text of some rows, uint64 [texts]; see the module's docstring.

    Args:
      step: number of the training step; None in evaluation.
    """
    if step is None:
        return keys(CORRUPTION_STREAM, _EVALUATION, rows.examples)
    return keys(
        CORRUPTION_STREAM, _TRAINING, seed, step, np.repeat(rows.row_ids, rows.counts), numbers_within(rows.counts)
    )


def taken(texts: EncodedSplit, rows: Rows) -> corruption.TextRows:
    """Return the texts of some rows, ids int32 [texts, W], and their lengths; a row without a text has length 0."""
    lengths = np.where(rows.examples < 0, 0, texts.lengths("targets")[rows.examples]).astype(np.int64)
    return corruption.TextRows(texts.take("targets", rows.examples, max(int(lengths.max(initial=0)), 1)), lengths)


def as_split(texts: EncodedSplit, rows: Rows, columns: Mapping[str, corruption.TextRows]) -> tuple[EncodedSplit, Rows]:
    """Return new sequences of the texts of some rows as a split, and the rows with its numbers."""
    ragged: dict[str, Ragged | np.ndarray] = {}
    for name, (ids, lengths) in columns.items():
        starts = np.arange(len(ids), dtype=np.int64) * ids.shape[1]
        ragged[name] = IdWindows(ids.reshape(-1), starts, lengths.astype(np.int32))
    numbers = np.where(rows.examples < 0, -1, np.arange(len(rows.examples)))
    return texts.with_columns(ragged), rows._replace(examples=numbers)


def with_marks(rows: corruption.TextRows, special_ids: SpecialIds) -> corruption.TextRows:
    """Return texts between the start and the end of a text, if the tokenizer has these tokens."""
    start, end = special_ids.start_of_text, special_ids.end_of_text
    ids, lengths = rows
    if start is not None:
        ids, lengths = np.pad(ids, ((0, 0), (1, 0)), constant_values=start), lengths + 1
    if end is not None:
        ids, lengths = np.pad(ids, ((0, 0), (0, 1))), lengths + 1
        ids[np.arange(len(ids)), lengths - 1] = end
    return corruption.TextRows(ids, lengths)


def frame_size(special_ids: SpecialIds) -> int:
    """Return the number of tokens that `with_marks` adds."""
    return sum(id is not None for id in (special_ids.start_of_text, special_ids.end_of_text))


def vocab_size_of(config: ExperimentConfig, texts: EncodedSplit) -> int:
    """Return the number of ids of the tokenizer of a split; the model may have more."""
    return config.model.vocab_size if texts.token_kinds is None else texts.token_kinds.vocab_size


def special_flags(special_ids: SpecialIds, vocab_size: int) -> np.ndarray:
    """Return whether an id is a special token, bool [V]. The unknown word is none: it stands for a word of the text."""
    flags = np.zeros(vocab_size, bool)
    roles = special_ids._replace(unk=None, sentinels=())
    flags[[id for id in roles if isinstance(id, int)]] = True
    flags[list(special_ids.sentinels)] = True
    return flags


def random_ids(special_ids: SpecialIds, vocab_size: int) -> np.ndarray:
    """Return the ids that may replace a token: all but the special tokens and the unknown word."""
    flags = special_flags(special_ids, vocab_size)
    if special_ids.unk is not None:
        flags[special_ids.unk] = True
    return np.flatnonzero(~flags)


def starts_of_words(texts: EncodedSplit, ids: np.ndarray, is_special: np.ndarray) -> np.ndarray:
    """Return where the words of texts [n, W] begin, by the tokenizer of the split."""
    if texts.token_kinds is None:
        raise ValueError("whole words need the tokenizer of the split")
    return corruption.word_starts(ids, texts.token_kinds.begins_word, is_special)


def required_mask(config: ExperimentConfig, special_ids: SpecialIds) -> int:
    """Return the id of the mask; raises DataError if the tokenizer has none."""
    if special_ids.mask is None:
        raise DataError(
            f"task.name='{config.task.name}' needs a mask, and the tokenizer has no such token; use a tokenizer with "
            f"{MASK} or [MASK], or let the run train one"
        )
    return special_ids.mask
