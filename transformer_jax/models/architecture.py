"""The interface of an architecture, and the one table of them.

An architecture is a composition of blocks: which stacks there are, what they read of a batch, and how one decodes with
them. All else that the package does with a model, it does through this interface.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.config import ModelConfig
from transformer_jax.models.decoder import Decoder
from transformer_jax.nn.dropout import Dropout
from transformer_jax.registry import Registry
from transformer_jax.typing import Array, Batch, Params

Axes = tuple[str | None, ...]
"""Logical names of an array's last axes; None for an axis that is never divided among devices."""


class Architecture(abc.ABC):
    """One composition of blocks.

    Its module is a `flax.linen.Module` with these methods:

    - `features(batch, dropout=None, hyper={}) -> (x, weights)`: the hidden states [B, T, D] of a batch and a dict of
      attention weights [L, B, N, T, S] by name, empty unless the module was made with `return_weights`. `dropout` is
      None for a deterministic pass; `hyper` has the values of the config's own `hyper` fields.
    - `outputs(x, batch) -> [B, ...]`: float32 outputs of hidden states: logits over the vocabulary, or what the head
      returns if the module has one. x may be a part [B, t, D] of the hidden states.
    - `__call__(batch, dropout=None, hyper={})`: `outputs` of `features`, and the attention weights.

    A head is a module that the task gives: `head(x, batch, embedding)` with the token embedding [V, D]. Its parameters
    are at `head/...`.
    """

    config_class: type[ModelConfig] = ModelConfig
    """`ModelConfig`, or a subclass with fields of its own, which the config then has in its section `model`."""
    reads: frozenset[str] | None = None
    """Names of the fields of ModelConfig that the architecture reads; setting another is an error. None: all of them.

    Its own fields, `vocab_size` and `max_length` need not be listed.
    """

    @abc.abstractmethod
    def module(self, config: ModelConfig, head: nn.Module | None = None, return_weights: bool = False) -> nn.Module:
        """Return the module of a resolved config."""

    @abc.abstractmethod
    def example_batch(self, config: ModelConfig) -> Batch:
        """Return the smallest batch that the module can be initialised with."""

    def decoder(self, config: ModelConfig) -> Decoder | None:
        """Return how to generate with parameters of this config; None if the architecture does not generate."""
        return None

    @property
    def generates(self) -> bool:
        """Whether there is a decoder."""
        return type(self).decoder is not Architecture.decoder

    def train_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int]) -> int | None:
        """Return the operations of one training step, or None if they are not counted.

        Args:
          rows: of the batch, B; widths: of its sequences by name, such as `inputs` and `targets`, padding included.
        """
        return None

    def activation_bytes(
        self, config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1
    ) -> int | None:
        """Return roughly the memory of a training step beside parameters and moments, or None if it is not known."""
        return None

    def parameter_axes(self, config: ModelConfig) -> Mapping[str, Axes] | None:
        """Return logical axes by the end of a parameter's path; None if no parameter can be divided among devices."""
        return None

    def attention_kinds(self, config: ModelConfig) -> Mapping[str, str]:
        """Return the kind of mask (`masks.AttentionMask.kind`) of every attention, by its name; without packing."""
        return {}


ARCHITECTURES: Registry[Architecture] = Registry(
    "model.architecture",
    Architecture,
    {
        "encoder_decoder": "transformer_jax.models.encoder_decoder:EncoderDecoderArchitecture",
        "decoder_only": "transformer_jax.models.decoder_only:DecoderOnlyArchitecture",
    },
)
"""By the values of `model.architecture`."""


class Model(NamedTuple):
    """A module with its parameters: what a task's loss is computed with."""

    module: nn.Module
    params: Params

    def features(
        self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Return hidden states [B, T, D] and attention weights; see `Architecture`."""
        result: Any = self.module.apply({"params": self.params}, batch, dropout, hyper or {}, method="features")
        return result

    def outputs(self, x: Array, batch: Batch) -> Array:
        """Return float32 outputs [B, ...] of hidden states [B, T, D]; see `Architecture`."""
        result: Any = self.module.apply({"params": self.params}, x, batch, method="outputs")
        return result


def init_params(config: ModelConfig, seed: int | Array, head: nn.Module | None = None) -> Params:
    """Return new parameters, float32, as a nested dict of arrays: a function of config, head and seed alone."""
    architecture = ARCHITECTURES[config.architecture]
    key = jax.random.key(seed, impl="threefry2x32")
    # The reference implementation of attention takes any shape; the choice has no effect on parameters.
    module = architecture.module(dataclasses.replace(config, attention_implementation="reference"), head)
    return module.init(key, architecture.example_batch(config))["params"]


def example_ids(*names: str) -> Batch:
    """Return a batch with the smallest sequences of ids, [1, 2] int32, under these names, and the mask of `inputs`."""
    batch = {name: jnp.ones((1, 2), jnp.int32) for name in names}
    return batch | ({"inputs_mask": jnp.ones((1, 2), bool)} if "inputs" in names else {})


def parameter_axes(config: ModelConfig) -> Mapping[str, Axes] | None:
    """Return the logical axes of a model's parameters, which a launcher divides them by."""
    return ARCHITECTURES[config.architecture].parameter_axes(config)
