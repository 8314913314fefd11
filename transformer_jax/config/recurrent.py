"""The checks of the section `model` for recurrent models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

_ENCODER, _DECODER = ("num_encoder_layers",), ("num_decoder_layers",)
_NEEDS = {
    "bidirectional": _ENCODER,
    **dict.fromkeys(
        ("bridge", "attention", "feed_context", "share_embeddings", "source_vocab_size"), _ENCODER + _DECODER
    ),
    **dict.fromkeys(("deep_output", "teacher_forcing_rate", "decoder_start_id", "output_bias"), _DECODER),
}
"""Fields that need stacks, and the numbers of layers of these."""


def recurrent_problems(model: Any) -> Iterator[str]:
    """Yield the problems of a recurrent model, as messages that begin with a field's name."""
    if not model.num_encoder_layers and not model.num_decoder_layers:
        yield "num_encoder_layers=0 and num_decoder_layers=0: a model needs layers; set one of them"
        return
    yield from _problems_of_stacks(model)
    if model.tie_output and model.num_decoder_layers and model.output_dim != model.emb_dim:
        yield (
            f"tie_output=True needs an output projection that reads emb_dim={model.emb_dim} numbers, but it reads "
            f"{model.output_dim}; set tie_output=false"
        )
    if model.recurrent_implementation == "cudnn" and not model.num_encoder_layers and model.teacher_forcing_rate < 1:
        yield (
            f"recurrent_implementation='cudnn' has no layer to compute with teacher_forcing_rate="
            f"{model.teacher_forcing_rate} and no encoder: the decoder reads its own output; use 'scan'"
        )
    if model.form == "encoder_decoder":
        yield from _problems_of_pairs(model)


def _problems_of_stacks(model: Any) -> Iterator[str]:
    """Yield a problem for every field that is set for a stack that the model lacks."""
    defaults = {field.name: field.default for field in dataclasses.fields(model)}
    defaults["source_vocab_size"] = model.vocab_size
    for name, stack in fields_of_missing_stacks(model).items():
        if getattr(model, name) not in (None, defaults[name]):
            yield f"{name}={getattr(model, name)!r} has no effect with {stack}=0"


def fields_of_missing_stacks(model: Any) -> dict[str, str]:
    """Return the fields that a recurrent model does not read because it lacks a stack, and that stack's number."""
    missing = {name: [stack for stack in stacks if not getattr(model, stack)] for name, stacks in _NEEDS.items()}
    return {name: stacks[0] for name, stacks in missing.items() if stacks}


def _problems_of_pairs(model: Any) -> Iterator[str]:
    """Yield the problems between encoder and decoder."""
    hidden = model.resolved().hidden_dim
    counts = model.num_encoder_layers, model.num_decoder_layers
    if model.bridge == "last" and (model.memory_dim != hidden or counts[0] != counts[1]):
        yield (
            f"bridge='last' copies the states of {counts[0]} encoder layers, of width {model.memory_dim}, to "
            f"{counts[1]} decoder layers of width {hidden}; choose bridge='tanh', or equal numbers of layers and "
            "bidirectional=false"
        )
    if model.bridge == "zero" and not model.context_dim:
        yield "bridge='zero': the decoder would not read the source; set attention or feed_context"
    if model.attention == "dot" and model.memory_dim != hidden:
        yield (
            f"attention='dot' multiplies states of width {hidden} with encoder outputs of width {model.memory_dim}; "
            "choose attention='general'"
        )
