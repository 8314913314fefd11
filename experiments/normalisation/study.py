"""LayerNorm, RMSNorm, BatchNorm and no norm in an encoder that tags words, trained with three sizes of a batch."""

from transformer_jax.sweeps.figures import Curves, MetricByAxis, MetricByBin
from transformer_jax.sweeps.study import Axis, Metric, Study


def measure(scorer):
    """Return the losses by length, and the loss that running averages add to that with a batch's own statistics."""
    from experiments.normalisation.mismatch import losses_by_length, statistics_mismatch

    return losses_by_length(scorer, ("test", "test_longer"), width=16) | statistics_mismatch(scorer, "valid")


STUDY = Study(
    question="Which normalisation serves an encoder, by batch size and by length?",
    baseline="experiments/normalisation/baseline.py",
    not_shown=(
        "deep models, where norms matter most, decoders, in which BatchNorm is refused, or a learning rate searched "
        "for each norm. Nor the size of a batch alone: larger batches read more tokens in as many updates."
    ),
    axes=(
        Axis(
            "norm",
            {
                "layernorm": {},
                "rmsnorm": {"model.norm": "rmsnorm"},
                "batchnorm": {"model.norm": "batchnorm"},
                # Without norms their place is not read; it must have its default.
                "none": {"model.norm": "none", "model.norm_position": "post"},
            },
        ),
        Axis("tokens", {size: {"data.tokens_per_batch": int(size)} for size in ("128", "512", "2048")}),
    ),
    metrics=(
        Metric("test/f1", "max"),
        Metric("test_longer/f1", "max"),
        Metric("test/loss", "min"),
        Metric("test_longer/loss", "min"),
        Metric("mismatch/loss"),
    ),
    contrasts=("norm",),
    figures=(
        MetricByAxis("test/loss", x="tokens"),
        MetricByAxis("test_longer/loss", x="tokens"),
        MetricByAxis("mismatch/loss", x="tokens", title="Loss added by running averages"),
        MetricByBin("test[*]/loss", label="tokens of the sentence", title="test, by length"),
        MetricByBin("test_longer[*]/loss", label="tokens of the sentence", title="test_longer, by length"),
        Curves("train/loss", title="Training loss"),
    ),
    measure=measure,
    tasks=("tagging",),
)
