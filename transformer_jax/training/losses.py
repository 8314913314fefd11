"""Cross-entropy with label smoothing, as sums over the batch: whoever adds up batches or devices divides once."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

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
