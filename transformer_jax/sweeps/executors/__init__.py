"""Executors by name: where the trials of a sweep run."""

from __future__ import annotations

from pathlib import Path

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.executors.executor import Executor, Options
from transformer_jax.sweeps.executors.ray import RayOptions
from transformer_jax.sweeps.executors.slurm import SlurmOptions

NAMES = ("local", "vmap", "slurm", "ray")


def make_executor(
    name: str,
    options: Options,
    workdir: Path,
    slurm: SlurmOptions | None = None,
    ray: RayOptions | None = None,
) -> Executor:
    """Return the executor of a name.

    Args:
      workdir: work directory of the study.
    Raises: ConfigError for an unknown name, options that it cannot use, or a library that is not installed.
    """
    if name in ("local", "vmap"):
        from transformer_jax.sweeps.executors.local import Local

        return Local(options, together=name == "vmap")
    if name == "slurm":
        from transformer_jax.sweeps.executors.slurm import Slurm

        return Slurm(options, slurm or SlurmOptions(), workdir / "slurm")
    if name == "ray":
        from transformer_jax.sweeps.executors.ray import Ray

        return Ray(options, ray or RayOptions())
    raise ConfigError(f"--executor={name}: expected one of {', '.join(NAMES)}")
