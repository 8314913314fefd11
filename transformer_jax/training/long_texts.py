"""Training examples that are too long: a run that would leave out many of them does not start."""

from __future__ import annotations

import logging

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import LeftOut, TooLongError, TrainingBatches
from transformer_jax.errors import DataError
from transformer_jax.parallel.processes import is_primary
from transformer_jax.tasks.task import TASKS

logger = logging.getLogger(__name__)

_REFUSED, _WARNED = 0.1, 0.01
"""Shares of the training examples above which a run is refused, and from which it warns."""


def check_long_texts(config: ExperimentConfig, plan: TrainingBatches) -> None:
    """Warn if 1 % of the training examples or more are left out because they are too long.

    Raises: DataError if more than 10 % are, unless `data.drop_long` is set.
    """
    count = plan.left_out.count
    of_all = count / (count + plan.num_examples)
    if of_all < _WARNED or not is_primary():
        return
    message = (
        f"{count:,} of {count + plan.num_examples:,} training examples ({100 * of_all:.0f} %) have more tokens than "
        f"data.max_length={config.data.max_length}"
    )
    if of_all <= _REFUSED or config.data.drop_long:
        logger.warning("%s and are left out; %s", message, remedies(config, plan.left_out))
        return
    raise DataError(
        f"{message} and would be left out; {remedies(config, plan.left_out)}; data.drop_long=true trains without them"
    )


def all_too_long(config: ExperimentConfig, error: TooLongError) -> DataError:
    """Return the error of a corpus all of whose training examples are too long, with what to do."""
    return DataError(f"{error}; {remedies(config, error.left_out)}")


def remedies(config: ExperimentConfig, left_out: LeftOut) -> str:
    """Return which fields to set to which values, so that at most 1 % of the examples are left out."""
    model, data = config.model, config.data
    length = left_out.most
    fields = {"data.max_length": length}
    if model.has_position_table and model.max_length < length:
        fields["model.max_length"] = length
    width = max(data.packed_length, length) if data.batching == "packed" else length
    if data.batching == "packed" and width > data.packed_length:
        fields["data.packed_length"] = width
    if data.row_multiple * width > data.tokens_per_batch:
        fields["data.tokens_per_batch"] = data.row_multiple * width
    settings = " ".join(f"{name}={value}" for name, value in fields.items())
    text = f"99 % of them fit with {settings} (the longest has {left_out.longest:,} tokens)"
    if "data.cut_texts" in (TASKS[config.task.name].reads or ()) and not data.cut_texts:
        text = f"data.cut_texts=true cuts them at their end; {text}"
    return text
