"""The residual connection around a sub-layer, and the place of its norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
from jaxtyping import Bool

from transformer_jax.config import ModelConfig
from transformer_jax.nn import norms
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.norms import make_norm
from transformer_jax.registry import Parts
from transformer_jax.typing import Activations, Array


class Residual(nn.Module):
    """The computation around a sub-layer f: y = after(x, f(before(x))).

    - `norm_position="post"` (Vaswani et al. 2017, section 3.1): y = Norm(x + Dropout(f(x))).
    - `norm_position="pre"` (Xiong et al. 2020, table 1): y = x + Dropout(f(Norm(x))).

    A stack of "pre" layers ends in one more norm, since its output is a sum that is not normalised (`has_final_norm`).

    num_sums: number of residual sums of the stack, for places of norms that scale by it.
    """

    config: ModelConfig
    num_sums: int = 1

    def setup(self) -> None:
        self.norm = make_norm(self.config)

    def before(self, x: Activations, is_token: Bool[Array, "B T"] | None = None) -> Activations:
        """Return the input of the sub-layer, computed from x [B, T, D]; `is_token` as in `Norm`."""
        return self.norm(x, is_token) if NORM_POSITIONS[self.config.norm_position].before else x

    def after(
        self, x: Activations, y: Activations, dropout: Dropout | None, is_token: Bool[Array, "B T"] | None = None
    ) -> Activations:
        """Add the sub-layer's output y [B, T, D] to its input x [B, T, D]; `is_token` as in `Norm`."""
        total = x + drop(y, dropout, "residual")
        return self.norm(total, is_token) if NORM_POSITIONS[self.config.norm_position].after else total


class NormPosition(NamedTuple):
    """The parts of a place of norms. A new one is a new entry of `NORM_POSITIONS`, or `MODULE:OBJECT`.

    - before, after, final: whether there is a norm before a sub-layer, after its residual sum, at the end of a stack.
    - module: of (config, num_sums), a `flax.linen.Module` with the methods of `Residual`, for other computations around
      a sub-layer; `before` and `after` then say where a diagram draws norms.
    - axes: axes of the parameters of the module that are not those of a norm, by the end of their paths. Norms
      have the names `norm` or `NAME_norm`.
    """

    before: bool
    after: bool
    final: bool
    module: Callable[[ModelConfig, int], nn.Module] = Residual
    axes: Mapping[str, Axes] = {}


NORM_POSITIONS: Parts[NormPosition] = Parts(
    "model.norm_position",
    NormPosition,
    {
        "post": NormPosition(before=False, after=True, final=False),
        "pre": NormPosition(before=True, after=False, final=True),
    },
    methods={"module": ("before", "after")},
)
"""By the values of `model.norm_position`."""


def make_residual(config: ModelConfig, num_sums: int) -> nn.Module:
    """Return the module around a sub-layer; num_sums: number of residual sums of the stack."""
    return NORM_POSITIONS[config.norm_position].module(config, num_sums)


def parameter_axes(config: ModelConfig) -> dict[str, Axes]:
    """Return the axes of the parameters of `make_residual`, by the end of their paths."""
    own = NORM_POSITIONS[config.norm_position].axes
    return {**{rf"(\w+_)?norm/{path}": axes for path, axes in norms.parameter_axes(config).items()}, **own}


def has_final_norm(config: ModelConfig) -> bool:
    """Return whether a stack of layers ends in a norm."""
    return NORM_POSITIONS[config.norm_position].final
