"""Norms before and after every sub-layer."""

import flax.linen as nn

from transformer_jax.config import ModelConfig
from transformer_jax.nn.dropout import drop
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.residual import NormPosition


class Sandwich(nn.Module):
    """x + Dropout(Norm_2(f(Norm_1(x)))) (Ding et al. 2021)."""

    config: ModelConfig
    num_sums: int

    def setup(self):
        self.norm, self.output_norm = make_norm(self.config), make_norm(self.config)

    def before(self, x, is_token=None):
        return self.norm(x, is_token)

    def after(self, x, y, dropout, is_token=None):
        return x + drop(self.output_norm(y, is_token), dropout, "residual")


SANDWICH = NormPosition(before=True, after=False, final=True, module=Sandwich)
