"""One or two texts as one sequence: [start] a [end], or [start] a [end] b [end] (Devlin et al. 2019, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.data.batching import Batch, Rows
from transformer_jax.data.tokenizers.tokenizer import Frame, SpecialIds
from transformer_jax.errors import ConfigError

if TYPE_CHECKING:
    import jax


class Marks(NamedTuple):
    """Ids of the tokens before the first text and after every text, and of padding."""

    start: int
    end: int
    pad: int


def marks(config: ExperimentConfig, special_ids: SpecialIds) -> Marks:
    """Return the ids around texts: the tokenizer's classification and separator tokens, or else its bos and eos.

    A decoder begins with `model.decoder_start_id`, as in its pretraining.

    Raises: ConfigError if the tokenizer lacks one of them.
    """
    start, end, *_ = text_frame(config.model, special_ids)
    for id, role in ((start, "the beginning of a text (cls or bos)"), (end, "the end of a text (sep or eos)")):
        if id is None:
            raise ConfigError(
                f"config: task.name='{config.task.name}': the tokenizer has no id for {role}; choose another "
                "data.tokenizer"
            )
    assert start is not None
    assert end is not None
    return Marks(start, end, special_ids.pad or 0)


def text_frame(model: ModelConfig, special_ids: SpecialIds) -> Frame:
    """Return the ids around texts as `marks`; None for one that the tokenizer lacks."""
    start = model.decoder_start_id if model.form == "decoder_only" else special_ids.start_of_text
    return Frame(start, special_ids.end_of_text, pairs=True)


def is_causal(config: ExperimentConfig) -> bool:
    """Return whether the model reads `decoder_inputs`, as a language model, and not `inputs`."""
    return config.model.form == "decoder_only"


def sequence_name(config: ExperimentConfig) -> str:
    """Return the name of the sequence in `Task.lengths` and `Task.widths`."""
    return "targets" if is_causal(config) else "inputs"


def framed(
    config: ExperimentConfig, marks: Marks, texts: Sequence[Sequence[np.ndarray]], rows: Rows, width: int
) -> Batch:
    """Return the arrays of a batch that hold texts.

    Args:
      texts: of every row, one or two arrays of ids; none for an empty row.
      width: S, at least the tokens of each row with its marks.
    Returns: `inputs` [B, S], or `decoder_inputs` for a decoder; `inputs_mask` [B, S]; `types` [B, S] if
      `model.token_types` is 2 or more: 0 for the first text with its marks, 1 for the second; `row_ids` [B].
    """
    ids = np.full((len(texts), width), marks.pad, np.int32)
    types, lengths = np.zeros_like(ids), np.zeros(len(texts), np.int32)
    for row, parts in enumerate(texts):
        place = 0
        if parts:
            ids[row, 0], place = marks.start, 1
        for number, part in enumerate(parts):
            end = place + len(part)
            ids[row, place:end], ids[row, end] = part, marks.end
            if number:
                types[row, place : end + 1] = number
            place = end + 1
        lengths[row] = place
    batch = {
        "decoder_inputs" if is_causal(config) else "inputs": ids,
        "inputs_mask": np.arange(width) < lengths[:, None],
        "row_ids": rows.row_ids,
    }
    if config.model.token_types > 1 and not is_causal(config):
        batch["types"] = types
    return batch


def template(
    config: ExperimentConfig, rows: int, widths: Mapping[str, int], targets: tuple[int, ...]
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shapes and types of the arrays of `framed`, and of `targets` and `weights` of this shape."""
    import jax

    ids = jax.ShapeDtypeStruct((rows, widths[sequence_name(config)]), np.int32)
    arrays = {
        "decoder_inputs" if is_causal(config) else "inputs": ids,
        "inputs_mask": jax.ShapeDtypeStruct(ids.shape, np.bool_),
        "row_ids": jax.ShapeDtypeStruct((rows,), np.int32),
    }
    if config.model.token_types > 1 and not is_causal(config):
        arrays["types"] = ids
    return arrays | {
        "targets": jax.ShapeDtypeStruct(targets, np.int32),
        "weights": jax.ShapeDtypeStruct(targets, np.float32),
    }
