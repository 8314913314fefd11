"""The study `optimizers` with as many seconds instead of as many steps.

The number of steps follows from the time of a step, which `benchmarks/optimizers.py` measured alone on two cores of an
AMD EPYC (JAX 0.10.2); rates are tuned anew for it.
"""

import dataclasses

from experiments.optimizers.study import OPTIMIZERS
from experiments.optimizers.study import STUDY as AT_EQUAL_STEPS
from transformer_jax.sweeps.study import Axis

STEPS = 300
"""Of adam."""
MILLISECONDS = {"adam": 68.9, "muon": 74.8, "lion": 69.9, "adafactor": 69.4}


def _timed(name, overrides):
    return {**overrides, "training.num_train_steps": round(STEPS * MILLISECONDS["adam"] / MILLISECONDS[name])}


STUDY = dataclasses.replace(
    AT_EQUAL_STEPS,
    question="Which optimizer has the lowest loss after equally many seconds on two CPU cores?",
    not_shown=(
        "which optimizer is best on an accelerator, where the share of Muon's products is another; nor in longer "
        "trainings, in larger models or with larger batches; nor with other momenta, weight decay or schedules, which "
        "are not tuned."
    ),
    axes=(Axis(OPTIMIZERS.name, {name: _timed(name, overrides) for name, overrides in OPTIMIZERS.values.items()}),),
)
