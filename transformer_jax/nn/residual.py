"""The residual connection around a sub-layer, and the one place that reads `norm_position`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.linen as nn

from transformer_jax.config import ModelConfig
from transformer_jax.nn.dropout import Dropout, drop
from transformer_jax.nn.norms import Norm
from transformer_jax.typing import Activations


class Residual(nn.Module):
    """A sub-layer f with its dropout, residual connection and normalisation.

    - `norm_position="post"` (Vaswani et al. 2017, section 3.1): y = Norm(x + Dropout(f(x))).
    - `norm_position="pre"` (Xiong et al. 2020, table 1): y = x + Dropout(f(Norm(x))).

    A stack of "pre" layers ends in one more norm, since its output is a sum that no norm has seen; a stack of "post"
    layers does not (`nn/stacks.py`).
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: Activations, sublayer: Callable[[Activations], tuple[Activations, Any]], dropout: Dropout | None
    ) -> tuple[Activations, Any]:
        """Returns y [B, T, D] and whatever `sublayer` returns besides its [B, T, D]."""
        norm = Norm(self.config, name="norm")
        if self.config.norm_position == "pre":
            y, extra = sublayer(norm(x))
            return x + drop(y, dropout, "residual"), extra
        y, extra = sublayer(x)
        return norm(x + drop(y, dropout, "residual")), extra
