"""The pretraining that a trial starts from."""

from __future__ import annotations

from pathlib import Path

from transformer_jax.config import ExperimentConfig
from transformer_jax.config_file import read_config
from transformer_jax.tasks.flops import training_flops


def size(config: ExperimentConfig) -> dict[str, float]:
    """Return `pretraining/steps` and `pretraining/train_flops` of the run that a run starts from.

    They are 0 if all parameters of the run were new.
    """
    if config.training.new_parameters:
        return {"pretraining/steps": 0.0, "pretraining/train_flops": 0.0}
    first = read_config(str(Path(config.training.init_from) / "config.json"))
    return {
        "pretraining/steps": float(first.training.num_train_steps),
        "pretraining/train_flops": float(training_flops(first)),
    }
