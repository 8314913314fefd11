"""Designs beside grids: a walk from one model to another, and the last model without one step each.

    STEPS = (
        Step("2017", {}),
        Step("pre", {"model.norm_position": "pre"}),
        Step("rotary", {"model.position_encoding": "rotary"}),
    )
    axes=(Walk(STEPS),)                               2017, pre, rotary; each against the one before
    axes=(LeaveOneOut(STEPS),)                        rotary, without_pre, without_rotary; each against the first
    axes=(joined(Walk(STEPS), LeaveOneOut(STEPS)),)   both, as one axis; without_rotary is pre

A design is an axis, so its study is an ordinary one in all else. It brings the contrasts of its steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

from transformer_jax.config import nearest
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.contrasts import Contrast
from transformer_jax.sweeps.study import Axis

NAME = "model"
"""Default name of the axis; `step` is the name of a column of reports."""


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a walk: overrides on top of the model before it.

    Attributes:
      drop: what is left out together with this step: names of later steps, or fields that later steps set.
    """

    name: str
    overrides: Mapping[str, Any]
    drop: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Design(Axis):
    """An axis that brings its contrasts.

    Attributes:
      pairs: names of values; the first of a pair is compared with the second.
      left_out: the step that a value lacks, by name of the value.
    """

    pairs: tuple[tuple[str, str], ...] = ()
    left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """The contrasts of the design."""
        return tuple(Contrast(self.name, a, b) for a, b in self.pairs)

    def step_of(self, a: str, b: str) -> str:
        """Return the name of the step that is the difference of a pair."""
        return self.left_out.get(a, a)


def Walk(steps: Sequence[Step], name: str = NAME) -> Design:
    """Return the design in which every step is a variant with all steps before it, compared with the step before.

    Raises: ConfigError for fewer than two steps, two steps of one name, and a step whose fields have these values
      already.
    """
    _check(steps)
    values, before = {}, dict(steps[0].overrides)
    values[steps[0].name] = before
    for step in steps[1:]:
        after = before | dict(step.overrides)
        if after == before:
            raise ConfigError(f"step '{step.name}' changes nothing: it sets no field to another value; leave it out")
        values[step.name] = before = after
    names = [step.name for step in steps]
    return Design(name, values, tuple(zip(names[1:], names, strict=False)))


def LeaveOneOut(steps: Sequence[Step], name: str = NAME) -> Design:
    """Return the design of the last model, and of the last model without one step each, compared with it.

    The first step stays: it is where the walk begins. A field that several steps set has the value of the last of those
    that are left.

    Raises: ConfigError as `Walk`, for something to drop that no later step has, and for a step whose fields later steps
      set anew, so that the last model without it is the same.
    """
    _check(steps)
    last, values, left_out = steps[-1].name, {}, {}
    values[last] = whole = _together(steps)
    for index, step in enumerate(steps[1:], start=1):
        later = steps[index + 1 :]
        known = {other.name for other in later} | {field for other in later for field in other.overrides}
        if unknown := [what for what in step.drop if what not in known]:
            raise ConfigError(
                f"step '{step.name}': drop: no later step has the name or sets the field '{unknown[0]}'"
                f"{nearest(unknown[0], sorted(known))}"
            )
        label = f"without_{step.name}"
        values[label] = _together(steps[:index]) | _together(later, step.drop)
        left_out[label] = step.name
        if values[label] == whole:
            raise ConfigError(
                f"step '{step.name}' changes nothing in the last model: later steps set its fields anew; it cannot be "
                "left out alone"
            )
    return Design(name, values, tuple((label, last) for label in left_out), left_out)


def joined(first: Design, second: Design) -> Design:
    """Return two designs as one axis; a value of the second that has the overrides of one of the first is that one.

    Raises: ConfigError if the axes have different names, or a value has one name and two sets of overrides.
    """
    if first.name != second.name:
        raise ConfigError(f"joined: the designs have the names '{first.name}' and '{second.name}'; give them the same")
    values, now = dict(first.values), {}
    for label, overrides in second.values.items():
        if label in values and dict(values[label]) != dict(overrides):
            raise ConfigError(f"joined: '{label}' is the name of two values; rename a step")
        now[label] = next((known for known, of in values.items() if dict(of) == dict(overrides)), label)
        values.setdefault(now[label], overrides)
    pairs = list(first.pairs)
    known = {frozenset(pair) for pair in pairs}
    pairs += [(now[a], now[b]) for a, b in second.pairs if frozenset((now[a], now[b])) not in known]
    left_out = {label: step for label, step in second.left_out.items() if now[label] == label}
    return Design(first.name, values, tuple(pairs), {**first.left_out, **left_out})


def _check(steps: Sequence[Step]) -> None:
    names = [step.name for step in steps]
    if len(steps) < 2:
        raise ConfigError(f"{len(steps)} step(s); a walk has at least two")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"steps: {', '.join(twice)} twice")


def _together(steps: Sequence[Step], without: Container[str] = ()) -> dict[str, Any]:
    """Return the overrides of all steps, except for steps and fields with these names."""
    return {
        field: value
        for step in steps
        if step.name not in without
        for field, value in step.overrides.items()
        if field not in without
    }
