"""Tuning of one field for every variant of a study: by the same rule, with the same number of trials.

    Study(..., tuned=Tuned("optimizer.learning_rate", factors=(1 / 4, 1 / 2, 1, 2, 4)))

Every variant is trained with every factor times its own value of the field, on seeds that the study does not use again,
and scored on the validation split alone. A best value at the edge of the grid extends it for all variants. The study
then trains every variant with its own best value.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import base_type, nearest
from transformer_jax.config_file import leaf_types
from transformer_jax.errors import ConfigError

TUNING = "tuning"
"""Folder in the work directory of a study: the work directory of its tuning."""
FACTOR = "factor"
"""The axis of a tuning, besides those of the study."""
VALID = "valid"
RELATIVE_MARGIN = 0.01
"""The margin of the good range, relative to the best value of the metric, unless the study declares one."""
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A field that is tuned for every variant.

    Attributes:
      field: a number of the config, such as `optimizer.learning_rate`.
      factors: ascending, with 1; a trial has a factor times the variant's own value of the field.
      metric: of the validation split, by which values are chosen. Default: the study's first metric if it is one of
        that split, else `valid/loss`.
      extensions: most steps by which the grid grows on each side.
      seeds: number of tuning trials for each variant and value; the mean over them counts.
      first_seed: the first of these seeds; the others follow. The study has none of them.
      margin: values whose metric differs by at most this from the best are good, in the units of the metric. Default:
        1 % of the best.
    """

    field: str
    factors: tuple[float, ...]
    metric: str = ""
    extensions: int = 2
    seeds: int = 1
    first_seed: int = 1000
    margin: float | None = None

    def check(self) -> None:
        """Raise ConfigError for values that cannot be meant, and for a field that is no number."""
        if self.field not in leaf_types():
            raise ConfigError(f"tuned: no field '{self.field}'{nearest(self.field, leaf_types())}")
        if base_type(leaf_types()[self.field]) not in (int, float):
            raise ConfigError(f"tuned: the field '{self.field}' is not a number")
        if len(self.factors) < 2:
            raise ConfigError(f"tuned: {len(self.factors)} factor(s); a grid has at least two")
        if not all(math.isfinite(factor) and factor > 0 for factor in self.factors):
            raise ConfigError(f"tuned: factors={_listed(self.factors)}: expected finite numbers above 0")
        if list(self.factors) != sorted({*self.factors}):
            raise ConfigError(f"tuned: factors={_listed(self.factors)}: expected ascending numbers")
        if 1 not in self.factors:
            raise ConfigError(f"tuned: factors={_listed(self.factors)}: 1, the variant's own value, is missing")
        if len({*map(factor_label, self.factors)}) < len(self.factors):
            raise ConfigError(f"tuned: factors={_listed(self.factors)}: two are equal to four digits")
        if self.extensions < 0 or self.seeds < 1 or self.first_seed < 0:
            raise ConfigError(
                f"tuned: extensions={self.extensions}, seeds={self.seeds}, first_seed={self.first_seed}: expected at "
                "least 0, 1 and 0"
            )
        if self.margin is not None and not (math.isfinite(self.margin) and self.margin >= 0):
            raise ConfigError(f"tuned: margin={self.margin}: expected a number of at least 0")
        if self.metric and self.metric.rpartition("/")[0] != VALID:
            raise ConfigError(f"tuned: metric '{self.metric}' is not one of the split '{VALID}', such as 'valid/loss'")

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds of the tuning."""
        return tuple(range(self.first_seed, self.first_seed + self.seeds))

    def grid(self, below: int, above: int) -> tuple[float, ...]:
        """Return the factors, and some more on each side, each in the ratio of the two at that edge."""
        low, high = self.factors[1] / self.factors[0], self.factors[-1] / self.factors[-2]
        return (
            *(self.factors[0] / low**step for step in range(below, 0, -1)),
            *self.factors,
            *(self.factors[-1] * high**step for step in range(1, above + 1)),
        )

    @property
    def widest(self) -> tuple[float, ...]:
        """All factors that a tuning can have."""
        return self.grid(self.extensions, self.extensions)

    def reached(self, factors: Iterable[float]) -> tuple[int, int]:
        """Return how many steps the grid of these factors was extended below and above."""
        factors = list(factors)
        return sum(f < self.factors[0] for f in factors), sum(f > self.factors[-1] for f in factors)

    def margin_of(self, best: float) -> float:
        """Return the margin around a best value of the metric."""
        return RELATIVE_MARGIN * abs(best) if self.margin is None else self.margin


def factor_label(factor: float) -> str:
    """Return a factor as the name of a value of an axis."""
    return f"{factor:.4g}".replace("+", "")


def value_of_factor(own: Any, factor: float, where: str) -> int | float:
    """Return a factor times the own value of a variant, to six digits; an integer for an integer.

    Args:
      where: the field and the variant, for messages.
    Raises: ConfigError if the own value is not a number above 0, or the result is rounded to 0.
    """
    if isinstance(own, bool) or not isinstance(own, int | float) or own <= 0:
        raise ConfigError(f"tuned: {where} is {own}, and the factors need a number above 0; set it")
    value = round(own * factor) if isinstance(own, int) else float(f"{own * factor:.{_DIGITS}g}")
    if not value:
        raise ConfigError(f"tuned: {where} is {own}, and {factor_label(factor)} times that is rounded to 0")
    return value


def best_factor(scores: Mapping[float, float], direction: str) -> float | None:
    """Return the factor with the best score; of equal ones that nearest to 1, then the smaller.

    Args:
      scores: by factor; NaN if a trial has diverged, which is the worst.
    Returns: None if all have diverged.
    """
    sign = -1 if direction == "max" else 1
    known = [factor for factor, score in scores.items() if math.isfinite(score)]
    return min(known, key=lambda of: (sign * scores[of], abs(math.log(of)), of), default=None)


def edges(factors: Sequence[float], best: Iterable[float | None]) -> tuple[bool, bool]:
    """Return whether a best factor of any variant lies at the lower and at the upper edge of a grid."""
    best = {*best}
    return factors[0] in best, factors[-1] in best


class GoodRange(NamedTuple):
    """Neighbouring values around the best whose metric is within the margin.

    is_open_below: its smallest value is that of the grid, so that smaller ones may be good too; is_open_above alike.
    """

    low: float
    high: float
    is_open_below: bool
    is_open_above: bool


def good_range(scores: Mapping[float, float], best: float, margin: float) -> GoodRange:
    """Return the good range around the best factor, in factors. Arguments as in `best_factor`."""
    factors = sorted(scores)
    low = high = factors.index(best)

    def is_good(at: int) -> bool:
        return abs(scores[factors[at]] - scores[best]) <= margin

    while low > 0 and is_good(low - 1):
        low -= 1
    while high + 1 < len(factors) and is_good(high + 1):
        high += 1
    return GoodRange(factors[low], factors[high], low == 0, high + 1 == len(factors))


def tuned_record(tuned: Tuned | None) -> dict[str, Any] | None:
    """Return a declaration as JSON values."""
    return None if tuned is None else dataclasses.asdict(tuned) | {"factors": list(tuned.factors)}


def from_record(values: Any) -> Tuned | None:
    """Return the declaration of `tuned_record`; raise ConfigError for other values."""
    if values is None:
        return None
    try:
        others = {name: value for name, value in values.items() if name != "factors"}
        tuned = Tuned(factors=tuple(map(float, values["factors"])), **others)
        tuned.check()
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"tuned: not the record of a tuning: {type(error).__name__}: {error}") from error
    return tuned


def check_alike(before: Any, now: Tuned | None, where: str) -> None:
    """Raise ConfigError, which names the settings, if trials were tuned under others than the study has now.

    The margin may differ: it chooses nothing.

    Args: before: as `tuned_record`, of these trials. where: they are.
    """
    before, record = tuned_record(from_record(before)), tuned_record(now)
    if before is None and record is None:
        return
    if before is None or record is None:
        then = "without tuning, and the study is tuned now" if before is None else "with tuning, and the study has none"
        raise ConfigError(f"{where}: its trials were made {then}; restore the study, or choose another folder")
    changed = [
        f"{name} ({_shown(before.get(name))} before, {_shown(value)} now)"
        for name, value in record.items()
        if name != "margin" and before.get(name) != value
    ]
    if not changed:
        return
    raise ConfigError(
        f"{where}: its trials were tuned under other settings: {', '.join(changed)}; restore them, or choose another "
        "folder"
    )


def _shown(value: Any) -> str:
    return _listed(value) if isinstance(value, list) else str(value)


def _listed(factors: Sequence[float]) -> str:
    return "(" + ", ".join(f"{factor:g}" for factor in factors) + ")"
