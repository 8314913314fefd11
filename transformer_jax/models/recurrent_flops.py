"""Operations and memory of a training step of a recurrent model, from the config alone."""

from __future__ import annotations

from collections.abc import Mapping

from transformer_jax.config import ModelConfig
from transformer_jax.nn.recurrent import CELLS
from transformer_jax.nn.recurrent_attention import attention_of


def train_flops(config: ModelConfig, rows: int, widths: Mapping[str, int], head: int | None = None) -> int:
    """Return the floating-point operations of one training step: three times its forward pass.

    With the letters of `nn/recurrent.py` and `nn/recurrent_decoder.py`, the forward pass of the matrix products is, a
    multiply-add being 2 operations,

        cell          2 B T (I + U) Q U      of every layer and direction; I with the context or vector that is fed
        bridge        2 B M L parts U        `tanh` and `linear`
        attention     2 B T S (A + M)        scores and contexts, in full, whatever the mask
          keys        2 B S M U              `additive` and `general`
          queries     2 B T U U              `additive`
          vector      2 B T (M + U) U        `dot` and `general`
        maxout        4 B T (U + M + D) D
        output        2 B T R V              of the last stack, or `head`

    Embedding lookups, gates, softmax and other elementwise work are not counted, nor the search for own outputs when
    `teacher_forcing_rate` is below 1.

    Args:
      rows: B; widths: of `inputs`, S, and `targets`, T, as far as the model has the stacks.
      head: operations of the forward pass of a task's head; None for logits over the vocabulary.
    """
    config = config.resolved()
    source = rows * widths["inputs"] if config.num_encoder_layers else 0
    target = rows * widths["targets"] if config.num_decoder_layers else 0
    output = 2 * (target or source) * config.output_dim * config.vocab_size
    total = _encoder(config) * source + _decoder(config) * target + (output if head is None else head)
    if config.form == "encoder_decoder":
        total += _between(config, rows, source, target, widths["inputs"])
    return 3 * total


def activation_bytes(config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1) -> int:
    """Return roughly the bytes that one training step needs beside parameters, gradients and moments.

    The formula was fitted to what XLA allocates on a CPU for 100 random models of all cells, attentions and predictors.
    The sum of this estimate and the gradients was 0.70 to 1.16 times that. With the letters of `train_flops`, and M = 0
    without context, the estimate is 4 bytes times

        cell          B T (4 Q + 1) U         of every layer and direction
        embeddings    D B (S + T)
        attention     4 B T M + 2 B S M + 3 B T S
          additive    2 B T S U               tanh of queries and keys
        predictor     2 B T R                 with `maxout` 2 B T (U + M + 3 D)
        logits        1.5 B T V / loss_chunks and their gradients; of a decoder, with the head of a task too

    With bfloat16 XLA allocates about as much, because gates and states are float32.

    Other backends fuse differently. For the compiler's own figure, run `transformer-jax inspect --compile`.

    Args:
      rows: B, on one device. widths: as in `train_flops`. loss_chunks: number of parts in which logits are computed.
    """
    config = config.resolved()
    source = rows * widths["inputs"] if config.num_encoder_layers else 0
    target = rows * widths["targets"] if config.num_decoder_layers else 0
    directions, attention = 2 if config.bidirectional else 1, attention_of(config)
    cells = directions * config.num_encoder_layers * source + config.num_decoder_layers * target
    total = cells * (4 * CELLS[config.cell].num_gates + 1) * config.hidden_dim + (source + target) * config.emb_dim
    if attention is not None:
        total += (4 * target + 2 * source) * config.memory_dim + 3 * target * widths["inputs"]
        if attention.maps_queries:
            total += 2 * target * widths["inputs"] * config.hidden_dim
    if config.num_decoder_layers:
        joined = config.hidden_dim + config.context_dim + 3 * config.emb_dim
        total += 2 * target * (joined if config.deep_output == "maxout" else config.output_dim)
    return 4 * total + 6 * target * config.vocab_size // loss_chunks


def _cell(config: ModelConfig, inputs: int) -> int:
    """Return the operations of a cell per token."""
    return 2 * (inputs + config.hidden_dim) * CELLS[config.cell].num_gates * config.hidden_dim


def _encoder(config: ModelConfig) -> int:
    directions = 2 if config.bidirectional else 1
    upper = (config.num_encoder_layers - 1) * _cell(config, config.memory_dim)
    return directions * (_cell(config, config.emb_dim) + upper)


def _decoder(config: ModelConfig) -> int:
    attention, fed = attention_of(config), 0
    if config.feed_context or (attention is not None and attention.before_cell):
        fed = config.memory_dim
    elif config.input_feeding:
        fed = config.hidden_dim
    total = _cell(config, config.emb_dim + fed)
    total += (config.num_decoder_layers - 1) * _cell(config, config.hidden_dim)
    if config.deep_output == "maxout":
        total += 4 * (config.hidden_dim + config.context_dim + config.emb_dim) * config.emb_dim
    return total


def _between(config: ModelConfig, rows: int, source: int, target: int, length: int) -> int:
    """Return the operations of bridge and attention; source, target: numbers of tokens. length: S."""
    attention, hidden, memory, total = attention_of(config), config.hidden_dim, config.memory_dim, 0
    if config.bridge in ("tanh", "linear"):
        total += 2 * rows * memory * config.num_decoder_layers * CELLS[config.cell].num_parts * hidden
    if attention is None:
        return total
    total += 2 * target * length * (hidden + memory)
    if attention.maps_keys:
        total += 2 * source * memory * hidden
    if attention.maps_queries:
        total += 2 * target * hidden * hidden
    if not attention.before_cell:
        total += 2 * target * (memory + hidden) * hidden
    return total
