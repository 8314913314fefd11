"""The choice of the implementation that runs a recurrent layer over all tokens.

- `scan`: `recurrent.scan_cell`, the equations of the cells in a loop over tokens.
- `cudnn`: `jax.experimental.rnn.lstm`, cuDNN's LSTM on an NVIDIA GPU. One call computes a whole layer, where the loop
  starts several kernels per token.

cuDNN computes every layer whose inputs are known before its first step: those of an encoder, of a language model, and
of a decoder without input feeding that neither reads its own output nor attends to the source before the cell. The
other decoders use `scan`, and so do losses in evaluation, since XLA cannot divide `cudnn` over devices, nor `jax.vmap`
batch it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.typing import Array

_FULL_PRECISION = ("highest", "float32", "F32_F32_F32")


def uses_cudnn(config: ModelConfig, *, packed: bool = False, backend: str | None = None) -> bool:
    """Return whether layers of a recurrent model run by cuDNN's LSTM.

    Args:
      config: resolved.
      packed: whether a row may hold several examples.
      backend: `cpu`, `gpu` or `tpu`; by default JAX's default backend.
    Raises: ConfigError if the config asks for cuDNN, which cannot compute this model here.
    """
    if not {"scan": False, "cudnn": True}[config.recurrent_implementation]:
        return False
    if problem := _obstacle(config, packed, backend or jax.default_backend()):
        raise cudnn_refusal(problem)
    return True


def cudnn_refusal(problem: str, remedy: str = "") -> ConfigError:
    """Return the error that cuDNN's LSTM cannot be used, with a remedy besides `scan`."""
    return ConfigError(
        f"config: model.recurrent_implementation='cudnn' is not possible: {problem}; {remedy and f'{remedy}, or '}set "
        "model.recurrent_implementation='scan', which continues the same run"
    )


def _obstacle(config: ModelConfig, packed: bool, backend: str) -> str:
    """Return the reason why cuDNN's LSTM cannot be used; empty if it can."""
    if config.dtype != "float32":
        return f"dtype='{config.dtype}', but it computes in float32 only"
    if packed:
        return "it cannot begin a new example inside a row, as data.batching='packed' needs"
    if backend != "gpu":
        return f"JAX computes on a {backend.upper()}"
    if "cuda" not in jax.devices()[0].client.platform_version.lower():
        return "the GPU is not from NVIDIA"
    return ""


def cudnn_lstm(
    x: Float[Array, "B T I"],
    first: tuple[Array, ...],
    input_kernel: Float[Array, "I 4 U"],
    input_bias: Float[Array, "4 U"] | None,
    state_kernel: Float[Array, "U 4 U"],
    lengths: Int[Array, " B"] | None = None,
    reverse: bool = False,
) -> tuple[Float[Array, "B T U"], tuple[Array, ...]]:
    """Return the outputs of an LSTM layer after every token, and its last state (h, c), [B, U] each.

    The equations are those of `recurrent.lstm`. Products are in TF32, as JAX's own are by default on a GPU, unless
    `jax_default_matmul_precision` asks for float32.

    Args:
      first: the state (h, c) before the first token, [B, U] each.
      lengths: number of tokens of every row, whose padding stands behind them; None if there is no padding.
      reverse: read from the last token to the first.
    Returns: outputs are zeros at padding; the last state of a row without tokens is its first one.
    """
    from jax.experimental import rnn

    rows, width = x.shape[:2]
    inputs, hidden = input_kernel.shape[0], state_kernel.shape[0]
    places = jnp.arange(width, dtype=jnp.int32)[None]
    counts = jnp.full(rows, width, jnp.int32) if lengths is None else lengths.astype(jnp.int32)
    is_token = places < counts[:, None]  # [B, T]

    def turned(y: Array) -> Array:
        """Return the tokens of every row in reverse order; padding stays where it is."""
        order = jnp.where(is_token, counts[:, None] - 1 - places, places)
        return jnp.take_along_axis(y, order[..., None], axis=1)

    # cuDNN's order: kernels [4 U, I] and [4 U, U], then a bias with the input and one with the state.
    bias = jnp.zeros((4, hidden), x.dtype) if input_bias is None else input_bias
    weights = jnp.concatenate(
        [
            input_kernel.reshape(inputs, -1).T.ravel(),
            state_kernel.reshape(hidden, -1).T.ravel(),
            bias.ravel(),
            jnp.zeros(4 * hidden, x.dtype),
        ]
    )
    asked: Any = jax.config
    full = asked.jax_default_matmul_precision in _FULL_PRECISION
    y, *last = rnn.lstm(
        turned(x) if reverse else x,
        first[0][None],
        first[1][None],
        weights,
        jnp.maximum(counts, 1),  # cuDNN has no sequences without tokens
        inputs,
        hidden,
        1,
        0.0,
        False,
        jax.lax.Precision.HIGHEST if full else jax.lax.Precision.HIGH,
    )
    y = jnp.where(is_token[..., None], turned(y) if reverse else y, 0.0)
    any_token = (counts > 0)[:, None]
    return y, tuple(jnp.where(any_token, new[0], old) for new, old in zip(last, first, strict=True))
