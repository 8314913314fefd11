"""A feed-forward part with squared ReLU."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.dropout import drop
from transformer_jax.nn.feed_forward import PARAMETER_AXES
from transformer_jax.nn.feed_forwards import FeedForwardPart
from transformer_jax.nn.initialisation import kernel_init, residual_kernel_init
from transformer_jax.nn.linear import Linear


class SquaredReLU(nn.Module):
    """max(0, x W_1 + b_1)^2 W_2 + b_2 (So et al. 2021)."""

    config: ModelConfig
    num_sums: int

    def setup(self):
        config = self.config
        width, hidden = (config.emb_dim,), (config.mlp_dim,)
        self.hidden = Linear(width, hidden, config.use_bias, kernel_init(config))
        self.out = Linear(hidden, width, config.use_bias, residual_kernel_init(config, self.num_sums))

    def __call__(self, x, dropout, is_token=None):
        hidden = jnp.square(jnp.maximum(self.hidden(x), 0))
        return self.out(drop(hidden, dropout, "activation"))


SQUARED_RELU = FeedForwardPart(
    name="squared_relu",
    module=SquaredReLU,
    axes=PARAMETER_AXES,
    flops=lambda config, tokens: tokens * 4 * config.emb_dim * config.mlp_dim,
    kept_bytes=lambda config, tokens: tokens * 3 * config.mlp_dim * 4,
)
