"""Errors in architectures, tasks and parts of models from outside of this package, with the name of their origin."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Generator

from transformer_jax.config import ExperimentConfig, outside_parts, walk
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.registry import blamed
from transformer_jax.tasks.task import TASKS


def objects_from_outside(config: ExperimentConfig) -> list[str]:
    """Return the fields that name an object from outside of this package, with their values; without the source."""
    from transformer_jax.models.architecture import ARCHITECTURES

    objects = {
        f"model.architecture='{config.model.architecture}'": ARCHITECTURES[config.model.architecture],
        f"task.name='{config.task.name}'": TASKS[config.task.name],
    }
    found = [name for name, value in objects.items() if not type(value).__module__.startswith("transformer_jax.")]
    parts = outside_parts({name: value for name, _, value in walk(config)})
    others = (f"{name}='{value}'" for name, value in parts.items() if not name.startswith("data."))
    return list(dict.fromkeys([*found, *others]))


@contextlib.contextmanager
def errors_from_outside(
    config: ExperimentConfig, doing: str = "config", kind: type[UserError] = ConfigError
) -> Generator[None]:
    """Turn exceptions of objects from outside of this package into an error that names the fields that name these.

    The traceback is printed. The error names the objects whose modules ran when the exception was raised, or all of
    them if none did.

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
        values = {name.partition("=")[2] for name in outside}
        names = [name for name in blamed(error) if name.partition("=")[2] in values]
        raise kind(f"{doing}: {', '.join(names or outside)}: {type(error).__name__}: {error}") from error
