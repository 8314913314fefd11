"""How much a model's loss depends on the order of the source's tokens: "dog bites man" or "man bites dog".

Without positions an encoder is equivariant to permutations of its input, and attention to its output is invariant to
them (Vaswani et al. 2017, section 3.5): the loss of the target stays the same.
"""

from __future__ import annotations

import math

import numpy as np

from transformer_jax.evaluation.scoring import Scorer


def shuffled(inputs: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return sources [B, S] with the tokens of every row in random order, except the last, which is eos.

    mask: [B, S], True where there is a token, like `inputs_mask`.
    """
    result = inputs.copy()
    for row, length in zip(result, mask.sum(1), strict=True):
        places = np.arange(max(length - 1, 0))
        row[places] = row[rng.permutation(places)]
    return result


def loss_of_shuffled_sources(scorer: Scorer, split: str, seed: int = 0) -> dict[str, float]:
    """Return the loss with the tokens of each source shuffled, in nats per target token.

    Returns: `shuffled/loss`, and `shuffled/loss_change`, its difference to the loss on the unshuffled sources.
    """
    from transformer_jax.tasks.batches.of_split import evaluation_batches
    from transformer_jax.tasks.trained.loss_sums import loss_sums, split_for_evaluation

    config, params = scorer.loaded.config, scorer.loaded.params
    static, hyper = split_for_evaluation(config)
    batches = evaluation_batches(config, scorer.evaluator.data.splits[split])
    rng = np.random.default_rng(seed)
    plain, mixed, weight = [], [], []
    for batch, _ in batches:
        sums = loss_sums(static, params, batch, hyper)
        plain.append(float(sums["nll"]))
        weight.append(float(sums["weight"]))
        other = shuffled(batch["inputs"], batch["inputs_mask"], rng)
        mixed.append(float(loss_sums(static, params, batch | {"inputs": other}, hyper)["nll"]))
    loss, tokens = math.fsum(mixed) / math.fsum(weight), math.fsum(weight)
    return {"shuffled/loss": loss, "shuffled/loss_change": loss - math.fsum(plain) / tokens}
