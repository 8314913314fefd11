"""Every position encoding; `test_longer` shows which of them extrapolate beyond the lengths of training."""

from transformer_jax.sweeps.figures import MetricByBin, MetricByVariant
from transformer_jax.sweeps.study import Contrast, Metric, Study, over

ENCODINGS = ("sinusoidal", "learned", "rotary", "relative", "none")


def measure(scorer):
    """Return scores by source length, and how much the loss depends on the order of the source's tokens."""
    from experiments.by_length import scores_by_length
    from experiments.positions.order import loss_of_shuffled_sources

    by_length = {}
    for split in ("test", "test_longer"):
        by_length |= scores_by_length(scorer, split, width=8)
    return by_length | loss_of_shuffled_sources(scorer, "test")


def _by_length(split):
    return MetricByBin(
        f"{split}[*]/exact_match",
        label="tokens of the source",
        title=f"{split}, by length",
        counts=f"{split}[*]/pairs",
    )


STUDY = Study(
    question="How should the model be told the order of its tokens?",
    baseline="configs/quickstart.py",
    not_shown=(
        "how relative biases serve T5 itself, which has other initial queries, another optimizer and far longer "
        "training. Nor the effect of length alone: sentences of test_longer also have more phrases than any of "
        "the same template in training."
    ),
    axes=(over("model.position_encoding", *ENCODINGS),),
    settings={
        # A learned table that covers test_longer; its rows beyond the lengths of training stay as initialised.
        "model.max_length": 256,
        "data.tokens_per_batch": 1024,
        "training.num_train_steps": 1200,
        "training.eval_every_steps": 400,
        "training.checkpoint_every_steps": 400,
    },
    contrasts=tuple(
        Contrast("position_encoding", other, "sinusoidal", says="{a} is ahead of {b}") for other in ENCODINGS[1:]
    ),
    metrics=(
        Metric("test/sacrebleu", "max"),
        Metric("test/exact_match", "max"),
        Metric("test_longer/exact_match", "max"),
        Metric("test/loss", "min"),
        Metric("test_longer/loss", "min"),
        Metric("shuffled/loss_change"),
    ),
    figures=(
        MetricByVariant("test/exact_match"),
        MetricByVariant("test_longer/loss"),
        _by_length("test"),
        _by_length("test_longer"),
    ),
    measure=measure,
    tasks=("translation",),
)
