"""Recurrent cells, their scan over time, and a stack of layers that reads a sequence in one direction or in both.

The gates of a cell are sums of a product with its input and one with its state. The first does not depend on the state,
so it is one matrix product for all tokens, outside of the scan. The scan is time-major, so that every step reads and
writes contiguous memory. Padding never changes a state: the state after a row's padding is that after its last token.

Letters beyond those of `transformer_jax.typing`: U width of a state (`hidden_dim`), Q gates of a cell, I width of a
cell's input, M width of an encoder's output, U or 2 U.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, drop, fold_dropout
from transformer_jax.nn.initialisation import (
    KernelInit,
    bias_init,
    forget_bias,
    kernel_init,
    state_kernel_init,
)
from transformer_jax.nn.linear import linear
from transformer_jax.nn.places import at
from transformer_jax.nn.recurrent_kernels import cudnn_lstm, uses_cudnn
from transformer_jax.typing import Array

State = tuple[Array, ...]
"""The state of a cell, float32 arrays [..., U]; the first is the cell's output."""

UNROLL = 8
"""Steps of time in one iteration of the compiled loop, on accelerators."""


def unroll() -> int:
    """Return the steps of time in one iteration of the compiled loop; it changes no result.

    On a CPU, 8 instead of 1 make the program of a training step 3 to 6 times slower to compile and no faster to run.
    """
    return 1 if jax.default_backend() == "cpu" else UNROLL


def lstm(x: Float[Array, "*batch Q U"], h: Float[Array, "*batch Q U"], state: State) -> State:
    """Return c' = sigmoid(f) c + sigmoid(i) tanh(g) and h' = sigmoid(o) tanh(c') as (h', c').

    The gates i, f, g, o are sums of a map of the input x and one of the state h, in the order of PyTorch. Source:
    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.

    Args:
      x, h: [..., 4, U]; state: (h, c).
    """
    gates = x + h
    i, f, g, o = (gates[..., gate, :] for gate in range(4))
    c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def gru(x: Float[Array, "*batch Q U"], h: Float[Array, "*batch Q U"], state: State) -> State:
    """Return h' = (1 - z) tanh(x_n + r h_n) + z h with r = sigmoid(x_r + h_r), z = sigmoid(x_z + h_z) as (h',).

    x and h are maps of the input and of the state, in the order r, z, n of PyTorch. The reset gate r multiplies the map
    of the state, as in cuDNN; in Cho et al. 2014 it multiplies the state.

    Args:
      x, h: [..., 3, U]; state: (h,).
    """
    r, z = (jax.nn.sigmoid(x[..., gate, :] + h[..., gate, :]) for gate in range(2))
    n = jnp.tanh(x[..., 2, :] + r * h[..., 2, :])
    return ((1.0 - z) * n + z * state[0],)


def rnn(x: Float[Array, "*batch Q U"], h: Float[Array, "*batch Q U"], state: State) -> State:
    """Return h' = tanh(x + h) as (h',), with maps x of the input and h of the state [..., 1, U] (Elman 1990)."""
    return (jnp.tanh(x[..., 0, :] + h[..., 0, :]),)


class Cell(NamedTuple):
    """A cell: the number of its gates, Q, the number of arrays in its state, and its function.

    adds_maps: whether the maps of input and state enter only as their sum; then both biases are one addition. forget:
    number of the forget gate, whose initial bias is `Init.forget_bias`; None if there is none.
    """

    num_gates: int
    num_parts: int
    function: Callable[[Array, Array, State], State]
    adds_maps: bool
    forget: int | None = None


CELLS = {
    "lstm": Cell(4, 2, lstm, True, 1),
    "gru": Cell(3, 1, gru, False),
    "rnn": Cell(1, 1, rnn, True),
}
"""By the values of `model.cell`."""


class Affine(nn.Module):
    """Owns `kernel` [I, *features] and, with `use_bias`, `bias` [*features]; biases start as `Init.bias` says."""

    config: ModelConfig
    inputs: int
    features: tuple[int, ...]
    use_bias: bool = True
    init_kernel: KernelInit | None = None
    init_bias: Callable[..., Array] | None = None

    def setup(self) -> None:
        shape, outputs = (self.inputs, *self.features), self.features[-1]
        of_kernel, of_bias = self.init_kernel or kernel_init(self.config), self.init_bias or bias_init(self.config)
        self.kernel = self.param("kernel", lambda key: of_kernel(key, shape, self.inputs, outputs))
        self.bias = self.param("bias", lambda key: of_bias(key, self.features)) if self.use_bias else None

    def __call__(self, x: Float[Array, "*batch I"]) -> Array:
        """Return x W + b, [..., *features]."""
        return linear(x, self.kernel, self.bias)


class CellWeights(NamedTuple):
    """The maps of a layer's cell: input [I, Q, U], its bias [Q, U] or None; state [U, Q, U], its bias or None.

    A cell that only adds its maps has one bias, the sum, with the input.
    """

    input: Array
    input_bias: Array | None
    state: Array
    state_bias: Array | None


class RecurrentCell(nn.Module):
    """Owns the maps `input` [I, Q, U] and `state` [U, Q, U] of the gates; with `cell_biases`, one or both have biases.

    num_inputs: I.
    """

    config: ModelConfig
    num_inputs: int

    def setup(self) -> None:
        config, cell = self.config, CELLS[self.config.cell]
        gates = (cell.num_gates, config.hidden_dim)

        def state_kernel(key: Array, shape: Any, num_inputs: int, num_outputs: int) -> Array:
            square = (num_inputs, num_outputs)
            keys = jax.random.split(key, cell.num_gates)
            return jnp.stack([state_kernel_init(config)(k, square, num_inputs, num_outputs) for k in keys], axis=1)

        def input_bias(key: Array, shape: Any) -> Array:
            bias = bias_init(config)(key, shape)
            return bias if cell.forget is None else bias.at[cell.forget].add(forget_bias(config))

        self.input = Affine(config, self.num_inputs, gates, config.cell_biases > 0, init_bias=input_bias)
        self.state = Affine(config, config.hidden_dim, gates, config.cell_biases > 1, state_kernel)

    def weights(self) -> CellWeights:
        """Return the parameters as arguments of the functions of this module."""
        bias, state_bias = self.input.bias, self.state.bias
        if bias is not None and state_bias is not None and CELLS[self.config.cell].adds_maps:
            bias, state_bias = bias + state_bias, None
        return CellWeights(self.input.kernel, bias, self.state.kernel, state_bias)


def zero_state(config: ModelConfig, *batch: int) -> State:
    """Return zeros [*batch, U] for every part of a cell's state."""
    return tuple(jnp.zeros((*batch, config.hidden_dim)) for _ in range(CELLS[config.cell].num_parts))


def cell_step(config: ModelConfig, weights: CellWeights, gates: Float[Array, "*batch Q U"], state: State) -> State:
    """Return the state after one token.

    Args:
      gates: the map of the input, [..., Q, U]. state: [..., U] each.
    """
    own = linear(state[0].astype(gates.dtype), weights.state, weights.state_bias)  # [..., U] -> [..., Q, U]
    return CELLS[config.cell].function(gates.astype(jnp.float32), own.astype(jnp.float32), state)


def select(keep: Bool[Array, "*batch"], new: Any, old: Any) -> Any:
    """Return a tree with the arrays [*batch, ...] of `new` where keep, and those of `old` elsewhere."""

    def chosen(one: Array, other: Array) -> Array:
        return jnp.where(keep.reshape(*keep.shape, *(1,) * (one.ndim - keep.ndim)), one, other)

    return jax.tree.map(chosen, new, old)


class Resets(NamedTuple):
    """Packed rows: where an example begins, bool [T, B], and the state before it, [T, B, U] each; None for zeros."""

    begins: Array
    states: State | None = None

    def before(self, state: State) -> State:
        """Return the state before a step, with the arrays of that step only: [B] and [B, U]."""
        start = jax.tree.map(jnp.zeros_like, state) if self.states is None else self.states
        return select(self.begins, start, state)


class Scanned(NamedTuple):
    """The states after every step, [T, B, U] each, and the last ones, [B, U] each."""

    states: State
    last: State


def scan_cell(
    config: ModelConfig,
    weights: CellWeights,
    gates: Float[Array, "T B Q U"],
    first: State,
    mask: Bool[Array, "T B"] | None = None,
    resets: Resets | None = None,
    reverse: bool = False,
) -> Scanned:
    """Return the states of a layer after every token.

    Args:
      gates: the map of the inputs, time-major. first: the state before the first token, [B, U] each.
      mask: True for tokens; a step of padding keeps the state. reverse: read from the last token to the first.
    """

    def step(state: State, now: tuple[Array, Array | None, Resets | None]) -> tuple[State, State]:
        own, is_token, begin = now
        before = state if begin is None else begin.before(state)
        state = cell_step(config, weights, own, before)
        state = state if is_token is None else select(is_token, state, before)
        return state, state

    last, states = jax.lax.scan(step, first, (gates, mask, resets), reverse=reverse, unroll=unroll())
    return Scanned(states, last)


class ExampleBounds(NamedTuple):
    """Packed rows: places [B, P] int32 of the last and first token of P examples of every row."""

    last: Int[Array, "B P"]
    first: Int[Array, "B P"]


class Read(NamedTuple):
    """The output of an encoder [B, S, M] and, of every layer, its states after the whole text, [B, P, M] each.

    P is 1; of packed rows, the number of examples of `ExampleBounds`. Those of both directions are concatenated.
    """

    x: Array
    finals: tuple[State, ...]


class RecurrentEncoder(nn.Module):
    """Layers that read a sequence; with `bidirectional`, every layer in both directions, whose outputs are joined.

    Dropout stands between layers, which fold their numbers into its seed, and on the output (`final`).
    """

    config: ModelConfig

    def setup(self) -> None:
        config, layers = self.config, range(self.config.num_encoder_layers)
        widths = [config.memory_dim if layer else config.emb_dim for layer in layers]
        self.forwards = [RecurrentCell(config, width) for width in widths]
        self.backwards = [RecurrentCell(config, width) for width in widths] if config.bidirectional else None

    def __call__(
        self,
        x: Float[Array, "B S D"],
        mask: Bool[Array, "B S"] | None,
        begins: Bool[Array, "B S"] | None = None,
        ends: ExampleBounds | None = None,
        dropout: Dropout | None = None,
    ) -> Read:
        """Read embedded tokens [B, S, D]; outputs at padding are zeros.

        Args:
          mask: True for tokens. begins: of packed rows, True for the first token of an example; ends: the examples
            whose states are returned.
        """
        finals: list[State] = []
        for layer in range(self.config.num_encoder_layers):
            x = x if not layer else drop(x, fold_dropout(dropout, layer), "residual")
            parts = [self._read(self.forwards[layer], x, mask, begins, ends, False)]
            if self.backwards is not None:
                parts.append(self._read(self.backwards[layer], x, mask, begins, ends, True))
            x = jnp.concatenate([y for y, _ in parts], axis=-1)  # [B, S, M]
            if mask is not None:
                x = jnp.where(mask[..., None], x, 0.0)
            x = at(f"{layer}/output", x)
            finals.append(tuple(jnp.concatenate(both, axis=-1) for both in zip(*(f for _, f in parts), strict=True)))
        return Read(drop(x, fold_dropout(dropout, self.config.num_encoder_layers + 1), "final"), tuple(finals))

    def _read(
        self,
        cell: RecurrentCell,
        x: Array,
        mask: Array | None,
        begins: Array | None,
        ends: ExampleBounds | None,
        reverse: bool,
    ) -> tuple[Array, State]:
        """Return the outputs [B, S, U] of one direction of a layer, and its final states [B, P, U] each."""
        config, weights = self.config, cell.weights()
        if uses_cudnn(config, packed=begins is not None):
            lengths = None if mask is None else mask.sum(1)
            start = zero_state(config, len(x))
            outputs, last = cudnn_lstm(x, start, weights.input, weights.input_bias, weights.state, lengths, reverse)
            return outputs, tuple(part[:, None] for part in last)
        gates = linear(x.swapaxes(0, 1), weights.input, weights.input_bias)  # [S, B, I] -> [S, B, Q, U]
        resets = None
        if begins is not None:
            # In reverse, an example begins at its last token: where the next one begins.
            resets = Resets((jnp.roll(begins, -1, axis=1) if reverse else begins).swapaxes(0, 1))
        states, last = scan_cell(
            config,
            weights,
            gates,
            zero_state(config, len(x)),
            None if mask is None else mask.swapaxes(0, 1),
            resets,
            reverse,
        )
        outputs = states[0].swapaxes(0, 1).astype(x.dtype)  # [S, B, U] -> [B, S, U]
        if ends is None:
            return outputs, tuple(part[:, None] for part in last)
        places = (ends.first if reverse else ends.last)[..., None]  # [B, P, 1]
        return outputs, tuple(jnp.take_along_axis(part.swapaxes(0, 1), places, axis=1) for part in states)


CELL_AXES = {
    "input/kernel": Axes(("emb",), ("mlp",), (None,)),
    "input/bias": Axes((), ("mlp",), (None,)),
    "state/kernel": Axes(("emb",), ("mlp",), (None,)),
    "state/bias": Axes((), ("mlp",), (None,)),
}
"""Axes of the parameters of `RecurrentCell`, by the end of their paths."""
PARAMETER_AXES = {rf"(forwards|backwards)_\d+/{path}": axes for path, axes in CELL_AXES.items()}
"""The same of `RecurrentEncoder`."""
