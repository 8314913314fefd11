"""A gate before the residual sum."""

import flax.linen as nn
import jax

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.dropout import drop
from transformer_jax.nn.initialisation import kernel_init
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.norms import make_norm
from transformer_jax.nn.residual import NormPosition


class GatedSum(nn.Module):
    """x + Dropout(sigmoid(x W + b) * f(Norm(x))) (Parisotto et al. 2020, the output gate)."""

    config: ModelConfig
    num_sums: int

    def setup(self):
        width = (self.config.emb_dim,)
        self.norm, self.gate = make_norm(self.config), Linear(width, width, True, kernel_init(self.config))

    def before(self, x, is_token=None):
        return self.norm(x, is_token)

    def after(self, x, y, dropout, is_token=None):
        return x + drop(jax.nn.sigmoid(self.gate(x)) * y, dropout, "residual")


GATED_SUM = NormPosition(
    before=True,
    after=False,
    final=True,
    module=GatedSum,
    axes={"gate/kernel": Axes(("emb",), (None,)), "gate/bias": Axes((), (None,))},
)
