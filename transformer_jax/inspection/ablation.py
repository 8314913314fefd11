"""Ablation: what a number of the output becomes without one head, or without one part of a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import mixed, places_of
from transformer_jax.typing import Array, Batch, Params

Measure = Callable[[Array], Array]
"""A function of the outputs of a model, [B, T, V] logits or those of the head, to one number."""


class Effects(NamedTuple):
    """A number of the output as it is, and by place its changes if a value is taken away or replaced."""

    value: float
    changes: dict[str, np.ndarray]


def mean_loss(outputs: Array, targets: Array) -> Array:
    """Return the mean over tokens of the loss of logits [B, T, V] for the ids targets [B, T], in nats."""
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[..., None], -1).mean()


def log_prob(outputs: Array, position: int, token: int, other: int | None = None) -> Array:
    """Return the log probability of a token at a position of the first row; with `other`, less that of the other."""
    log_probs = jax.nn.log_softmax(outputs[0, position])
    return log_probs[token] if other is None else log_probs[token] - log_probs[other]


def ablation_effects(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    measure: Measure,
    kind: str = "heads",
    reference: Batch | None = None,
    head: nn.Module | None = None,
) -> Effects:
    """Return how a number changes without each head, or without the output of each part.

    One program serves all of them; there is a pass for each head or part.

    Args:
      model, params, batch, head: as of `run_with`.
      measure: the number, such as `functools.partial(mean_loss, targets=ids)`.
      kind: `heads`, with changes [N] by place; or `parts`, with one change [] by place.
      reference: a batch without padding, over whose rows and positions a value is averaged; the average takes the place
        of the value. Default: zero does.
    Raises: ConfigError for a model without a residual stream, and for another kind.
    """
    shapes = {name: shape[2:-1] for name, shape in places_of(model, batch, kind, head).items()}
    means = {name: jnp.zeros(()) for name in shapes}
    if reference is not None:
        read = run_with(model, params, reference, list(shapes), None, head).places
        means = {name: value.mean((0, 1)) for name, value in read.items()}

    def measured(ablated: str | None = None, index: tuple[int, ...] = ()) -> float:
        functions = {}
        for name, shape in shapes.items():
            keep = np.ones(shape, bool)
            if name == ablated:
                keep[index] = False
            functions[name] = mixed(jnp.asarray(keep)[..., None], means[name])
        return float(measure(run_with(model, params, batch, (), functions, head).outputs))

    value = measured()
    changes = {name: np.zeros(shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        for index in np.ndindex(shape):
            changes[name][index] = measured(name, index) - value
    return Effects(value, changes)
