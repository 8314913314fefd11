"""The study in the folder above with eight times the operations: two rates for every kind, three seeds.

The two rates are half and twice that from which the shorter study starts, so that each kind has one within a factor of
two of any rate between a quarter and four times it.
"""

import dataclasses

from experiments.architectures.models import SMALL
from experiments.architectures.study import study
from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import StepsTo
from transformer_jax.sweeps.tuning import Tuned

TIMES = 8
SIZE = dataclasses.replace(
    SMALL,
    num_train_steps=TIMES * SMALL.num_train_steps,
    warmup_steps=TIMES * SMALL.warmup_steps,
    eval_every_steps=100,
    learning_rate=SMALL.learning_rate / 2,
)
SHORT = study(SIZE)

STUDY = dataclasses.replace(
    SHORT,
    question="Does a Transformer pass an LSTM with attention when training is eight times as long?",
    not_shown=(
        "which architecture is best at other sizes, or at the best of more than two learning rates. Where two curves "
        "cross holds for trainings of this length, whose rate falls to its end."
    ),
    tuned=Tuned("optimizer.learning_rate", factors=(1, 4), extensions=0),
    seeds=(0, 1, 2),
    precision={},
    metrics=(*SHORT.metrics, *(StepsTo("valid/loss", loss, "flops") for loss in (1, 0.3, 0.1, 0.03))),
    figures=(
        Curves("valid/loss", x="flops", log_x=True, log_y=True),
        MetricByVariant("test/sacrebleu"),
        MetricByVariant("test/loss"),
    ),
)
