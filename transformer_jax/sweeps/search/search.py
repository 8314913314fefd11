"""Interface of searches, which choose the trials of a sweep, and the space that they choose from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.designs import Design
from transformer_jax.sweeps.study import Axis, Range, Study
from transformer_jax.sweeps.trial_state import Standing
from transformer_jax.sweeps.trials import Trial, grid, variant, with_seeds

NAMES = ("grid", "random", "tpe")
PRUNERS = ("none", "median", "successive_halving")
DIGITS = 4
"""Significant digits of a drawn number. It is rounded, since it is part of the names of variant and folder."""


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Options of all searches.

    Attributes:
      name: name of the search.
      num_trials: number of variants, each with every seed of the study; None for a grid.
      seed: seed of the draws.
      pruner: rule by which `tpe` ends trials early.
    """

    name: str = "grid"
    num_trials: int | None = None
    seed: int = 0
    pruner: str = "none"


def check_options(options: SearchOptions) -> None:
    """Raise ConfigError for options that a search does not have, and for missing ones."""
    if options.name not in NAMES:
        raise ConfigError(f"--search={options.name}: expected one of {', '.join(NAMES)}")
    if options.pruner not in PRUNERS:
        raise ConfigError(f"--pruner={options.pruner}: expected one of {', '.join(PRUNERS)}")
    if options.name == "grid" and (options.num_trials is not None or options.seed):
        raise ConfigError("--num_trials and --search_seed are for --search=random and tpe; a grid runs all variants")
    if options.name != "grid" and (options.num_trials is None or options.num_trials < 1):
        raise ConfigError(f"--search={options.name}: needs --num_trials=N, the number of variants, at least 1")
    if options.name != "tpe" and options.pruner != "none":
        raise ConfigError(f"--pruner={options.pruner}: only --search=tpe has pruners, not {options.name}")


@runtime_checkable
class Search(Protocol):
    """A source of the trials of a sweep."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes on its trials that are printed before they start."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether the search has no more trials to return, given the trials that have ended so far."""
        ...

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        """Return further trials, given the standings of all trials so far; called repeatedly."""
        ...

    def finished(self, standing: Standing) -> None:
        """Take note of how a trial has ended; called once for each, also for those of an earlier sweep."""
        ...

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        """Return the running trials to stop now, and why; called repeatedly, returns each trial once."""
        ...

    def close(self) -> None:
        """Release resources; called once no job runs any more."""
        ...


class Listed:
    """A search whose trials are all known from the start."""

    def __init__(self, trials: Sequence[Trial], notes: Sequence[str] = ()) -> None:
        self.notes, self._trials = notes, list(trials)

    @property
    def is_over(self) -> bool:
        return not self._trials

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        trials, self._trials = self._trials, []
        return trials

    def finished(self, standing: Standing) -> None:
        """Ignore the result: the trials do not depend on it."""

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        return []

    def close(self) -> None:
        """There is nothing to release."""


@dataclasses.dataclass(frozen=True)
class Space:
    """The variants of a study that may be drawn: one value of every axis.

    Attributes:
      overrides: config fields by dotted name, as on the command line, for every trial.
    """

    study: Study
    overrides: Mapping[str, Any]

    def check(self) -> None:
        """Raise ConfigError for an axis or range that changes nothing, and for invalid ends of ranges."""
        corners = tuple(_ends(axis) if isinstance(axis, Range) else axis for axis in self.study.axes)
        grid(dataclasses.replace(self.study, axes=corners), self.overrides)

    def check_draws(self) -> None:
        """Raise ConfigError as `check`, and for a design, of which a search would draw only some steps."""
        if designs := [axis.name for axis in self.study.axes if isinstance(axis, Design)]:
            raise ConfigError(
                f"axis '{designs[0]}' is a walk or leaves steps out: its steps are compared with each other, and a "
                "search would run only some of them; use --search=grid"
            )
        self.check()

    def trials(self, values: Mapping[str, Any]) -> list[Trial]:
        """Return the trials of a variant, one per seed.

        Args:
          values: by name of the axis, the name of one of its values or a number within the range.
        Raises: ConfigError if its config is invalid.
        """
        labels, fields = {}, {}
        for axis in self.study.axes:
            value = values[axis.name]
            if isinstance(axis, Range):
                value = fields[axis.field] = rounded(axis, value)
            labels[axis.name] = label(value)
        config = variant(self.study, labels, fields, self.overrides)
        return with_seeds(self.study, labels, config)

    def first(self) -> ExperimentConfig:
        """Return the config of the first value of every axis and the low end of every range."""
        ends = {axis.name: axis.low if isinstance(axis, Range) else next(iter(axis.values)) for axis in self.study.axes}
        return self.trials(ends)[0].config


def rounded(axis: Range, value: int | float) -> int | float:
    """Return a drawn number rounded to DIGITS significant digits, within the range; an integer for an integer field."""
    if axis.is_integer:
        return round(value)
    return min(max(float(f"{value:.{DIGITS}g}"), float(axis.low)), float(axis.high))


def label(value: str | int | float) -> str:
    """Return the name of a value, with characters that are allowed in the name of a folder."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0").replace("+", "")


def _ends(axis: Range) -> Axis:
    numbers = [round(end) if axis.is_integer else float(end) for end in (axis.low, axis.high)]
    return Axis(axis.name, {label(number): {axis.field: number} for number in numbers})
