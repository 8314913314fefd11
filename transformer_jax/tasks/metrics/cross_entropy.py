"""Cross-entropy with label smoothing, as sums over a batch; sums of all devices are added before they are divided."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.tasks.task import Sums
from transformer_jax.typing import Array

CROSS_ENTROPY_SUMS = ("loss", "nll", "correct", "weight")
Z_LOSS = "z_loss"
"""Name of the sum that is beside these within `z_loss_summed`."""
_ABSENT = -1e9
"""The logit of an output that does not exist; not infinite, so that a row of padding has a finite loss."""


_sums_z_loss: contextvars.ContextVar[bool] = contextvars.ContextVar("sums_z_loss", default=False)


@contextlib.contextmanager
def z_loss_summed(is_summed: bool = True) -> Generator[None]:
    """Let every cross-entropy that is traced inside sum `z_loss` too: logsumexp(logits)^2 of every target.

    This is the z-loss of Chowdhery et al. 2022 (arXiv 2204.02311), section 5. The step asks for it, so that no task
    needs a parameter for it.
    """
    token = _sums_z_loss.set(is_summed)
    try:
        yield
    finally:
        _sums_z_loss.reset(token)


def chunked_cross_entropy(
    logits: Callable[[Array], Array],
    x: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"],
    label_smoothing: Array | float | None,
    num_chunks: int,
) -> Sums:
    """Return `cross_entropy` of logits(x), computed for one part of the targets' length at a time.

    Forward and backward pass hold the logits of one part only, [B, T / num_chunks, V]. They are recomputed for the
    gradient.

    Args:
      logits: maps [B, t, D] to [B, t, V].
      x: [B, T, D]; targets: [B, T] int32; weights: [B, T] float32.
      num_chunks: number of parts; the last may be shorter.
    """
    if num_chunks == 1:
        return cross_entropy(logits(x), targets, weights, label_smoothing)
    (rows, length), width = targets.shape, -(-targets.shape[1] // num_chunks)
    num_chunks = -(-length // width)  # no part consists of padding alone
    missing = num_chunks * width - length
    parts = jnp.pad(x, ((0, 0), (0, missing), (0, 0))).reshape(rows, num_chunks, width, -1).swapaxes(0, 1)

    def divided(y: Array) -> Array:
        """Return y [B, T] as [chunks, B, T / chunks]."""
        return jnp.pad(y, ((0, 0), (0, missing))).reshape(rows, num_chunks, width).swapaxes(0, 1)

    @jax.checkpoint
    def add(sums: Sums, part: tuple[Array, Array, Array]) -> tuple[Sums, None]:
        new = cross_entropy(logits(part[0]), part[1], part[2], label_smoothing)
        return jax.tree.map(jnp.add, sums, new), None

    zeros = {name: jnp.zeros(()) for name in (*CROSS_ENTROPY_SUMS, *([Z_LOSS] if _sums_z_loss.get() else []))}
    return jax.lax.scan(add, zeros, (parts, divided(targets), divided(weights)))[0]


def cross_entropy(
    logits: Array,
    targets: Array,
    weights: Array,
    label_smoothing: Array | float | None = None,
    allowed: Array | None = None,
) -> Sums:
    """Return -sum_v q(v) log p(v) with q = (1 - e) [v = target] + e / V (Szegedy et al. 2016, section 7).

    The mass e is spread over the whole vocabulary, including the target. It is computed as
    logsumexp - (1 - e) logit[target] - e mean(logits), without an array of target distributions [B, T, V].

    Args:
      logits: [..., V]; targets: [...] int32; weights: [...] float32, 0 for padding.
      allowed: bool, broadcastable to logits: the outputs that exist, such as those of tokens; the mass e is spread over
        them alone. None: all.
    Returns: sums over all targets, float32 scalars: `loss`, label-smoothed cross-entropy in nats; `nll`, cross-entropy
      of the targets in nats; `correct`, the targets whose logit is the largest; `weight`; and `z_loss` within
      `z_loss_summed`. All are weighted.
    """
    logits = logits.astype(jnp.float32)
    if allowed is not None:
        logits = jnp.where(allowed, logits, _ABSENT)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    gold = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = normaliser - gold
    loss = nll
    if label_smoothing is not None:
        mean = logits.mean(-1)
        if allowed is not None:
            count = jnp.maximum(allowed.sum(-1), 1)  # a row of padding has none, and the weight 0
            mean = jnp.where(allowed, logits, 0.0).sum(-1) / count
        loss = normaliser - (1.0 - label_smoothing) * gold - label_smoothing * mean
    correct = (gold >= logits.max(-1)).astype(jnp.float32)
    sums = {name: (x * weights).sum() for name, x in zip(CROSS_ENTROPY_SUMS, (loss, nll, correct), strict=False)}
    if _sums_z_loss.get():
        sums[Z_LOSS] = (jnp.square(normaliser) * weights).sum()
    return sums | {"weight": weights.sum()}


def cross_entropy_means(sums: Mapping[str, Any]) -> dict[str, Any]:
    """Return `loss` (label-smoothed) and `nll` in nats per target, and `accuracy` in percent, from such sums."""
    return {
        "loss": sums["loss"] / sums["weight"],
        "nll": sums["nll"] / sums["weight"],
        "accuracy": 100.0 * sums["correct"] / sums["weight"],
    }
