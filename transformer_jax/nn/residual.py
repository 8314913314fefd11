"""The residual connection around a sub-layer, and the place of its norm."""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
from jaxtyping import Bool

from transformer_jax.config import ModelConfig
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.norms import Norm
from transformer_jax.typing import Activations, Array


class Residual(nn.Module):
    """The computation around a sub-layer f: y = after(x, f(before(x))).

    - `norm_position="post"` (Vaswani et al. 2017, section 3.1): y = Norm(x + Dropout(f(x))).
    - `norm_position="pre"` (Xiong et al. 2020, table 1): y = x + Dropout(f(Norm(x))).

    A stack of "pre" layers ends in one more norm, since its output is a sum that is not normalised (`has_final_norm`).
    """

    config: ModelConfig

    def setup(self) -> None:
        self.norm = Norm(self.config)

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
    """The places of norms: before a sub-layer, after its residual sum, at the end of a stack."""

    before: bool
    after: bool
    final: bool


NORM_POSITIONS = {
    "post": NormPosition(before=False, after=True, final=False),
    "pre": NormPosition(before=True, after=False, final=True),
}
"""By the values of `model.norm_position`."""


def has_final_norm(config: ModelConfig) -> bool:
    """Return whether a stack of layers ends in a norm."""
    return NORM_POSITIONS[config.norm_position].final
