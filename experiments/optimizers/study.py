"""Four optimizers at equally many steps, each at its own learning rate.

Only the rule of the update and its rate differ, and `beta2` of Lion, which has another meaning there.
"""

from transformer_jax.sweeps.figures import Curves, MetricByVariant
from transformer_jax.sweeps.study import Axis, Contrast, Metric, StepsTo, Study
from transformer_jax.sweeps.tuning import Tuned

OPTIMIZERS = Axis(
    "optimizer",
    {
        "adam": {},
        "muon": {"optimizer.name": "muon"},
        # Chen et al. 2023, section 5: beta2 0.99, and rates that are 3 to 10 times lower than AdamW's.
        "lion": {
            "optimizer.name": "lion",
            "optimizer.beta2": 0.99,
            "optimizer.learning_rate": 6e-4,
        },
        # The rate is relative to the size of a parameter.
        "adafactor": {"optimizer.name": "adafactor", "optimizer.learning_rate": 2.4e-2},
    },
)

STUDY = Study(
    question="Which optimizer has the lowest loss after equally many steps?",
    baseline="configs/language_model.py",
    not_shown=(
        "which optimizer is best in longer trainings, in larger models or with larger batches; nor with other momenta, "
        "weight decay or schedules, which are not tuned."
    ),
    axes=(OPTIMIZERS,),
    contrasts=(
        Contrast("optimizer", "muon", "adam"),
        Contrast("optimizer", "lion", "adam"),
        Contrast("optimizer", "adafactor", "adam"),
    ),
    tuned=Tuned("optimizer.learning_rate", factors=(0.5, 1, 2)),
    seeds=(0, 1, 2, 3, 4),
    precision={"test/loss": 0.015},
    metrics=(Metric("test/loss"), Metric("valid/loss"), StepsTo("valid/loss", 2.0)),
    figures=(MetricByVariant("test/loss"), Curves("valid/loss"), Curves("valid/loss", x="seconds")),
    settings={
        "training.eval_every_steps": 50,
        "training.checkpoint_every_steps": 150,
        "training.keep_last": 1,
    },
)
