"""What a sweep asks of a search: which trials there are, one after the other; and what there is to choose from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.standing import Standing
from transformer_jax.sweeps.study import Axis, Range, Study
from transformer_jax.sweeps.trials import Trial, grid, variant, with_seeds

NAMES = ("grid", "random", "tpe")
PRUNERS = ("none", "median", "successive_halving")
DIGITS = 4
"""Significant digits that a drawn number is rounded to: its name, and so that of its folder, is the number itself."""


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """name: of the search. num_trials: variants that are tried, each with every seed of the study. seed: of the draws.
    pruner: of `tpe`, what ends trials early. storage: of `tpe`, the URL of its database."""

    name: str = "grid"
    num_trials: int | None = None
    seed: int = 0
    pruner: str = "none"
    storage: str | None = None


def check_options(options: SearchOptions) -> None:
    """Raises ConfigError for options that a search has not, or lacks."""
    if options.name not in NAMES:
        raise ConfigError(f"--search={options.name}: expected one of {', '.join(NAMES)}")
    if options.pruner not in PRUNERS:
        raise ConfigError(f"--pruner={options.pruner}: expected one of {', '.join(PRUNERS)}")
    if options.name == "grid" and (options.num_trials is not None or options.seed):
        raise ConfigError("--num_trials and --search_seed are for --search=random and tpe; a grid has all variants")
    if options.name != "grid" and (options.num_trials is None or options.num_trials < 1):
        raise ConfigError(f"--search={options.name}: --num_trials=N says how many variants are tried, at least 1")
    if options.name != "tpe" and (options.pruner != "none" or options.storage is not None):
        raise ConfigError(f"--pruner and --storage are for --search=tpe, not for {options.name}")


@runtime_checkable
class Search(Protocol):
    """Where the trials of a sweep come from."""

    @property
    def notes(self) -> Sequence[str]:
        """What is to be said of its trials before they start."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether no trials come any more, once what it has been told of so far is taken in."""
        ...

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        """Trials that join those which it has given before, whose standings it is shown; asked again and again."""
        ...

    def finished(self, standing: Standing) -> None:
        """Takes in how a trial has ended; told once of each, and of those that an earlier sweep has run."""
        ...

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        """Trials that are to end now, and why; asked again and again, each is named once."""
        ...

    def close(self) -> None:
        """Once no job runs any more."""
        ...


class Listed:
    """Trials that are all known at once."""

    def __init__(self, trials: Sequence[Trial], notes: Sequence[str] = ()) -> None:
        self.notes, self._trials = notes, list(trials)

    @property
    def is_over(self) -> bool:
        return not self._trials

    def next(self, standings: Sequence[Standing]) -> list[Trial]:
        trials, self._trials = self._trials, []
        return trials

    def finished(self, standing: Standing) -> None:
        """Nothing."""

    def pruned(self, running: Sequence[Standing]) -> list[tuple[Standing, str]]:
        return []

    def close(self) -> None:
        """Nothing."""


@dataclasses.dataclass(frozen=True)
class Space:
    """What variants of a study may be drawn: one value of every axis.

    Attributes:
      root: the folder that holds `experiments` and the baseline.
      overrides: config fields by dotted name, as on the command line, for every trial.
    """

    study: Study
    root: Path
    overrides: Mapping[str, Any]

    def check(self) -> None:
        """Raises ConfigError for a range or an axis that changes nothing, or an end of a range that a run refuses."""
        corners = tuple(_ends(axis) if isinstance(axis, Range) else axis for axis in self.study.axes)
        grid(dataclasses.replace(self.study, axes=corners), self.root, self.overrides)

    def trials(self, values: Mapping[str, Any]) -> list[Trial]:
        """A variant with every seed.

        Args:
          values: by name of the axis: the name of one of its values, or a number within the range.
        Raises: ConfigError if a run refuses its config.
        """
        labels, fields = {}, {}
        for axis in self.study.axes:
            value = values[axis.name]
            if isinstance(axis, Range):
                value = fields[axis.field] = rounded(axis, value)
            labels[axis.name] = label(value)
        config = variant(self.study, self.root, labels, fields, self.overrides)
        return with_seeds(self.study, labels, config)

    def first(self) -> ExperimentConfig:
        """The config of the first values and the low ends."""
        ends = {axis.name: axis.low if isinstance(axis, Range) else next(iter(axis.values)) for axis in self.study.axes}
        return self.trials(ends)[0].config


def rounded(axis: Range, value: int | float) -> int | float:
    """A drawn number to as many digits as its name has, within the range."""
    if axis.is_integer:
        return round(value)
    return min(max(float(f"{value:.{DIGITS}g}"), float(axis.low)), float(axis.high))


def label(value: str | int | float) -> str:
    """The name of a value, with no character that a folder's name must not have."""
    return value if isinstance(value, str) else repr(value).removesuffix(".0").replace("+", "")


def _ends(axis: Range) -> Axis:
    numbers = [round(end) if axis.is_integer else float(end) for end in (axis.low, axis.high)]
    return Axis(axis.name, {label(number): {axis.field: number} for number in numbers})
