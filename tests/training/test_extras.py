"""The trees of `TrainState.extra`: the average of the weights, and running statistics beside it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_support import compiled_step, identical, small_config, start, uneven_batch

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.models.architecture import Initial
from transformer_jax.nn.batch_norm import MOMENTUM, STATISTICS
from transformer_jax.training.extras import (
    AVERAGE,
    EXTRAS,
    Update,
    averaged,
    decay_at,
    evaluated,
    initial_extra,
    stored_paths,
    updated_extra,
    weights_of,
)
from transformer_jax.training.hyper import split

RNG = np.random.default_rng(0)


def random(*shape):
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
    ("decay", "number", "expected"),
    [
        (0.999, 1, 2 / 11),
        (0.999, 2, 3 / 12),
        (0.999, 90, 0.91),
        (0.999, 8_990, 0.999),
        (0.999, 2**31 - 1, 0.999),
        (0.1, 1, 0.1),
    ],
)
def test_the_share_that_the_average_keeps_grows_to_the_decay(decay, number, expected):
    assert float(decay_at(jnp.int32(number), decay)) == pytest.approx(expected, rel=1e-6)


def test_an_average_that_keeps_nothing_is_the_weights():
    average, params = {"a": random(5), "b": {"c": random(2, 3)}}, {"a": random(5), "b": {"c": random(2, 3)}}
    assert identical(averaged(average, params, jnp.float32(0)), params)


@pytest.mark.parametrize("decay", [0.1, 2 / 11, 0.999])
def test_the_average_of_constant_weights_is_the_weights(decay):
    params = {"a": random(1000)}
    assert identical(averaged(params, params, jnp.float32(decay)), params)


def test_the_average_of_four_steps_by_hand():
    """The first three shares are those of the warm-up, 2/11, 3/12 and 4/13; the fourth would be 5/14 > 0.3."""
    static, hyper = split(small_config())
    state = start(static, hyper)
    expected = jax.tree.map(lambda x: np.asarray(x, np.float64), state.params)
    assert identical(state.extra[AVERAGE], state.params)
    for share, seed in ((2 / 11, 0), (3 / 12, 1), (4 / 13, 2), (0.3, 3)):
        state, _ = compiled_step(static)(state, uneven_batch(seed=seed), hyper)
        share = min(share, 0.3)
        expected = jax.tree.map(lambda a, w, d=share: d * a + (1 - d) * np.asarray(w), expected, state.params)
        for found, by_hand in zip(jax.tree.leaves(state.extra[AVERAGE]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(found, by_hand, atol=1e-6)
    assert identical(state.evaluated, state.extra[AVERAGE])
    assert not identical(state.evaluated, state.params)


def test_a_skipped_step_and_a_frozen_parameter_leave_the_average():
    config = small_config({"training.on_nonfinite": "skip", "optimizer.freeze": "embedding"})
    static, hyper = split(config)
    first, step = start(static, hyper), compiled_step(static)
    broken = uneven_batch() | {"weights": np.full_like(uneven_batch()["weights"], np.nan)}
    skipped, _ = step(first, broken, hyper)
    assert skipped.step == 1
    assert identical(skipped.extra, first.extra)
    made, _ = step(skipped, uneven_batch(), hyper)
    assert identical(made.extra[AVERAGE]["embedding"], first.params["embedding"])
    # The skipped step is no update: the share is that of the first one.
    expected = jax.tree.map(lambda a, w: w + 2 / 11 * (a - w), first.params, made.params)
    assert not identical(made.params["decoder"], first.params["decoder"])
    for found, by_hand in zip(jax.tree.leaves(made.extra[AVERAGE]), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(found, by_hand, atol=1e-6)


def running(mean, variance):
    return {"norm": {"running_mean": jnp.full(2, mean), "running_variance": jnp.full(2, variance)}}


def test_running_statistics_are_averaged_with_the_weights():
    """They were measured with the weights of one step; the average of weights needs their average."""
    hyper = split(small_config({"training.ema_decay": 0.5}))[1]
    params = {"norm": {"scale": jnp.ones(2)}, "kernel": jnp.zeros(3)}
    extra = initial_extra(Initial(params, running(0.0, 1.0)), hyper)
    assert list(extra) == [STATISTICS, AVERAGE] == list(EXTRAS)
    assert identical(extra[AVERAGE], {**params, "norm": {**params["norm"], **running(0.0, 1.0)["norm"]}})
    sums = {"norm": {"weight": jnp.float32(2), "mean": jnp.full(2, 8.0), "variance": jnp.full(2, 2.0)}}
    new_params = {"norm": {"scale": jnp.full(2, 3.0)}, "kernel": jnp.full(3, 11.0)}
    new = updated_extra(extra, new_params, Update(jnp.int32(1), sums, hyper))
    mean = (1 - MOMENTUM) * 4.0
    np.testing.assert_allclose(new[STATISTICS]["norm"]["running_mean"], mean, rtol=1e-6)
    np.testing.assert_allclose(new[AVERAGE]["norm"]["running_mean"], mean * 9 / 11, rtol=1e-6)
    np.testing.assert_allclose(new[AVERAGE]["norm"]["scale"], 1 * 2 / 11 + 3 * 9 / 11, rtol=1e-6)
    np.testing.assert_allclose(new[AVERAGE]["kernel"], 9.0, rtol=1e-6)
    assert identical(evaluated(new_params, new), new[AVERAGE])
    raw = evaluated(new_params, new, raw=True)
    assert raw["norm"].keys() == {"scale", "running_mean", "running_variance"}
    np.testing.assert_allclose(raw["norm"]["running_mean"], mean, rtol=1e-6)
    assert identical(raw["kernel"], new_params["kernel"])


def test_the_paths_in_a_checkpoint_of_the_weights_that_are_scored():
    norm = ("scale", "running_mean")
    plain = ["params/kernel", "params/norm/scale", "opt_state/0/mu/kernel", "step"]
    with_norm = [*plain, "extra/statistics/norm/running_mean"]
    both = [*with_norm, "extra/average/kernel", *(f"extra/average/norm/{name}" for name in norm)]
    assert stored_paths(plain) == {"kernel": "params/kernel", "norm/scale": "params/norm/scale"}
    expected = stored_paths(plain) | {"norm/running_mean": "extra/statistics/norm/running_mean"}
    assert stored_paths(with_norm) == stored_paths(both, raw=True) == expected
    assert stored_paths(both) == {
        path: f"extra/average/{path}" for path in ("kernel", *(f"norm/{name}" for name in norm))
    }
    for damaged in (["params/a", "params/a/b"], ["params/a", "extra/statistics"]):
        with pytest.raises(CheckpointError, match="its arrays have the paths of no training state"):
            stored_paths(damaged)


def test_the_kind_of_weights_that_is_scored():
    assert weights_of(["statistics", "average"]) == "averaged"
    assert weights_of(["statistics", "another"]) == weights_of([]) == ""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.0, r"training\.ema_decay=1\.0: expected less than 1"),
        (-0.1, r"training\.ema_decay=-0\.1: expected at least 0"),
        (float("nan"), r"training\.ema_decay=nan"),
    ],
)
def test_a_decay_outside_of_0_to_1_is_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        ExperimentConfig.from_config_dict({"training": {"ema_decay": value}})
