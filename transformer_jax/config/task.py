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
