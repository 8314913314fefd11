"""As many seeds as a precision needs: a pilot, and a second stage by Stein's rule (see `sweeps.statistics`).

A study declares half the widths of its intervals, by metric. Its first stage has five seeds, or all that the study
lists if they are more. Once all their trials have ended, the number of seeds follows from the spread of the
differences: the largest over metrics and contrasts, and at most `Study.max_seeds`. It depends on no mean, sign or
p-value.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.contrasts import Labels, Term, comparisons, difference_by_seed, with_reference
from transformer_jax.sweeps.statistics import PILOT, stein_seeds
from transformer_jax.sweeps.study import Study

Values = Callable[[Labels, str], Mapping[int, float]]
"""Returns the values of a metric by seed, of the trials of a variant that have finished."""


def with_pilot(study: Study) -> Study:
    """Return the study with the seeds of its first stage: its own, unless it wants a precision and has fewer than 5."""
    if not study.precision:
        return study
    return dataclasses.replace(study, seeds=extended(study.seeds, max(PILOT, len(study.seeds))))


def extended(seeds: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the seeds, and as many after the largest as make a number."""
    more = range(max(seeds) + 1, max(seeds) + 1 + count - len(seeds))
    return (*seeds, *more)


def needed_seeds(study: Study, variants: Sequence[Labels], values: Values) -> int:
    """Return the number of seeds that the widths of a study need, which may be above `max_seeds`.

    A difference with a trial of the pilot that has not finished, or with a value that is not finite, does not count: no
    number of seeds gives it an interval.

    Args: study: with the seeds of its pilot. variants: that have trials.
    """
    terms: list[Sequence[Term]] = [of.terms for of in comparisons(study.contrasts, study.reference_variant, variants)]
    if not study.contrasts:
        terms = list(with_reference(study.reference_variant, variants))
    needed = len(study.seeds)
    for metric, width in study.precision.items():
        by_seed = [difference_by_seed(of, [values(term.labels, metric) for term in of]) for of in terms]
        pilots = [[of[seed] for seed in study.seeds if seed in of] for of in by_seed]
        whole = [of for of in pilots if len(of) == len(study.seeds) and all(map(math.isfinite, of))]
        needed = max(needed, stein_seeds(whole, width))
    return needed


def planned_seeds(study: Study, needed: int) -> tuple[int, ...]:
    """Return the seeds of both stages. Args: needed: as `needed_seeds`."""
    return extended(study.seeds, min(needed, max(study.max_seeds, len(study.seeds))))


def parse_precision(text: str) -> dict[str, float]:
    """Return the widths by metric of `test/loss: 0.015, test/chrf: 0.5`; raise ConfigError for another text."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\S+)\s*:\s*([0-9.eE+-]+)\s*", part)
        try:
            name, width = (match[1], float(match[2])) if match else ("", math.nan)
        except ValueError:
            name, width = "", math.nan
        if not name or name in found:
            raise ConfigError(f"--until={text}: expected METRIC: WIDTH, such as 'test/loss: 0.015'")
        found[name] = width
    return found
