"""The windows in which a language model scores texts, and their batches."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch, BatchShape, EvaluationBatches, Rows
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.order import PREFIX_STREAM, generator
from transformer_jax.data.windows import in_windows
from transformer_jax.tasks.batches.sequences import language_model_arrays


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
        functools.partial(window_arrays, config, windows),
        tokens_per_batch=tokens_per_batch,
        row_multiple=config.data.row_multiple,
        max_width=max_width,
    )


def window_arrays(
    config: ExperimentConfig, windows: EncodedSplit, rows: Rows, shape: BatchShape, step: int | None
) -> Batch:
    """Return the arrays of some windows; see `language_model_arrays`.

    With `task.prefix` they have `prefix_mask`, and tokens of a prefix have no weight.
    """
    batch = language_model_arrays(windows, rows, shape, windows.special_ids.pad)
    return PREFIXES[config.task.prefix](config, batch, rows, shape, step)


Prefix = Callable[[ExperimentConfig, Batch, Rows, BatchShape, int | None], Batch]


def _no_prefix(config: ExperimentConfig, batch: Batch, rows: Rows, shape: BatchShape, step: int | None) -> Batch:
    return batch


def _random_prefix(config: ExperimentConfig, batch: Batch, rows: Rows, shape: BatchShape, step: int | None) -> Batch:
    """Return the batch with a prefix of k of the n tokens of every text, k uniform in 0, 1, ..., n - 1.

    The decoder reads the start id and k tokens in both directions; token k + 1 is the first that it predicts. k follows
    from the seed, the step, the row and the place in the row; in evaluation from the number of the example alone.
    """
    real, width = batch["weights"] > 0, shape.width("targets")
    segments = batch.get("targets_segment_ids", real.astype(np.int32))
    positions = batch.get("targets_positions", np.broadcast_to(np.arange(width), real.shape))
    if step is None:
        count = int(rows.examples.max(initial=0)) + 1
        of_examples = generator(PREFIX_STREAM, 0, 0, 0).random(count)[rows.examples]
        uniform = np.broadcast_to(of_examples[:, None], real.shape)
    else:
        of_places = generator(PREFIX_STREAM, config.data_seed, step, 0).random((shape.rows, width))[rows.row_ids]
        # Every token takes the number of the first token of its text.
        first = np.maximum(np.arange(width) - positions, 0)
        uniform = np.take_along_axis(of_places, first, axis=1)
    # The length of the text of every token: the number of tokens of its row and segment.
    same = (segments[:, :, None] == segments[:, None, :]) & (segments > 0)[:, None, :]
    lengths = same.sum(-1)
    k = np.floor(uniform * lengths).astype(np.int32)
    is_prefix = (segments > 0) & (positions <= k)
    weights = np.where(positions < k, 0.0, batch["weights"]).astype(np.float32)
    return {**batch, "weights": weights, "prefix_mask": is_prefix}


PREFIXES: dict[str, Prefix] = {"none": _no_prefix, "random": _random_prefix}
"""Functions that add a prefix to a batch, by the values of `task.prefix`."""
