"""The windows in which a language model scores texts, and their batches."""

from __future__ import annotations

import functools

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, BatchShape, EvaluationBatches, Rows
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.windows import in_windows
from transformer_jax.tasks.arrays import language_model_arrays


def scoring_windows(config: ExperimentConfig, split: EncodedSplit, *, stream: bool, end: bool = True) -> EncodedSplit:
    """Return the windows of the column `ids`, as the section `evaluation` says; see `data.windows.in_windows`."""
    size = config.evaluation.max_length or config.data.max_length
    start_id, context = config.model.decoder_start_id, config.evaluation.context
    return in_windows(split, "ids", start_id, size, context, stream=stream, end=end)


def windows_in_batches(
    config: ExperimentConfig, windows: EncodedSplit, tokens_per_batch: int, max_width: int | None = None
) -> EvaluationBatches:
    """Return windows of scoring in batches; see `Task.evaluation_batches`."""
    return EvaluationBatches(
        {"targets": windows.lengths("targets")},
        functools.partial(window_arrays, windows),
        tokens_per_batch=tokens_per_batch,
        row_multiple=config.data.row_multiple,
        max_width=max_width,
    )


def window_arrays(windows: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None) -> Batch:
    """Return the arrays of some windows; see `language_model_arrays`. They do not depend on the step."""
    return language_model_arrays(windows, rows, shape, windows.special_ids.pad)
