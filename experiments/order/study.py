"""Untrained encoders: every position encoding of text, and recurrent encoders.

A sweep trains, so a trial has one update. The measurement uses the parameters before it.
"""

from transformer_jax.sweeps.figures import MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study


def measure(scorer):
    """Return how far the outputs of an untrained encoder move when tokens change places."""
    from experiments.order.permuted import mean_distances
    from transformer_jax.models.architecture import init_params

    config = scorer.loaded.config
    return mean_distances(scorer, init_params(config.model, config.seed))


RECURRENT = {
    "model.architecture": "recurrent",
    "model.num_heads": 8,  # the defaults: not read
    "model.norm_position": "post",
    "model.attention": "additive",
    "model.bridge": "zero",
}

STUDY = Study(
    question="Does an encoder know the order of its tokens before it has learned anything?",
    baseline="configs/quickstart.py",
    not_shown=(
        "how well an encoding serves after training, which the study positions measures, nor other initial values, "
        "depths or widths."
    ),
    axes=(
        Axis(
            "encoder",
            {
                "none": {"model.position_encoding": "none"},
                **{name: {"model.position_encoding": name} for name in ("sinusoidal", "learned", "rotary", "relative")},
                "rnn": RECURRENT | {"model.cell": "rnn"},
                "gru": RECURRENT | {"model.cell": "gru"},
                "lstm": RECURRENT | {"model.cell": "lstm"},
                "lstm_two_way": RECURRENT | {"model.cell": "lstm", "model.bidirectional": True},
            },
        ),
    ),
    seeds=(0, 1, 2, 3, 4),
    settings={
        "data.num_train_pairs": 20_000,
        "data.num_eval_pairs": 200,
        "data.tokens_per_batch": 1024,
        "data.num_buckets": 1,
        "optimizer.warmup_steps": 0,
        "training.num_train_steps": 1,
        "training.eval_every_steps": 1,
        "training.checkpoint_every_steps": 1,
    },
    metrics=(
        Metric("shuffled/distance", "max"),
        Metric("swapped/distance"),
        Metric("swapped/unmoved_distance"),
        Metric("neighbours/distance"),
    ),
    figures=(MetricByVariant("shuffled/distance"), MetricByVariant("swapped/unmoved_distance")),
    measure=measure,
    tasks=("translation",),
)
