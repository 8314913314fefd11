"""`TrainState.extra`: named trees that are stored and sharded like parameters, and checkpoints that lack them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from training_support import distance, identical, small_config, uneven_batch

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.training.extras import AVERAGE, averaged
from transformer_jax.training.hyper import split
from transformer_jax.training.state import TrainState, placed_state, state_shapes, state_template
from transformer_jax.training.step import make_train_step
from transformer_jax.training.stepper import StackedStepper, over_trials


class WithoutExtra(NamedTuple):
    """The fields of a state before `extra` existed."""

    step: Any
    params: Any
    opt_state: Any


CONFIG = small_config({"parallel.num_devices": 1})
STATIC, HYPER = split(CONFIG)


@functools.cache
def launcher():
    return make_launcher(CONFIG, make_train_step(STATIC), parameter_axes(CONFIG.model))


def start():
    return placed_state(STATIC, HYPER, jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def trained(state, first, last):
    for step in range(first, last):
        state, _ = launcher().step(state, uneven_batch((5, 1, 0, 4) * 4, seed=step), HYPER)
    return state


@pytest.mark.slow
def test_an_extra_tree_is_kept_and_resumed_bit_for_bit(tmp_path):
    places = launcher().shardings(jax.eval_shape(start))
    template = jax.tree.map(
        lambda s, place: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=place), jax.eval_shape(start), places
    )
    with CheckpointStore(tmp_path) as store:
        state = trained(start(), 0, 2)
        store.save(2, state, {}, {})
        expected = trained(state, 2, 4)
    assert not identical(expected.extra[AVERAGE], expected.params)
    restored = store.restore(template).state
    assert isinstance(restored, TrainState)
    assert identical(trained(restored, 2, 4), expected)


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["vmap", "map"])
def test_every_trial_has_its_own_average_and_decay(axis):
    """One program for two decays."""
    states, hypers = [start(), jax.tree.map(lambda x: x + 1, start())], [HYPER, HYPER._replace(ema_decay=0.1)]
    stepper = StackedStepper(over_trials(make_train_step(STATIC), axis), states, hypers)
    assert [identical(stepper.state_of(number), state) for number, state in enumerate(states)] == [True, True]
    stepper.step([uneven_batch(), uneven_batch()])
    for number, share in enumerate((2 / 11, 0.1)):
        new = stepper.state_of(number)
        expected = averaged(states[number].params, new.params, jnp.float32(share))
        assert distance(new.extra[AVERAGE], expected) < 1e-6
        assert distance(new.extra[AVERAGE], new.params) > 1e-6


def test_the_extra_tree_has_checksums(tmp_path):
    with CheckpointStore(tmp_path) as store:
        store.save(1, start(), {}, {})
    params = store.open(1).below("params")
    assert store.open(1).below("extra") == {f"{AVERAGE}/{path}": leaf for path, leaf in params.items()}
    assert None not in {leaf.checksum for leaf in params.values()}


@pytest.mark.slow
@pytest.mark.parametrize("skip", [False, True])
def test_the_step_returns_a_tree_of_another_name_unchanged(skip):
    static, hyper = split(small_config({"training.on_nonfinite": "skip"} if skip else {}))
    state = jax.eval_shape(start)
    state = state._replace(extra={"copies": state.params})
    new, _ = jax.eval_shape(make_train_step(static), state, uneven_batch(), hyper)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    jaxpr = jax.make_jaxpr(make_train_step(static))(state, uneven_batch(), hyper)
    arguments = dict(zip(jax.tree.leaves(_paths(state)), jaxpr.jaxpr.invars, strict=False))
    results = dict(zip(jax.tree.leaves(_paths(new)), jaxpr.jaxpr.outvars, strict=False))
    extra = [path for path in arguments if path.startswith("extra/")]
    assert len(extra) > 10
    assert all(results[path] is arguments[path] for path in extra)


def _paths(tree):
    return jax.tree_util.tree_map_with_path(
        lambda path, _: jax.tree_util.keystr(path, simple=True, separator="/"), tree
    )


def test_a_state_without_extra_trees_is_stored_without_them(tmp_path):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    off = split(small_config({"training.ema_decay": 0.0}))
    state = placed_state(*off, device)
    with CheckpointStore(tmp_path / "before") as store:
        store.save(1, WithoutExtra(state.step, state.params, state.opt_state), {}, {})
    restored = store.restore(state_template(*off, device)).state
    assert identical(restored, state)
    assert restored.extra == {}
    # The other way round: so a new field of the state does not change the checkpoints of runs without it.
    with CheckpointStore(tmp_path / "now") as store:
        store.save(1, state, {}, {})
    earlier = store.restore(WithoutExtra(*state_shapes(*off)[:3])).state
    assert identical(tuple(earlier), (state.step, state.params, state.opt_state))
