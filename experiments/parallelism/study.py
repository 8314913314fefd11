"""Training steps and decoded tokens of language models of 1.1 million parameters, by length.

A trial has one update, since a sweep trains; its speed is measured afterwards. Every seed measures once more.
"""

from transformer_jax.sweeps.figures import MetricByBin
from transformer_jax.sweeps.study import Axis, Metric, Study


def measure(scorer):
    """Return the times by length and their exponents."""
    from experiments.parallelism.timing import times

    return times(scorer)


RECURRENT = {
    "model.architecture": "recurrent",
    "model.num_encoder_layers": 0,
    "model.num_heads": 8,  # the defaults: not read
    "model.norm_position": "post",
    "model.position_encoding": "sinusoidal",
}

STUDY = Study(
    question="How do the times of a training step and of a decoded token grow with the length of a text?",
    baseline="configs/language_model.py",
    axes=(
        Axis(
            "model",
            {
                "transformer": {"model.num_decoder_layers": 4},
                "lstm": RECURRENT | {"model.cell": "lstm", "model.num_decoder_layers": 6},
                "gru": RECURRENT | {"model.cell": "gru", "model.num_decoder_layers": 8},
            },
        ),
    ),
    settings={
        "model.max_length": 2049,
        "data.num_train_pairs": 5_000,
        "data.num_eval_pairs": 100,
        "optimizer.warmup_steps": 0,
        "training.num_train_steps": 1,
        "training.eval_every_steps": 1,
        "training.checkpoint_every_steps": 1,
    },
    metrics=(
        Metric("step/long_exponent", "min"),
        Metric("step/exponent", "min"),
        Metric("token/long_exponent", "min"),
        Metric("token/exponent", "min"),
        Metric("step[2048]/ms", "min"),
        Metric("token[2048]/ms", "min"),
    ),
    figures=(
        MetricByBin("step[*]/ms", label="tokens of a row", title="Milliseconds of a training step"),
        MetricByBin("token[*]/ms", label="tokens of the output", title="Milliseconds of a decoded token"),
    ),
    measure=measure,
    tasks=("language_model",),
)
