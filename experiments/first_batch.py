"""The batch on which studies measure a freshly initialised model."""

from transformer_jax.data.batching import Batch
from transformer_jax.evaluation.scoring import Scorer
from transformer_jax.tasks.batches.of_split import training_batches


def first_batch(scorer: Scorer) -> Batch:
    """Return the first training batch of a run, bucketed or packed as its config says."""
    plan = training_batches(scorer.loaded.config, scorer.evaluator.data.splits["train"])
    return plan.batch(0, slice(0, plan.shape(0).rows))
