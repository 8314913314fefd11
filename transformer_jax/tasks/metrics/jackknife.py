"""How much every example moves a score: the jackknife over examples (Quenouille 1956, Tukey 1958).

Without example i of N, the score is f_i. Its influence is u_i = (N - 1) (mean of f - f_i). The influences have the mean
0, and their variance (divisor N - 1) divided by N estimates the variance of the score over samples of N examples. For a
mean they are the deviations from it; for a ratio such as the loss per token, and any other smooth function of sums,
they are those of the linearised score. Influences of a difference, or of a mean, of scores on the same examples are the
difference, or the mean, of the influences.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from transformer_jax.tasks.task import ExampleSums

_LEFT_OUT_TOGETHER = 1 << 20
"""Number of statistics whose sums are in memory at once."""


def influences(of: ExampleSums) -> Float[np.ndarray, " examples"]:
    """Return the influence of every example on a score; not finite if the score without an example is not.

    Raises: ValueError for fewer than two examples.
    """
    count, width = of.values.shape
    if count < 2:
        raise ValueError(f"{count} examples: their influences need two or more")
    total, chunk = of.values.sum(0), max(_LEFT_OUT_TOGETHER // max(width, 1), 1)
    parts = [np.asarray(of.score(total - of.values[i : i + chunk]), np.float64) for i in range(0, count, chunk)]
    without = np.concatenate(parts)
    return (count - 1) * (without.mean() - without)
