"""The trials of a study that wants a precision: those of its pilot, then those of the seeds that its spread needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from transformer_jax.sweeps.contrasts import Labels
from transformer_jax.sweeps.precision import needed_seeds, planned_seeds
from transformer_jax.sweeps.results import read_result
from transformer_jax.sweeps.search.search import Space
from transformer_jax.sweeps.trial_state import Standing
from transformer_jax.sweeps.trials import Trial, grid, variant_name


class TwoStage:
    """A grid whose number of seeds follows from the results of its first seeds.

    The second stage begins once every trial of the first has finished or diverged. It depends only on their results, so
    that a sweep that is started again comes to the same seeds.

    Attributes:
      outcome: a sentence on the number of seeds; empty before it is known.
      before_second: is called with the trials of the second stage before any of them starts.
    """

    def __init__(self, space: Space, notes: Sequence[str] = ()) -> None:
        """Raise ConfigError for a grid that is invalid. Args: space: its study has the seeds of the pilot."""
        found = grid(space.study, space.overrides)
        widths = ", ".join(f"{name} ± {width:g}" for name, width in space.study.precision.items())
        pilot, most = len(space.study.seeds), space.study.max_seeds
        self.notes = [*notes, f"{pilot} seeds first, then as many as {widths} needs, at most {most}"]
        self.notes += [
            f"{name} is the same experiment as {other} and is not trained again" for name, other in found.same.items()
        ]
        self._space, self._pilot, self._same = space, found.trials, found.same
        self._given, self.is_over, self.outcome = False, False, ""
        self.before_second: Callable[[Sequence[Trial]], None] = lambda trials: None

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        if not self._given:
            self._given = True
            return list(self._pilot)
        if self.is_over or not all(standing.has_ended for standing in standings):
            return []
        self.is_over = True
        if any(standing.status not in ("finished", "diverged") for standing in standings):
            return []
        return self._second_stage(standings)

    def finished(self, standing: Standing) -> None:
        """Ignore the result: `next` reads those of all trials together."""

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        return []

    def close(self) -> None:
        """There is nothing to release."""

    def _second_stage(self, standings: Sequence[Standing]) -> list[Trial]:
        study, by_variant = self._space.study, _metrics(standings)
        labels = [dict(trial.labels) for trial in self._pilot if trial.seed == study.seeds[0]]
        labels += [_labels_of(name) for name in self._same]

        def values(variant: Labels, metric: str) -> Mapping[int, float]:
            name = variant_name(variant)
            found = by_variant.get(self._same.get(name, name), {})
            return {seed: metrics[metric] for seed, metrics in found.items() if metric in metrics}

        needed = needed_seeds(study, labels, values)
        seeds = planned_seeds(study, needed)
        self.outcome = f"the widths need {needed} seeds" + (
            "" if needed == len(seeds) else f", and --max_seeds allows {len(seeds)}: the intervals are wider than asked"
        )
        if not (added := seeds[len(study.seeds) :]):
            return []
        trials = grid(dataclasses.replace(study, seeds=added, precision={}), self._space.overrides).trials
        self.before_second(trials)
        return trials


def _metrics(standings: Sequence[Standing]) -> dict[str, dict[int, Mapping[str, float]]]:
    """Return the metrics of finished trials, by variant and seed."""
    found: dict[str, dict[int, Mapping[str, float]]] = {}
    for standing in standings:
        result = read_result(standing.folder)
        if result is not None and result.status == "finished":
            found.setdefault(standing.trial.variant, {})[standing.trial.seed] = result.metrics
    return found


def _labels_of(name: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in name.split(","))
