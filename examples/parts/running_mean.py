"""A mixer without attention: the mean of all tokens so far."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.nn.axes import Axes
from transformer_jax.nn.initialisation import kernel_init, residual_kernel_init
from transformer_jax.nn.layer_inputs import Mixed
from transformer_jax.nn.linear import Linear
from transformer_jax.nn.mixers import Mixer


class RunningMean(nn.Module):
    """y_t = W_o (v_1 + ... + v_t) / t, with v = W_v x. The state is the sum, [B, W, D] float32."""

    config: ModelConfig
    num_sums: int

    def setup(self):
        config, width = self.config, (self.config.emb_dim,)
        self.value = Linear(width, width, config.use_bias, kernel_init(config))
        self.out = Linear(width, width, config.use_bias, residual_kernel_init(config, self.num_sums))

    def __call__(self, x, inputs, dropout, values):
        """Map whole rows x [B, T, D]. A text of a packed row begins where its position is 0."""
        sums = jnp.cumsum(self._values(x), axis=1)
        before = jnp.pad(sums, ((0, 0), (1, 0), (0, 0)))
        first = jnp.arange(x.shape[1])[None] - inputs.positions
        return Mixed(self._output(sums - jnp.take_along_axis(before, first[..., None], axis=1), inputs))

    def read(self, x, inputs, state):
        """Map the next T tokens. Padding has the position -1."""
        is_token = (inputs.positions >= 0)[..., None]
        sums = state.own + jnp.cumsum(jnp.where(is_token, self._values(x), 0), axis=1)
        return Mixed(self._output(sums, inputs), sums[:, -1:])

    def step(self, x, inputs, state):
        """Map one token of each of W hypotheses, x [B, W, D]."""
        sums = state.own + self._values(x)
        return Mixed(self._output(sums, inputs), sums)

    def _values(self, x):
        return self.value(x).astype(jnp.float32)

    def _output(self, sums, inputs):
        mean = sums / jnp.maximum(inputs.positions + 1, 1)[..., None]
        return self.out(mean.astype(self.config.dtype))


RUNNING_MEAN = Mixer(
    name="running_mean",
    module=RunningMean,
    axes={
        "value/kernel": Axes(("emb",), ("mlp",), scaled=True),
        "out/kernel": Axes(("mlp",), ("emb",), scaled=True),
        "value/bias": Axes((), ("mlp",)),
        "out/bias": Axes((), (None,)),
    },
    start=lambda config, rows, slots: jnp.zeros((rows, 1, config.emb_dim)),
    flops=lambda config, tokens: tokens.number * 4 * config.emb_dim**2,
    kept_bytes=lambda config, tokens: tokens.number * 3 * config.emb_dim * 4,
)
