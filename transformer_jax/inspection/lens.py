"""The logit lens: what a model would predict from the residual stream after each layer (nostalgebraist, 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def top_predictions(logits: Array | np.ndarray, k: int = 5) -> Top:
    """Return the k most probable ids of logits [..., V]; raise DataError if k is not from 1 to V."""
    if not 1 <= k <= logits.shape[-1]:
        raise DataError(f"k={k}: expected 1 to {logits.shape[-1]}, the number of ids")
    values, ids = jax.lax.top_k(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)), k)
    return Top(np.asarray(ids), np.asarray(values))
