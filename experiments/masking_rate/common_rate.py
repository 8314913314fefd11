"""Scores of a masked language model at another mask rate than that of its training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformer_jax.config import ExperimentConfig
from transformer_jax.evaluation.evaluator import Evaluator
from transformer_jax.evaluation.scoring import Scorer


def masked_lm_scores(config: ExperimentConfig, rate: float) -> dict[str, float]:
    """Return loss and accuracy, on the split `test`, of the masked language model that a run starts from.

    All models of one tokenizer predict the same tokens, since the masks of an evaluation follow from the numbers of the
    texts alone.

    Returns: `masked_15/token_loss` in nats per masked token and `masked_15/accuracy` in percent, for a rate of 0.15.
    """
    first = Scorer.from_checkpoint(Path(config.training.init_from))
    task = dataclasses.replace(first.loaded.config.task, mask_rate=rate)
    at_rate = Evaluator(dataclasses.replace(first.loaded.config, task=task), first.evaluator.data)
    metrics = at_rate.score(first.loaded.params, "test", False).metrics
    split = f"masked_{100 * rate:.0f}"
    return {f"{split}/token_loss": float(metrics["loss"]), f"{split}/accuracy": float(metrics["accuracy"])}
