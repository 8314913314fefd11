"""The trials of a study: every variant with every seed. Each has a config that is validated as for a run."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.checkpoints.workdir import TRIALS
from transformer_jax.config import DecodeConfig, EvaluationConfig, ExperimentConfig, parse_multipliers, walk
from transformer_jax.config_file import read_config
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.designs import Design
from transformer_jax.sweeps.equal_sizes import size_for
from transformer_jax.sweeps.study import INIT_FROM, SEED, STEPS, Axis, Range, Study, merged
from transformer_jax.tasks.task import best_metric

MULTIPLIERS = "optimizer.lr_multipliers"
PRETRAINING = "pretraining"
"""Folder in the work directory of a study: the work directory of its pretraining."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run of a study.

    Attributes:
      labels: name of the value on each axis, by name of the axis.
      trained_by: name of the trial that trains this one too, since they differ at most in decoding or evaluation; None
        if the trial is trained itself.
      starts_from: the trial of the pretraining whose checkpoint it starts from, as a path within the work directory of
        the study; None without a pretraining. `config.training.init_from` is the same path.
    """

    labels: Mapping[str, str]
    seed: int
    config: ExperimentConfig
    trained_by: str | None = None
    starts_from: str | None = None

    @property
    def variant(self) -> str:
        return variant_name(self.labels)

    @property
    def name(self) -> str:
        """Name of the trial's folder within the work directory of the study."""
        return f"{self.variant},seed={self.seed}"


class Grid(NamedTuple):
    """trials: each distinct experiment once. same: variant left out -> variant that is the same experiment."""

    trials: list[Trial]
    same: dict[str, str]


def variant_name(labels: Mapping[str, str]) -> str:
    return ",".join(f"{axis}={value}" for axis, value in labels.items())


def grid(study: Study, overrides: Mapping[str, Any] | None = None) -> Grid:
    """Return all variants of a study with all its seeds.

    A variant that is the same experiment as an earlier one is left out. If only one of the two has the values that
    `equal_flops` names, both stay in the comparison, and are trained once.

    Args:
      overrides: config fields by dotted name, as on the command line. They replace values of the baseline and of the
        study's settings; an axis that sets the same field takes precedence.
    Raises: ConfigError for a `Range`, which a grid cannot cross; for an axis that changes nothing; for an override that
      an axis replaces in every variant; and for invalid configs, naming every variant that has one.
    """
    if ranges := [axis.field for axis in study.axes if isinstance(axis, Range)]:
        raise ConfigError(f"{', '.join(ranges)} is a range, and a grid needs named values; use --search=random or tpe")
    axes = [axis for axis in study.axes if isinstance(axis, Axis)]
    for axis in axes:
        always = set.intersection(*map(set, axis.values.values()))
        if idle := sorted(always.intersection(overrides or {})):
            raise ConfigError(
                f"--config.{idle[0]}: has no effect: the axis '{axis.name}' sets it in every variant; leave it out"
            )
    configs: dict[tuple[str, ...], ExperimentConfig] = {}
    problems = []
    for named in grid_labels(study):
        labels = tuple(named.values())
        try:
            configs[labels] = variant(study, named, {}, overrides)
        except ConfigError as error:
            problems.append(f"{variant_name(named)}: {error}{_left_out(axes, named)}")
    if problems:
        raise ConfigError("\n".join(problems))
    if study.pretraining is not None and (same := grid(study.pretraining).same):
        pairs = "; ".join(f"{name} and {other}" for name, other in same.items())
        raise ConfigError(f"pretraining: the same experiment twice: {pairs}; leave the axis out of the pretraining")
    for number, axis in enumerate(axes):
        _check_axis(axis, number, configs)
        if isinstance(axis, Design):
            _check_steps(axis, number, configs)
    first: dict[tuple[ExperimentConfig, bool], str] = {}
    trials, same = [], {}
    for labels, config in configs.items():
        named = {axis.name: label for axis, label in zip(axes, labels, strict=True)}
        name = variant_name(named)
        has_budget = isinstance(study.equal_flops, Mapping) and study.has_equal_flops(named)
        other = first.setdefault((config, has_budget), name)
        if other != name:
            same[name] = other
        else:
            trials += with_seeds(study, named, config)
    return Grid(trained_once(trials), same)


def with_seeds(study: Study, labels: Mapping[str, str], config: ExperimentConfig) -> list[Trial]:
    """Return a trial per seed of the study; raise ConfigError for an invalid seed."""
    result = []
    for seed in study.seeds:
        of_seed, start = dataclasses.replace(config, seed=seed).resolved(), start_of(study, labels, seed)
        result.append(Trial(labels, seed, of_seed if start is None else starting_from(of_seed, start), None, start))
    return result


def start_of(study: Study, labels: Mapping[str, str], seed: int) -> str | None:
    """Return `Trial.starts_from` of a trial."""
    if study.pretraining is None:
        return None
    name = variant_name({axis.name: labels[axis.name] for axis in study.pretraining.axes})
    return f"{PRETRAINING}/{TRIALS}/{name},seed={seed}"


def starting_from(config: ExperimentConfig, path: str) -> ExperimentConfig:
    """Return the config with another `training.init_from`."""
    return dataclasses.replace(config, training=dataclasses.replace(config.training, init_from=path))


def trained_once(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with `trained_by` set, so that of trials with identical training only the first trains."""
    first: dict[ExperimentConfig, Trial] = {}
    return [
        trial
        if (other := first.setdefault(_training_of(trial.config), trial)) is trial
        else dataclasses.replace(trial, trained_by=other.name)
        for trial in trials
    ]


def _training_of(config: ExperimentConfig) -> ExperimentConfig:
    """Return the config with all fields that do not affect training set to their defaults.

    If two configs have the same result, they train identically."""
    if best_metric(config).needs_generation:  # then decoding decides which checkpoints are kept
        return config
    return dataclasses.replace(config, decode=DecodeConfig(), evaluation=EvaluationConfig())


def variant(
    study: Study,
    labels: Mapping[str, str],
    drawn: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> ExperimentConfig:
    """Return the config of a variant, with the study's first seed.

    Args:
      labels: name of the value on each axis with named values.
      drawn: values that a search has drawn, by field.
    Raises: ConfigError for an invalid config, and for one whose operations are not known if the study needs them.
    """
    texts = fields_of_variant(study, labels, drawn, overrides)
    if drawn:
        return read_config(study.find_baseline(), texts)
    chosen = chosen_fields(study, labels, overrides)
    return read_config(study.find_baseline(), texts | {name: str(value) for name, value in chosen.items()})


def chosen_fields(
    study: Study, labels: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> Mapping[str, Any]:
    """Return the values of a variant that follow from `equal_parameters` and `equal_flops`, by field.

    They are those of `study.chosen` if it has the variant. Arguments and errors as in `variant`.
    """
    if (known := study.chosen.get(variant_name(labels))) is not None:
        return known
    texts, baseline, chosen = fields_of_variant(study, labels, {}, overrides), study.find_baseline(), {}

    def read(field: str, value: int) -> ExperimentConfig:
        return read_config(baseline, texts | {name: str(of) for name, of in chosen.items()} | {field: str(value)})

    if study.equal_sizes is not None and labels != (first := study.baseline_variant(labels)):
        config, wanted = read_config(baseline, texts), study.equal_sizes.count(variant(study, first, {}, overrides))
        if (found := size_for(study.equal_sizes, config, wanted, read)) is not None:
            chosen[found[0]] = found[1]
    if study.has_equal_flops(labels):
        from transformer_jax.sweeps.planned_batches import planned_batches
        from transformer_jax.tasks.flops import steps_for_operations, training_operations

        reference = variant(study, study.reference_variant, {}, overrides)
        config = read_config(baseline, texts | {name: str(of) for name, of in chosen.items()})
        budget = training_operations(reference, planned_batches(reference))
        chosen[STEPS] = steps_for_operations(config, budget, planned_batches(config))
    return chosen


def with_chosen(study: Study, overrides: Mapping[str, Any] | None = None) -> Study:
    """Return the study with `chosen`, so that its configs need neither models nor the corpus any more.

    Variants without a valid config are left out; `grid` names them. Arguments as in `variant`.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    if study.equal_sizes is None and not study.equal_flops:
        return study
    for labels in grid_labels(study):
        with contextlib.suppress(ConfigError):
            chosen[variant_name(labels)] = chosen_fields(study, labels, overrides)
    return dataclasses.replace(study, chosen=chosen)


def grid_labels(study: Study) -> Iterator[dict[str, str]]:
    """Yield every combination of the axes' values, in their order; none for a study with ranges."""
    axes = [axis for axis in study.axes if isinstance(axis, Axis)]
    if len(axes) == len(study.axes):
        for values in itertools.product(*(axis.values for axis in axes)):
            yield dict(zip((axis.name for axis in axes), values, strict=True))


def fields_of_variant(
    study: Study,
    labels: Mapping[str, str],
    drawn: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the overrides of the baseline that make a variant, as on the command line; arguments as in `variant`.

    Raises: ConfigError if two axes set a field to different values, and for overrides that a study does not allow.
    """
    chosen = [axis.values[labels[axis.name]] for axis in study.axes if isinstance(axis, Axis)]
    together = merged([*chosen, drawn], variant_name(labels))
    overrides = overrides or {}
    if SEED in overrides:
        raise ConfigError(
            "--config.seed cannot be set: a study's `seeds` are the seeds of its trials; change them there"
        )
    if study.pretraining is not None and INIT_FROM in overrides:
        raise ConfigError(f"--config.{INIT_FROM}: has no effect: the study's pretraining sets it; leave it out")
    values = dict(study.settings) | dict(overrides) | together | {SEED: study.seeds[0]}
    if (start := start_of(study, labels, study.seeds[0])) is not None:
        values[INIT_FROM] = start
    return {name: str(value) for name, value in values.items()}


def _check_axis(axis: Axis, number: int, configs: Mapping[tuple[str, ...], ExperimentConfig]) -> None:
    """Raise ConfigError if all values of an axis give the same config, for every choice on the other axes."""
    by_others: dict[tuple[str, ...], set[ExperimentConfig]] = {}
    for labels, config in configs.items():
        by_others.setdefault(labels[:number] + labels[number + 1 :], set()).add(config)
    if all(len(different) == 1 for different in by_others.values()):
        raise ConfigError(
            f"axis '{axis.name}' changes nothing: {', '.join(axis.values)} are the same experiment for all values of "
            "the other axes"
        )


def _check_steps(design: Design, number: int, configs: Mapping[tuple[str, ...], ExperimentConfig]) -> None:
    """Raise ConfigError for a step that gives the same config, for every choice on the other axes."""
    for a, b in design.pairs:
        pairs = [
            (config, configs[(*labels[:number], b, *labels[number + 1 :])])
            for labels, config in configs.items()
            if labels[number] == a
        ]
        if all(config == other for config, other in pairs):
            raise ConfigError(
                f"step '{design.step_of(a, b)}' changes nothing: {a} and {b} are the same experiment; leave it out"
            )


def _left_out(axes: Sequence[Axis], labels: Mapping[str, str]) -> str:
    """Return how a step can be left out of a design whose model is invalid without it; empty for other variants."""
    steps = [axis.left_out[labels[axis.name]] for axis in axes if isinstance(axis, Design) if _lacks(axis, labels)]
    if not steps:
        return ""
    return (
        f"\n  the step '{steps[0]}' cannot be left out alone: list in its `drop` the steps or fields that need it, "
        "which are then left out too"
    )


def _lacks(design: Design, labels: Mapping[str, str]) -> bool:
    return labels[design.name] in design.left_out


def program_key(config: ExperimentConfig) -> tuple[tuple[str, Any], ...]:
    """Return the fields that two trials must agree in to train as one compiled program.

    These are all fields except the hyperparameters that are arguments of the compiled step, and those that are read on
    the host alone. Of a field whose feature can be off, the key has only whether it is on; of `lr_multipliers`, the
    patterns; of the trial of a pretraining that a trial starts from, the variant.
    """
    key = []
    for name, field, value in walk(config):
        if field.metadata.get("switch"):
            key.append((name, value != field.metadata.get("off", 0)))
        elif name == MULTIPLIERS:
            key.append((name, tuple(rule.pattern for rule in parse_multipliers(value))))
        elif name == INIT_FROM:
            key.append((name, re.sub(r",seed=\d+$", "", value)))
        elif not (field.metadata.get("hyper") or field.metadata.get("host")):
            key.append((name, value))
    return tuple(key)


def groups(trials: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Yield lists of trials that train as one compiled program, in the order of the first trial of each list."""
    by_program: dict[Any, list[Trial]] = {}
    for trial in trials:
        by_program.setdefault(program_key(trial.config), []).append(trial)
    yield from by_program.values()
