"""Whether a model sees in which order the pieces of its source stand: "dog bites man" or "man bites dog".

Without positions an encoder is equivariant to permutations of its input, and attention to its output does not tell
them apart (Vaswani et al. 2017, section 3.5): the loss of the target stays the same.
"""

from __future__ import annotations

import math

import numpy as np

from transformer_jax.config import EOS_ID, PAD_ID
from transformer_jax.evaluation.run import Scorer


def shuffled(inputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sources [B, S] with the pieces of every row in random order; end mark and padding stay where they are."""
    result = inputs.copy()
    for row in result:
        places = np.flatnonzero((row != PAD_ID) & (row != EOS_ID))
        row[places] = row[rng.permutation(places)]
    return result


def loss_of_shuffled_sources(scorer: Scorer, split: str, seed: int = 0) -> dict[str, float]:
    """Loss of the targets with the pieces of each source shuffled, in nats per target token.

    Returns: `shuffled/loss`, and `shuffled/loss_change`, by how much it exceeds that with the sources as they are.
    """
    from transformer_jax.data.batching import EvaluationBatches
    from transformer_jax.evaluation.evaluator import loss_sums

    config, params = scorer.loaded.config, scorer.loaded.params
    batches = EvaluationBatches(
        scorer.evaluator.data.splits[split],
        tokens_per_batch=config.evaluation.tokens_per_batch,
        row_multiple=config.data.row_multiple,
    )
    rng = np.random.default_rng(seed)
    plain, mixed, weight = [], [], []
    for batch, _ in batches:
        sums = loss_sums(config.model, params, batch)
        plain.append(float(sums.nll))
        weight.append(float(sums.weight))
        mixed.append(float(loss_sums(config.model, params, batch | {"inputs": shuffled(batch["inputs"], rng)}).nll))
    loss, tokens = math.fsum(mixed) / math.fsum(weight), math.fsum(weight)
    return {"shuffled/loss": loss, "shuffled/loss_change": loss - math.fsum(plain) / tokens}
