"""How evenly a model attends."""

from __future__ import annotations

import numpy as np

from transformer_jax.evaluation.run import Scorer
from transformer_jax.typing import Params


def attention_entropy(scorer: Scorer, params: Params, split: str = "test") -> float:
    """Of the decoder's attention to the source, in nats: the mean over layers, heads and target tokens.

    Over the first batch of a split. No more than ln S where S pieces are attended to; 0 where it is one alone.
    """
    from transformer_jax.data.batching import EvaluationBatches
    from transformer_jax.inspection.attention import capture, mean_entropy

    config = scorer.loaded.config
    batch, _ = next(
        iter(
            EvaluationBatches(
                scorer.evaluator.data.splits[split],
                tokens_per_batch=min(1024, config.evaluation.tokens_per_batch),
                row_multiple=config.data.row_multiple,
            )
        )
    )
    _, weights = capture(config.model, params, batch)
    cross = np.asarray(weights["decoder_cross_attention"])  # [L, B, N, T, S]
    return float(np.mean(mean_entropy(np.moveaxis(cross, 2, 3)[:, np.asarray(batch["targets"]) != 0])))
