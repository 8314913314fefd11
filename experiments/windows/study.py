"""Attention windows of several sizes, on keys that stand nearer and farther than the layers can reach."""

from transformer_jax.sweeps.figures import MetricByAxis, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study, over
from transformer_jax.sweeps.tuning import Tuned

LAYERS = 2


def measure(scorer):
    """Return how far back a trained model can see, by gradient."""
    from experiments.windows.reach import reach_by_gradient

    return {"reach/tokens": float(reach_by_gradient(scorer.loaded.config.model, scorer.loaded.params))}


STUDY = Study(
    question="How far back can layers with a window recall?",
    baseline="configs/recall.py",
    not_shown="longer training, deeper models, or natural text, whose next words depend on near ones most.",
    axes=(
        Axis("window", {"all": {}, **{str(w): {"model.attention_window": w} for w in (16, 8, 4)}}),
        over("data.recall_gap", 0, 8, 24, name="gap"),
    ),
    settings={
        # One question about two pairs: the pair asked for ends gap + 1 or gap + 3 tokens before the question.
        "data.recall_pairs": 2,
        "data.recall_questions": 1,
        "data.recall_length": 32,
        "model.num_decoder_layers": LAYERS,
        "training.num_train_steps": 750,
        "training.eval_every_steps": 250,
        "training.checkpoint_every_steps": 250,
        "training.keep_last": 1,
    },
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    metrics=(Metric("test/accuracy", "max"), Metric("reach/tokens")),
    contrasts=("window",),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/accuracy": 5},
    figures=(
        MetricByAxis("test/accuracy", x="gap", by="window"),
        MetricByVariant("test/accuracy"),
    ),
    measure=measure,
    tasks=("language_model",),
)
