"""Every position encoding in a language model that is trained on windows of 128 tokens and scored on up to 512."""

from transformer_jax.sweeps.figures import MetricByBin, MetricByVariant
from transformer_jax.sweeps.study import Metric, Study, over

TRAINED = 128


def measure(scorer):
    """Return the losses of the validation split in windows of 1, 2 and 4 times the training's, by position."""
    from experiments.length_extrapolation.by_position import loss_by_position

    found = {}
    for size in (TRAINED, 2 * TRAINED, 4 * TRAINED):
        found |= loss_by_position(scorer, "valid", size, width=TRAINED // 2)
    return found


STUDY = Study(
    question="Which position encodings serve a language model beyond the length of its training?",
    baseline="configs/shakespeare_char.py:tuned",
    not_shown=(
        "longer training, a learning rate searched for each encoding, or sinusoids in a model with scaled embeddings."
    ),
    axes=(over("model.position_encoding", "sinusoidal", "learned", "rotary", "relative", "none"),),
    settings={
        "data.max_length": TRAINED,
        # A learned table that covers the longest window; its rows beyond the training's stay as initialised.
        "model.max_length": 4 * TRAINED,
        "training.num_train_steps": 1000,
        "training.eval_every_steps": 250,
        "training.checkpoint_every_steps": 250,
        "optimizer.warmup_steps": 100,
    },
    metrics=(
        Metric("size_512/loss", "min"),
        Metric("size_256/loss", "min"),
        Metric("size_128/loss", "min"),
    ),
    figures=(
        MetricByVariant("size_512/loss"),
        MetricByBin("size_512[*]/loss", label="position in the window", title="Loss by position, windows of 512"),
    ),
    measure=measure,
    tasks=("language_model",),
)
