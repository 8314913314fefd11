"""The loss of a language model by the position in a window of text."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict

import numpy as np

from transformer_jax.evaluation.scoring import Scorer


def loss_by_position(scorer: Scorer, split: str, size: int, width: int) -> dict[str, float]:
    """Return the losses of a split in windows side by side, in nats per token, without context from other windows.

    Args:
      size: tokens of a window; the last one may be shorter. width: positions of a bin; `size` is a multiple of it.
    Returns: `size_512/loss` of all tokens, for size=512, and `size_512[1-64]/loss` of every bin that has tokens, for
      width=64.
    """
    from transformer_jax.tasks.batches.of_split import evaluation_batches
    from transformer_jax.tasks.trained.loss_sums import loss_sums, split_for_evaluation

    evaluation = dataclasses.replace(scorer.loaded.config.evaluation, max_length=size, context=0)
    config = dataclasses.replace(scorer.loaded.config, evaluation=evaluation)
    static, hyper = split_for_evaluation(config)
    nats, weights = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for batch, _ in evaluation_batches(config, scorer.evaluator.data.splits[split]):
        bins = np.arange(batch["weights"].shape[1]) // width
        for number in range(size // width):
            of_bin = np.where(bins == number, batch["weights"], 0.0).astype(np.float32)
            sums = loss_sums(static, scorer.loaded.params, batch | {"weights": of_bin}, hyper)
            nats[number].append(float(sums["nll"]))
            weights[number].append(float(sums["weight"]))
    tokens = {number: math.fsum(values) for number, values in weights.items()}
    everything = math.fsum(math.fsum(values) for values in nats.values()) / math.fsum(tokens.values())
    return {f"size_{size}/loss": everything} | {
        f"size_{size}[{number * width + 1}-{(number + 1) * width}]/loss": math.fsum(nats[number]) / tokens[number]
        for number in nats
        if tokens[number]
    }
