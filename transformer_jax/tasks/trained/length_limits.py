"""Limits on the length of a text. A text that is too long is not cut; it is refused with an error that names it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.errors import DataError


def position_table_rows(model: ModelConfig) -> int | None:
    """Return the number of rows of the model's position table; None if it has no table, and so no bound.

    It bounds the texts that a model reads. A decoder may have fewer positions: `decoding.generate.position_capacity`.
    """
    return model.num_positions if model.has_position_table else None


def check_lengths(config: ExperimentConfig, lengths: np.ndarray, place: Callable[[int], str]) -> None:
    """Raise DataError for the first text that is too long; see `length_problems`.

    Args:
      lengths: int [texts], in tokens with eos.
      place: name of text i, such as "line 3".
    """
    for index, problem in length_problems(config, lengths).items():
        raise DataError(f"{place(index)}: {problem}")


def length_problems(config: ExperimentConfig, lengths: np.ndarray) -> dict[int, str]:
    """Return the reasons why texts are too long, by index: the position table is shorter, or no batch has room.

    Args:
      lengths: int [texts], in tokens with eos.
    """
    limit = position_table_rows(config.model)
    reason = f"the learned position table has model.max_length={config.model.max_length} rows"
    if limit is None:
        # Memory grows with the square of the length. A text for which the decoder has room is never refused.
        rows, tokens = config.data.row_multiple, config.evaluation.tokens_per_batch
        limit = max(tokens // rows, config.model.max_length)
        reason = f"evaluation.tokens_per_batch={tokens} holds data.row_multiple={rows} rows of at most {tokens // rows}"
    too_long = np.flatnonzero(lengths > limit)
    return {int(i): f"{lengths[i]} tokens with end-of-sequence are too many: {reason}" for i in too_long}
