"""The logit lens: what a model would predict from the residual stream after each layer (nostalgebraist, 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from transformer_jax.config import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import put, stream_places
from transformer_jax.nn.places import Replace
from transformer_jax.typing import Array, Batch, Params


class Top(NamedTuple):
    """The most probable ids of every position and the natural logarithms of their probabilities, best first."""

    ids: Int[np.ndarray, "*positions K"]
    log_probs: Float[np.ndarray, "*positions K"]


def logit_lens(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    replace: Mapping[str, Replace] | None = None,
    head: nn.Module | None = None,
) -> dict[str, Array]:
    """Return the logits [B, T, V] of every residual stream of the last stack, by place, in the order of the layers.

    They are what the model computes from the stream in place of its last one: the final norm, if it has one, and the
    output projection. So those of the last layer are the logits.

    Args:
      model, params, batch, head: as of `run_with`.
      replace: functions by place, as of `run_with`, such as those of `without_heads`; they act before the streams are
        read.
    Raises: ConfigError for a model without residual stream, and for a place that it does not have.
    """
    return dict(lens_layers(model, params, batch, replace, head))


def lens_layers(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    replace: Mapping[str, Replace] | None = None,
    head: nn.Module | None = None,
) -> Iterator[tuple[str, Array]]:
    """Yield the items of `logit_lens` one by one, so that one [B, T, V] is in memory at a time."""
    streams = stream_places(model, batch, head)[model.stacks[-1]]
    read = run_with(model, params, batch, streams, replace, head).places
    after = (f"{model.stacks[-1]}/output", "logits", "outputs")
    of_end = {name: function for name, function in (replace or {}).items() if name in after}
    for name in streams:
        yield name, run_with(model, params, batch, (), {**of_end, streams[-1]: put(read[name])}, head).outputs


class LensScores(NamedTuple):
    """Means over places of a text, after one layer.

    loss: of the token that is right there, in nats. probability: of the best token. as_last: share of the places at
    which the best token is that of the last layer.
    """

    loss: float
    probability: float
    as_last: float


def lens_scores(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    places: Sequence[int],
    targets: Sequence[int],
    replace: Mapping[str, Replace] | None = None,
    head: nn.Module | None = None,
) -> dict[str, LensScores]:
    """Return numbers of the logit lens of a batch of one row, by place, in the order of the layers.

    Args:
      model, params, batch, replace, head: as of `logit_lens`.
      places: positions of the last stack that count; targets: the ids that are right there.
    Raises: DataError if there are no places.
    """
    if not places:
        raise DataError("there is no place with a known token")
    found = {}
    for name, logits in lens_layers(model, params, batch, replace, head):
        log_probs = np.asarray(jax.nn.log_softmax(logits[0]), np.float64)[np.asarray(places)]
        best = log_probs.argmax(-1)
        loss = -log_probs[np.arange(len(places)), np.asarray(targets)].mean()
        found[name] = float(loss), float(np.exp(log_probs.max(-1)).mean()), best
    *_, (_, _, last) = found.values()
    return {name: LensScores(loss, p, float((best == last).mean())) for name, (loss, p, best) in found.items()}


def top_predictions(logits: Array | np.ndarray, k: int = 5) -> Top:
    """Return the k most probable ids of logits [..., V]; raise DataError if k is not from 1 to V."""
    if not 1 <= k <= logits.shape[-1]:
        raise DataError(f"k={k}: expected 1 to {logits.shape[-1]}, the number of ids")
    values, ids = jax.lax.top_k(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)), k)
    return Top(np.asarray(ids), np.asarray(values))
