"""The choice of the implementation that computes attention in training and evaluation.

- `reference`: `attention.dot_product_attention`, the equation written out. Only it can drop attention weights or
  return them; it alone has `attention_logit_cap` and `attention_sink`.
- `xla`: `jax.nn.dot_product_attention`, JAX's own implementation of the same products.
- `cudnn`: the same function on an NVIDIA GPU by cuDNN's fused kernel (Dao et al. 2022), which never stores the
  weights [B, N, T, S].
- `auto`: the first of `cudnn`, `xla` and `reference` that is possible; on a CPU always `reference`.

Decoding with a cache has its own function, `kv_cache.cached_attention`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from transformer_jax.config import ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.nn.masks import AttentionMask
from transformer_jax.nn.positions import ENCODINGS
from transformer_jax.typing import Array, Bias, Heads


class Choice(NamedTuple):
    """The chosen implementation and the reason for it, in words."""

    name: Literal["reference", "xla", "cudnn"]
    why: str


def choose(
    config: ModelConfig,
    kind: str,
    *,
    needs_weights: bool = False,
    drops_weights: bool = False,
    caps_logits: bool = False,
    backend: str | None = None,
) -> Choice:
    """Return the implementation for one attention of a model.

    Args:
      config: resolved.
      kind: kind of its mask (`masks.AttentionMask.kind`); `none` if there is no mask.
      needs_weights: whether the attention weights are read or replaced.
      drops_weights: whether dropout acts on them. caps_logits: whether they have an `attention_logit_cap`. Both are
        true as well if the config says so.
      backend: `cpu`, `gpu` or `tpu`; by default JAX's default backend.
    Raises: ConfigError if the config asks for an implementation that cannot compute this attention here.
    """
    backend = backend or jax.default_backend()
    asked: Any = config.attention_implementation
    drops_weights = drops_weights or config.attention_dropout_rate > 0
    caps_logits = caps_logits or config.attention_logit_cap is not None
    obstacles = {
        "auto": "",
        "reference": "",
        "xla": _xla_obstacle(config, drops_weights, caps_logits),
        "cudnn": _xla_obstacle(config, drops_weights, caps_logits) or _cudnn_obstacle(config, kind, backend),
    }
    if obstacles[asked]:
        raise ConfigError(f"config: model.attention_implementation='{asked}' is not possible: {obstacles[asked]}")
    if needs_weights:
        return Choice("reference", "attention weights are returned")
    if asked != "auto":
        return Choice(asked, "asked for")
    if obstacles["xla"]:
        return Choice("reference", obstacles["xla"])
    if backend == "cpu":
        return Choice("reference", "on a CPU")
    if obstacles["cudnn"]:
        return Choice("xla", f"not cudnn: {obstacles['cudnn']}")
    return Choice("cudnn", f"on a GPU, with {_KINDS[kind]}")


_KINDS = {"causal": "a causal mask", "lengths": "a mask of lengths", "none": "no mask"}


def _xla_obstacle(config: ModelConfig, drops_weights: bool, caps_logits: bool) -> str:
    """Return the reason why `jax.nn.dot_product_attention` cannot compute this attention; empty if it can."""
    if drops_weights:
        return "attention_dropout_rate is not 0, and only 'reference' drops attention weights"
    if caps_logits:
        return "attention_logit_cap is set, and only 'reference' bounds the logits"
    if config.attention_sink != "none":
        return f"attention_sink='{config.attention_sink}', and only 'reference' has one more logit in its softmax"
    if config.value_head_dim != config.head_dim:
        return f"value_head_dim={config.value_head_dim} is not head_dim={config.head_dim}"
    return ""


def _cudnn_obstacle(config: ModelConfig, kind: str, backend: str) -> str:
    """Like `_xla_obstacle`, with the additional requirements of cuDNN's kernel."""
    if backend != "gpu":
        return f"JAX computes on a {backend.upper()}"
    if problem := _gpu_obstacle():
        return problem
    if kind == "any":
        return "it takes the mask of packed rows or of a window as a bias only, [B, 1, T, S]"
    if config.dtype != "bfloat16":
        return f"dtype='{config.dtype}', but it computes in bfloat16 only"
    if ENCODINGS[config.position_encoding].bias is not None:
        return f"position_encoding='{config.position_encoding}' adds a bias, which it takes only for every row"
    if config.head_dim % 8 or config.head_dim > 128:
        return f"head_dim={config.head_dim}, but it takes only multiples of 8 up to 128"
    return ""


def _gpu_obstacle() -> str:
    """Return the reason why JAX's GPU has no cuDNN kernel; empty if it has one, or if there is no GPU."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return ""
    if "cuda" not in device.client.platform_version.lower():
        return "the GPU is not from NVIDIA"
    if float(getattr(device, "compute_capability", "0")) < 8.0:
        return f"the {device.device_kind} is older than Ampere"
    return ""


def library_attention(
    query: Heads,
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K H"],
    mask: AttentionMask | None,
    bias: Bias | None,
    scale: float,
    implementation: Literal["xla", "cudnn"],
) -> Float[Array, "B T N H"]:
    """Return the output of `attention.dot_product_attention`, computed by `jax.nn.dot_product_attention`.

    There are no attention weights and no dropout.

    Args:
      implementation: `xla` or `cudnn`.
    Returns: [B, T, N, H] in the type of query; zeros for a query that may attend to nothing.
    """
    if mask is None:
        return jax.nn.dot_product_attention(query, key, value, bias, scale=scale, implementation=implementation)
    described = implementation == "cudnn" and mask.kind != "any"
    # Over no keys the kernel has no gradient. So a row of padding alone attends to its first key, and is zeroed below.
    lengths = jnp.maximum(mask.lengths, 1) if described and mask.lengths is not None else None
    output = jax.nn.dot_product_attention(
        query,
        key,
        value,
        bias,
        None if described else mask.allowed,
        scale=scale,
        is_causal=described and mask.kind == "causal",
        key_value_seq_lengths=lengths,
        implementation=implementation,
    )
    if mask.kind == "causal":  # every query may attend to itself
        return output
    allows_any = mask.allowed.any(-1).any(1)[:, :, None, None]  # [B, T or 1, 1, 1]; masks are the same for all heads
    return jnp.where(allows_any, output, jnp.zeros((), output.dtype))
