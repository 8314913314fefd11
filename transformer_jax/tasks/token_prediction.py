"""Prediction of tokens: what translation, language models and the tasks that corrupt texts share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformer_jax.config import TaskConfig
from transformer_jax.tasks.task import Evaluation, MetricSpec, Scores, Task

if TYPE_CHECKING:
    from transformer_jax.models.architecture import Model
    from transformer_jax.nn.dropout import Dropout
    from transformer_jax.tasks.task import Sums
    from transformer_jax.typing import Array, Batch, Params

NATS = "nats per token"
LOGGED = (
    MetricSpec("loss", "min", NATS),
    MetricSpec("nll", "min", NATS),
    MetricSpec("accuracy", "max", "%"),
)
"""The averages that `TokenPrediction.means` returns."""
SCORES = (
    MetricSpec("loss", "min", NATS, "loss"),
    MetricSpec("perplexity", "min", "", "perplexity", "{:.3f}"),
    MetricSpec("accuracy", "max", "%", "accuracy", "{:.2f}"),
)
"""The metrics that `token_scores` returns."""


class TokenPrediction(Task):
    """The base class of tasks whose targets are tokens."""

    logged = LOGGED

    def loss(
        self, config: TaskConfig, model: Model, batch: Batch, dropout: Dropout | None, hyper: Any, chunks: int = 1
    ) -> Sums:
        """Return the sums `loss` (label-smoothed), `nll`, `correct` and `weight` over the targets of a batch."""
        from transformer_jax.tasks.metrics.cross_entropy import chunked_cross_entropy

        x = model.features(batch, dropout, hyper.model)  # [B, T, D]
        smoothing, targets, weights = hyper.label_smoothing, batch["targets"], batch["weights"]
        return chunked_cross_entropy(lambda x: model.outputs(x, batch), x, targets, weights, smoothing, chunks)

    def means(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """Return `loss` (label-smoothed) and `nll` in nats per target token, and `accuracy` in percent."""
        from transformer_jax.tasks.metrics.cross_entropy import cross_entropy_means

        return cross_entropy_means(sums)

    def score(self, evaluator: Evaluation, params: Params, split: str, generate: bool) -> Scores:
        """Return the scores of a whole split; see `token_scores`."""
        return Scores(token_scores(evaluator.sums(params, split)))


class NextTokens(TokenPrediction):
    """The base class of tasks whose model predicts the tokens of `decoder_inputs`, one by one."""

    def counted_tokens(self, batch: Batch) -> Array:
        """Return the weights of the predicted tokens."""
        return batch["weights"]

    def slot_masks(self, batch: Batch) -> tuple[Array, ...]:
        """Return the masks of the inputs, if the model has an encoder, and of the targets."""
        inputs = (batch["inputs_mask"],) if "inputs_mask" in batch else ()
        return (*inputs, batch.get("targets_mask", batch["weights"]))


def token_scores(sums: Mapping[str, float]) -> dict[str, Any]:
    """Return the scores of teacher forcing from sums over a split.

    Returns: `loss` in nats per target token without label smoothing, `perplexity` = exp(loss), `accuracy` of the next
      token in percent, and `tokens`, the number of targets.
    """
    loss, weight = sums["nll"] / sums["weight"], sums["weight"]
    return {
        "loss": loss,
        "perplexity": exponential(loss),
        "accuracy": 100.0 * sums["correct"] / weight,
        "tokens": int(weight),
    }


def exponential(nats: float) -> float:
    """Return exp(nats), and for huge values the exponential of 700."""
    return math.exp(min(nats, 700.0))
