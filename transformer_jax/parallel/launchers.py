"""The launchers: three ways to run the same training step on several devices, selected by `parallel.launcher`.

- `jit`: one program over a mesh of data x fsdp x tensor; XLA inserts the communication. The main path.
- `shard_map`: every device runs the step on its rows; the step itself adds gradients over the mesh axis.
- `pmap`: like `shard_map`, over a leading device axis of the batch. Kept for teaching and for older code built on it.

The last two keep a copy of the parameters on every device; `jit` divides them by the rules of `parallel/rules.py`. All
three make the same update, up to rounding: dropout depends on the row and not on its device, and sums are divided by
the number of tokens on all devices.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError
from transformer_jax.nn.activation_sharding import activations_sharded
from transformer_jax.nn.axes import ParameterAxes
from transformer_jax.parallel.placement import DATA, FSDP, TENSOR, RowPlacement
from transformer_jax.parallel.rules import shardings
from transformer_jax.typing import Array

Step = Callable[..., tuple[Any, Any]]
"""step(state, batch, hyper) -> (state, metrics), from `training.step.make_train_step`."""


@runtime_checkable
class Launcher(Protocol):
    """Runner of training steps. The number of rows of a batch is a multiple of the devices that divide the rows.

    With several processes, each process passes only the rows of its own devices, as host arrays.
    """

    mesh: Mesh

    def local_rows(self, num_rows: int) -> slice:
        """Return the rows, of a batch of `num_rows` rows, that this process's devices compute."""
        ...

    def shardings(self, state: Any) -> Any:
        """Return the sharding of every array of a state, as a tree of jax.sharding.NamedSharding.

        Args:
          state: arrays or jax.ShapeDtypeStructs.
        Raises: ConfigError if the mesh does not divide an array.
        """
        ...

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        """Update the state once; return it with metrics. The old state is donated and must not be used again."""
        ...

    def lower(self, state: Any, batch: Any, hyper: Any) -> jax.stages.Lowered:
        """Return the program of `step`, not yet compiled; the arguments are arrays or jax.ShapeDtypeStructs."""
        ...


def make_launcher(config: ExperimentConfig, step: Step, parameter_axes: ParameterAxes | None) -> Launcher:
    """Return the launcher of `config.parallel` for `step`, over its number of devices.

    Args:
      parameter_axes: axes of the model's parameters; see nn/axes.py.

    Raises: ConfigError if there are too few devices, or if the rows of a batch cannot be divided among them.
    """
    devices = jax.devices()
    sizes = mesh_sizes(config)
    count = math.prod(sizes.values())
    if count > len(devices):
        raise ConfigError(f"parallel.num_devices={count}, but JAX sees {len(devices)}: {devices}")
    if jax.process_count() > 1:
        _check_processes(count, devices)
    dividing_rows = sizes[DATA] * sizes[FSDP]
    divisor = dividing_rows * config.training.accumulation_steps
    if config.data.row_multiple % divisor:
        raise ConfigError(
            f"data.row_multiple={config.data.row_multiple} is not a multiple of {dividing_rows} devices x "
            f"training.accumulation_steps={config.training.accumulation_steps}; set it to a multiple of {divisor}, or, "
            "to keep the same batches, choose other parallel.num_devices or parallel.tensor"
        )
    return LAUNCHERS[config.parallel.launcher](sizes, devices, step, parameter_axes)


def _check_processes(count: int, devices: list[jax.Device]) -> None:
    """Raise ConfigError unless all processes have the same number of devices and the config uses all devices."""
    if count < len(devices):
        raise ConfigError(
            f"parallel.num_devices={count} of {len(devices)}: several processes train on all devices that they see; "
            "leave parallel.num_devices unset"
        )
    held = collections.Counter(device.process_index for device in devices)
    if len(set(held.values())) > 1:
        counts = ", ".join(f"process {number} has {held[number]}" for number in sorted(held))
        raise ConfigError(f"several processes must have equally many devices each, but {counts}")


def mesh_sizes(config: ExperimentConfig, smallest: bool = False) -> dict[str, int]:
    """Return the sizes of the mesh axes `data`, `fsdp` and `tensor` for the config and the devices that JAX sees.

    Args:
      smallest: if fsdp x tensor does not divide the number of devices, and the config does not set that number, return
        the smallest mesh for the config.
    Raises: ConfigError if fsdp x tensor does not divide the number of devices.
    """
    parallel = config.parallel
    count, divided_among = parallel.num_devices or len(jax.devices()), parallel.fsdp * parallel.tensor
    if count % divided_among and smallest and parallel.num_devices is None:
        count = divided_among
    if count % divided_among:
        raise ConfigError(
            f"parallel.fsdp={parallel.fsdp} x parallel.tensor={parallel.tensor} do not divide {count} devices"
        )
    return {DATA: count // divided_among, FSDP: parallel.fsdp, TENSOR: parallel.tensor}


def _mesh(sizes: Mapping[str, int], devices: list[jax.Device]) -> Mesh:
    shape, axes = tuple(sizes.values()), tuple(sizes)
    if jax.process_count() > 1:  # in the order of processes, so that the rows of a process are adjacent
        return Mesh(np.array(devices).reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))
    # With explicit axes, the default, every gather in the model would have to name the sharding of its output.
    return jax.make_mesh(shape, axes, devices=devices[: math.prod(shape)], axis_types=(AxisType.Auto,) * len(axes))


class Jit:
    """Launcher with one program for the whole mesh; rules divide the parameters, and XLA adds the communication."""

    def __init__(self, mesh: Mesh, step: Step, parameter_axes: ParameterAxes | None) -> None:
        self.mesh = mesh
        self.features = mesh.shape[TENSOR] > 1
        self._parameter_axes = parameter_axes
        self._rows = RowPlacement(mesh)
        self._step = step
        self._compiled: Any = None

    def local_rows(self, num_rows: int) -> slice:
        return self._rows.local(num_rows)

    def shardings(self, state: Any) -> Any:
        return shardings(state, self._parameter_axes, self.mesh)

    def constrain(self, x: Array, names: tuple[str | None, ...]) -> Array:
        meaning = {"batch": (DATA, FSDP), "vocab": TENSOR}
        spec = PartitionSpec(*(None if name is None else meaning.get(name) for name in names))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def _jitted(self, state: Any) -> Any:
        """Return the jitted step(state, batch, hyper) for states with the shapes of `state`."""
        if self._compiled is None:

            def step(state: Any, batch: Any, hyper: Any) -> tuple[Any, Any]:
                with activations_sharded(self):
                    return tuple(self._step(state, batch, hyper))  # of the same type as out_shardings

            everywhere = NamedSharding(self.mesh, PartitionSpec())
            self._compiled = jax.jit(step, donate_argnums=0, out_shardings=(self.shardings(state), everywhere))
        return self._compiled

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        return self._jitted(state)(state, self._rows.placed(batch), hyper)

    def lower(self, state: Any, batch: Any, hyper: Any) -> jax.stages.Lowered:
        return self._jitted(state).lower(state, self._rows.template(batch), hyper)


class _Replicated:
    """Base of `shard_map` and `pmap`, with which every device holds the whole state."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._rows = RowPlacement(mesh)

    def local_rows(self, num_rows: int) -> slice:
        return self._rows.local(num_rows)

    def shardings(self, state: Any) -> Any:
        return jax.tree.map(lambda _: NamedSharding(self.mesh, PartitionSpec()), state)


class ShardMap(_Replicated):
    def __init__(self, mesh: Mesh, step: Step) -> None:
        super().__init__(mesh)
        everywhere, rows = PartitionSpec(), PartitionSpec(DATA)
        # With check_vma the transpose of replicated parameters would add the gradients a second time.
        mapped = jax.shard_map(
            lambda s, b, h: tuple(step(s, b, h)),
            mesh=mesh,
            in_specs=(everywhere, rows, everywhere),
            out_specs=(everywhere, everywhere),
            check_vma=False,
        )
        self._step = jax.jit(mapped, donate_argnums=0)

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        return self._step(state, self._rows.placed(batch), hyper)

    def lower(self, state: Any, batch: Any, hyper: Any) -> jax.stages.Lowered:
        return self._step.lower(state, self._rows.template(batch), hyper)


class Pmap(_Replicated):
    def __init__(self, mesh: Mesh, step: Step) -> None:
        super().__init__(mesh)
        self._step = jax.pmap(
            lambda s, b, h: tuple(step(s, b, h)),
            axis_name=DATA,
            in_axes=(None, 0, None),
            out_axes=(None, None),
            devices=list(mesh.devices.flat),
            donate_argnums=0,
        )

    def step(self, state: Any, batch: Mapping[str, np.ndarray], hyper: Any) -> tuple[Any, Any]:
        devices = len(self.mesh.local_devices)
        parts = {k: v.reshape(devices, -1, *v.shape[1:]) for k, v in batch.items()}
        return jax.tree.map(self._of_all_processes, self._step(state, parts, hyper))

    def _of_all_processes(self, x: jax.Array) -> jax.Array:
        """Return an array of pmap as one on the devices of all processes, as checkpoints need it."""
        if x.sharding.device_set == set(self.mesh.devices.flat):
            return x
        copies = [shard.data for shard in x.addressable_shards]
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        return jax.make_array_from_single_device_arrays(x.shape, everywhere, copies)

    def lower(self, state: Any, batch: Any, hyper: Any) -> jax.stages.Lowered:
        devices = len(self.mesh.local_devices)
        parts = {
            k: jax.ShapeDtypeStruct((devices, v.shape[0] // devices, *v.shape[1:]), v.dtype) for k, v in batch.items()
        }
        return self._step.lower(state, parts, hyper)


def _jit(sizes: Mapping[str, int], devices: list[jax.Device], step: Step, axes: ParameterAxes | None) -> Launcher:
    return Jit(_mesh(sizes, devices), step, axes)


def _shard_map(sizes: Mapping[str, int], devices: list[jax.Device], step: Step, axes: ParameterAxes | None) -> Launcher:
    return ShardMap(_mesh({DATA: math.prod(sizes.values())}, devices), step)


def _pmap(sizes: Mapping[str, int], devices: list[jax.Device], step: Step, axes: ParameterAxes | None) -> Launcher:
    return Pmap(_mesh({DATA: math.prod(sizes.values())}, devices), step)


LAUNCHERS = {"jit": _jit, "shard_map": _shard_map, "pmap": _pmap}
"""Functions by the values of `parallel.launcher`: (sizes of mesh axes, devices, step, parameter axes) -> launcher."""
