"""The model and the tokenizer of `training.init_from`, which a fine-tuned model shares."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from transformer_jax.checkpoints.locate import open_checkpoint
from transformer_jax.config import ExperimentConfig, without_outside_trackers
from transformer_jax.data.side_files import stored_tokenizer
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import CheckpointError
from transformer_jax.tasks.task import higher_is_better
from transformer_jax.training.init_from import STARTS_FROM


class PretrainedModel(NamedTuple):
    """The model of a checkpoint.

    fields: of the section `model`, and those that say how its tokenizer reads text, by dotted name. max_length: rows of
    its table of positions; None without one.
    """

    fields: dict[str, Any]
    tokenizer: Tokenizer | None
    max_length: int | None


def read_pretrained(path: str, architecture: str) -> PretrainedModel:
    """Return the model of a checkpoint.

    Args:
      path: the value of `training.init_from`. architecture: the one that is trained; it stays if it can start from
        another one's checkpoint.
    Raises: CheckpointError if there is no such checkpoint; ConfigError if its config cannot be read.
    """
    try:
        store, named = open_checkpoint(path, higher_is_better)
        step = store.newest_good() if named is None else named
        if step is None:
            raise CheckpointError(f"{store.directory}: no checkpoint")
        checkpoint = store.open(step)
        values = without_outside_trackers(checkpoint.record["config"])
        stored = ExperimentConfig.from_config_dict(values).with_derived_unset()
        tokenizer = stored_tokenizer(checkpoint.side_files)
    except CheckpointError as error:
        raise CheckpointError(f"training.init_from={path}: {error}") from error
    model, data = stored.model, stored.data
    ours = architecture if model.architecture in STARTS_FROM.get(architecture, ()) else model.architecture
    fields: dict[str, Any] = {"model.architecture": ours}
    for field in dataclasses.fields(model):
        value, readers = (
            getattr(model, field.name),
            field.metadata.get("read_by", {}).get("model.architecture", (ours,)),
        )
        if field.name != "architecture" and ours in readers:  # None stays derived
            fields[f"model.{field.name}"] = value
    of_data = ("tokenizer",) if model.inputs == "tokens" else ("resize", "colours")
    fields |= {f"data.{name}": getattr(data, name) for name in of_data}
    table = model.has_position_table and model.inputs == "tokens"
    return PretrainedModel(fields, tokenizer, model.max_length if table else None)
