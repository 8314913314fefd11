"""Random search (Bergstra and Bengio 2012): variants are drawn independently, all of them before the first training."""

from __future__ import annotations

import math
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.search.search import Listed, Space
from transformer_jax.sweeps.study import Axis, Range
from transformer_jax.sweeps.trials import Trial, trained_once


def random_search(space: Space, num_trials: int, seed: int) -> Listed:
    """Return a search over `num_trials` draws that depend only on the seed; more draws keep the first ones.

    A variant that is drawn again, or is the same experiment as an earlier one, is trained once; a note says so.

    Raises: ConfigError if configs are invalid, with the number of every such draw.
    """
    import numpy as np

    space.check_draws()
    generator = np.random.default_rng(seed)
    first: dict[Any, str] = {}
    trials: list[Trial] = []
    notes, problems = [], []
    for number in range(num_trials):
        values = {axis.name: drawn_value(axis, generator) for axis in space.study.axes}
        try:
            drawn = space.trials(values)
        except ConfigError as error:
            problems.append(f"draw {number}: {error}")
            continue
        name = drawn[0].variant
        if drawn[0].config in first:
            notes.append(
                f"draw {number}, {name}, is the same experiment as {first[drawn[0].config]} and is not trained again"
            )
        else:
            first[drawn[0].config] = name
            trials += drawn
    if problems:
        raise ConfigError("\n".join(problems))
    return Listed(trained_once(trials), notes)


def drawn_value(axis: Axis | Range, generator: Any) -> Any:
    """Return a value of an axis, drawn uniformly from its names or numbers, or from their logarithms.

    Integers are rounded from numbers between low - 1/2 and high + 1/2, so that both ends are as likely as the others.
    """
    if isinstance(axis, Axis):
        return list(axis.values)[generator.integers(len(axis.values))]
    margin = 0.5 if axis.is_integer else 0.0
    low, high = axis.low - margin, axis.high + margin
    number = math.exp(generator.uniform(math.log(low), math.log(high))) if axis.log else generator.uniform(low, high)
    return min(max(round(number), axis.low), axis.high) if axis.is_integer else number
