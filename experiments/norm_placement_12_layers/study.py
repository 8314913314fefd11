"""Six places of the norm in a language model of twelve layers, with and without a warm-up, each at its own rate."""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Axis, Contrast, Metric, Study, over
from transformer_jax.sweeps.tuning import Tuned

STUDY = Study(
    question="With twelve layers, which place of the norm trains best, and which needs a warm-up?",
    baseline="configs/language_model.py",
    not_shown=(
        "how often training diverges in larger models, or at rates that are not tuned; nor longer training. A tuned "
        "rate may make up for a missing warm-up."
    ),
    axes=(
        over("model.norm_position", "post", "pre", "sandwich", "output", "peri", "deepnorm", name="norm"),
        Axis("warmup", {"yes": {}, "no": {"optimizer.warmup_steps": 0}}),
    ),
    contrasts=(
        Contrast("norm", "pre", "post"),
        Contrast("norm", "deepnorm", "post"),
        Contrast("norm", "sandwich", "pre"),
        Contrast("norm", "output", "pre"),
        Contrast("norm", "peri", "pre"),
        "warmup",
    ),
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/loss": 0.015},
    metrics=(Metric("test/loss"), Metric("valid/loss")),
    figures=(MetricByVariant("test/loss"), Curves("valid/loss")),
    # A linear decay has the same peak with and without warm-up.
    settings={
        "model.num_decoder_layers": 12,
        "model.emb_dim": 64,
        "model.mlp_dim": 256,
        "data.tokens_per_batch": 2048,
        "optimizer.schedule": "linear",
        "training.eval_every_steps": 50,
        "training.checkpoint_every_steps": 150,
        "training.keep_last": 1,
    },
)
