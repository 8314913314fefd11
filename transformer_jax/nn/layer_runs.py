"""The layers of a stack as few loops: each repeats a period of layers whose parameters may have different shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.typing import Array


class Run(NamedTuple):
    """Layers first, ..., first + period * times - 1 of a stack: `times` equal periods."""

    first: int
    period: int
    times: int

    @property
    def end(self) -> int:
        return self.first + self.period * self.times

    def of_place(self, place: int) -> range:
        """Return the numbers of the layers at one place of all periods."""
        return range(self.first + place, self.end, self.period)


def runs(kinds: Sequence[str]) -> list[Run]:
    """Return the loops that apply layers of these kinds, in order.

    From each layer on, the period is the one whose repetitions save most: a stack of equal layers is one run with a
    period of 1, "AAABAAABAA" one of 4, twice, and one of 1, twice.
    """
    found: list[Run] = []
    first = 0
    while first < len(kinds):
        candidates = [Run(first, period, _times(kinds, first, period)) for period in range(1, len(kinds) - first + 1)]
        found.append(max(candidates, key=lambda run: (run.period * (run.times - 1), -run.period)))
        first = found[-1].end
    return found


def _times(kinds: Sequence[str], first: int, period: int) -> int:
    """Return how often the kinds of a period follow each other."""
    times = 1
    while kinds[first + times * period : first + (times + 1) * period] == kinds[first : first + period]:
        times += 1
    return times


def strided(tree: Any, rows: Sequence[int], size: int) -> Any:
    """Return rows of arrays [size, ...], equally far apart; the arrays themselves if these are all rows."""
    if len(rows) == size:
        return tree
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    return jax.tree.map(lambda x: x[rows[0] : rows[-1] + 1 : step], tree)


def in_order(parts: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """Return trees of arrays [k, ...] as one, with the rows in the order of their layers.

    Args:
      parts: the numbers of k layers, and their tree. All trees have the same structure.
    """
    if len(parts) == 1:
        return parts[0][1]
    numbers = [number for layers, _ in parts for number in layers]
    order = jnp.array(sorted(range(len(numbers)), key=numbers.__getitem__))

    def joined(*arrays: Array) -> Array:
        return jnp.concatenate(arrays)[order]

    return jax.tree.map(joined, *(tree for _, tree in parts))
