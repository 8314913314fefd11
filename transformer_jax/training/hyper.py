"""The two parts of a config: settings that shape the compiled step, and numbers that are its arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from transformer_jax.config import (
    DROPOUT_RATES,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    TaskConfig,
    parse_multipliers,
)
from transformer_jax.nn.dropout import DropoutRates
from transformer_jax.typing import Array


class Hyper(NamedTuple):
    """Scalars that a compiled step takes as arguments: a new value does not recompile it.

    None means that the feature is off. None is part of the tree's structure, so turning a feature on or off changes the
    program.
    """

    seed: Array | int
    seed_init: Array | int
    """Of the initial parameters; a step does not read it."""
    learning_rate: Array | float
    warmup_steps: Array | int
    decay_steps: Array | int
    end_fraction: Array | float
    decay_fraction: Array | float
    decay_power: Array | float
    beta1: Array | float
    beta2: Array | float
    epsilon: Array | float
    muon_momentum: Array | float
    adam_rate_factor: Array | float | None
    weight_decay: Array | float | None
    clip_norm: Array | float | None
    layer_decay: Array | float | None
    label_smoothing: Array | float | None
    z_loss: Array | float | None
    balance_loss: Array | float | None
    router_z_loss: Array | float | None
    ema_decay: Array | float | None
    dropout: DropoutRates
    model: Mapping[str, Array | float | None] = {}
    """Fields of ModelConfig marked `hyper` that this architecture reads, without rates of dropout, by name."""
    task: Mapping[str, Array | float | None] = {}
    """Fields of TaskConfig marked `hyper`, by name."""
    lr_multipliers: tuple[Array | float, ...] = ()
    """The numbers of `optimizer.lr_multipliers`; their patterns are static."""

    @property
    def is_random(self) -> bool:
        """Whether a step makes random choices: dropout, or tokens of the target replaced by the model's own output."""
        return any(rate is not None for rate in (*self.dropout, self.model.get("teacher_forcing_rate")))


@dataclasses.dataclass(frozen=True)
class StaticConfig:
    """The settings that change shapes or the structure of the step's program.

    Fields that are in Hyper have their defaults here, dropout rates are zero, and the numbers of
    `optimizer.lr_multipliers` are 1.
    """

    model: ModelConfig
    task: TaskConfig
    optimizer: OptimizerConfig
    accumulation_steps: int
    loss_chunks: int
    skip_nonfinite: bool
    monitors: bool = False
    """Whether the step is that of a monitored update; see training/monitor.py."""


class SplitConfig(NamedTuple):
    """A config as the part that determines the compiled program, and the scalars that are its arguments."""

    static: StaticConfig
    hyper: Hyper


def split(config: ExperimentConfig) -> SplitConfig:
    """Split a resolved config. Configs with equal static parts and equal Hyper structures share a compiled program."""
    model, rules = config.without_own_hyper_fields("model"), parse_multipliers(config.optimizer.lr_multipliers)
    hyper = Hyper(
        seed=config.seed,
        seed_init=config.init_seed,
        **config.own_hyper_fields("optimizer"),
        **config.own_hyper_fields("training"),
        dropout=DropoutRates(**{place: getattr(model, name) or None for name, place in DROPOUT_RATES.items()}),
        model=config.own_hyper_fields("model"),
        task=config.own_hyper_fields("task"),
        lr_multipliers=tuple(rule.factor for rule in rules),
    )
    without_rates = dataclasses.replace(model, **dict.fromkeys(DROPOUT_RATES, 0.0))
    training = config.training
    static = StaticConfig(
        model=without_rates,
        task=config.without_own_hyper_fields("task"),
        optimizer=dataclasses.replace(
            config.without_own_hyper_fields("optimizer"), lr_multipliers="; ".join(f"{r.pattern}=1" for r in rules)
        ),
        accumulation_steps=training.accumulation_steps,
        loss_chunks=training.loss_chunks,
        skip_nonfinite={"stop": False, "skip": True}[training.on_nonfinite],
    )
    return SplitConfig(static, hyper)
