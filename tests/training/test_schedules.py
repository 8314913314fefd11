import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from training_support import small_config

from transformer_jax.config import ENDING, OptimizerConfig
from transformer_jax.training.hyper import Hyper, split
from transformer_jax.training.schedules import as_optax, learning_rate

NAMES = ["inverse_sqrt", "cosine", "linear", "wsd", "constant", "none"]


def hyper(peak: float = 10.0, warmup: int = 2, decay: int = 10, end: float = 0.0, **others: float) -> Hyper:
    _, base = split(small_config())
    return base._replace(learning_rate=peak, warmup_steps=warmup, decay_steps=decay, end_fraction=end, **others)


def rates(name: str, updates, hyper: Hyper) -> np.ndarray:
    """Return the rate of every update in `updates`."""
    return np.asarray(jax.vmap(lambda update: learning_rate(name, update, hyper))(jnp.asarray(updates)))


PAPER = {1: 1.7469281e-7, 1000: 1.7469281e-4, 4000: 6.9877124e-4, 16_000: 3.4938562e-4, 100_000: 1.3975425e-4}


def test_the_default_is_the_schedule_of_the_paper():
    """Vaswani et al. 2017, equation 3, with d_model = 512 and warmup_steps = 4000."""
    unset = {"optimizer.learning_rate": None, "optimizer.decay_steps": None}
    config = small_config(
        {**unset, "optimizer.schedule": "inverse_sqrt", "optimizer.warmup_steps": 4000, "model.emb_dim": 512}
    )
    static, default = split(config)
    assert static.optimizer.schedule == "inverse_sqrt"
    np.testing.assert_allclose(rates(static.optimizer.schedule, list(PAPER), default), list(PAPER.values()), rtol=1e-6)
    s = np.arange(1, 20_000, 7)
    equation = 512**-0.5 * np.minimum(s**-0.5, s * 4000**-1.5)
    np.testing.assert_allclose(rates(static.optimizer.schedule, s, default), equation, rtol=1e-6)


# The tables of transformers' tests/optimization/test_optimization.py, for s = 0, 1, ..., 9, cut after 2 decimals.
@pytest.mark.parametrize(
    ("name", "warmup", "expected"),
    [
        ("linear", 2, [0.0, 5.0, 10.0, 8.75, 7.5, 6.25, 5.0, 3.75, 2.5, 1.25]),
        ("cosine", 2, [0.0, 5.0, 10.0, 9.61, 8.53, 6.91, 5.0, 3.08, 1.46, 0.38]),
        ("inverse_sqrt", 2, [0.0, 5.0, 10.0, 8.165, 7.071, 6.325, 5.774, 5.345, 5.0, 4.714]),
        ("constant", 4, [0.0, 2.5, 5.0, 7.5, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0]),
        ("none", 0, [10.0] * 10),
    ],
)
def test_tables_of_another_library(name, warmup, expected):
    np.testing.assert_allclose(rates(name, np.arange(10), hyper(warmup=warmup)), expected, atol=1e-2)


@pytest.mark.parametrize("end", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_cosine_and_linear_equal_optax(warmup, end):
    values = hyper(peak=0.3, warmup=warmup, decay=100, end=end)
    s = np.arange(1, 120)
    cosine = optax.warmup_cosine_decay_schedule(0.0, 0.3, warmup, 100, end_value=0.3 * end)
    np.testing.assert_allclose(rates("cosine", s, values), [cosine(i) for i in s], rtol=1e-5, atol=1e-8)
    rise, fall = optax.linear_schedule(0.0, 0.3, max(warmup, 1)), optax.linear_schedule(0.3, 0.3 * end, 100 - warmup)
    linear = optax.join_schedules([rise, fall], [warmup])
    np.testing.assert_allclose(rates("linear", s, values), [linear(i) for i in s], rtol=1e-5, atol=1e-8)


def test_half_way_down_the_cosine():
    values = hyper(peak=1.0, warmup=10, decay=100, end=0.1)
    np.testing.assert_allclose(rates("cosine", [0, 10, 55, 100, 1000], values), [0, 1, 0.55, 0.1, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("power", "end", "expected"),
    [
        (1.0, 0.0, [0.01, 0.5, 1, 1, 1, 0.995, 0.5, 0, 0]),
        (0.5, 0.0, [0.01, 0.5, 1, 1, 1, 1 - 0.005**0.5, 0.2928932, 0, 0]),
        (1.0, 0.25, [0.01, 0.5, 1, 1, 1, 0.99625, 0.625, 0.25, 0.25]),
        (0.5, 0.25, [0.01, 0.5, 1, 1, 1, 1 - 0.75 * 0.005**0.5, 0.4696699, 0.25, 0.25]),
    ],
)
def test_warm_up_stable_phase_and_decay_by_hand(power, end, expected):
    """1000 updates, of which 100 warm up and 200 decay."""
    values = hyper(peak=2.0, warmup=100, decay=1000, end=end, decay_fraction=0.2, decay_power=power)
    curve = rates("wsd", [1, 50, 100, 500, 800, 801, 900, 1000, 1200], values)
    np.testing.assert_allclose(curve, 2.0 * np.array(expected), rtol=1e-6, atol=1e-9)


def test_a_decay_over_all_updates_after_the_warm_up_is_the_linear_schedule():
    linear, wsd = hyper(warmup=0, decay=40, end=0.1), hyper(warmup=0, decay=40, end=0.1, decay_fraction=1.0)
    np.testing.assert_allclose(
        rates("wsd", np.arange(1, 50), wsd), rates("linear", np.arange(1, 50), linear), rtol=1e-6
    )


@pytest.mark.parametrize(("total", "fraction"), [(30_001, 0.1), (9_999_999, 0.1), (7, 0.01), (10, 0.3)])
def test_a_decay_has_whole_updates_and_the_update_before_it_has_the_peak(total, fraction):
    """With a power of 0.5, a start that is off by 1e-6 of the decay would lower the rate by a thousandth."""
    length = max(round(total * fraction), 1)
    values = hyper(peak=1.0, warmup=0, decay=total, decay_fraction=fraction, decay_power=0.5)
    curve = rates("wsd", [total - length - 1, total - length, total - length + 1, total], values)
    np.testing.assert_allclose(curve, [1.0, 1.0, 1 - length**-0.5, 0.0], rtol=1e-5)
    config = OptimizerConfig(schedule="wsd", decay_steps=total, decay_fraction=fraction)
    assert config.decay_start == total - length


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_reached_at_the_end_of_the_warm_up_and_never_passed(name):
    s = np.arange(1, 40)
    curve = rates(name, s, hyper(peak=0.2, warmup=8, decay=30))
    assert curve.max() == pytest.approx(0.2)
    assert curve[7] == pytest.approx(0.2)
    if name != "none":
        np.testing.assert_allclose(curve[:8], 0.2 * s[:8] / 8, rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_without_warm_up_the_first_update_has_the_peak(name):
    curve = rates(name, [1, 2, 3, 4], hyper(peak=0.2, warmup=0, decay=1000))
    expected = 0.2 * np.array([1, 2, 3, 4]) ** -0.5 if name == "inverse_sqrt" else 0.2
    np.testing.assert_allclose(curve, np.broadcast_to(expected, 4), rtol=5e-3)


@pytest.mark.parametrize("name", ENDING)
@pytest.mark.parametrize("end", [0.0, 0.25, 1.0])
def test_the_end_is_a_fraction_of_the_peak_and_stays(name, end):
    curve = rates(name, [30, 31, 1000], hyper(peak=0.2, warmup=8, decay=30, end=end))
    np.testing.assert_allclose(curve, 0.2 * end, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["inverse_sqrt", "constant", "none"])
def test_schedules_without_an_end_do_not_read_it(name):
    np.testing.assert_array_equal(
        rates(name, np.arange(1, 50), hyper(decay=10, end=0.0)), rates(name, np.arange(1, 50), hyper(decay=20, end=0.9))
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_number_may_be_traced(name):
    trials = [
        hyper(0.1, 0, 5, decay_fraction=0.6, decay_power=1.0),
        hyper(0.2, 3, 9, 0.1, decay_fraction=0.4, decay_power=0.5),
        hyper(0.3, 8, 30, 0.5, decay_fraction=0.7, decay_power=2.0),
    ]
    stacked = jax.tree.map(lambda *x: jnp.asarray(x), *trials)
    compiled = jax.jit(jax.vmap(lambda s, h: learning_rate(name, s, h), in_axes=(None, 0)))
    for s in [1, 4, 12, 40]:
        together = compiled(jnp.int32(s), stacked)
        assert together.dtype == jnp.float32
        np.testing.assert_allclose(together, [learning_rate(name, jnp.int32(s), h) for h in trials], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_optax_counts_updates_from_zero(name):
    schedule = as_optax(name, hyper(warmup=3))
    by_count = [schedule(jnp.int32(count)) for count in range(12)]
    np.testing.assert_allclose(by_count, rates(name, np.arange(1, 13), hyper(warmup=3)), rtol=1e-5)
