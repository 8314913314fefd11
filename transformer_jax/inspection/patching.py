"""Activation patching (Meng et al. 2022, "causal tracing"): a value of another run in one place of a run."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from transformer_jax.config import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.inspection.ablation import Measure
from transformer_jax.inspection.places import run_with
from transformer_jax.inspection.streams import mixed, places_of
from transformer_jax.typing import Batch, Params


class Patched(NamedTuple):
    """A number of a run and of the other one, and the number of the run with one value of the other, by place."""

    value: float
    other: float
    patched: dict[str, np.ndarray]

    @property
    def shares(self) -> dict[str, np.ndarray]:
        """How much of the difference between the runs each value makes: 0 none, 1 all; NaN if there is none."""
        difference = self.other - self.value
        return {
            name: (patched - self.value) / difference if difference else np.full(patched.shape, np.nan)
            for name, patched in self.patched.items()
        }


def patch_effects(
    model: ModelConfig,
    params: Params,
    batch: Batch,
    other: Batch,
    measure: Measure,
    kind: str = "streams",
    head: nn.Module | None = None,
) -> Patched:
    """Return what a number becomes if one value of a run is that of a run on another text.

    One program serves all places and positions; there is a pass for each.

    Args:
      model, params, head: as of `run_with`.
      batch, other: of the two texts; one row each, and equal shapes.
      measure: the number, such as `functools.partial(log_prob, position=-1, token=7, other=9)`.
      kind: `streams`, the residual stream before and after each layer, or `parts`, the outputs of parts: results [T] by
        place; `heads`: results [T, N].
    Raises: DataError if the texts differ in length, or there are several rows; ConfigError for a model without a
      residual stream, and for another kind.
    """
    for name, array in batch.items():
        if array.shape[:1] != (1,):
            raise DataError(f"patching takes one text; '{name}' has {array.shape[0]} rows")
        if other[name].shape != array.shape:
            raise DataError(
                f"the texts have {array.shape[1]} and {other[name].shape[1]} tokens in '{name}'; patching needs equal "
                "numbers"
            )
    shapes = {name: shape[1:-1] for name, shape in places_of(model, batch, kind, head).items()}
    new = run_with(model, params, other, list(shapes), None, head)

    def measured(place: str | None = None, index: tuple[int, ...] = ()) -> float:
        functions = {}
        for name, shape in shapes.items():
            keep = np.ones(shape, bool)
            if name == place:
                keep[index] = False
            functions[name] = mixed(jnp.asarray(keep)[None, ..., None], new.places[name])
        return float(measure(run_with(model, params, batch, (), functions, head).outputs))

    patched = {name: np.zeros(shape) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        for index in np.ndindex(shape):
            patched[name][index] = measured(name, index)
    return Patched(measured(), float(measure(new.outputs)), patched)
