"""The differences that a study asks for: contrasts of two values of an axis, and interactions of two axes.

    contrasts=("norm",)                                     every value of the axis against the reference's
    contrasts=(Contrast("norm", "pre", "post"),)            one value against another
    contrasts=(Interaction("norm", "depth"),)               how the effect of the norm changes with depth

A contrast is measured under every condition: for every combination of values of the other axes. It is paired by seed:
d = x - y for each seed. An interaction is a difference of such differences: d at one value of the second axis minus d
at its reference value.
"""

from __future__ import annotations

import dataclasses
import math
import string
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError

Labels = Mapping[str, str]
"""Name of the value on each axis, by name of the axis."""


@dataclasses.dataclass(frozen=True)
class Contrast:
    """The difference between two values of an axis: value `a` minus value `b`.

    Attributes:
      says: frame of the sentence with the answer, such as `{a} is ahead of {b}`. The value that is ahead takes the
        place of `{a}`. Default: the names of axis and value, `norm pre is ahead of norm post`.
    """

    axis: str
    a: str
    b: str
    says: str = ""

    def __post_init__(self) -> None:
        if self.a == self.b:
            raise ConfigError(f"contrast of '{self.axis}': '{self.a}' with itself; name two values")
        if self.says and _names_in(self.says) != ["a", "b"]:
            raise ConfigError(f"contrast of '{self.axis}': says='{self.says}': needs {{a}} and {{b}}, each once")

    def __str__(self) -> str:
        return f"{self.axis}: {self.a} minus {self.b}"


@dataclasses.dataclass(frozen=True)
class Interaction:
    """How the effect of the first axis changes with the second: a difference of differences.

    Every value of an axis is compared with the reference's.
    """

    axis: str
    by: str

    def __post_init__(self) -> None:
        if self.axis == self.by:
            raise ConfigError(f"interaction of '{self.axis}' with itself; name two axes")

    def __str__(self) -> str:
        return f"{self.axis} by {self.by}"


Declared = str | Contrast | Interaction
"""An entry of `Study.contrasts`. The name of an axis stands for each of its values against the reference's value."""


class Term(NamedTuple):
    """A variant in a difference. sign: 1 or -1."""

    sign: int
    labels: Labels


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A contrast or an interaction under one condition.

    Attributes:
      declared: a contrast for the name of an axis too.
      terms: the variants whose sum, with their signs, is the difference; the first has the sign 1.
    """

    declared: Contrast | Interaction
    terms: tuple[Term, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are compared; the others are the condition."""
        axis = self.declared.axis
        return (axis, self.declared.by) if isinstance(self.declared, Interaction) else (axis,)

    @property
    def labels(self) -> Labels:
        """Labels of the first variant."""
        return self.terms[0].labels

    @property
    def against(self) -> Labels:
        """The values that those of the first variant are compared with, by axis."""
        return {axis: self.terms[-1].labels[axis] for axis in self.axes}

    @property
    def condition(self) -> dict[str, str]:
        """Values of the axes that are the same in all terms."""
        return {axis: value for axis, value in self.labels.items() if axis not in self.axes}

    @property
    def contrast(self) -> str:
        """The terms as text: `norm: pre minus post`, or `norm: pre minus post, at depth=6 minus at depth=2`."""
        first, *second = self.axes
        said = f"{first}: {self.labels[first]} minus {self.against[first]}"
        return said + "".join(
            f", at {axis}={self.labels[axis]} minus at {axis}={self.against[axis]}" for axis in second
        )

    @property
    def name(self) -> str:
        """Name such as `norm: pre minus post, where warmup=yes, depth=2`."""
        return self.contrast + (f", where {', '.join(map('='.join, self.condition.items()))}" if self.condition else "")


def comparisons(declared: Sequence[Declared], reference: Labels, variants: Sequence[Labels]) -> list[Comparison]:
    """Return the comparisons that a study declares, among the variants that there are.

    Args:
      reference: the values that others are compared with, by axis.
      variants: in the order in which the comparisons of one declaration are wanted.
    """
    there = {tuple(sorted(labels.items())) for labels in variants}
    found = [comparison for one in declared for comparison in _of(one, reference, variants)]
    return [of for of in found if all(tuple(sorted(term.labels.items())) in there for term in of.terms)]


def with_reference(reference: Labels, variants: Sequence[Labels]) -> list[tuple[Term, Term]]:
    """Return the differences of all other variants to the reference; none if it is not among them."""
    if reference not in variants:
        return []
    return [(Term(1, labels), Term(-1, reference)) for labels in variants if labels != reference]


def difference_by_seed(terms: Sequence[Term], values: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return the difference for every seed that all terms have.

    Args: values: by seed, for each term.
    """
    first, *others = values
    return {
        seed: math.fsum(term.sign * of[seed] for term, of in zip(terms, values, strict=True))
        for seed in first
        if all(seed in other for other in others)
    }


def check_contrasts(declared: Sequence[Declared], reference: Labels, axes: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError for a contrast of an axis or a value that the study lacks, or that is there twice.

    Args: axes: names of values, by axis with named values.
    """
    seen: set[Any] = set()
    for one in declared:
        names = _axes_of(one)
        for name in names:
            if name not in axes:
                raise ConfigError(f"contrasts: no axis with named values '{name}'{nearest(name, axes)}")
        pairs: list[frozenset[str]] = [frozenset(names)]
        if isinstance(one, Contrast):
            for value in (one.a, one.b):
                if value not in axes[one.axis]:
                    raise ConfigError(
                        f"contrasts: axis '{one.axis}' has no value '{value}'{nearest(value, list(axes[one.axis]))}"
                    )
            pairs = [frozenset((one.a, one.b))]
        elif isinstance(one, str):
            pairs = [frozenset((value, reference[one])) for value in axes[one] if value != reference[one]]
        keys = {(isinstance(one, Interaction) or names[0], pair) for pair in pairs}
        if keys & seen:
            raise ConfigError(f"contrasts: {one} twice")
        seen |= keys


def contrasts_among(declared: Sequence[Declared], axes: Container[str]) -> tuple[Declared, ...]:
    """Return the contrasts that need no axis beside these."""

    def is_left(one: Declared) -> bool:
        return all(name in axes for name in _axes_of(one))

    return tuple(filter(is_left, declared))


def recorded(declared: Sequence[Declared]) -> list[Any]:
    """Return contrasts as JSON values."""
    return [one if isinstance(one, str) else dataclasses.asdict(one) for one in declared]


def from_record(values: Sequence[Any]) -> tuple[Declared, ...]:
    """Return the contrasts of `recorded`; raise TypeError for other values."""
    return tuple(
        value if isinstance(value, str) else Interaction(**value) if "by" in value else Contrast(**value)
        for value in values
    )


def _axes_of(declared: Declared) -> list[str]:
    if isinstance(declared, str):
        return [declared]
    return [declared.axis, declared.by] if isinstance(declared, Interaction) else [declared.axis]


def _of(declared: Declared, reference: Labels, variants: Sequence[Labels]) -> Iterator[Comparison]:
    for labels in variants:
        if isinstance(declared, Interaction):
            by, axis = declared.by, declared.axis
            if labels[axis] != reference[axis] and labels[by] != reference[by]:
                base = {axis: reference[axis]}
                there, at_first = labels, {**labels, by: reference[by]}
                signed = ((1, there), (-1, {**there, **base}), (-1, at_first), (1, {**at_first, **base}))
                yield Comparison(declared, tuple(Term(sign, of) for sign, of in signed))
            continue
        one = declared
        if isinstance(one, str):
            if labels[one] == reference[one]:
                continue
            one = Contrast(one, labels[one], reference[one])
        if labels[one.axis] == one.a:
            yield Comparison(one, (Term(1, labels), Term(-1, {**labels, one.axis: one.b})))


def _names_in(frame: str) -> list[str]:
    """Return the sorted names in braces of a frame, or nothing if its braces do not match."""
    try:
        return sorted(name for _, name, _, _ in string.Formatter().parse(frame) if name is not None)
    except ValueError:
        return []
