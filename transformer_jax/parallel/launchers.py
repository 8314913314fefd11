"""Three ways to run the same training step on several devices, by the name in `parallel.launcher`.

- `jit`: one program over a mesh; the batch is sharded by rows and XLA finds the communication. The main path.
- `shard_map`: every device runs the step on its rows; gradients are added over the mesh axis by the step itself.
- `pmap`: the same over a leading device axis of the batch. Kept for teaching and for older code around it.

All keep the parameters replicated, and equal to each other: rows carry their dropout with them, and sums are divided
by the tokens of all devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.training.hyper import Hyper, StaticConfig
from transformer_jax.training.state import TrainState, init_state
from transformer_jax.training.step import Metrics, make_train_step

AXIS = "data"
"""The mesh axis that the rows of a batch are divided over."""


class Launcher(Protocol):
    """Runs training steps; batches are host arrays with B rows, B a multiple of the number of devices."""

    mesh: Mesh

    def step(self, state: TrainState, batch: Mapping[str, np.ndarray], hyper: Hyper) -> tuple[TrainState, Metrics]:
        """One update; `state` is donated and must not be used again."""
        ...


def make_launcher(config: ExperimentConfig, static: StaticConfig) -> Launcher:
    """The launcher that config.parallel names, over its number of devices.

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
    return {"jit": Jit, "shard_map": ShardMap, "pmap": Pmap}[config.parallel.launcher](mesh, static)


def replicated_state(launcher: Launcher, static: StaticConfig, hyper: Hyper) -> TrainState:
    """The state before the first update, on every device of the launcher's mesh."""
    sharding = NamedSharding(launcher.mesh, PartitionSpec())
    return jax.jit(init_state, static_argnums=0, out_shardings=sharding)(static, hyper)


def state_template(launcher: Launcher, static: StaticConfig, hyper: Hyper) -> TrainState:
    """Shapes, types and shardings of the state: what a checkpoint is restored into."""
    sharding = NamedSharding(launcher.mesh, PartitionSpec())
    shapes = jax.eval_shape(lambda h: init_state(static, h), hyper)
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), shapes)


class _MeshLauncher:
    """What `jit` and `shard_map` share: a compiled step, and batches sharded by rows."""

    def __init__(self, mesh: Mesh, step: Callable[..., Any]) -> None:
        self.mesh = mesh
        self._rows = NamedSharding(mesh, PartitionSpec(AXIS))
        self._step = step

    def step(self, state: TrainState, batch: Mapping[str, np.ndarray], hyper: Hyper) -> tuple[TrainState, Metrics]:
        return self._step(state, jax.device_put(dict(batch), self._rows), hyper)


class Jit(_MeshLauncher):
    def __init__(self, mesh: Mesh, static: StaticConfig) -> None:
        replicated = NamedSharding(mesh, PartitionSpec())
        step = make_train_step(static)
        super().__init__(
            mesh, jax.jit(lambda s, b, h: step(s, b, h), donate_argnums=0, out_shardings=(replicated, replicated))
        )


class ShardMap(_MeshLauncher):
    def __init__(self, mesh: Mesh, static: StaticConfig) -> None:
        step = make_train_step(static)
        replicated, rows = PartitionSpec(), PartitionSpec(AXIS)
        # With check_vma the transpose of replicated parameters would add the gradients a second time.
        mapped = jax.shard_map(
            lambda s, b, h: step(s, b, h, AXIS),
            mesh=mesh,
            in_specs=(replicated, rows, replicated),
            out_specs=(replicated, replicated),
            check_vma=False,
        )
        super().__init__(mesh, jax.jit(mapped, donate_argnums=0))


class Pmap:
    def __init__(self, mesh: Mesh, static: StaticConfig) -> None:
        self.mesh = mesh
        step = make_train_step(static)
        self._step = jax.pmap(
            lambda s, b, h: step(s, b, h, AXIS),
            axis_name=AXIS,
            in_axes=(None, 0, None),
            out_axes=(None, None),
            devices=list(mesh.devices.flat),
            donate_argnums=0,
        )

    def step(self, state: TrainState, batch: Mapping[str, np.ndarray], hyper: Hyper) -> tuple[TrainState, Metrics]:
        devices = self.mesh.devices.size
        return self._step(state, {k: v.reshape(devices, -1, *v.shape[1:]) for k, v in batch.items()}, hyper)
