"""The interface of an architecture, and the table of all architectures.

An architecture is a composition of blocks: its stacks, the columns of a batch that they read, and its decoder. The rest
of the package uses a model only through this interface.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool

from transformer_jax.config import ModelConfig, layer_configs
from transformer_jax.models.decoder import Decoder
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.nn.batch_norm import initial_running, statistics_of
from transformer_jax.nn.collected import COLLECTED, added
from transformer_jax.nn.dropout import Dropout
from transformer_jax.nn.mixers import MIXERS
from transformer_jax.nn.monitored import MONITORED, joined
from transformer_jax.nn.places import at
from transformer_jax.nn.residual import scaled_initial
from transformer_jax.registry import Registry
from transformer_jax.typing import Array, Batch, Params


class Architecture(abc.ABC):
    """One composition of blocks.

    Its module is a `flax.linen.Module` with these methods:

    - `features(batch, dropout=None, hyper={}) -> x`: the hidden states [B, T, D] of a batch, or vectors of another
      width. `dropout` is None for a deterministic pass; `hyper` holds the values of those config fields that are marked
      `hyper`.
    - `outputs(x, batch, dropout=None) -> [B, ...]`: float32 outputs of hidden states: logits over the vocabulary, or
      the output of the head if the module has one, which gets the dropout. x may be a part [B, t, D] of the hidden
      states.
    - `__call__(batch, dropout=None, hyper={}) -> [B, ...]`: `outputs` of `features`.

    The task may give a head: a module that is called as `head(x, batch, embedding, dropout)`, with the token embedding
    [V, D], or None if the model reads no tokens, and None for a deterministic pass. Its parameters are at `head/...`.
    """

    config_class: type[ModelConfig] = ModelConfig
    """`ModelConfig`, or a subclass with more fields, which then is the section `model` of the config."""
    reads: frozenset[str] | None = None
    """Names of the fields of ModelConfig that the architecture reads; to set any other is an error. None: all fields.

    `vocab_size`, `max_length` and the fields of the subclass need not be listed.
    """

    def reads_field(self, names: Set[str]) -> bool:
        """Return whether the architecture reads a field, of which one name is among `names`; see `reads`."""
        return self.reads is None or bool(names & self.reads)

    @abc.abstractmethod
    def module(self, config: ModelConfig, head: nn.Module | None = None) -> nn.Module:
        """Return the module for a resolved config."""

    @abc.abstractmethod
    def example_batch(self, config: ModelConfig) -> Batch:
        """Return the smallest batch that the module can be initialised with."""

    def decoder(self, config: ModelConfig) -> Decoder | None:
        """Return the decoder that generates with this config; None if the architecture cannot generate."""
        return None

    @property
    def generates(self) -> bool:
        """Whether the architecture has a decoder."""
        return type(self).decoder is not Architecture.decoder

    def train_flops(
        self, config: ModelConfig, rows: int, widths: Mapping[str, int], head: int | None = None
    ) -> int | None:
        """Return the floating-point operations of one training step, or None if they are not known.

        Args:
          rows: B; widths: lengths of the batch's sequences by name, such as `inputs` and `targets`, with padding.
          head: operations of the forward pass of a task's head; None for logits over the vocabulary.
        """
        return None

    def hidden_flops(self, config: ModelConfig, rows: int, widths: Mapping[str, int]) -> int:
        """Return the part of `train_flops` for pairs of a query and a key that the mask hides in any text.

        Here 0. Padding, and the pairs between texts in a row, depend on the texts and are not hidden here.
        """
        return 0

    def activation_bytes(
        self, config: ModelConfig, rows: int, widths: Mapping[str, int], loss_chunks: int = 1
    ) -> int | None:
        """Return roughly the bytes of a training step without parameters and moments, or None if they are not known."""
        return None

    def parameter_axes(self, config: ModelConfig) -> ParameterAxes | None:
        """Return the axes of parameters by the end of their paths (nn/axes.py).

        None: parameters cannot be divided among devices, and Muon cannot tell which are matrices.
        """
        return None

    def attention_kinds(self, config: ModelConfig) -> Mapping[str, str]:
        """Return the kind of mask (`masks.AttentionMask.kind`) of every attention by name, for rows without packing.

        If one layer of a stack has a window, the kind is `any` for all of them.
        """
        return {}

    def recurrent_stacks(self, config: ModelConfig) -> Mapping[str, bool]:
        """Return by the name of every recurrent stack whether training knows a layer's inputs before its first step."""
        return {}


def self_attention_kinds(config: ModelConfig, stack: str, kind: str) -> dict[str, str]:
    """Return the kinds of mask of the self-attention of a stack's layers by name; see `Architecture.attention_kinds`.

    Args:
      stack: `encoder` or `decoder`; kind: that of the stack's mask.
    """
    layers = layer_configs(config, stack, getattr(config, f"num_{stack}_layers"))
    found = [MIXERS[layer.mixer].mask_kind(layer, kind) for layer in layers]
    kinds = {own for own in found if own is not None}
    if not kinds:
        return {}
    # Layers whose masks differ run one program, with the window as data.
    return {f"{stack} self-attention": kinds.pop() if len(kinds) == 1 else "any"}


ARCHITECTURES: Registry[Architecture] = Registry(
    "model.architecture",
    Architecture,
    {
        "encoder_decoder": "transformer_jax.models.encoder_decoder:EncoderDecoderArchitecture",
        "decoder_only": "transformer_jax.models.decoder_only:DecoderOnlyArchitecture",
        "encoder_only": "transformer_jax.models.encoder_only:EncoderOnlyArchitecture",
        "recurrent": "transformer_jax.models.recurrent:RecurrentArchitecture",
    },
)
"""By the values of `model.architecture`."""


class ModelModule(nn.Module):
    """The base class of the modules of this package; see `Architecture` for its methods."""

    config: ModelConfig
    head: nn.Module | None = None

    def __call__(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        """Return `outputs` of `features`."""
        outputs = self.outputs(self.features(batch, dropout, hyper), batch, dropout)
        return at("logits" if self.head is None else "outputs", outputs)

    def features(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        raise NotImplementedError

    def outputs(self, x: Array, batch: Batch, dropout: Dropout | None = None) -> Array:
        raise NotImplementedError


class Model(NamedTuple):
    """A module with its parameters; a task computes its loss with it.

    params: in evaluation, with the running averages of norms (`TrainState.evaluated`). receive: None, or in training
    what gets the collections of a pass by name; see `training_pass`. collections: the names.
    """

    module: nn.Module
    params: Params
    receive: Callable[[Mapping[str, Params]], None] | None = None
    collections: tuple[str, ...] = (COLLECTED,)

    def features(self, batch: Batch, dropout: Dropout | None = None, hyper: Mapping[str, Any] | None = None) -> Array:
        """Return hidden states [B, T, D]; see `Architecture`."""
        return self._apply("features", batch, dropout, hyper or {})

    def outputs(self, x: Array, batch: Batch, dropout: Dropout | None = None) -> Array:
        """Return float32 outputs [B, ...] of hidden states [B, T, D]; see `Architecture`."""
        return self._apply("outputs", x, batch, dropout)

    def _apply(self, method: str, *args: Any) -> Any:
        if self.receive is None:
            return self.module.apply({"params": self.params}, *args, method=method)
        result, variables = self.module.apply(
            {"params": self.params}, *args, method=method, mutable=list(self.collections)
        )
        self.receive(variables)
        return result


class TrainingPass(NamedTuple):
    """The result of a function of a model, and what the model's blocks have stored.

    collected: sums (nn/collected.py). monitored: the values of a monitored step (nn/monitored.py), else empty.
    """

    result: Any
    collected: Params
    monitored: Params


def training_pass(
    module: nn.Module, params: Params, function: Callable[[Model], Any], monitors: bool = False
) -> TrainingPass:
    """Return function(model), whose passes are those of training, and what their blocks stored, joined over passes.

    Args:
      params: as the optimizer changes them, without running averages. monitors: whether the step is a monitored one.
    """
    passes: list[Mapping[str, Params]] = []
    result = function(Model(module, params, passes.append, (COLLECTED, MONITORED) if monitors else (COLLECTED,)))
    return TrainingPass(
        result,
        functools.reduce(added, (stored.get(COLLECTED, {}) for stored in passes), {}),
        functools.reduce(joined, (stored.get(MONITORED, {}) for stored in passes), {}),
    )


def init_params(config: ModelConfig, seed: int | Array, head: nn.Module | None = None) -> Params:
    """Return new parameters, a nested dict of float32 arrays. They depend on config, head and seed alone."""
    return initial(config, seed, head).params


class Initial(NamedTuple):
    """Parameters and running averages before the first step.

    params: a nested dict of float32 arrays. running: the averages of its norms, empty if they have none.
    """

    params: Params
    running: Params


def initial(config: ModelConfig, seed: int | Array, head: nn.Module | None = None) -> Initial:
    """Return new parameters, as `init_params`, and the first running averages of norms, which are the same always."""
    architecture = ARCHITECTURES[config.architecture]
    key = jax.random.key(seed, impl="threefry2x32")
    # These implementations take any shape, on any machine; parameters do not depend on the implementation.
    everywhere = {"attention_implementation": "reference", "recurrent_implementation": "scan"}
    module = architecture.module(dataclasses.replace(config, **everywhere), head)
    variables = module.init(key, architecture.example_batch(config))
    params = scaled_initial(config, variables["params"], architecture.parameter_axes(config))
    return Initial(params, initial_running(statistics_of(variables.get(COLLECTED, {}))))


def example_ids(*names: str) -> Batch:
    """Return a batch with the smallest sequences of ids, [1, 2] int32, under these names, and the mask of `inputs`."""
    batch = {name: jnp.ones((1, 2), jnp.int32) for name in names}
    return batch | ({"inputs_mask": jnp.ones((1, 2), bool)} if "inputs" in names else {})


def example_images(config: ModelConfig) -> Batch:
    """Return a batch with one black image, `inputs` [1, height, width, channels] uint8."""
    return {"inputs": jnp.zeros((1, config.image_size, config.image_size, config.image_channels), jnp.uint8)}


def counted_targets(batch: Batch) -> Bool[Array, "B T"] | None:
    """Return True for the tokens of `decoder_inputs` that sums over tokens count, [B, T]; None: all.

    Padding has the segment 0, is not in `targets_mask`, or has no weight and is in no prefix. A sequence with a label
    has `inputs_mask`.
    """
    shape = batch["decoder_inputs"].shape
    if "targets_segment_ids" in batch:
        return batch["targets_segment_ids"] > 0
    if "targets_mask" in batch:
        return jnp.asarray(batch["targets_mask"])
    if "weights" in batch and batch["weights"].shape == shape:
        counted = batch["weights"] > 0
        return counted | batch["prefix_mask"] if "prefix_mask" in batch else counted
    return jnp.asarray(batch["inputs_mask"]) if "inputs" not in batch and "inputs_mask" in batch else None


def parameter_axes(config: ModelConfig) -> ParameterAxes | None:
    """Return the axes of a model's parameters; see `Architecture.parameter_axes`."""
    return ARCHITECTURES[config.architecture].parameter_axes(config)
