"""The trials of a study's tuning: a grid of factors for every variant, which grows while a best is at its edge."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.config import walk
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.results import read_result
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.study import Axis, Study
from transformer_jax.sweeps.trial_state import Standing
from transformer_jax.sweeps.trials import Trial, chosen_fields, grid, grid_labels, variant, variant_name
from transformer_jax.sweeps.tuning import FACTOR, best_factor, edges, factor_label, value_of_factor
from transformer_jax.tasks.task import TASKS


def tuning_study(study: Study, overrides: Mapping[str, Any], factors: Sequence[float]) -> Study:
    """Return the study of a tuning: the axes of a study with one of factors, on the tuning seeds, one metric.

    The tuned values are in `Study.chosen`, with those that make sizes and operations equal.

    Args:
      study: with the directions of its metrics; its tuned values are not chosen yet.
    Raises: ConfigError if a variant has no value of the field above 0, or two factors give it the same.
    """
    tuned = study.tuned
    assert tuned is not None
    chosen: dict[str, Mapping[str, Any]] = {}
    metric = study.tuning_metric
    for labels in grid_labels(study):
        config = variant(study, labels, {}, overrides)
        metric = study.metric_for_task(metric, TASKS[config.task.name], None)
        own = {name: value for name, _, value in walk(config)}[tuned.field]
        where = f"{tuned.field} with {variant_name(labels)}"
        values = {factor: value_of_factor(own, factor, where) for factor in factors}
        if len({*values.values()}) < len(values):
            raise ConfigError(f"tuned: {where} is {own}, and two factors make the same integer of it")
        equal = chosen_fields(study, labels, overrides)
        for factor, value in values.items():
            chosen[variant_name({**labels, FACTOR: factor_label(factor)})] = {**equal, tuned.field: value}
    return dataclasses.replace(
        study,
        axes=(*study.axes, Axis(FACTOR, {factor_label(factor): {} for factor in factors})),
        metrics=(metric,),
        seeds=tuned.seed_numbers,
        contrasts=(),
        precision={},
        measure=None,
        tasks=(),
        figures=(),
        equal_parameters=(),
        equal_flops=False,
        not_shown="",
        tuned=None,
        chosen=chosen,
    )


class TuningGrid:
    """Every variant with every factor; extended for all variants while a best value is at the edge.

    What is asked for depends only on results, so that a sweep that is started again comes to the same grid.

    Attributes:
      study: of the tuning, with all factors so far.
      outcome: a sentence on the chosen values; empty before they are known.
    """

    def __init__(self, space: Space) -> None:
        """Raise ConfigError for an invalid grid. Args: space: the study that is tuned."""
        assert space.study.tuned is not None
        self._space, self._tuned = space, space.study.tuned
        grid(space.study, space.overrides)  # names all variants that have no valid config
        self._factors, self._blocked = self._tuned.factors, ""
        self.study = tuning_study(space.study, space.overrides, self._factors)
        first = grid(self.study, space.overrides)
        self._waiting, self._asked = first.trials, {trial.name for trial in first.trials}
        self._same, self.is_over, self.outcome = first.same, False, ""
        self._chosen: dict[str, int | float] = {}
        tuned = self._tuned
        self.notes = [
            f"tuning: {tuned.field}, {len(first.trials)} trials, scored by {self.study.metrics[0].name}; a best value "
            f"at the edge extends the grid for all variants, at most {tuned.extensions} times on each side",
            *(f"{name} is the same experiment as {other} and is not tuned again" for name, other in first.same.items()),
        ]

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        if self._waiting:
            trials, self._waiting = self._waiting, []
            return trials
        if self.is_over or not all(standing.has_ended for standing in standings):
            return []
        if any(standing.status not in ("finished", "diverged") for standing in standings):
            self.is_over = True
            return []
        best = self._best(standings)
        if not (added := self._extended(best)):
            self.is_over = True
            self._choose(best)
        return added

    def finished(self, standing: Standing) -> None:
        """Ignore the result: `next` reads those of all trials together."""

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        return []

    def close(self) -> None:
        """There is nothing to release."""

    def tuned_study(self) -> Study:
        """Return the study that was tuned, with the chosen values; only once `is_over`, without failed trials."""
        study = self._space.study
        chosen = {}
        for labels in grid_labels(study):
            equal = chosen_fields(study, labels, self._space.overrides)
            chosen[variant_name(labels)] = {**equal, self._tuned.field: self._chosen[variant_name(labels)]}
        return dataclasses.replace(study, chosen=chosen)

    def _best(self, standings: Sequence[Standing]) -> dict[str, float | None]:
        """Return the best factor by variant."""
        metric = self.study.metrics[0]
        by_name = {standing.trial.name: standing for standing in standings}
        found = {}
        for labels in grid_labels(self._space.study):
            scores = {}
            for factor in self._factors:
                name = variant_name({**labels, FACTOR: factor_label(factor)})
                name = self._same.get(name, name)
                of = [by_name[f"{name},seed={seed}"] for seed in self.study.seeds]
                scores[factor] = mean([_value(standing, metric.name) for standing in of])
            found[variant_name(labels)] = best_factor(scores, metric.direction)
        return found

    def _extended(self, best: Mapping[str, float | None]) -> list[Trial]:
        """Return the trials of a step beyond the edges at which a best value is; none if there are no such edges."""
        wanted = edges(self._factors, best.values())
        for side in (0, 1):
            steps = list(self._tuned.reached(self._factors))
            if not wanted[side] or steps[side] == self._tuned.extensions:
                continue
            steps[side] += 1
            factors = self._tuned.grid(*steps)
            try:
                study = tuning_study(self._space.study, self._space.overrides, factors)
                found = grid(study, self._space.overrides)
            except ConfigError as error:
                self._blocked = f"; the grid has no valid further value: {str(error).splitlines()[0]}"
                continue
            self.study, self._factors, self._same = study, factors, found.same
            self._waiting += [trial for trial in found.trials if trial.name not in self._asked]
            self._asked |= {trial.name for trial in found.trials}
        added, self._waiting = self._waiting, []
        return added

    def _choose(self, best: Mapping[str, float | None]) -> None:
        said = []
        for labels in grid_labels(self._space.study):
            name, factor = variant_name(labels), best[variant_name(labels)]
            of = self.study.chosen[variant_name({**labels, FACTOR: factor_label(1 if factor is None else factor)})]
            self._chosen[name] = of[self._tuned.field]
            why = " (all of its tuning trials diverged: its own value)" if factor is None else ""
            said.append(f"{self._chosen[name]:g} with {name}{why}")
        self.outcome = f"tuned: {self._tuned.field} is {', '.join(said)}{self._blocked}"


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN if a value is not finite, since a trial that diverged is the worst."""
    return math.fsum(values) / len(values) if values and all(map(math.isfinite, values)) else math.nan


def _value(standing: Standing, metric: str) -> float:
    result = read_result(standing.folder)
    if result is None or result.status != "finished":
        return math.nan
    return float(result.metrics.get(metric, math.nan))
