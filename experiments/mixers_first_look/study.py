"""Attention, a state in its place, and three layers of the one to one of the other, on few and many pairs to recall."""

from transformer_jax.sweeps.equal_sizes import EqualParameters
from transformer_jax.sweeps.figures import Curves, MetricByAxis, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study
from transformer_jax.sweeps.tuning import Tuned


def _pairs(number):
    return {"data.recall_pairs": number, "data.recall_questions": 4, "data.recall_length": 2 * number + 8}


STUDY = Study(
    question="What do attention, a gated delta rule and a hybrid of both recall?",
    baseline="configs/recall.py",
    not_shown=(
        "language modelling, larger states, or longer training: a model that fails here may learn the same with more "
        "updates."
    ),
    axes=(
        Axis(
            "mixer",
            {
                "attention": {},
                "gated_delta": {"model.mixer": "gated_delta"},
                "hybrid": {"model.layer_pattern": "GGGA", "model.layer_kinds": "G: mixer=gated_delta; A:"},
            },
        ),
        Axis("to_keep", {str(number): _pairs(number) for number in (8, 32)}),
    ),
    equal_parameters=EqualParameters(("model.mlp_dim",), embeddings=False),
    settings={
        "data.recall_keys": 64,
        "data.recall_gap": 0,
        "data.max_length": 73,
        "data.tokens_per_batch": 73 * 32,
        "model.vocab_size": 132,
        "model.num_decoder_layers": 4,
        "training.num_train_steps": 1000,
        "training.eval_every_steps": 250,
        "training.checkpoint_every_steps": 500,
        "training.keep_last": 1,
    },
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    metrics=(Metric("test/accuracy", "max"), Metric("test/loss")),
    contrasts=("mixer",),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/accuracy": 5},
    figures=(
        MetricByAxis("test/accuracy", x="to_keep", by="mixer", log_x=True),
        MetricByVariant("test/accuracy"),
        Curves("valid/accuracy"),
    ),
    tasks=("language_model",),
)
