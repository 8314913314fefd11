"""An architecture from outside the package: a recurrent encoder-decoder without attention, as a user would write it."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.config.fields import number
from transformer_jax.models.architecture import Architecture, example_ids
from transformer_jax.models.decoder import Decoder, Started


@dataclasses.dataclass(frozen=True, kw_only=True)
class PulseConfig(ModelConfig):
    leak: float = number(0.5, "part of the old state that a step keeps", 0.0, below=1.0)


class Pulse(nn.Module):
    """h_t = leak h_{t-1} + (1 - leak) tanh(E[id_t] + W h_{t-1}); h_0 is the mean embedding of the source."""

    config: PulseConfig
    head: nn.Module | None = None

    def setup(self):
        self.embedding = self.param(
            "embedding", nn.initializers.normal(0.5), (self.config.vocab_size, self.config.emb_dim)
        )
        self.recurrent, self.output = nn.Dense(self.config.emb_dim), nn.Dense(self.config.vocab_size)

    def __call__(self, batch, dropout=None, hyper=None):
        return self.outputs(self.features(batch, dropout, hyper), batch)

    def start(self, batch):
        is_token = batch["inputs_mask"][..., None] if "inputs_mask" in batch else jnp.ones((1, 1, 1), bool)
        return jnp.where(is_token, self.embedding[batch["inputs"]], 0.0).mean(1)

    def step(self, h, ids):
        new = jnp.tanh(self.embedding[ids] + self.recurrent(h))
        return self.config.leak * h + (1.0 - self.config.leak) * new

    def features(self, batch, dropout=None, hyper=None):
        h = self.start(batch)
        states = [h := self.step(h, ids) for ids in batch["decoder_inputs"].T]
        return jnp.stack(states, axis=1)

    def outputs(self, x, batch, dropout=None):
        return self.output(x) if self.head is None else self.head(x, batch, self.embedding, dropout)


@dataclasses.dataclass(frozen=True)
class PulseDecoder(Decoder):
    """One state [B, W, D] per hypothesis."""

    config: PulseConfig

    @property
    def vocab_size(self):
        return self.config.vocab_size

    def start(self, params, batch, slots, width):
        h = self._apply(params, batch, method="start")
        for t, ids in enumerate(batch["prompts"][:, :-1].T):
            is_read = (t < batch["prompt_lengths"] - 1)[:, None]
            h = jnp.where(is_read, self._apply(params, h, ids, method="step"), h)
        read = batch["prompts"].shape[1] - 1
        return Started(jnp.repeat(h[:, None], width, axis=1), jnp.zeros((len(h), slots), bool), read)

    def step(self, params, cache, ids, positions, visible):
        h = self._apply(params, cache, ids, method="step")
        return self._apply(params, h, {}, method="outputs"), h

    def reorder(self, cache, parents):
        return jnp.take_along_axis(cache, parents[..., None], axis=1)

    def _apply(self, params, *args, method):
        return Pulse(self.config).apply({"params": params}, *args, method=method)


class PulseArchitecture(Architecture):
    config_class = PulseConfig
    reads = frozenset({"emb_dim"})

    def module(self, config, head=None):
        return Pulse(config, head)

    def example_batch(self, config):
        return example_ids("inputs", "decoder_inputs")

    def decoder(self, config):
        return PulseDecoder(config)
