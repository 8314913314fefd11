"""The two parts of a config: settings that shape the compiled step, and numbers that are its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from transformer_jax.config import DROPOUT_RATES, ExperimentConfig, ModelConfig, OptimizerConfig, TaskConfig
from transformer_jax.nn.dropout import DropoutRates
from transformer_jax.typing import Array


class Hyper(NamedTuple):
    """Scalars that a compiled step takes as arguments: a new value does not recompile it.

    None means that the feature is off. None is part of the tree's structure, so turning a feature on or off changes the
    program.
    """

    seed: Array | int
    learning_rate: Array | float
    warmup_steps: Array | int
    decay_steps: Array | int
    end_fraction: Array | float
    beta1: Array | float
    beta2: Array | float
    epsilon: Array | float
    weight_decay: Array | float | None
    clip_norm: Array | float | None
    layer_decay: Array | float | None
    label_smoothing: Array | float | None
    dropout: DropoutRates
    model: Mapping[str, Array | float | None] = {}
    """Fields of ModelConfig marked `hyper` that only this architecture reads, by name."""
    task: Mapping[str, Array | float | None] = {}
    """Fields of TaskConfig marked `hyper`, by name."""

    @property
    def is_random(self) -> bool:
        """Whether a step makes random choices: dropout, or tokens of the target replaced by the model's own output."""
        return any(rate is not None for rate in (*self.dropout, self.model.get("teacher_forcing_rate")))


@dataclasses.dataclass(frozen=True)
class StaticOptimizer:
    """The settings of the optimizer that change its program; the fields are those of `OptimizerConfig`."""

    name: str = OptimizerConfig.name
    schedule: str = OptimizerConfig.schedule
    nesterov: bool = OptimizerConfig.nesterov
    decay_exponent: float = OptimizerConfig.decay_exponent
    scale_by_parameter: bool = OptimizerConfig.scale_by_parameter
    decay_mask: str = OptimizerConfig.decay_mask
    momentum_dtype: str = OptimizerConfig.momentum_dtype
    second_moment_dtype: str = OptimizerConfig.second_moment_dtype
    freeze: str = OptimizerConfig.freeze

    @classmethod
    def of(cls, config: OptimizerConfig) -> StaticOptimizer:
        return cls(**{field.name: getattr(config, field.name) for field in dataclasses.fields(cls)})


@dataclasses.dataclass(frozen=True)
class StaticConfig:
    """The settings that change shapes or the structure of the step's program.

    Fields of `model` and `task` that are in Hyper have their defaults here, and dropout rates are zero.
    """

    model: ModelConfig
    task: TaskConfig
    optimizer: StaticOptimizer
    accumulation_steps: int
    loss_chunks: int
    skip_nonfinite: bool


class SplitConfig(NamedTuple):
    """A config as the part that determines the compiled program, and the scalars that are its arguments."""

    static: StaticConfig
    hyper: Hyper


def split(config: ExperimentConfig) -> SplitConfig:
    """Split a resolved config. Configs with equal static parts and equal Hyper structures share a compiled program."""
    optimizer = config.optimizer
    model = config.without_own_hyper_fields("model")
    hyper = Hyper(
        seed=config.seed,
        learning_rate=optimizer.learning_rate,
        warmup_steps=optimizer.warmup_steps,
        decay_steps=optimizer.decay_steps,
        end_fraction=optimizer.end_fraction,
        beta1=optimizer.beta1,
        beta2=optimizer.beta2,
        epsilon=optimizer.epsilon,
        weight_decay=optimizer.weight_decay or None,
        clip_norm=optimizer.clip_norm or None,
        layer_decay=optimizer.layer_decay if optimizer.layer_decay != 1.0 else None,
        label_smoothing=config.training.label_smoothing or None,
        dropout=DropoutRates(
            residual=model.dropout_rate or None,
            embedding=model.embedding_dropout_rate or None,
            attention=model.attention_dropout_rate or None,
            activation=model.activation_dropout_rate or None,
            final=model.final_dropout_rate or None,
            head=model.head_dropout_rate or None,
        ),
        model=config.own_hyper_fields("model"),
        task=config.own_hyper_fields("task"),
    )
    without_rates = dataclasses.replace(model, **dict.fromkeys(DROPOUT_RATES, 0.0))
    training = config.training
    static = StaticConfig(
        model=without_rates,
        task=config.without_own_hyper_fields("task"),
        optimizer=StaticOptimizer.of(optimizer),
        accumulation_steps=training.accumulation_steps,
        loss_chunks=training.loss_chunks,
        skip_nonfinite={"stop": False, "skip": True}[training.on_nonfinite],
    )
    return SplitConfig(static, hyper)
