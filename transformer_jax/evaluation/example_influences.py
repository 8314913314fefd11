"""The influence of every example of a split on the scores of a checkpoint; see `tasks.metrics.jackknife`."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.errors import DataError
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.tasks.metrics.jackknife import influences
from transformer_jax.tasks.outside_errors import errors_from_outside
from transformer_jax.tasks.task import ExampleSums

logger = logging.getLogger(__name__)
_TOLERANCE = 1e-4
"""Relative difference between a score and the one from the sums, which rounding may explain."""


def example_influences(
    scorer: Scorer, split: str, metrics: Sequence[str], scores: Mapping[str, object]
) -> dict[str, Float[np.ndarray, " examples"]]:
    """Return the influences of the examples by metric, for those metrics that follow from sums over examples.

    A metric is left out if the sums do not give its score. An error of a task from outside is a warning.

    Args:
      scorer: has scored the split. metrics: names without the split. scores: what `scorer.score` has returned.
    """
    found = {}
    try:
        with errors_from_outside(scorer.evaluator.config, f"statistics of split '{split}'", DataError):
            for name, sums in _sums(scorer, split, metrics):
                score, whole = scores.get(name), float(sums.score(sums.values.sum(0)))
                if len(sums.values) < 2 or not isinstance(score, int | float):
                    continue
                if not math.isclose(whole, score, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
                    logger.warning("%s: '%s' is %s, but %s from sums over examples", split, name, score, whole)
                    continue
                values = influences(sums)
                if np.isfinite(values).all():
                    found[name] = values
    except DataError as error:
        logger.warning("the noise of the test set is not known: %s", error)
    finally:
        scorer.evaluator.forget()
    return found


def examples_key(scorer: Scorer, split: str, count: int) -> str:
    """Return a text that two scorers share if their influences are those of the same examples.

    Args: count: of the influences. If the examples are windows of a longer text, the tokenizer decides which ones.
    """
    key, config = scorer.corpus(split), scorer.loaded.config
    if count == scorer.evaluator.data.splits[split].num_examples:
        return key
    window = config.evaluation.max_length or config.data.max_length
    return f"{key} {scorer.evaluator.data.tokenizer.sha256} {window} {config.evaluation.context}"


def _sums(scorer: Scorer, split: str, metrics: Sequence[str]) -> Iterator[tuple[str, ExampleSums]]:
    task, config = scorer.evaluator.task, scorer.evaluator.config
    generated = {spec.name for spec in task.metrics if spec.needs_generation}
    if any(name in generated for name in metrics):
        outputs, references = scorer.earlier_outputs(split), scorer.references(split)
        if outputs is not None and references is not None:
            found = task.output_sums(config, outputs, references)
            yield from ((name, found[name]) for name in metrics if name in found)
    if all(name in generated for name in metrics):
        return
    statistics = task.statistics(scorer.evaluator, scorer.loaded.params, split)
    names = list(statistics)
    values = np.stack([np.asarray(statistics[name], np.float64) for name in names], -1)

    def score_of(metric: str) -> Callable[[np.ndarray], np.ndarray]:
        return lambda sums: np.asarray(task.from_sums(dict(zip(names, np.moveaxis(sums, -1, 0), strict=True)))[metric])

    known = task.from_sums(dict(zip(names, values.sum(0), strict=True)))
    yield from ((name, ExampleSums(values, score_of(name))) for name in metrics if name in known)
