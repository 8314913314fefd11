"""An LSTM with attention and Transformers with three position encodings on SCAN's splits `simple` and `length`."""

from transformer_jax.sweeps.figures import MetricByBin, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study

_TRANSFORMER = {"model.num_heads": 4, "model.mlp_dim": 256, "model.norm_position": "pre"}


def _split(name):
    return {
        "data.train_split": f"train_{name}",
        "data.valid_split": f"train_{name}[95%:]",
        "data.test_split": f"test_{name}",
    }


def measure(scorer):
    """Return exact match by the number of actions, with the right length given, and the percentage that ends early."""
    from experiments.generalisation.outputs import ended_early, exact_at_right_length, exact_by_length

    outputs, references = scorer.outputs("test"), scorer.references("test")
    return {
        "right_length/exact_match": exact_at_right_length(scorer, "test"),
        "ended_early/percent": ended_early(outputs, references),
    } | exact_by_length(outputs, references, "test", width=8)


STUDY = Study(
    question="Which models generalise to new commands, and to outputs longer than any in training?",
    baseline="baseline.py",
    not_shown=(
        "what longer training or larger models reach. Generalisation to longer outputs may improve long after the "
        "score on new commands is at its highest (Csordás et al. 2021)."
    ),
    axes=(
        Axis("split", {name: _split(name) for name in ("simple", "length")}),
        Axis(
            "model",
            {
                "lstm": {
                    "model.architecture": "recurrent",
                    "model.cell": "lstm",
                    "model.attention": "additive",
                    "model.bidirectional": True,
                    "model.bridge": "tanh",
                    "model.num_encoder_layers": 1,
                    "model.num_decoder_layers": 1,
                },
                **{
                    encoding: _TRANSFORMER | {"model.position_encoding": encoding}
                    for encoding in ("sinusoidal", "relative", "rotary")
                },
            },
        ),
    ),
    metrics=(
        Metric("test/exact_match", "max"),
        Metric("right_length/exact_match", "max"),
        Metric("ended_early/percent"),
        Metric("test/loss", "min"),
    ),
    contrasts=("model",),
    figures=(
        MetricByVariant("test/exact_match"),
        MetricByVariant("right_length/exact_match", title="Exact match with the right length given"),
        MetricByBin("test[*]/exact_match", label="actions of the output", title="Exact match by length"),
    ),
    measure=measure,
    tasks=("translation",),
)
