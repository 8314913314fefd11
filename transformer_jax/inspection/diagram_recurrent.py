"""The parts of a diagram of a recurrent model; `diagram_parts` has those of Transformers."""

from __future__ import annotations

from collections.abc import Iterator

from transformer_jax.config import ExperimentConfig, ModelConfig
from transformer_jax.inspection.diagram_parts import (
    Box,
    Column,
    Part,
    Repeat,
    counted,
    dropout,
    inputs_of,
    lines,
    output_parts,
    token_embedding,
)
from transformer_jax.nn.recurrent import CELLS
from transformer_jax.nn.recurrent_attention import attention_of
from transformer_jax.nn.recurrent_decoder import MAPPING_BRIDGES

_BIASES = ("no biases", "1 bias", "2 biases")


def recurrent_columns(config: ExperimentConfig) -> list[Column]:
    """Return one column for every stack of a recurrent model, the encoder first."""
    model = config.model
    is_pair = model.form == "encoder_decoder"
    columns = []
    if model.num_encoder_layers:
        parts: list[Part] = [*_input_parts(model, True, is_pair), *_encoder(model)]
        parts += [] if model.num_decoder_layers else output_parts(config, model.output_dim)
        columns.append(Column("encoder", inputs_of(model, "encoder", is_pair), tuple(parts)))
    if model.num_decoder_layers:
        parts = [*_input_parts(model, False, is_pair), *_decoder(model, is_pair)]
        parts += output_parts(config, model.output_dim)
        columns.append(Column("decoder", inputs_of(model, "decoder", is_pair), tuple(parts)))
    return columns


def _input_parts(config: ModelConfig, is_source: bool, is_pair: bool) -> Iterator[Part]:
    table = token_embedding(config, is_source, is_pair)
    rate = config.teacher_forcing_rate
    if not is_source and rate < 1:
        table = table._replace(lines=(*table.lines, f"own output: share {1 - rate:.3g}"))
    yield table
    yield from dropout(config.embedding_dropout_rate)


def _cell_lines(config: ModelConfig, *more: str | bool | None) -> tuple[str, ...]:
    cell = CELLS[config.cell]
    gates = f"{cell.num_gates} gate{'s' if cell.num_gates > 1 else ''}"
    return lines(f"{gates}, width {config.hidden_dim:,}", _BIASES[config.cell_biases], *more)


def _layers(config: ModelConfig, number: int, cell: Box) -> Repeat:
    between = tuple(dropout(config.dropout_rate)) if number > 1 else ()
    return Repeat(counted(number), (cell, *(box._replace(title=f"{box.title} between layers") for box in between)))


def _encoder(config: ModelConfig) -> Iterator[Part]:
    both = config.bidirectional
    owns = ("encoder/forwards_", *(("encoder/backwards_",) if both else ()))
    direction = f"two directions → {config.memory_dim:,}" if both else "left to right"
    cell = Box(config.cell, _cell_lines(config, direction), "recurrent", owns)
    yield _layers(config, config.num_encoder_layers, cell)
    yield from dropout(config.final_dropout_rate)


def _decoder(config: ModelConfig, is_pair: bool) -> Iterator[Part]:
    attention, width = attention_of(config), config.hidden_dim
    first = reads = None
    if is_pair:
        first = f"first state: {config.bridge}"
        reads = config.feed_context and "reads the encoder's last state"
    state, result = "the new state", f"context of {config.memory_dim:,}"
    if attention is not None and attention.before_cell:
        state, result = "the state before", f"[embedding; context of {config.memory_dim:,}]"
    attends = Box(
        f"{config.attention} attention",
        (f"query: {state}", f"→ {result}"),
        "attention",
        ("decoder/attention/",) if attention is not None and (attention.maps_keys or attention.maps_queries) else (),
        reads_memory=True,
    )
    if attention is not None and attention.before_cell:
        yield attends
    owns = ("decoder/layers_", *(("decoder/bridge/",) if is_pair and config.bridge in MAPPING_BRIDGES else ()))
    reads_memory = is_pair and (config.bridge != "zero" or config.feed_context)
    fed = config.input_feeding and "reads the last attentional vector"
    cell = Box(config.cell, _cell_lines(config, first, reads, fed), "recurrent", owns, reads_memory)
    yield _layers(config, config.num_decoder_layers, cell)
    if attention is not None and not attention.before_cell:
        yield attends
        mixed = (f"tanh(W [context; state]) → {width:,}", *lines(fed and "fed into the next step"))
        yield Box("attentional vector", mixed, "feed_forward", ("decoder/attentional/",))
    if config.deep_output != "none":
        joined = "state, context, embedding" if config.context_dim else "state, embedding"
        owns = ("decoder/maxout/",) if config.deep_output == "maxout" else ()
        yield Box(f"deep output: {config.deep_output}", (joined, f"→ {config.output_dim:,}"), "feed_forward", owns)
    yield from dropout(config.final_dropout_rate)
