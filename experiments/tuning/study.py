"""A search over learning rate, warm-up, clipping and decay, by --search=random or tpe."""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Metric, Range, Study, over

STUDY = Study(
    question="Which learning rate, warm-up, decay and clipping suit the quickstart?",
    baseline="configs/quickstart.py",
    axes=(
        Range("optimizer.learning_rate", 3e-4, 1e-2, log=True),
        Range("optimizer.warmup_steps", 10, 500, log=True),
        Range("optimizer.clip_norm", 0.1, 10.0, log=True),
        over("optimizer.schedule", "cosine", "linear"),
    ),
    settings={
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 1000,
        "training.eval_every_steps": 100,
        "training.checkpoint_every_steps": 500,
    },
    seeds=(0,),
    metrics=(Metric("valid/loss", "min"), Metric("test/exact_match", "max")),
    figures=(MetricByVariant("valid/loss"), Curves("valid/loss")),
)
