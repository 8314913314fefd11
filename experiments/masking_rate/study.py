"""Masked language models with three mask rates, compared at one rate of evaluation, and fine-tuned on TREC."""

from transformer_jax.sweeps.figures import Curves, MetricByAxis
from transformer_jax.sweeps.study import Axis, Metric, Study

ENCODER = {"model.architecture": "encoder_only", "model.num_encoder_layers": 2}
COMMON_RATE = 0.15


def measure(scorer):
    """Return the accuracy on TREC's test questions, and the masked-LM loss of the pretraining at the common rate."""
    from experiments.masking_rate.common_rate import masked_lm_scores

    return {"trec/accuracy": scorer.score("test")["accuracy"]} | masked_lm_scores(scorer.loaded.config, COMMON_RATE)


STUDY = Study(
    question="Which share of the tokens should a masked language model hide?",
    baseline="experiments/objectives/baseline.py:trec",
    not_shown=(
        "which rate is best after a long pretraining, nor for a task that gains more from pretraining than TREC does "
        "here."
    ),
    axes=(Axis("mask_rate", {"0.15": {}, "0.3": {}, "0.5": {}}),),
    settings=ENCODER
    | {"task.name": "classification", "task.num_labels": 6, "task.pooling": "first", "model.head_dropout_rate": 0.0},
    metrics=(
        Metric("trec/accuracy", "max"),
        Metric("masked_15/token_loss", "min"),
        Metric("masked_15/accuracy", "max"),
    ),
    figures=(
        MetricByAxis("trec/accuracy", x="mask_rate"),
        MetricByAxis("masked_15/token_loss", x="mask_rate", title="Loss of the masked LM at a rate of 15 %"),
    ),
    measure=measure,
    pretraining=Study(
        question="How well does a masked language model learn WikiText-2 at each mask rate?",
        baseline="experiments/objectives/baseline.py:wikitext2",
        axes=(Axis("mask_rate", {rate: {"task.mask_rate": float(rate)} for rate in ("0.15", "0.3", "0.5")}),),
        settings=ENCODER | {"task.name": "masked_lm"},
        metrics=(Metric("train/loss"),),
        figures=(Curves("train/loss", log_x=True),),
    ),
)
