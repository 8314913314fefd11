"""Scores by the length of the source."""

from __future__ import annotations

import numpy as np

from transformer_jax.evaluation.run import Scorer
from transformer_jax.tasks.text_scores import translation_scores


def scores_by_length(scorer: Scorer, split: str, width: int) -> dict[str, float]:
    """Return exact match and sacreBLEU of a split's translations, in bins of source length.

    Args:
      width: of a bin, in tokens without eos: 4 gives 1-4, 5-8, ...
    Returns: scores by name, such as `test[5-8]/exact_match`, and the number of pairs of each bin, `test[5-8]/pairs`.
      Empty bins are left out.
    """
    lengths = scorer.evaluator.data.splits[split].lengths("inputs") - 1
    outputs, references = scorer.outputs(split), scorer.references(split) or []
    numbers: dict[str, float] = {}
    for number in np.unique((lengths - 1) // width):
        rows = np.flatnonzero((lengths - 1) // width == number)
        scores = translation_scores([outputs[row] for row in rows], [references[row] for row in rows])
        name = f"{split}[{number * width + 1}-{(number + 1) * width}]"
        numbers |= {f"{name}/{metric}": scores[metric] for metric in ("exact_match", "sacrebleu")}
        numbers[f"{name}/pairs"] = float(len(rows))
    return numbers
