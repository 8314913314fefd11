"""The section `task`."""

from __future__ import annotations

import dataclasses

from transformer_jax.config.fields import choice


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The task; tasks/base.py. A task from outside the package may extend this class with more fields."""

    name: str = choice(
        "translation",
        "transformer_jax.tasks.base:TASKS",
        "the examples, the loss and the scores; tasks/base.py",
        outside=True,
        extends=("task", "decode", "training.label_smoothing", "training.loss_chunks"),
        always_read=(),
    )
    prefix: str = choice(
        "none",
        "transformer_jax.tasks.window_batches:PREFIXES",
        "tokens that attend to each other in both directions and are not predicted: none, or the beginning of every "
        "text, of random length (a prefix LM; Raffel et al. 2020, section 3.2.1)",
        read_by={"task.name": ("language_model",)},
    )
