"""A study with another baseline than its own: `sweep --study=norm_placement --config=language_model`.

The architecture and the task of the other config may lack what the study names. Such fields, axes and metrics are left
out, and named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax import builtin
from transformer_jax.config import ExperimentConfig, base_type, unread_by
from transformer_jax.config_file import leaf_types, read_config
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.contrasts import contrasts_among
from transformer_jax.sweeps.figures import Curves, Figure, HeatMap, MetricByAxis, MetricByBin, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Range, Study
from transformer_jax.tasks.task import TASKS


class Adapted(NamedTuple):
    """The study with the other baseline, and notes on what was left out."""

    study: Study
    notes: list[str]


def with_baseline(study: Study, spec: str, config: ExperimentConfig, splits: Sequence[str]) -> Adapted:
    """Return a study with another baseline.

    Settings and values of axes keep only the fields that the config's architecture and task read. An axis whose values
    then are all alike is left out, unless it varies the pretraining, which stays as it is, or equal operations. So is a
    metric that the task or the corpus lacks; a figure of it shows the first remaining metric, or is left out. If no
    metric with a direction is left, `training.best_metric` is the first. `equal_parameters` is left out if the config
    reads none of its fields, `tuned` if it does not read that one, and `not_shown`, since it is about the study's own
    baseline.

    Args:
      spec: the config as given on the command line. config: of `read_baseline`. splits: of its corpus.
    Raises: ConfigError if no axis is left, or if the study's `measure` cannot measure the task.
    """
    if study.tasks and config.task.name not in study.tasks:
        raise ConfigError(
            f"--config={spec}: the study measures task.name={' or '.join(map(repr, study.tasks))}, not "
            f"'{config.task.name}'"
        )
    lacking = _lacking(study, config, _fields(study))
    untuned = study.tuned is not None and bool(_lacking(study, config, {study.tuned.field}))
    sizes = () if study.equal_sizes is None else study.equal_sizes.fields
    unsized = bool(sizes) and _lacking(study, config, set(sizes)) == set(sizes)
    axes, idle = [], []
    varied_before = set() if study.pretraining is None else {axis.name for axis in study.pretraining.axes}
    budgets = set(study.equal_flops) if isinstance(study.equal_flops, Mapping) else set()
    for axis in study.axes:
        kept = _kept_axis(axis, lacking, axis.name in varied_before | budgets)
        if kept is None:
            idle.append(axis.name)
        else:
            axes.append(kept)
    if not axes:
        raise ConfigError(
            f"--config={spec}: no axis of the study is left: the config does not read {', '.join(sorted(lacking))}"
        )
    metrics, unknown = _metrics(study, config, splits)
    remaining = {axis.name for axis in axes}
    adapted = dataclasses.replace(
        study,
        baseline=_absolute(spec),
        axes=tuple(axes),
        settings=_kept(study.settings, lacking),
        metrics=metrics,
        reference={name: value for name, value in study.reference.items() if name in remaining},
        contrasts=contrasts_among(study.contrasts, remaining),
        precision={m.name: study.precision[m.name] for m in metrics if m.name in study.precision},
        equal_parameters=() if unsized else study.equal_parameters,
        equal_flops=_equal_flops(study, remaining),
        tuned=None if untuned else study.tuned,
        figures=_figures(study, config, splits, metrics[0].name, remaining),
        not_shown="",
    )
    notes = [
        f"left out: {kind} {', '.join(names)}"
        for kind, names in (
            *(("fields", sorted(lacking)), ("axes", idle), ("metrics", unknown)),
            ("equal_parameters of", sizes if unsized else ()),
            ("tuning of", (study.tuned.field,) if untuned and study.tuned is not None else ()),
        )
        if names
    ]
    return Adapted(adapted, notes)


def read_baseline(spec: str, overrides: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config with those overrides that are text, such as choices and the folder of the corpus.

    Numbers may be invalid without the study's settings, and do not matter to `with_baseline`.
    """
    types = leaf_types()
    return read_config(
        spec, {name: value for name, value in overrides.items() if base_type(types.get(name, str)) is str}
    )


def _equal_flops(study: Study, axes: set[str]) -> bool | Mapping[str, str]:
    """Return `Study.equal_flops` without the axes that are left out."""
    if not isinstance(study.equal_flops, Mapping):
        return study.equal_flops
    return {name: value for name, value in study.equal_flops.items() if name in axes}


def _absolute(spec: str) -> str:
    """Return the config with an absolute path, or as it is if it is the name of a built-in one."""
    name, colon, argument = spec.partition(":")
    file = builtin.config_file(name)
    return spec if builtin.configs().get(name) == file else f"{file.absolute()}{colon}{argument}"


def _fields(study: Study) -> set[str]:
    """Return the fields that settings and axes of the study set."""
    values = [study.settings, *(of for axis in study.axes if isinstance(axis, Axis) for of in axis.values.values())]
    return {name for of in values for name in of} | {axis.field for axis in study.axes if isinstance(axis, Range)}


def _lacking(study: Study, config: ExperimentConfig, fields: set[str]) -> set[str]:
    """Return the fields that the config does not read, because of a choice that the study leaves alone."""
    chosen = _fields(study)
    return {name for name, chooser in unread_by(config).items() if name in fields and chooser not in chosen}


def _kept(values: Mapping[str, Any], lacking: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in lacking}


def _kept_axis(axis: Axis | Range, lacking: set[str], needed: bool) -> Axis | Range | None:
    if isinstance(axis, Range):
        return None if axis.field in lacking else axis
    values = {label: _kept(overrides, lacking) for label, overrides in axis.values.items()}
    first, *others = values.values()
    idle = all(other == first for other in others) and not needed
    return None if idle else dataclasses.replace(axis, values=values)


def _metrics(study: Study, config: ExperimentConfig, splits: Sequence[str]) -> tuple[tuple[Metric, ...], list[str]]:
    """Return the metrics that the other baseline can measure, those with a direction first, and names of the others."""
    known, unknown = [], []
    for metric in study.metrics:
        found = _measured(study, metric, config, splits)
        if found is None:
            unknown.append(metric.name)
        else:
            known.append(found)
    if not any(metric.direction for metric in known):
        best = Metric(f"valid/{config.training.best_metric}")
        known.insert(0, study.metric_for_task(best, TASKS[config.task.name], splits))
    return tuple(sorted(known, key=lambda metric: not metric.direction)), unknown


def _measured(study: Study, metric: Metric, config: ExperimentConfig, splits: Sequence[str]) -> Metric | None:
    """Return the metric with its direction; None if the task or the corpus lacks it."""
    try:
        return study.metric_for_task(metric, TASKS[config.task.name], splits)
    except ConfigError:
        return None


def _figures(
    study: Study, config: ExperimentConfig, splits: Sequence[str], metric: str, axes: set[str]
) -> tuple[Figure, ...]:
    def lacks(name: str) -> bool:
        return _measured(study, Metric(name), config, splits) is None

    result: list[Figure] = []
    for figure in study.figures:
        if isinstance(figure, MetricByAxis | HeatMap) and not {*figure.axes.values()} <= axes:
            continue
        if (isinstance(figure, MetricByBin) and lacks(figure.name)) or (
            isinstance(figure, Curves) and lacks(figure.quantity)
        ):
            continue
        if isinstance(figure, MetricByVariant | MetricByAxis | HeatMap) and lacks(figure.metric):
            figure = dataclasses.replace(figure, metric=metric, title="")
        if figure not in result:
            result.append(figure)
    return tuple(result)
