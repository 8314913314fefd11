"""Architectures and tasks that lack a method, raise, or return a wrong value."""

import jax.numpy as jnp
import numpy as np
from outside.counting import Counting, WordCount
from outside.pulse import PulseArchitecture, PulseConfig, PulseDecoder

from transformer_jax.data.columns import TextColumn
from transformer_jax.models.architecture import Architecture
from transformer_jax.tasks.task import Scores


class NoModule(Architecture):
    config_class = PulseConfig

    def example_batch(self, config):
        return {}


class NoLoss(Counting):
    def loss(self, config, model, batch, dropout, hyper, chunks=1):
        raise ValueError("no idea")


class NoLengths(Counting):
    def lengths(self, config, split):
        raise KeyError("nowhere")


class Unreadable(WordCount):
    def encode(self, values, tokenizer):
        raise ValueError("not a number")


class NoEncoding(Counting):
    def columns(self, config):
        return TextColumn("inputs", "inputs"), Unreadable("count", "targets")


class NoAxes(PulseArchitecture):
    def parameter_axes(self, config):
        raise LookupError("no axes")


class NoStep(PulseDecoder):
    def step(self, params, cache, ids, positions, visible):
        raise ValueError("lost my state")


class NoDecoder(PulseArchitecture):
    def decoder(self, config):
        return NoStep(config)


class Rounded(Counting):
    """Returns scores as whole numbers of NumPy and JAX."""

    def score(self, evaluator, params, split, generate):
        metrics = super().score(evaluator, params, split, generate).metrics
        return Scores({"loss": jnp.float32(metrics["loss"]), "error": np.int64(1000 * metrics["error"])})


class Unwritable(Counting):
    def score(self, evaluator, params, split, generate):
        return Scores({"loss": 1.0, "error": np.zeros(3)})
