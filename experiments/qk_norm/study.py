"""Four norms of queries and keys and none, over a wide grid of learning rates."""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Metric, Study, over
from transformer_jax.sweeps.tuning import Tuned

STUDY = Study(
    question="Does a norm of queries and keys lower the loss, or widen the range of good learning rates?",
    baseline="configs/language_model.py",
    not_shown="larger models and longer training, whose attention logits grow more; nor lower precision.",
    axes=(over("model.qk_norm", "none", "rms", "rms_full", "layernorm", "l2"),),
    contrasts=("qk_norm",),
    # From 2^-10 to 2^-4; three seeds, since the range is a result and not only a means.
    tuned=Tuned("optimizer.learning_rate", factors=(1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8), seeds=3, margin=0.05),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/loss": 0.015},
    metrics=(Metric("test/loss"), Metric("valid/loss")),
    figures=(MetricByVariant("test/loss"), Curves("valid/loss")),
    settings={
        "optimizer.learning_rate": 2**-7,
        "data.tokens_per_batch": 2048,
        "training.eval_every_steps": 50,
        "training.checkpoint_every_steps": 150,
        "training.keep_last": 1,
    },
)
