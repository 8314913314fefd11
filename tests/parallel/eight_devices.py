"""Run launchers on 8 virtual CPU devices and print, as JSON, how far each is from one device without a launcher.

The number of devices is fixed when a process starts, so tests start this file as another process, once for many cases.
stdin: a JSON dict from the name of a case to a function of this file and its arguments.
"""

import collections
import dataclasses
import functools
import json
import re
import sys
import tempfile
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from data_support import encoded_pairs
from experts_support import experts_batch, experts_config
from labelled_support import config as labelled_config
from training_support import VOCAB_SIZE, distance, identical, read_by, small_config, split_for, uneven_batch

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.config import ExperimentConfig, ParallelConfig
from transformer_jax.data.batching import Batch
from transformer_jax.data.columns import RaggedIds
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.nn.collected import over_devices
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.parallel.placement import DATA
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training.extras import AVERAGE, averaged, decay_at
from transformer_jax.training.hyper import StaticConfig, split
from transformer_jax.training.state import TrainState, placed_state, state_shapes, state_template
from transformer_jax.training.step import batch_gradient, make_train_step, monitored

NUM_DEVICES = 8
SUMS = ("loss", "nll", "correct", "weight")
# Two rows per device when there are eight; the third device has no token at all.
LENGTHS = (5, 5, 1, 0, 0, 0, 2, 1, 5, 4, 1, 1, 0, 1, 3, 5)


@functools.cache
def unpacked_batches() -> list[Batch]:
    """Return two batches; made on demand, since the number of devices is set before the first array is made."""
    return [uneven_batch(LENGTHS, seed=seed) for seed in range(2)]


@functools.cache
def batches_of(config: ExperimentConfig) -> list[Batch]:
    """Return `unpacked_batches`, or packed ones if the config says so."""
    if config.data.batching != "packed":
        return unpacked_batches()
    random = np.random.default_rng(0)
    offsets = np.cumsum([0, *random.integers(2, 8, 30)])
    sides = [RaggedIds(random.integers(4, VOCAB_SIZE, offsets[-1]).astype(np.int32), offsets) for _ in range(2)]
    plan = training_batches(config, encoded_pairs(*sides))
    return [plan.batch(step) for step in range(2)]


def gradient_step(static: StaticConfig) -> Any:
    """Return a step of stochastic gradient descent that returns the summed gradients and sums as its metrics."""
    gradient = functools.partial(batch_gradient, static)

    def step(state: TrainState, batch: Any, hyper: Any) -> Any:
        grads, sums, *_ = gradient(state.params, batch, state.step, hyper)
        grads, sums = over_devices((grads, sums))
        params = jax.tree.map(lambda p, g: p - 0.5 * g / sums["weight"], state.params, grads)
        return TrainState(state.step + 1, params, state.opt_state, state.extra), {"grads": grads, "sums": sums}

    return step


def mean_of_means(static: StaticConfig) -> Any:
    """Wrong on purpose: every device counts the same, however many tokens it has."""
    gradient = functools.partial(batch_gradient, static)

    def step(state: TrainState, batch: Any, hyper: Any) -> Any:
        grads, sums, *_ = gradient(state.params, batch, state.step, hyper)
        tokens = over_devices(sums["weight"])
        mean = jax.tree.map(lambda g: g / jnp.maximum(sums["weight"], 1.0), grads)
        grads = jax.tree.map(lambda g: g * tokens, jax.lax.pmean(mean, DATA))
        return state, {"grads": grads, "sums": over_devices(sums)}

    return step


STEPS = {
    "gradient": gradient_step,
    "train": make_train_step,
    "mean_of_means": mean_of_means,
}


compilations = 0


def count_compilations(event: str, duration: float, **kwargs: Any) -> None:
    global compilations
    compilations += event == "/jax/core/compile/backend_compile_duration"


class OneDevice:
    """The reference of the launchers: the whole batch on one device, with the states and outputs of its steps."""

    def __init__(self, config: ExperimentConfig, step: str) -> None:
        static, hyper = split(config)
        initial = placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
        compiled = jax.jit(STEPS[step](static))
        self.states, self.outputs = [initial], []
        for batch in batches_of(config):
            state, output = compiled(self.states[-1], batch, hyper)
            self.states.append(state)
            self.outputs.append(output)


@functools.cache
def reference(fields: str, step: str) -> OneDevice:
    return OneDevice(small_config(json.loads(fields)), step)


def difference(new: Any, old: Any) -> Any:
    return jax.tree.map(lambda n, o: np.asarray(n, np.float64) - np.asarray(o, np.float64), new, old)


def factor(actual: Any, expected: Any) -> float:
    """Return the number that brings `expected` closest to `actual`."""
    pairs = [
        (np.asarray(a, np.float64), np.asarray(e, np.float64))
        for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    ]
    return float(sum((a * e).sum() for a, e in pairs) / sum((e * e).sum() for _, e in pairs))


def everywhere_equal(tree: Any, num_devices: int) -> bool:
    """Return whether each device holds its part of every array, and all copies of a part have the same bits."""
    for leaf in jax.tree.leaves(tree):
        full, shards = np.asarray(leaf), leaf.addressable_shards
        if not (len(shards) == num_devices and all(np.array_equal(s.data, full[s.index]) for s in shards)):
            return False
    return True


def share(tree: Any) -> float:
    """Return the largest share of all elements that one device holds."""
    held = collections.Counter()
    for leaf in jax.tree.leaves(tree):
        held.update({shard.device: shard.data.size for shard in leaf.addressable_shards})
    return max(held.values()) / sum(leaf.size for leaf in jax.tree.leaves(tree))


def compared(step: str, state: TrainState, output: Any, expected: OneDevice, index: int) -> dict[str, Any]:
    """Return how far the index-th step is from that of one device."""
    expected_state, expected_output = expected.states[index + 1], expected.outputs[index]
    if step == "train":
        before = kernels(expected.states[index].params)
        return {
            "moments": distance(first_moments(state), first_moments(expected_state)),
            "kernels": distance(
                difference(kernels(state.params), before), difference(kernels(expected_state.params), before)
            ),
            "metrics": {name: (float(value), float(expected_output[name])) for name, value in output.items()},
        }
    start = expected.states[index].params
    return {
        "grads": distance(output["grads"], expected_output["grads"]),
        "factor": factor(output["grads"], expected_output["grads"]),
        "update": distance(difference(state.params, start), difference(expected_state.params, start)),
        "sums": [[float(o["sums"][name]) for name in SUMS] for o in (output, expected_output)],
    }


def first_moments(state: TrainState) -> dict[str, Any]:
    """Return Adam's first moments, and the momentum of Muon, by path."""
    return {path: x for path, x in by_path(state.opt_state).items() if "/mu/" in path or "/momentum/" in path}


def kernels(params: Any) -> dict[str, Any]:
    """Return copies of the kernels of the layers by path: a NumPy view of a state would hinder its donation."""
    return {path: jnp.copy(x) for path, x in by_path(params).items() if "/layers" in path and path.endswith("/kernel")}


def by_path(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def monitor(fields: dict[str, Any], launcher: str) -> dict[str, tuple[float, float]]:
    """Return the metrics of one monitored step by name: of all devices, and of one."""
    config = small_config({**fields, "parallel.launcher": launcher})
    static, hyper = split(config)
    [batch, *_] = batches_of(config)
    whole = monitored(dataclasses.replace(static, accumulation_steps=1))
    initial = placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    expected = jax.jit(make_train_step(whole))(initial, batch, hyper).metrics
    launch = make_launcher(config, make_train_step(monitored(static)), parameter_axes(config.model))
    state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
    _, found = launch.step(state, batch, hyper)
    assert found.keys() == expected.keys()
    return {name: (float(value), float(expected[name])) for name, value in found.items()}


def run(fields: dict[str, Any], launcher: str, num_devices: int | None, step: str, num_steps: int) -> dict[str, Any]:
    parallel = {"parallel.launcher": launcher, "parallel.num_devices": num_devices}
    config = small_config({**fields, **parallel})
    static, hyper = split(config)
    launch = make_launcher(config, STEPS[step](static), parameter_axes(config.model))

    # One device computes its batch in one part, without the errors made on purpose.
    plain = {
        name: value
        for name, value in fields.items()
        if name != "training.accumulation_steps" and not name.startswith("parallel.")
    }
    expected = reference(json.dumps(plain), "train" if step == "train" else "gradient")
    state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
    assert identical(state, expected.states[0])
    steps = []
    for i, batch in enumerate(batches_of(config)[:num_steps]):
        previous = state
        average = jax.tree.map(jnp.copy, previous.extra[AVERAGE])  # the step donates it
        before = compilations
        state, output = launch.step(previous, batch, hyper)
        jax.block_until_ready((state, output))
        steps.append(
            {
                "step": int(state.step),
                "compilations": compilations - before,
                "donated": all(leaf.is_deleted() for leaf in jax.tree.leaves(previous.params)),
                "share": share(state),
                "everywhere_equal": everywhere_equal((state, output), launch.mesh.devices.size),
                **compared(step, state, output, expected, i),
            }
        )
        if step == "train":
            share_kept = decay_at(jnp.int32(i + 1), jnp.float32(hyper.ema_decay))
            weights = jax.tree.map(jnp.copy, state.params)
            steps[-1]["average"] = distance(state.extra[AVERAGE], averaged(average, weights, share_kept))
    return {"num_devices": launch.mesh.devices.size, "steps": steps}


# With ReLU, rounding to bfloat16 would switch units on and off, each of which is a large part of some gradient.
SMOOTH = {"model.activation": "gelu"}


@functools.cache
def plain_gradient(architecture: str) -> tuple[TrainState, Any]:
    """Return the state after a plain step in float32 on one device, and its output."""
    static, hyper = split_for(architecture, SMOOTH)
    state = placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    return jax.jit(gradient_step(static))(state, read_by(architecture, unpacked_batches()[0]), hyper)


def matrix(architecture: str, fields: dict[str, Any], launcher: str) -> dict[str, Any]:
    """Return how far the gradients and sums of a launcher are from those of the plain float32 step of one device."""
    config = small_config({**fields, "parallel.launcher": launcher})
    static, hyper = split_for(architecture, {**SMOOTH, **fields})
    launch = make_launcher(config, gradient_step(static), parameter_axes(static.model))
    state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
    after, output = launch.step(state, read_by(architecture, unpacked_batches()[0]), hyper)
    expected_state, expected = plain_gradient(architecture)
    start = placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0])).params
    return {
        "grads": distance(output["grads"], expected["grads"]),
        "update": distance(difference(after.params, start), difference(expected_state.params, start)),
        "sums": [[float(o["sums"][name]) for name in SUMS] for o in (output, expected)],
    }


def batch_norm(launcher: str, parallel: dict[str, int]) -> dict[str, Any]:
    """Return how far two steps of a tagger with BatchNorm are from those on one device."""
    config = labelled_config("tagging", {"row_multiple": 8, "tokens_per_batch": 128}, {"norm": "batchnorm"})
    config = dataclasses.replace(config, parallel=ParallelConfig(launcher=launcher, **parallel))
    static, hyper = split(config)
    step = make_train_step(static)
    launch, alone = make_launcher(config, step, parameter_axes(config.model)), jax.jit(step)
    state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
    expected = placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    rows = np.arange(16)[:, None]
    # Two rows per device; the first device has no token at all.
    batch = {"inputs": (rows * 7 + np.arange(6)) % 20 + 4, "inputs_mask": np.arange(6) < (rows - 1).clip(0) % 7}
    batch |= {"targets": (rows + np.arange(6)) % 5, "row_ids": rows[:, 0]}
    batch = {name: x if x.dtype == bool else x.astype(np.int32) for name, x in batch.items()}
    batch |= {"weights": batch["inputs_mask"].astype(np.float32)}
    for _ in range(2):
        state, metrics = launch.step(state, batch, hyper)
        expected, expected_metrics = alone(expected, batch, hyper)
    assert everywhere_equal(state.extra, NUM_DEVICES)
    [moments], [expected_moments] = (
        [part.mu for part in s.opt_state if hasattr(part, "mu")] for s in (state, expected)
    )
    return {
        "extra": distance(state.extra, expected.extra),
        "moments": distance(moments, expected_moments),
        "loss": (float(metrics["loss"]), float(expected_metrics["loss"])),
    }


def block_losses(launcher: str, parallel: dict[str, int], parts: int) -> dict[str, Any]:
    """Return how far the gradient of a tagger whose layers have experts is from that of one device in one part."""
    config = dataclasses.replace(experts_config(), parallel=ParallelConfig(launcher=launcher, **parallel))
    static, hyper = split(config)
    batch = experts_batch()
    step = gradient_step(dataclasses.replace(static, accumulation_steps=parts))
    launch = make_launcher(config, step, parameter_axes(config.model))
    state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
    _, output = launch.step(state, batch, hyper)
    alone = placed_state(static, hyper, jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    _, expected = jax.jit(gradient_step(static))(alone, batch, hyper)
    sums = [{name: float(value) for name, value in o["sums"].items()} for o in (output, expected)]
    return {"grads": distance(output["grads"], expected["grads"]), "sums": sums}


def elastic(fields: dict[str, Any], others: list[dict[str, Any]], num_steps: int) -> list[list[float]]:
    """Return the losses after a checkpoint of a mesh of 8 devices: of that mesh, then of other launchers."""

    def losses(launch: Any, state: TrainState, hyper: Any) -> list[float]:
        result = []
        for step in range(2, 2 + num_steps):
            state, metrics = launch.step(state, unpacked_batches()[step % 2], hyper)
            result.append(float(metrics["loss"]))
        return result

    def launched(fields: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
        config = small_config(fields)
        static, hyper = split(config)
        launch = make_launcher(config, make_train_step(static), parameter_axes(config.model))
        return static, hyper, launch, launch.shardings(state_shapes(static, hyper))

    static, hyper, launch, places = launched(fields)
    state = placed_state(static, hyper, places)
    for batch in unpacked_batches():
        state, _ = launch.step(state, batch, hyper)
    with tempfile.TemporaryDirectory() as folder, CheckpointStore(folder) as store:
        store.save(2, state, {}, {})
        store.wait()
        result = [losses(launch, state, hyper)]
        for other in others:
            static, hyper, launch, places = launched({**fields, "parallel.fsdp": 1, "parallel.tensor": 1, **other})
            restored = store.restore(state_template(static, hyper, places)).state
            assert everywhere_equal(restored, launch.mesh.devices.size)
            result.append(losses(launch, restored, hyper))
    return result


def communication(fields: dict[str, Any]) -> dict[str, int]:
    """Return the number of communications in the program of `jit`, by operation."""
    config = small_config({**fields, "parallel.launcher": "jit"})
    static, hyper = split(config)
    launch = make_launcher(config, make_train_step(static), parameter_axes(config.model))
    state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
    program = launch.lower(state, unpacked_batches()[0], hyper).compile().as_text()
    names = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast"
    return collections.Counter(re.findall(rf" ({names})(?:-start)?\(", program))


def main() -> None:
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_enable_compilation_cache", False)
    assert len(jax.devices()) == NUM_DEVICES
    jax.monitoring.register_event_duration_secs_listener(count_compilations)
    results = {}
    for name, (function, arguments) in json.load(sys.stdin).items():
        try:
            results[name] = globals()[function](**arguments)
        except Exception:  # report the other cases even if one fails
            results[name] = {"error": traceback.format_exc()}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
