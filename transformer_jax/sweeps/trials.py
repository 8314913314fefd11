"""The trials of a study: every variant with every seed, each a config that has passed the validation of a run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config import DecodeConfig, EvaluationConfig, ExperimentConfig, walk
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.study import SEED, Axis, Range, Study, merged
from transformer_jax.tasks.base import best_metric


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a study.

    labels: the name of the value on every axis, by axis. trained_by: the trial whose training is this one's too, since
    they differ in decoding or evaluation alone; None if it is its own.
    """

    labels: Mapping[str, str]
    seed: int
    config: ExperimentConfig
    trained_by: str | None = None

    @property
    def variant(self) -> str:
        return variant_name(self.labels)

    @property
    def name(self) -> str:
        """Its folder within the work directory of the study."""
        return f"{self.variant},seed={self.seed}"


class Grid(NamedTuple):
    """trials: each other experiment once. same: variant -> the one that is the same experiment, and is trained."""

    trials: list[Trial]
    same: dict[str, str]


def variant_name(labels: Mapping[str, str]) -> str:
    return ",".join(f"{axis}={value}" for axis, value in labels.items())


def grid(study: Study, root: Path, overrides: Mapping[str, Any] | None = None) -> Grid:
    """All variants of a study with all its seeds.

    Args:
      root: the folder that holds `experiments` and the baseline.
      overrides: config fields by dotted name, as on the command line. They replace what the baseline and the study's
        settings say; where an axis sets such a field, the axis holds.
    Raises: ConfigError for a `Range`, which is not crossed; for an axis that changes nothing, and an override that no
      variant would have; for every variant whose config is refused, with its name.
    """
    if ranges := [axis.field for axis in study.axes if isinstance(axis, Range)]:
        raise ConfigError(f"{', '.join(ranges)} is a range; a grid has named values: choose --search=random or tpe")
    axes = [axis for axis in study.axes if isinstance(axis, Axis)]
    for axis in axes:
        always = set.intersection(*map(set, axis.values.values()))
        if idle := sorted(always.intersection(overrides or {})):
            raise ConfigError(f"--config.{idle[0]}: the axis '{axis.name}' sets it in every variant")
    configs: dict[tuple[str, ...], ExperimentConfig] = {}
    problems = []
    for labels in itertools.product(*(axis.values for axis in axes)):
        named = {axis.name: label for axis, label in zip(axes, labels, strict=True)}
        try:
            configs[labels] = variant(study, root, named, {}, overrides)
        except ConfigError as error:
            problems.append(f"{variant_name(named)}: {error}")
    if problems:
        raise ConfigError("\n".join(problems))
    for number, axis in enumerate(axes):
        _check_axis(axis, number, configs)
    first: dict[ExperimentConfig, str] = {}
    trials, same = [], {}
    for labels, config in configs.items():
        named = {axis.name: label for axis, label in zip(axes, labels, strict=True)}
        name = variant_name(named)
        if (other := first.setdefault(config, name)) != name:
            same[name] = other
        else:
            trials += with_seeds(study, named, config)
    return Grid(trained_once(trials), same)


def with_seeds(study: Study, labels: Mapping[str, str], config: ExperimentConfig) -> list[Trial]:
    """A trial per seed of the study; raises ConfigError for a seed that a run refuses."""
    return [Trial(labels, seed, dataclasses.replace(config, seed=seed).resolved()) for seed in study.seeds]


def trained_once(trials: Sequence[Trial]) -> list[Trial]:
    """Trials of which those that train alike are trained by the first of them."""
    first: dict[ExperimentConfig, Trial] = {}
    return [
        trial
        if (other := first.setdefault(_training_of(trial.config), trial)) is trial
        else dataclasses.replace(trial, trained_by=other.name)
        for trial in trials
    ]


def _training_of(config: ExperimentConfig) -> ExperimentConfig:
    """What its parameters follow from: two configs that agree in it train alike."""
    if best_metric(config).needs_generation:  # outputs, which follow from `decode`, tell which checkpoints are kept
        return config
    return dataclasses.replace(config, decode=DecodeConfig(), evaluation=EvaluationConfig())


def variant(
    study: Study,
    root: Path,
    labels: Mapping[str, str],
    drawn: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> ExperimentConfig:
    """The config of a variant, with the study's first seed.

    Args:
      labels: the name of the value on every axis that has named values.
      drawn: values of fields that a search has drawn.
    Raises: ConfigError if a run refuses it.
    """
    chosen = [axis.values[labels[axis.name]] for axis in study.axes if isinstance(axis, Axis)]
    together = merged([*chosen, drawn], variant_name(labels))
    overrides = overrides or {}
    if SEED in overrides:
        raise ConfigError("the study's `seeds` say which seeds there are; --config.seed cannot")
    values = dict(study.settings) | dict(overrides) | together | {SEED: study.seeds[0]}
    return read_config(str(root / study.baseline), {name: str(value) for name, value in values.items()})


def _check_axis(axis: Axis, number: int, configs: Mapping[tuple[str, ...], ExperimentConfig]) -> None:
    """Raises ConfigError for an axis whose values are the same experiment wherever the other axes stand."""
    by_others: dict[tuple[str, ...], set[ExperimentConfig]] = {}
    for labels, config in configs.items():
        by_others.setdefault(labels[:number] + labels[number + 1 :], set()).add(config)
    if all(len(different) == 1 for different in by_others.values()):
        raise ConfigError(
            f"axis '{axis.name}' changes nothing: {', '.join(axis.values)} are the same experiment, whatever the "
            "other axes say"
        )


def program_key(config: ExperimentConfig) -> tuple[tuple[str, Any], ...]:
    """What two trials must agree in to train as one program: all but the scalars that a compiled step is handed.

    Whether a feature that zero turns off is on belongs to it.
    """
    key = []
    for name, field, value in walk(config):
        if field.metadata.get("switch"):
            key.append((name, value != 0))
        elif not field.metadata.get("hyper"):
            key.append((name, value))
    return tuple(key)


def groups(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Trials that train as one compiled program, in the order of the first of each."""
    by_program: dict[Any, list[Trial]] = {}
    for trial in trials:
        by_program.setdefault(program_key(trial.config), []).append(trial)
    yield from by_program.values()
