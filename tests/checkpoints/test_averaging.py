import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.checkpoints.averaging import average_params
from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.errors import CheckpointError


def reader(store, template):
    return lambda step: store.restore_params(template, step).state


@pytest.fixture(scope="module")
def store(tmp_path_factory, helpers):
    store = CheckpointStore(tmp_path_factory.mktemp("checkpoints"))
    helpers.fill(store, 1, 2, 3, 4)
    return store


def test_is_the_mean_rounded_once(store, template, helpers):
    average = average_params(reader(store, template.params), [2, 3, 4])
    states = [helpers.make_state(step).params for step in (2, 3, 4)]
    expected = jax.tree.map(lambda *xs: np.mean([np.asarray(x, np.float64) for x in xs], axis=0), *states)
    assert jax.tree.structure(average) == jax.tree.structure(template.params)
    for x, y, t in zip(
        jax.tree.leaves(average), jax.tree.leaves(expected), jax.tree.leaves(template.params), strict=True
    ):
        assert x.dtype == t.dtype
        assert np.array_equal(np.asarray(x), y.astype(t.dtype))


def test_of_one_checkpoint_is_that_checkpoint(store, template, helpers):
    average = average_params(reader(store, template.params), [3])
    assert helpers.bits(average) == helpers.bits(helpers.make_state(3).params)


def test_does_not_depend_on_order_or_repetition(store, template, helpers):
    one, other = (average_params(reader(store, template.params), steps) for steps in ([1, 2, 4], [4, 1, 2, 4]))
    assert helpers.bits(one) == helpers.bits(other)


def test_sums_in_more_than_float32(tmp_path):
    """In float32 the small terms would vanish next to the large one."""
    values = [2.0**24, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    with CheckpointStore(tmp_path) as store:
        for step, value in enumerate(values):
            store.save(step, {"params": {"w": jnp.full((2,), value, jnp.float32)}}, {}, {})
    average = average_params(reader(store, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}), range(len(values)))
    assert np.asarray(average["w"]).tolist() == [float(np.float32(sum(values) / 8))] * 2
    assert float(np.float32(sum(values) / 8)) != 2.0**24 / 8


def test_needs_a_checkpoint_and_names_a_missing_one(store, template):
    with pytest.raises(CheckpointError, match="no checkpoints to average"):
        average_params(reader(store, template.params), [])
    with pytest.raises(CheckpointError, match=r"/9: no such checkpoint; there are 1, 2, 3, 4"):
        average_params(reader(store, template.params), [1, 9])
