"""Scores by the length of the source."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.tasks.metrics.text import translation_scores


def bins(lengths: np.ndarray, width: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the bins of lengths that are not empty: the name, such as `[5-8]`, and the rows, int [N].

    Args:
      width: of a bin: 4 gives 1-4, 5-8, ...
    """
    numbers = (lengths - 1) // width
    for number in np.unique(numbers):
        yield f"[{number * width + 1}-{(number + 1) * width}]", np.flatnonzero(numbers == number)


def scores_by_length(scorer: Scorer, split: str, width: int) -> dict[str, float]:
    """Return exact match and sacreBLEU of a split's translations, in bins of source length.

    Args:
      width: of a bin, in tokens without eos.
    Returns: scores by name, such as `test[5-8]/exact_match`, and the number of pairs of each bin, `test[5-8]/pairs`.
      Empty bins are left out.
    """
    lengths = scorer.evaluator.data.splits[split].lengths("inputs") - 1
    outputs, references = scorer.outputs(split), scorer.references(split) or []
    numbers: dict[str, float] = {}
    for label, rows in bins(lengths, width):
        scores = translation_scores([outputs[row] for row in rows], [references[row] for row in rows])
        name = f"{split}{label}"
        numbers |= {f"{name}/{metric}": scores[metric] for metric in ("exact_match", "sacrebleu")}
        numbers[f"{name}/pairs"] = float(len(rows))
    return numbers
