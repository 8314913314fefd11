"""Dropout, label smoothing and clipping, on few enough pairs to overfit (Vaswani et al. 2017, table 3 D)."""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study
from transformer_jax.sweeps.tuning import Tuned

_DROPOUT = {f"dropout_{rate:g}": {"model.dropout_rate": rate} for rate in (0.1, 0.2, 0.3)}
_SMOOTHING = {f"smoothing_{mass:g}": {"training.label_smoothing": mass} for mass in (0.1, 0.2)}

STUDY = Study(
    question="What do dropout, label smoothing and clipping do to perplexity, and what to BLEU?",
    baseline="configs/quickstart.py",
    not_shown="larger models, which overfit sooner, and longer training.",
    axes=(
        Axis(
            "regularisation",
            {
                "none": {},
                **_DROPOUT,
                **_SMOOTHING,
                "dropout_0.1_smoothing_0.1": {"model.dropout_rate": 0.1, "training.label_smoothing": 0.1},
                "no_clipping": {"optimizer.clip_norm": 0.0},
            },
        ),
    ),
    settings={
        "data.num_train_pairs": 20_000,
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 1333,
        "training.eval_every_steps": 500,
        "training.checkpoint_every_steps": 500,
    },
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    contrasts=("regularisation",),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/sacrebleu": 3},
    metrics=(
        Metric("test/sacrebleu", "max"),
        Metric("test/perplexity", "min"),
        Metric("test/exact_match", "max"),
        Metric("train/nll", "min"),
    ),
    figures=(MetricByVariant("test/sacrebleu"), MetricByVariant("test/perplexity"), Curves("valid/loss")),
)
