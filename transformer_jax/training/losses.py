"""Cross-entropy with label smoothing, as sums over the batch: whoever adds up batches or devices divides once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from transformer_jax.config import PAD_ID
from transformer_jax.typing import Array


class LossSums(NamedTuple):
    """Sums over the target tokens of a batch, float32 scalars; divide by `weight` for means.

    loss: label-smoothed cross-entropy, nats. nll: cross-entropy of the targets, nats. correct: tokens whose logit is
    the largest. weight: number of tokens.
    """

    loss: Array
    nll: Array
    correct: Array
    weight: Array


def chunked_cross_entropy(
    logits: Callable[[Array], Array],
    x: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    label_smoothing: Array | float | None,
    num_chunks: int,
) -> LossSums:
    """`cross_entropy` of logits(x), a part of the targets' length at a time.

    Neither the forward nor the backward pass holds the logits of more than one part, [B, T / num_chunks, V]: they are
    computed again for the gradient.

    Args:
      logits: maps [B, t, D] to [B, t, V].
      x: [B, T, D]; targets: [B, T] int32, 0 = padding.
      num_chunks: parts; the last may be shorter.
    """
    if num_chunks == 1:
        return cross_entropy(logits(x), targets, label_smoothing)
    (rows, length), width = targets.shape, -(-targets.shape[1] // num_chunks)
    num_chunks = -(-length // width)  # none of padding alone
    missing = num_chunks * width - length
    parts = jnp.pad(x, ((0, 0), (0, missing), (0, 0))).reshape(rows, num_chunks, width, -1).swapaxes(0, 1)
    target_parts = jnp.pad(targets, ((0, 0), (0, missing))).reshape(rows, num_chunks, width).swapaxes(0, 1)

    @jax.checkpoint
    def add(sums: LossSums, part: tuple[Array, Array]) -> tuple[LossSums, None]:
        new = cross_entropy(logits(part[0]), part[1], label_smoothing)
        return LossSums(*map(jnp.add, sums, new)), None

    zeros = LossSums(*(jnp.zeros(()) for _ in LossSums._fields))
    return jax.lax.scan(add, zeros, (parts, target_parts))[0]


def cross_entropy(logits: Array, targets: Array, label_smoothing: Array | float | None = None) -> LossSums:
    """-sum_v q(v) log p(v) with q = (1 - e) [v = target] + e / V (Szegedy et al. 2016, section 7).

    The mass e is spread over the whole vocabulary, the target and the padding among it. Computed as
    logsumexp - (1 - e) logit[target] - e mean(logits), so no [B, T, V] array of target distributions exists.

    Args:
      logits: [B, T, V]; targets: [B, T] int32, 0 = padding, of weight 0.
    """
    logits = logits.astype(jnp.float32)
    weights = (targets != PAD_ID).astype(jnp.float32)
    normaliser = jax.nn.logsumexp(logits, axis=-1)
    gold = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nll = normaliser - gold
    loss = nll
    if label_smoothing is not None:
        loss = normaliser - (1.0 - label_smoothing) * gold - label_smoothing * logits.mean(-1)
    correct = (gold >= logits.max(-1)).astype(jnp.float32)
    return LossSums(*((x * weights).sum() for x in (loss, nll, correct)), weight=weights.sum())
