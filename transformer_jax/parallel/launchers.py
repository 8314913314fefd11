"""Three ways to run the same training step on several devices, by the name in `parallel.launcher`.

- `jit`: one program over a mesh; the batch is sharded by rows and XLA finds the communication. The main path.
- `shard_map`: every device runs the step on its rows; gradients are added over the mesh axis by the step itself.
- `pmap`: the same over a leading device axis of the batch. Kept for teaching and for older code built on it.

All three keep the parameters replicated and make the same update, up to rounding: rows carry their dropout with them,
and sums are divided by the tokens of all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError

Step = Callable[..., tuple[Any, Any]]
"""step(state, batch, hyper, axis_name=None) -> (state, metrics), as `training.step.make_train_step` returns it."""

AXIS = "data"
"""The mesh axis that the rows of a batch are divided over."""


@runtime_checkable
class Launcher(Protocol):
    """Runs training steps; batches are host arrays with B rows, B a multiple of the number of devices."""

    mesh: Mesh

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        """One update of the state, which is donated and must not be used again, and its metrics."""
        ...


def make_launcher(config: ExperimentConfig, step: Step) -> Launcher:
    """The launcher that config.parallel names, over its number of devices, around `step`.

    Raises: ConfigError if there are fewer devices, or rows of a batch cannot be divided among them.
    """
    devices = jax.devices()
    count = config.parallel.num_devices or len(devices)
    if count > len(devices):
        raise ConfigError(f"parallel.num_devices={count}, but JAX sees {len(devices)}: {devices}")
    divisor = count * config.training.accumulation_steps
    if config.data.row_multiple % divisor:
        raise ConfigError(
            f"data.row_multiple={config.data.row_multiple} is not a multiple of {count} devices x "
            f"training.accumulation_steps={config.training.accumulation_steps}; set it to a multiple of {divisor}"
        )
    mesh = jax.make_mesh((count,), (AXIS,), devices=devices[:count], axis_types=(AxisType.Auto,))
    return {"jit": Jit, "shard_map": ShardMap, "pmap": Pmap}[config.parallel.launcher](mesh, step)


def replicated(launcher: Launcher) -> NamedSharding:
    """The sharding of what every device holds in full: the state."""
    return NamedSharding(launcher.mesh, PartitionSpec())


class _MeshLauncher:
    """What `jit` and `shard_map` share: a compiled step, and batches sharded by rows."""

    def __init__(self, mesh: Mesh, step: Callable[..., Any]) -> None:
        self.mesh = mesh
        self._rows = NamedSharding(mesh, PartitionSpec(AXIS))
        self._step = step

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        return self._step(state, jax.device_put(dict(batch), self._rows), hyper)


class Jit(_MeshLauncher):
    def __init__(self, mesh: Mesh, step: Step) -> None:
        everywhere = NamedSharding(mesh, PartitionSpec())
        super().__init__(
            mesh, jax.jit(lambda s, b, h: step(s, b, h), donate_argnums=0, out_shardings=(everywhere, everywhere))
        )


class ShardMap(_MeshLauncher):
    def __init__(self, mesh: Mesh, step: Step) -> None:
        everywhere, rows = PartitionSpec(), PartitionSpec(AXIS)
        # With check_vma the transpose of replicated parameters would add the gradients a second time.
        mapped = jax.shard_map(
            lambda s, b, h: step(s, b, h, AXIS),
            mesh=mesh,
            in_specs=(everywhere, rows, everywhere),
            out_specs=(everywhere, everywhere),
            check_vma=False,
        )
        super().__init__(mesh, jax.jit(mapped, donate_argnums=0))


class Pmap:
    def __init__(self, mesh: Mesh, step: Step) -> None:
        self.mesh = mesh
        self._step = jax.pmap(
            lambda s, b, h: step(s, b, h, AXIS),
            axis_name=AXIS,
            in_axes=(None, 0, None),
            out_axes=(None, None),
            devices=list(mesh.devices.flat),
            donate_argnums=0,
        )

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        devices = self.mesh.devices.size
        return self._step(state, {k: v.reshape(devices, -1, *v.shape[1:]) for k, v in batch.items()}, hyper)
