"""Gated DeltaNet: a mixer with a matrix as its state, which decays and is corrected by every token.

With the keys k, queries q and values v of one head, a decay 0 < alpha < 1 and a strength 0 < beta < 1 of every token,

    S_t = alpha_t S_{t-1} + k_t u_t^T        u_t = beta_t (v_t - alpha_t S_{t-1}^T k_t)        o_t = S_t^T q_t

The state S [H, Hv] answers a key with a value. A token erases what the state answers to its key, and writes its own
value. Source: Yang, Kautz and Hatamizadeh 2024 (arXiv 2412.06464), equation 10, whose S is the transpose.

`delta_step` is this recurrence. `delta_chunks` computes the same for a whole text, from matrix products within chunks
of J tokens and a loop over chunks: operations and memory grow with T, not with T^2. Everything is float32 from the
convolution to the norm of the output.

Letters beyond those of `transformer_jax.typing`: Q features of a head that are convolved, 2 H + Hv; A `TAPS`; J tokens
of a chunk.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.initialisation import kernel_init, residual_kernel_init
from transformer_jax.nn.layer_inputs import LayerInputs, LayerState, Mixed
from transformer_jax.nn.layer_values import LayerValues
from transformer_jax.nn.linear import Linear, fused, linear
from transformer_jax.nn.norms import rms_norm
from transformer_jax.nn.places import at
from transformer_jax.nn.recurrent import select
from transformer_jax.typing import Activations, Array

TAPS = 4
"""Tokens that the short convolution reads, the current one included: the value in the authors' code."""
CHUNK = 64
"""The most tokens of a chunk: the value in the authors' code."""
L2_EPSILON = 1e-6
"""Added to the squared length of queries and keys before the square root: the value in the authors' code."""
LARGEST_RATE = 16.0
"""Initial rates of decay are uniform between 0 and this (Gu and Dao's code of Mamba-2)."""
STEP_SIZES = 0.001, 0.1
"""Initial steps of decay are log-uniform in this range (Gu and Dao's code of Mamba-2)."""


class DeltaState(NamedTuple):
    """The state of the mixer after the tokens so far, for each of W hypotheses of a row. Its size is fixed.

    memory: S, [B, W, N, H, Hv] float32. tail: the inputs of the convolution at the last A - 1 tokens,
    [B, W, A - 1, N, Q] in `config.dtype`; zeros stand for tokens before the first.
    """

    memory: Array
    tail: Array


def empty_state(config: ModelConfig, batch: int) -> DeltaState:
    """Return the state before the first token, zeros, with one hypothesis per row: W = 1."""
    memory = jnp.zeros((batch, 1, config.num_heads, config.head_dim, config.value_head_dim), jnp.float32)
    tail = jnp.zeros((batch, 1, TAPS - 1, config.num_heads, convolved_dim(config)), config.dtype)
    return DeltaState(memory, tail)


class DeltaInputs(NamedTuple):
    """Inputs of the recurrence for a token, float32: query, key [..., N, H], value [..., N, Hv], and, [..., N],
    log_decay: log alpha, and strength: beta."""

    query: Array
    key: Array
    value: Array
    log_decay: Array
    strength: Array


def delta_step(
    memory: Float[Array, "*batch N H Hv"], inputs: DeltaInputs
) -> tuple[Float[Array, "*batch N Hv"], Float[Array, "*batch N H Hv"]]:
    """Return the output of one token and the state after it: the recurrence of this module.

    Args:
      memory: [..., N, H, Hv]; inputs: of one token, without an axis of time.
    """
    memory = memory * jnp.exp(inputs.log_decay)[..., None, None]
    answer = jnp.einsum("...nhv,...nh->...nv", memory, inputs.key)
    written = (inputs.value - answer) * inputs.strength[..., None]
    memory = memory + inputs.key[..., :, None] * written[..., None, :]
    return jnp.einsum("...nhv,...nh->...nv", memory, inputs.query), memory


def delta_chunks(
    memory: Float[Array, "B N H Hv"], inputs: DeltaInputs, chunk: int = CHUNK
) -> tuple[Float[Array, "B T N Hv"], Float[Array, "B N H Hv"]]:
    """Return the outputs of T tokens and the state after them; equals `delta_step` token by token.

    Let D_ts be the product of the decays of tokens s + 1 to t of a chunk, 0 for t < s, and d_t that of tokens 1 to t.
    With the state S before the chunk, alpha_t S_{t-1} = d_t S + sum_{s<t} D_ts k_s u_s^T. So the rows u_t of a matrix u
    [J, Hv], and likewise of k, q and v, obey

        (I + A) u = beta (v - d k S)              A_ts = beta_t D_ts k_t^T k_s for s < t, 0 elsewhere
        o = d q S + (D * q k^T) u                 S_J = d_J S + sum_s D_Js k_s u_s^T

    The inverse of I + A, applied to beta v and beta d k, gives u for every S, so the loop over chunks has products
    with S only. This is section 3.3 of the paper. The logarithm of D_ts is a sum over the tokens s + 1 to t, not a
    difference of two cumulative sums: beside a strong decay, the difference would lose the digits of a weak one, and
    for a decay of 0, whose logarithm is -inf, it would be NaN.

    Args:
      memory: the state before the first token. inputs: of T tokens, [B, T, N, ...]; a token with log_decay 0 and
        strength 0 changes no state. chunk: the most tokens of a chunk; chunks are as equal as possible.
    """
    length = inputs.key.shape[1]
    count, size = chunks_of(length, chunk)

    def divided(x: Array) -> Array:
        """[B, T, N, ...] -> [chunks, B, N, J, ...], with zeros after the last token."""
        x = jnp.pad(x, ((0, 0), (0, count * size - length)) + ((0, 0),) * (x.ndim - 2))
        x = x.reshape(x.shape[0], count, size, *x.shape[2:])
        return x.transpose(1, 0, 3, 2, *range(4, x.ndim))

    query, key, value, log_decay, strength = (divided(x) for x in inputs)
    after, until = (_as_rank(jnp.tril(jnp.ones((size, size), bool), k), 5) for k in (-1, 0))  # t > s, t >= s
    between = jnp.cumsum(jnp.where(after, log_decay[..., None], 0.0), axis=-2)
    decay = jnp.exp(jnp.where(until, between, -jnp.inf))  # D, [chunks, B, N, J, J]
    from_start = jnp.exp(jnp.cumsum(log_decay, axis=-1))[..., None]  # d, [chunks, B, N, J, 1]

    strong_key = strength[..., None] * key
    overlap = decay * jnp.einsum("cbnth,cbnsh->cbnts", strong_key, key)  # A; its diagonal has no effect
    right = jnp.concatenate([strength[..., None] * value, from_start * strong_key], axis=-1)
    solved = unit_lower_inverse(overlap) @ right
    written, erased = solved[..., : value.shape[-1]], solved[..., value.shape[-1] :]  # u = written - erased S
    scores = decay * jnp.einsum("cbnth,cbnsh->cbnts", query, key)
    to_end = jnp.swapaxes(decay[..., -1:, :], -1, -2) * key

    def step(memory: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        query, scores, written, erased, to_end, whole = now
        new = written - erased @ memory
        output = query @ memory + scores @ new
        return whole * memory + jnp.swapaxes(to_end, -1, -2) @ new, output

    places = (from_start * query, scores, written, erased, to_end, from_start[..., -1:, :])
    memory, outputs = jax.lax.scan(step, memory, places)  # [chunks, B, N, J, Hv]
    outputs = outputs.transpose(1, 0, 3, 2, 4).reshape(outputs.shape[1], count * size, value.shape[2], -1)
    return outputs[:, :length], memory


def chunks_of(length: int, chunk: int = CHUNK) -> tuple[int, int]:
    """Return the number of chunks and the tokens of each, at most `chunk`, with as little padding as possible."""
    count = max(1, math.ceil(length / chunk))
    return count, max(1, math.ceil(length / count))


@jax.custom_vjp
def unit_lower_inverse(matrix: Float[Array, "*batch J J"]) -> Float[Array, "*batch J J"]:
    """Return (I + A)^-1, A being the part of a matrix below its diagonal; the rest of the matrix has no effect.

    Blocks on the diagonal are inverted in pairs, whose sizes double from 1:

        (P 0; C Q)^-1 = (P^-1 0; -Q^-1 C P^-1 Q^-1)

    For the A of `delta_chunks` no entry of the inverse exceeds 1, since a token multiplies the state by a matrix of
    norm 1 or less, alpha (I - beta k k^T). So the explicit inverse is as exact as substitution. On CPUs a triangular
    solve of XLA (jaxlib 0.10.2) hangs in a program of several devices that exchange numbers; products do not.

    Args:
      matrix: [..., J, J].
    """
    size = matrix.shape[-1]
    padded = 1 << (size - 1).bit_length()
    edge = (0, padded - size)
    matrix = jnp.pad(matrix, ((0, 0),) * (matrix.ndim - 2) + (edge, edge))
    inverse = jnp.ones((*matrix.shape[:-1], 1, 1), matrix.dtype)  # blocks [..., P, 1, 1]
    while (block := inverse.shape[-1]) < padded:
        pairs = matrix.reshape(*matrix.shape[:-2], padded // (2 * block), 2 * block, -1, 2 * block)
        corner = jnp.einsum("...iaib->...iab", pairs)[..., block:, :block]
        upper, lower = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        rows = (
            jnp.concatenate([upper, jnp.zeros_like(upper)], -1),
            jnp.concatenate([-lower @ corner @ upper, lower], -1),
        )
        inverse = jnp.concatenate(rows, axis=-2)
    return inverse[..., 0, :size, :size]


def _inverse_forward(matrix: Array) -> tuple[Array, Array]:
    inverse = unit_lower_inverse(matrix)
    return inverse, inverse


def _inverse_backward(inverse: Array, gradient: Array) -> tuple[Array]:
    """-X^T G X^T below the diagonal, with the inverse X and its gradient G."""
    transposed = jnp.swapaxes(inverse, -1, -2)
    return (-jnp.tril(transposed @ gradient @ transposed, -1),)


unit_lower_inverse.defvjp(_inverse_forward, _inverse_backward)


def _as_rank(x: Array, rank: int) -> Array:
    """Return x with axes of size 1 in front."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def short_convolution(
    x: Float[Array, "B P N Q"], kernel: Float[Array, "A N Q"], begins: Bool[Array, "#B T"] | None = None
) -> Float[Array, "B T N Q"]:
    """Return y_t = sum_a kernel_a x_{t + a} of every feature by itself: the last of the A taps reads the token itself.

    Args:
      x: [B, A - 1 + T, N, Q]: A - 1 tokens before the T tokens, and these. begins: True for the first token of a text,
        [B, T]; it and the tokens after it do not read those before it.
    Returns: [B, T, N, Q] float32.
    """
    taps, length = kernel.shape[0], x.shape[1] - kernel.shape[0] + 1
    if begins is not None:
        text = jnp.pad(jnp.cumsum(begins, axis=1), ((0, 0), (taps - 1, 0)))  # [B, A - 1 + T], the number of the text
    total = jnp.zeros((x.shape[0], length, *x.shape[2:]), jnp.float32)
    for tap in range(taps):
        term = x[:, tap : tap + length].astype(jnp.float32) * kernel[tap][None, None]
        if begins is not None:
            same = text[:, tap : tap + length] == text[:, taps - 1 :]
            term = jnp.where(same[..., None, None], term, 0.0)
        total = total + term
    return total


class QueryKeyValue(NamedTuple):
    """Queries and keys [B, T, N, H] and values [B, T, N, Hv], float32, as `delta_chunks` reads them."""

    query: Array
    key: Array
    value: Array


def convolved_heads(
    x: Float[Array, "B P N Q"], kernel: Float[Array, "A N Q"], begins: Bool[Array, "#B T"] | None, head_dim: int
) -> QueryKeyValue:
    """Return the queries q / (|q| sqrt(H)), keys k / |k| and values v of SiLU(`short_convolution`) = (q, k, v)."""
    active = jax.nn.silu(short_convolution(x, kernel, begins))
    query, key, value = active[..., :head_dim], active[..., head_dim : 2 * head_dim], active[..., 2 * head_dim :]
    return QueryKeyValue(_unit(query) * head_dim**-0.5, _unit(key), value)


def _unit(x: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
    """Return x / sqrt(|x|^2 + epsilon) over the last axis."""
    return x * jax.lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + L2_EPSILON)


class ShortConvolution(nn.Module):
    """Owns `kernel` [A, N, Q]: a causal convolution over time of every feature by itself."""

    config: ModelConfig

    def setup(self) -> None:
        shape = (TAPS, self.config.num_heads, convolved_dim(self.config))
        self.kernel = self.param("kernel", lambda key: kernel_init(self.config)(key, shape, TAPS, TAPS))

    def __call__(self, x: Float[Array, "B P N Q"], begins: Bool[Array, "#B T"] | None = None) -> QueryKeyValue:
        """Return the heads of T tokens; x: [B, A - 1 + T, N, Q] with the A - 1 tokens before them."""
        # Computed again in the backward pass: its many elementwise results take as much memory as the chunks.
        return jax.checkpoint(convolved_heads, static_argnums=3)(x, self.kernel, begins, self.config.head_dim)


def convolved_dim(config: ModelConfig) -> int:
    """Return Q, the features of a query, a key and a value of one head."""
    return 2 * config.head_dim + config.value_head_dim


class Decay(nn.Module):
    """Maps tokens to log alpha = -exp(scale) softplus(x kernel + bias); owns `kernel` [D, N], `bias` and `scale` [N].

    The paper's A_log is `scale`, and its dt_bias is `bias`, here under the names that weight decay leaves out. Their
    initial values make exp(scale) uniform and softplus(bias) log-uniform, in the ranges of this module.
    """

    config: ModelConfig

    def setup(self) -> None:
        width, heads = self.config.emb_dim, self.config.num_heads
        self.kernel = self.param("kernel", lambda key: kernel_init(self.config)(key, (width, heads), width, heads))
        self.bias = self.param("bias", _step_biases, (heads,))
        self.scale = self.param("scale", _log_rates, (heads,))

    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch N"]:
        """Return log alpha [..., N] float32, at most 0, of x [..., D]."""
        steps = jax.nn.softplus(linear(x, self.kernel).astype(jnp.float32) + _as_rank(self.bias, x.ndim))
        return -jnp.exp(_as_rank(self.scale, x.ndim)) * steps


def _log_rates(key: Array, shape: tuple[int, ...]) -> Array:
    """Return logarithms of uniform samples; the lower bound keeps them finite."""
    return jnp.log(jax.random.uniform(key, shape, minval=jnp.finfo(jnp.float32).tiny, maxval=LARGEST_RATE))


def _step_biases(key: Array, shape: tuple[int, ...]) -> Array:
    """Return softplus^-1(s) = s + log(1 - e^-s) of log-uniform samples s."""
    least, largest = STEP_SIZES
    steps = jnp.exp(jax.random.uniform(key, shape, minval=math.log(least), maxval=math.log(largest)))
    return steps + jnp.log(-jnp.expm1(-steps))


def gated_norm(
    x: Float[Array, "*batch N Hv"], gate: Float[Array, "*batch N Hv"], scale: Float[Array, " Hv"], epsilon: float
) -> Float[Array, "*batch N Hv"]:
    """Return `rms_norm`(x) SiLU(gate) for every head, in the type of the gate."""
    y = rms_norm(x, scale, epsilon) * jax.nn.silu(gate.astype(jnp.float32))
    return y.astype(gate.dtype)


class GatedNorm(nn.Module):
    """Owns `scale` [Hv], the gains of an RMSNorm that all heads share."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch N Hv"], gate: Float[Array, "*batch N Hv"]
    ) -> Float[Array, "*batch N Hv"]:
        """Return `gated_norm` of x; it is computed again in the backward pass, like the convolution."""
        scale = self.param("scale", nn.initializers.ones, (self.config.value_head_dim,))
        return jax.checkpoint(gated_norm, static_argnums=3)(x, gate, scale, self.config.norm_epsilon)


class _Projected(NamedTuple):
    """Maps of x [..., D]: joined, the inputs of the convolution [..., N, Q]; gate [..., N, Hv]; log_decay and
    strength [..., N]."""

    joined: Array
    gate: Array
    log_decay: Array
    strength: Array


class GatedDelta(nn.Module):
    """Mixes the tokens of a text by the gated delta rule; N heads with keys of H and values of Hv features.

    Queries, keys and values are linear maps of x, convolved over time, through SiLU; queries and keys are divided by
    their length, and queries by sqrt(H) too. alpha is that of `Decay`, beta the sigmoid of a linear map. The output is
    W^O (RMSNorm(o) SiLU(W^G x)), with one norm per head. Source: Yang et al. 2024, section 3.4 and figure 1, and the
    authors' code. With `use_bias`, all linear maps have biases, which those of the authors do not.

    The text is read in one direction, and positions enter by its order alone. Queries, keys and values have
    `num_heads` heads: `num_kv_heads`, `attention_scale`, `position_encoding` and `attention_dropout_rate` are not read.

    num_sums: number of residual sums of the stack; initial values of the output projection may depend on it.
    """

    config: ModelConfig
    num_sums: int

    def setup(self) -> None:
        config, width = self.config, (self.config.emb_dim,)
        heads, key_dim, value_dim = config.num_heads, config.head_dim, config.value_head_dim
        bias, init = config.use_bias, kernel_init(config)
        self.query = Linear(width, (heads, key_dim), bias, init)
        self.key = Linear(width, (heads, key_dim), bias, init)
        self.value = Linear(width, (heads, value_dim), bias, init)
        self.gate = Linear(width, (heads, value_dim), bias, init)
        self.strength = Linear(width, (heads,), bias, init)
        self.decay = Decay(config)
        self.convolution = ShortConvolution(config)
        self.norm = GatedNorm(config)
        self.out = Linear((heads, value_dim), width, bias, residual_kernel_init(config, self.num_sums))

    def __call__(self, x: Activations, inputs: LayerInputs, dropout: Dropout | None, values: LayerValues) -> Mixed:
        """Map whole texts x [B, T, D] to [B, T, D]; a text of a packed row begins at position 0. See `mixers.Mixer`."""
        return Mixed(self.whole(x, begins=inputs.positions == 0))

    def read(self, x: Activations, inputs: LayerInputs, state: LayerState) -> Mixed:
        """Map the next T tokens x [B, T, D], those that have a position, and return the state after them."""
        return self.read_tokens(x, state.own, inputs.positions >= 0)

    def step(self, x: Activations, inputs: LayerInputs, state: LayerState) -> Mixed:
        """Map one token for each of W hypotheses, x [B, W, D], and return their states."""
        return self.step_tokens(x, state.own)

    def whole(
        self, x: Activations, is_token: Bool[Array, "B T"] | None = None, begins: Bool[Array, "#B T"] | None = None
    ) -> Activations:
        """Map whole texts x [B, T, D] to [B, T, D].

        Args:
          is_token: True for tokens, which come before a row's padding; None: all. Outputs at padding have no meaning.
          begins: of packed rows, True for the first token of every text, which forgets those before it.
        """
        return self._read(x, empty_state(self.config, len(x)), is_token, begins).output

    def read_tokens(self, x: Activations, state: DeltaState, is_token: Bool[Array, "B T"] | None = None) -> Mixed:
        """Read T more tokens x [B, T, D] of every row, and return their outputs and the state after them.

        Args:
          state: of one hypothesis per row, W = 1. is_token: as in `whole`; padding does not change the state.
        Raises: ValueError if the state has several hypotheses.
        """
        if state.memory.shape[1] != 1:
            raise ValueError(f"reading a sequence from the states of {state.memory.shape[1]} hypotheses; expected one")
        return self._read(x, state, is_token, None)

    def step_tokens(self, x: Float[Array, "B W D"], state: DeltaState) -> Mixed:
        """Read one more token x [B, W, D] of each of W hypotheses, and return their outputs and states."""
        projected = self._projected(x)
        window = jnp.concatenate([state.tail, projected.joined[:, :, None]], axis=2)  # [B, W, A, N, Q]
        heads = self.convolution(window.reshape(-1, *window.shape[2:]))  # [B W, 1, N, H or Hv]
        heads = (y.reshape(*x.shape[:2], *y.shape[2:]) for y in heads)
        output, memory = delta_step(state.memory, DeltaInputs(*heads, projected.log_decay, projected.strength))
        return Mixed(self.out(self.norm(output, projected.gate)), DeltaState(memory, window[:, :, 1:]))

    def _read(self, x: Activations, state: DeltaState, is_token: Array | None, begins: Array | None) -> Mixed:
        projected = self._projected(x)
        if begins is not None:
            forgetting = jnp.where(begins[..., None], -jnp.inf, projected.log_decay)
            projected = projected._replace(log_decay=forgetting)
        if is_token is not None:  # a token with zeros changes no state
            projected = select(is_token, projected, jax.tree.map(jnp.zeros_like, projected))
        window = jnp.concatenate([state.tail[:, 0], projected.joined], axis=1)  # [B, A - 1 + T, N, Q]
        inputs = DeltaInputs(*self.convolution(window, begins), projected.log_decay, projected.strength)
        output, memory = delta_chunks(state.memory[:, 0], inputs)
        tail = _tail(window, is_token)
        heads = at("heads", self.norm(output, projected.gate))
        return Mixed(self.out(heads), DeltaState(memory[:, None], tail[:, None]))

    def _projected(self, x: Float[Array, "*batch D"]) -> _Projected:
        query, key, value, gate, strength = fused(x, [self.query, self.key, self.value, self.gate, self.strength])
        strength = jax.nn.sigmoid(strength.astype(jnp.float32))
        return _Projected(jnp.concatenate([query, key, value], axis=-1), gate, self.decay(x), strength)


def _tail(window: Float[Array, "B P N Q"], is_token: Bool[Array, "B T"] | None) -> Array:
    """Return the last A - 1 tokens of every row of A - 1 + T: those before its padding."""
    if is_token is None:
        return window[:, window.shape[1] - (TAPS - 1) :]
    places = is_token.sum(1)[:, None] + jnp.arange(TAPS - 1)[None]
    return jnp.take_along_axis(window, places[..., None, None], axis=1)


PARAMETER_AXES = {
    "(query|key|gate)/kernel": Axes(("emb",), ("heads", None)),
    "value/kernel": Axes(("emb",), ("heads", None), scaled=True),
    "(query|key|value|gate)/bias": Axes((), ("heads", None)),
    "(strength|decay)/kernel": Axes(("emb",), ("heads",)),
    "(strength|decay)/bias": Axes((), ("heads",)),
    "decay/scale": Axes((), ("heads",)),
    "convolution/kernel": Axes((None,), (), ("heads", None)),
    "norm/scale": Axes((), (None,)),
    "out/kernel": Axes(("heads", None), ("emb",), scaled=True),
    "out/bias": Axes((), (None,)),
}
"""Axes of the parameters of `GatedDelta`, by the end of their paths."""


def forward_flops(config: ModelConfig, length: int) -> int:
    """Return the floating-point operations of the forward pass per token, in a row of T = `length` tokens.

    A multiply-add is 2 operations, and matrix products are counted,

        maps      2 D N (2 H + 3 Hv + 2)
        chunks    N (6 J H + 4 J Hv + 6 H Hv)    k k^T, q k^T, the inverse with k and v, q k^T with u; three with S
        inverse   N 2 P (P^2 - 1) / (3 J)        P: the power of 2 that J is padded to

    with the J of `chunks_of`. Padding of the last chunk is not counted, nor is the convolution or other elementwise
    work. The part of the inverse is rounded down. `delta_step` needs 6 N H Hv, and the maps.
    """
    heads, key_dim, value_dim = config.num_heads, config.head_dim, config.value_head_dim
    size = chunks_of(length)[1]
    padded = 1 << (size - 1).bit_length()
    maps = 2 * config.emb_dim * (2 * key_dim + 3 * value_dim + 2)
    chunks = size * (6 * key_dim + 4 * value_dim) + 6 * key_dim * value_dim
    return heads * (maps + chunks) + heads * 2 * padded * (padded**2 - 1) // (3 * size)


def activation_bytes(config: ModelConfig, length: int) -> int:
    """Return roughly the bytes per token that the backward pass of one mixer needs, in rows of T = `length` tokens.

    With E bytes per element of `config.dtype`, what the forward pass keeps is

        E (D + N (2 H + 3 Hv)) + 4 N (6 J + 7 H + 4 Hv + H Hv / J + 9)

    Convolution and norm of the output keep their inputs only. For random sizes, XLA's allocations on a CPU per layer of
    a loop over layers were 0.9 to 1.5 times that, the greatest with bfloat16. Layers that are not looped keep more
    there, because XLA does not compute anything again.
    """
    heads, key_dim, value_dim = config.num_heads, config.head_dim, config.value_head_dim
    element, size = jnp.dtype(config.dtype).itemsize, chunks_of(length)[1]
    own = element * (config.emb_dim + heads * (2 * key_dim + 3 * value_dim))
    return own + 4 * heads * (6 * size + 7 * key_dim + 4 * value_dim + key_dim * value_dim // size + 9)
