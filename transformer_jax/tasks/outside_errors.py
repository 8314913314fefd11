"""Errors in architectures and tasks from outside of this package, with the name of their origin."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Generator

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.tasks.task import TASKS


def objects_from_outside(config: ExperimentConfig) -> list[str]:
    """Return the fields that name an architecture or a task from outside of this package, with their values."""
    from transformer_jax.models.architecture import ARCHITECTURES

    objects = {
        f"model.architecture='{config.model.architecture}'": ARCHITECTURES[config.model.architecture],
        f"task.name='{config.task.name}'": TASKS[config.task.name],
    }
    return [name for name, value in objects.items() if not type(value).__module__.startswith("transformer_jax.")]


@contextlib.contextmanager
def errors_from_outside(
    config: ExperimentConfig, doing: str = "config", kind: type[UserError] = ConfigError
) -> Generator[None]:
    """Turn exceptions of an architecture or a task from outside of this package into an error that names it.

    Args:
      doing: beginning of the message. kind: class of the error.
    """
    outside = objects_from_outside(config)
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not outside:
            raise
        traceback.print_exc()
        raise kind(f"{doing}: {', '.join(outside)}: {type(error).__name__}: {error}") from error
