"""Five objectives of pretraining at equal operations, each then fine-tuned on TREC, beside training from scratch.

Every stack has two layers of the same kind; an encoder-decoder has two stacks. The encoder classifies by its first
token, the decoder by its last one, and the encoder-decoder writes the name of the label.
"""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Axis, Metric, Study

ENCODER = {"model.architecture": "encoder_only", "model.num_encoder_layers": 2}
# The decoder starts from the end of a text ([SEP]), which stands before almost every text of the pretraining.
DECODER = {"model.architecture": "decoder_only", "model.num_decoder_layers": 2, "model.decoder_start_id": 3}
BOTH = ENCODER | DECODER | {"model.architecture": "encoder_decoder"}

CLASSIFICATION = {"task.name": "classification", "task.num_labels": 6, "model.head_dropout_rate": 0.0}
BY_FIRST = CLASSIFICATION | {"task.pooling": "first"}
BY_LAST = CLASSIFICATION | {"task.pooling": "last"}
# The labels of two published forms of TREC, by name.
NAMES = {
    **{"description": ("DESC", "0"), "entity": ("ENTY", "1"), "abbreviation": ("ABBR", "2")},
    **{"human": ("HUM", "3"), "location": ("LOC", "4"), "number": ("NUM", "5")},
}
LABELS = ",".join(f"{label}={name}" for name, labels in NAMES.items() for label in labels)
AS_TEXT = {"task.name": "translation", "data.label_names": LABELS}


def measure(scorer):
    """Return the accuracy on TREC's test questions, and the size of the pretraining that the trial starts from."""
    from experiments.objectives.pretraining import size

    scores, written = scorer.score("test"), scorer.loaded.config.task.name == "translation"
    return {"trec/accuracy": scores["exact_match" if written else "accuracy"]} | size(scorer.loaded.config)


def steps(count):
    """Return updates that cost as many operations as 1,000 of `masked_lm`, if attention counts in full.

    They are fixed, since `equal_flops` counts visible keys now, with which the results would not be of these configs.
    """
    return {"training.num_train_steps": count}


PRETRAINING = Study(
    question="How well does each objective learn WikiText-2?",
    baseline="baseline.py:wikitext2",
    axes=(
        Axis(
            "objective",
            {
                "masked_lm": ENCODER | {"task.name": "masked_lm"},
                "causal": DECODER | {"task.name": "language_model"} | steps(745),
                "prefix": DECODER | {"task.name": "language_model", "task.prefix": "random"} | steps(745),
                "span_corruption": BOTH | {"task.name": "span_corruption"} | steps(959),
                "denoising": BOTH | {"task.name": "denoising"} | steps(445),
            },
        ),
    ),
    metrics=(Metric("train/loss"),),
    figures=(Curves("train/loss", log_x=True),),
)
STUDY = Study(
    question="Which objective of pretraining helps a classifier of questions most, at equal operations?",
    baseline="baseline.py:trec",
    not_shown=(
        "which objective is best for larger models or longer pretraining, nor on tasks with fewer labelled examples."
    ),
    axes=(
        Axis(
            "objective",
            {
                "masked_lm": ENCODER | BY_FIRST,
                "causal": DECODER | BY_LAST,
                "prefix": DECODER | BY_LAST,
                "span_corruption": BOTH | AS_TEXT,
                "denoising": BOTH | AS_TEXT,
            },
        ),
        Axis("start", {"scratch": {"training.new_parameters": True}, "pretrained": {}}),
    ),
    metrics=(Metric("trec/accuracy", "max"), Metric("pretraining/steps"), Metric("pretraining/train_flops")),
    contrasts=("start",),
    figures=(MetricByVariant("trec/accuracy"),),
    measure=measure,
    pretraining=PRETRAINING,
)
