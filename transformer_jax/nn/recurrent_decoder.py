"""The recurrent decoder: layers that start from the source, may attend to it, and may read their own last output.

With attention before the cell, or with input feeding, a step reads the result of the step before. Then one scan runs
all layers token by token (`decoder_step`), as decoding does. Otherwise layers run one after the other over all tokens:
products with inputs, attention and the output stand outside of the scans.

Letters as in `nn/recurrent.py`; R is the width of the vectors from which the model predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn import recurrent, recurrent_attention
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, drop, fold_dropout
from transformer_jax.nn.linear import linear
from transformer_jax.nn.places import at, inside, no_visit
from transformer_jax.nn.recurrent import (
    Affine,
    CellWeights,
    Read,
    RecurrentCell,
    Resets,
    State,
    cell_step,
    scan_cell,
    select,
    zero_state,
)
from transformer_jax.nn.recurrent_attention import (
    AttentionMemory,
    AttentionWeights,
    RecurrentAttention,
    attend,
    attention_of,
)
from transformer_jax.nn.recurrent_kernels import cudnn_lstm, uses_cudnn
from transformer_jax.typing import Array


def _bridge_last(config: ModelConfig, read: Read, bridge: Affine | None) -> tuple[State, ...]:
    return read.finals


def _bridge_zero(config: ModelConfig, read: Read, bridge: Affine | None) -> tuple[State, ...]:
    shape = read.finals[-1][0].shape[:2]
    return tuple(zero_state(config, *shape) for _ in range(config.num_decoder_layers))


def _bridge_linear(config: ModelConfig, read: Read, bridge: Affine | None) -> tuple[State, ...]:
    assert bridge is not None
    y = bridge(read.finals[-1][0])  # [B, P, M] -> [B, P, L, parts, U]
    return tuple(tuple(y[:, :, layer, part] for part in range(y.shape[3])) for layer in range(y.shape[2]))


def _bridge_tanh(config: ModelConfig, read: Read, bridge: Affine | None) -> tuple[State, ...]:
    return jax.tree.map(jnp.tanh, _bridge_linear(config, read, bridge))


BRIDGES = {"last": _bridge_last, "tanh": _bridge_tanh, "linear": _bridge_linear, "zero": _bridge_zero}
"""Functions that return the first state of every layer, [B, P, U] each, by the values of `model.bridge`.

- `last`: the last states of the encoder's layers (Sutskever et al. 2014).
- `tanh`: tanh(W h + b) of the last output h of the encoder, of both directions, for every part of every layer's state.
  Bahdanau et al. 2015, section A.2.2, map the backward direction alone, without a bias.
- `linear`: the same as `tanh`, without its tanh.
- `zero`: zeros; the decoder knows of the source only what it reads at every step.
"""
MAPPING_BRIDGES = ("tanh", "linear")


def _state_alone(parts: Sequence[Array], maxout: Affine | None) -> Array:
    return parts[0]


def _concatenated(parts: Sequence[Array], maxout: Affine | None) -> Array:
    return jnp.concatenate(parts, axis=-1)


def _maxout(parts: Sequence[Array], maxout: Affine | None) -> Array:
    assert maxout is not None
    return maxout(_concatenated(parts, None)).max(axis=-2)  # [..., R'] -> [..., 2, D] -> [..., D]


DEEP_OUTPUTS = {"none": _state_alone, "concat": _concatenated, "maxout": _maxout}
"""Functions of [state, context, embedding] that return the vector from which the model predicts, by the values of
`model.deep_output`; a model without context has no such part.

- `none`: the state; with `dot` and `general`, the attentional vector.
- `concat`: all parts joined (Cho et al. 2014, without its maxout).
- `maxout`: max of pairs of W [state; context; embedding]. In Bahdanau et al. 2015, section A.2.2, the state is that
  before the step; here it is that after it.
"""


class EncodedSource(NamedTuple):
    """The source as a decoder reads it. P is 1; of packed rows it is T, and the arrays are of each token's source.

    first: the state of every layer before the first token, [B, P, U] each. summary: the last state of the encoder,
    [B, P, M], that every step reads, or None. memory: for attention, or None.
    """

    first: tuple[State, ...]
    summary: Array | None = None
    memory: AttentionMemory | None = None


class DecoderWeights(NamedTuple):
    """The parameters of a step; `attentional` [M + U, U] makes the vector of `dot` and `general`."""

    cells: tuple[CellWeights, ...]
    attention: AttentionWeights | None
    attentional: Array | None


class Carry(NamedTuple):
    """The state of W hypotheses: of every layer, [B, W, U] each; and the attentional vector that is fed, [B, W, U]."""

    layers: tuple[State, ...]
    feed: Array | None = None


class Stepped(NamedTuple):
    """The output of a step [B, W, U], its context [B, W, M], and its attention weights [B, W, S]; None without."""

    output: Array
    context: Array | None
    shares: Array | None


class OwnOutput(NamedTuple):
    """The means to read the model's own output in place of a token of the target.

    reads_own: [B, T], whether a token is replaced. ids: [B, T] int32, of the targets. embed: maps ids [B, 1] to
    [B, 1, D]. logits: maps [B, 1, R] to [B, 1, V]. keep: factors of dropout on embeddings, [B, T, D], or None.
    """

    reads_own: Bool[Array, "B T"]
    ids: Int[Array, "B T"]
    embed: Callable[[Array], Array]
    logits: Callable[[Array], Array]
    keep: Array | None


class DecoderOutput(NamedTuple):
    """Vectors [B, T, R] from which the model predicts, attention weights [B, T, S] or None, and the state after T."""

    x: Array
    shares: Array | None
    carry: Carry


def decoder_step(
    config: ModelConfig,
    weights: DecoderWeights,
    carry: Carry,
    gates: Float[Array, "B W Q U"],
    memory: AttentionMemory | None,
    keeps: Sequence[Array] = (),
) -> tuple[Carry, Stepped]:
    """Return the state after one token of every hypothesis, and the output.

    Args:
      gates: the first layer's map of the token's embedding and of the summary.
      keeps: factors of dropout on the input of every layer but the first, [B, W, U] each; empty for none.
    """
    attention, dtype = attention_of(config), gates.dtype
    context = shares = fed = feed = None
    if attention is not None and attention.before_cell:
        assert memory is not None
        assert weights.attention is not None
        context, shares = attend(config, weights.attention, carry.layers[-1][0], memory)
        fed = context
    elif config.input_feeding and carry.feed is not None:
        fed = carry.feed.astype(dtype)
    if fed is not None:
        gates = gates + linear(fed, weights.cells[0].input[config.emb_dim :])
    states: list[State] = []
    for layer, (cell, state) in enumerate(zip(weights.cells, carry.layers, strict=True)):
        if layer:
            y = states[-1][0].astype(dtype)
            gates = linear(y * keeps[layer - 1] if keeps else y, cell.input, cell.input_bias)
        states.append(cell_step(config, cell, gates, state))
    output = states[-1][0].astype(dtype)
    if attention is not None and not attention.before_cell:
        assert memory is not None
        assert weights.attention is not None
        context, shares = attend(config, weights.attention, output, memory)
        output = _attentional(weights, context, output)
        feed = output.astype(jnp.float32) if config.input_feeding else None
    return Carry(tuple(states), feed), Stepped(output, context, shares)


def feeds_back(config: ModelConfig) -> bool:
    """Return whether a cell reads what the step before computed, besides its state: its output, or its attention."""
    attention = attention_of(config)
    return config.input_feeding or (attention is not None and attention.before_cell)


def _attentional(weights: DecoderWeights, context: Array, output: Array) -> Array:
    """Return tanh(W [context; output]), [..., U] (Luong et al. 2015, equation 5)."""
    assert weights.attentional is not None
    return jnp.tanh(linear(jnp.concatenate([context, output], axis=-1), weights.attentional))


def _at_every_token(summary: Array, x: Array) -> Array:
    """Return the summary [B, P, M] at every token of x [B, T, D], as [B, T, M]."""
    return jnp.broadcast_to(summary, (*x.shape[:-1], summary.shape[-1]))


def _time_major(x: Array) -> Array:
    return x.swapaxes(0, 1)


class RecurrentDecoder(nn.Module):
    """Layers of recurrent cells, and the two modules through which they read the source: the bridge and the attention.

    Dropout acts between layers, where each layer folds its number into the seed, and on the vectors that the next token
    is predicted from (place `final`).
    """

    config: ModelConfig

    def setup(self) -> None:
        config, attention, paired = self.config, attention_of(self.config), self.config.form == "encoder_decoder"
        hidden, extra = config.hidden_dim, 0
        if config.feed_context or (attention is not None and attention.before_cell):
            extra = config.memory_dim
        elif config.input_feeding:
            extra = hidden
        widths = [hidden if layer else config.emb_dim + extra for layer in range(config.num_decoder_layers)]
        self.layers = [RecurrentCell(config, width) for width in widths]
        mapped = paired and config.bridge in MAPPING_BRIDGES
        shape = (config.num_decoder_layers, recurrent.CELLS[config.cell].num_parts, hidden)
        self.bridge = Affine(config, config.memory_dim, shape) if mapped else None
        self.attention = RecurrentAttention(config) if attention is not None else None
        self.attentional = None
        if attention is not None and not attention.before_cell:
            self.attentional = Affine(config, config.memory_dim + hidden, (hidden,), use_bias=False)
        self.maxout = None
        if config.deep_output == "maxout":
            parts = hidden + config.context_dim + config.emb_dim
            self.maxout = Affine(config, parts, (2, config.emb_dim), use_bias=False)

    def source(self, read: Read, mask: Bool[Array, "B _ S"] | None) -> EncodedSource:
        """Return the source for the decoder.

        Args:
          mask: the encoder's tokens that each token of the decoder may attend to.
        """
        first = BRIDGES[self.config.bridge](self.config, read, self.bridge)
        summary = read.finals[-1][0].astype(read.x.dtype) if self.config.feed_context else None
        return EncodedSource(first, summary, None if self.attention is None else self.attention.memory(read.x, mask))

    def no_source(self, rows: int) -> EncodedSource:
        """Return the source for a decoder without an encoder: the first state of every layer is zeros [B, 1, U]."""
        return EncodedSource(tuple(zero_state(self.config, rows, 1) for _ in range(self.config.num_decoder_layers)))

    def carry(self, source: EncodedSource) -> Carry:
        """Return the state before the first token; of packed rows, whose states `Resets` gives, zeros; [B, 1, U]."""
        first = jax.tree.map(lambda x: x[:, :1], source.first)
        return Carry(first, jnp.zeros_like(first[-1][0]) if self.config.input_feeding else None)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: EncodedSource,
        begins: Bool[Array, "B T"] | None = None,
        mask: Bool[Array, "B T"] | None = None,
        dropout: Dropout | None = None,
        own: OwnOutput | None = None,
    ) -> DecoderOutput:
        """Read embedded tokens [B, T, D].

        Args:
          begins: of packed rows, True for the first token of every example.
          mask: True for tokens; a step of padding keeps the state. None if nothing follows the padding.
          own: makes the decoder read its own output in place of x.
        """
        run = self._token_by_token if feeds_back(self.config) or own is not None else self._layer_by_layer
        decoded = run(x, source, begins, mask, dropout, own)
        return decoded._replace(x=drop(decoded.x, fold_dropout(dropout, self.config.num_decoder_layers + 1), "final"))

    def step(self, x: Float[Array, "B W D"], carry: Carry, source: EncodedSource) -> DecoderOutput:
        """Feed one embedded token per hypothesis; return the vectors [B, W, R], and the new state."""
        weights = self._weights()
        gates = self._input_gates(weights, x, source.summary)
        carry, stepped = decoder_step(self.config, weights, carry, gates, source.memory)
        return DecoderOutput(self._predictor(stepped, source, x), stepped.shares, carry)

    def _weights(self) -> DecoderWeights:
        return DecoderWeights(
            tuple(layer.weights() for layer in self.layers),
            None if self.attention is None else self.attention.weights(),
            None if self.attentional is None else self.attentional.kernel,
        )

    def _input_gates(self, weights: DecoderWeights, x: Array, summary: Array | None) -> Array:
        """Return the first layer's map of embeddings and of the summary, [..., D] -> [..., Q, U]."""
        cell, width = weights.cells[0], self.config.emb_dim
        gates = linear(x, cell.input[:width], cell.input_bias)
        return gates if summary is None else gates + linear(summary, cell.input[width:])

    def _predictor(self, stepped: Stepped, source: EncodedSource, x: Array) -> Array:
        """Return the vectors from which the model predicts, [..., R]."""
        context = stepped.context
        if source.summary is not None:
            context = _at_every_token(source.summary, x)
        parts = [stepped.output, *([] if context is None else [context]), x]
        return DEEP_OUTPUTS[self.config.deep_output](parts, self.maxout)

    def _resets(self, source: EncodedSource, begins: Array | None) -> list[Resets | None]:
        """Return the resets of every layer; None without packed rows."""
        if begins is None:
            return [None] * len(self.layers)
        packed = self.config.form == "encoder_decoder"
        return [
            Resets(_time_major(begins), jax.tree.map(_time_major, state) if packed else None) for state in source.first
        ]

    def _layer_by_layer(
        self,
        x: Array,
        source: EncodedSource,
        begins: Array | None,
        mask: Array | None,
        dropout: Dropout | None,
        own: OwnOutput | None,
    ) -> DecoderOutput:
        """Run every layer over all tokens, then attention."""
        config, weights, resets = self.config, self._weights(), self._resets(source, begins)
        first, is_token = self.carry(source).layers, None if mask is None else _time_major(mask)
        summary = None if source.summary is None else _time_major(source.summary)
        by_cudnn = uses_cudnn(config, packed=begins is not None)
        y, last = x, []
        for layer, cell in enumerate(weights.cells):
            if layer:
                y = drop(y, fold_dropout(dropout, layer), "residual")
            start = tuple(part[:, 0] for part in first[layer])
            if by_cudnn:
                if not layer and source.summary is not None:
                    y = jnp.concatenate([y, _at_every_token(source.summary, y)], axis=-1)
                lengths = None if mask is None else mask.sum(1)
                y, final = cudnn_lstm(y, start, cell.input, cell.input_bias, cell.state, lengths)
            else:
                read = _time_major(y)
                gates = (
                    linear(read, cell.input, cell.input_bias) if layer else self._input_gates(weights, read, summary)
                )
                states, final = scan_cell(config, cell, gates, start, is_token, resets[layer])
                y = _time_major(states[0]).astype(x.dtype)  # [T, B, U] -> [B, T, U]
            y = at(f"{layer}/output", y)
            last.append(tuple(part[:, None] for part in final))
        context = shares = None
        if source.memory is not None:
            assert weights.attention is not None
            with inside("cross_attention"):
                context, shares = attend(config, weights.attention, y, source.memory)
            y = _attentional(weights, context, y)
        return DecoderOutput(self._predictor(Stepped(y, context, shares), source, x), shares, Carry(tuple(last)))

    def _token_by_token(
        self,
        x: Array,
        source: EncodedSource,
        begins: Array | None,
        mask: Array | None,
        dropout: Dropout | None,
        own: OwnOutput | None,
    ) -> DecoderOutput:
        """Run all layers in one scan over tokens."""
        config, weights, memory = self.config, self._weights(), source.memory
        keeps: tuple[Array, ...] = ()
        if dropout is not None and dropout.rates.residual is not None:
            ones = jnp.ones((*x.shape[:2], config.hidden_dim), x.dtype)
            folded = [fold_dropout(dropout, layer) for layer in range(1, len(self.layers))]
            keeps = tuple(_steps(drop(ones, one, "residual")) for one in folded)
        packed = begins is not None
        now = _Now(
            gates=_steps(self._input_gates(weights, x, source.summary)) if own is None else None,
            keeps=keeps,
            begins=_time_major(begins) if begins is not None else None,
            first=jax.tree.map(_steps, source.first) if packed and config.form == "encoder_decoder" else None,
            is_token=None if mask is None else _time_major(mask),
            mask=_steps(memory.mask) if packed and memory is not None and memory.mask is not None else None,
            own=None if own is None else jax.tree.map(_steps, (own.reads_own, own.ids, own.keep)),
        )

        def step(state: tuple[Carry, Array], now: _Now) -> tuple[tuple[Carry, Array], Any]:
            before, said = state
            if now.begins is not None:
                start = jax.tree.map(jnp.zeros_like, before)
                before = select(now.begins, start if now.first is None else start._replace(layers=now.first), before)
            gates, y = now.gates, None
            if own is not None:
                reads_own, ids, keep = now.own
                said = jnp.where(reads_own, said, ids)
                y = own.embed(said) if keep is None else own.embed(said) * keep
                gates = self._input_gates(weights, y, source.summary)
            assert gates is not None
            visible = memory if memory is None or now.mask is None else memory._replace(mask=now.mask)
            carry, stepped = decoder_step(config, weights, before, gates, visible, now.keeps)
            carry = carry if now.is_token is None else select(now.is_token, carry, before)
            if own is None:
                return (carry, said), stepped
            assert y is not None
            predictor = self._predictor(stepped, source, y)
            said = own.logits(predictor).argmax(-1).astype(jnp.int32)
            return (carry, said), (predictor, stepped.shares)

        start = self.carry(source), jnp.zeros((len(x), 1), jnp.int32)
        with no_visit():
            (carry, _), outputs = jax.lax.scan(step, start, now, unroll=recurrent.unroll())
        if own is not None:
            predictor, shares = jax.tree.map(_joined, outputs)
            return DecoderOutput(predictor, shares, carry)
        stepped = jax.tree.map(_joined, outputs)
        return DecoderOutput(self._predictor(stepped, source, x), stepped.shares, carry)


class _Now(NamedTuple):
    """The inputs of a scan over tokens, [T, B, ...] each, with one hypothesis; None where there are none.

    own: of `OwnOutput`, reads_own, ids and keep.
    """

    gates: Array | None
    keeps: tuple[Array, ...]
    begins: Array | None
    first: tuple[State, ...] | None
    is_token: Array | None
    mask: Array | None
    own: Any


def _steps(x: Array) -> Array:
    """Return x [B, T, ...] as the inputs of steps with one hypothesis, [T, B, 1, ...]."""
    return x.swapaxes(0, 1)[:, :, None]


def _joined(y: Array) -> Array:
    """Return the outputs of steps with one hypothesis, [T, B, 1, ...], as [B, T, ...]."""
    return y[:, :, 0].swapaxes(0, 1)


PARAMETER_AXES = {
    **{rf"layers_\d+/{path}": axes for path, axes in recurrent.CELL_AXES.items()},
    **recurrent_attention.PARAMETER_AXES,
    "bridge/kernel": Axes(("emb",), ("mlp",), (None, None)),
    "bridge/bias": Axes((), ("mlp",), (None, None)),
    "attentional/kernel": Axes(("emb",), ("mlp",)),
    "maxout/kernel": Axes(("emb",), ("mlp",), (None,)),
}
"""Axes of the parameters of `RecurrentDecoder`, by the end of their paths."""
