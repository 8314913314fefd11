"""The training batches of a config before any run of it, for the shapes that they will have."""

from __future__ import annotations

import json
import tempfile
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import TrainingBatches
from transformer_jax.data.columns import EncodedSplit
from transformer_jax.data.datasets import prepare_data
from transformer_jax.errors import ConfigError
from transformer_jax.host.terminal import say
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.tasks.flops import has_fixed_shape
from transformer_jax.tasks.task import TASKS

_splits: dict[Any, EncodedSplit] = {}
"""Tokenized training splits by all that they depend on."""


def planned_batches(config: ExperimentConfig) -> TrainingBatches | None:
    """Return the training batches of a run; None if their shape follows from the config (`has_fixed_shape`).

    The corpus is tokenized once for all variants that read it alike, into `data.cache_dir` if it is set. Shapes of
    batches do not depend on the seed.

    Raises: ConfigError if the run starts from a checkpoint, whose tokenizer may not exist yet; the errors of
      `prepare_data` and `training_batches`.
    """
    if has_fixed_shape(config):
        return None
    if config.training.init_from:
        raise ConfigError(
            f"training.init_from={config.training.init_from}: the shapes of batches with data.batching="
            f"'{config.data.batching}' depend on the tokenizer of a checkpoint. A sweep does not read it first; "
            "use data.batching=windows or rows, or give the number of steps"
        )
    task, model = TASKS[config.task.name], config.model
    columns, added = task.columns(config), tuple(task.added_tokens(config))
    sizes = model.inputs, model.vocab_size, model.source_vocab_size, config.task.num_labels
    key = config.data, json.dumps([column.key for column in columns]), added, sizes
    if key not in _splits:
        with tempfile.TemporaryDirectory() as folder:
            data = prepare_data(config, columns, folder, say=say, needed=("train",), added_tokens=added)
            _splits[key] = data.splits["train"]
    return training_batches(config, _splits[key])
