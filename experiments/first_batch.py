"""What studies measure a model on as it is initialised."""

from transformer_jax.data.batching import Batch
from transformer_jax.evaluation.run import Scorer
from transformer_jax.tasks.batches import training_batches


def first_batch(scorer: Scorer) -> Batch:
    """The first training batch of a run, in buckets or packed as its config has it."""
    plan = training_batches(scorer.loaded.config, scorer.evaluator.data.splits["train"])
    return plan.batch(0, slice(0, plan.shape(0).rows))
