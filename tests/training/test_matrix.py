"""Every architecture makes the same update in every form of the step, alone or together with other trials.

A form is a combination of scanned layers, bfloat16, accumulation and a launcher; all start from the same state. The
batch, dropout and all other numbers are those of `training_support`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_support import (
    compiled_gradient,
    compiled_step,
    distance,
    identical,
    read_by,
    run_on_eight_devices,
    small_config,
    split_for,
    start,
    uneven_batch,
)

from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.training.state import init_state, placed_state, state_shapes
from transformer_jax.training.step import make_train_step

ARCHITECTURES = ("encoder_decoder", "decoder_only", "recurrent")
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)

OPTIONS = {
    "scanned": {"model.scan_layers": True},
    "bfloat16": {"model.dtype": "bfloat16"},
    "in parts": {"training.accumulation_steps": 2},
}
# With ReLU, rounding to bfloat16 would switch units on and off, each of which is a large part of some gradient.
BASE = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2, "model.activation": "gelu"}
# A batch of eight rows, as `uneven_batch` makes it, for one device.
ONE_DEVICE = {"parallel.num_devices": 1, "data.row_multiple": 8}

# Every pair of options, and of an option and a launcher, is on and off together somewhere.
FORMS = [("step", ("scanned",)), ("step", ("bfloat16",)), ("step", ("in parts",)), ("jit", ()), ("jit", tuple(OPTIONS))]


def fields_of(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for option in names for name, value in OPTIONS[option].items()}


@functools.cache
def plain(architecture: str) -> Any:
    """Return (state, metrics, gradients of the mean) of the plain float32 step, and the state before it."""
    static, hyper = split_for(architecture, BASE)
    before, batch = start(static, hyper), read_by(architecture, uneven_batch())
    after, metrics = compiled_step(static)(before, batch, hyper)
    grads, sums = compiled_gradient(static)(before.params, batch, 0, hyper)
    return before, after, metrics, jax.tree.map(lambda g: g / sums["weight"], grads)


def first_moment(state: Any) -> Any:
    [moment] = [part.mu for part in state.opt_state if hasattr(part, "mu")]
    return moment


def moved(after: Any, before: Any, grads: Any, threshold: float) -> Any:
    """Return the update of parameters, except those whose gradient is only rounding: Adam moves them a whole step."""
    largest = max(np.abs(g).max() for g in jax.tree.leaves(grads))
    return jax.tree.map(
        lambda new, old, g: np.where(np.abs(g) > threshold * largest, np.asarray(new) - np.asarray(old), 0),
        after.params,
        before.params,
        grads,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "launcher", "names"),
    [
        *(("encoder_decoder", *form) for form in FORMS),
        ("decoder_only", "jit", tuple(OPTIONS)),
        ("recurrent", "step", ("bfloat16",)),
        ("recurrent", "jit", ("in parts",)),
    ],
)
def test_every_form_makes_the_update_of_the_plain_step(architecture, launcher, names):
    before, expected, expected_metrics, grads = plain(architecture)
    overrides = {**BASE, **ONE_DEVICE, **fields_of(names)}
    static, hyper = split_for(architecture, overrides)
    batch = read_by(architecture, uneven_batch())
    if launcher == "step":
        state = start(static, hyper)
        assert identical(state, before)
        after, metrics = compiled_step(static)(state, batch, hyper)
    else:
        launch = make_launcher(small_config(overrides), make_train_step(static), parameter_axes(static.model))
        state = placed_state(static, hyper, launch.shardings(state_shapes(static, hyper)))
        assert identical(state, before)
        after, metrics = launch.step(state, batch, hyper)
    assert after.step == 1
    assert set(metrics) == set(expected_metrics)
    narrow = "bfloat16" in names
    # Rounded to 8 bits; a difference of zero would mean that the option has no effect.
    assert (1e-4 if narrow else -1) < distance(first_moment(after), first_moment(expected)) < (0.05 if narrow else 1e-5)
    updates = [moved(state, before, grads, 0.1 if narrow else 1e-3) for state in (after, expected)]
    assert distance(*updates) < 1e-3
    for name in ("loss", "nll", "gradient_norm"):
        assert metrics[name] == pytest.approx(float(expected_metrics[name]), rel=2e-2 if narrow else 1e-5), name
    for name in ("tokens", "filled", "slots", "learning_rate"):
        assert metrics[name] == expected_metrics[name], name


@pytest.mark.slow
@every_architecture
def test_two_trials_together_equal_two_single_steps(architecture):
    """By vmap over their hyperparameters; each has an update from its own seed."""
    trials = ({"optimizer.clip_norm": 1e9}, {"seed": 8, "model.dropout_rate": 0.5, "optimizer.clip_norm": 1e9})
    (static, first), (other_static, second) = (split_for(architecture, {**BASE, **trial}) for trial in trials)
    assert static == other_static
    together = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y) for y in x]), first, second)
    batch = read_by(architecture, uneven_batch())

    before = jax.jit(jax.vmap(lambda hyper: init_state(static, hyper)))(together)
    after, metrics = jax.jit(jax.vmap(make_train_step(static), in_axes=(0, None, 0)))(before, batch, together)
    for i, hyper in enumerate((first, second)):
        own_before = start(static, hyper)
        own_after, own_metrics = compiled_step(static)(own_before, batch, hyper)
        assert identical(jax.tree.map(lambda x, i=i: x[i], before.params), own_before.params)
        for name, value in own_metrics.items():
            np.testing.assert_allclose(metrics[name][i], value, rtol=1e-5, err_msg=name)
        mine = jax.tree.map(lambda x, i=i: x[i], after)
        assert distance(first_moment(mine), first_moment(own_after)) < 1e-5
        grads = jax.tree.map(lambda m, h=hyper: m / (1 - h.beta1), first_moment(own_after))
        updates = [moved(state, own_before, grads, 1e-3) for state in (mine, own_after)]
        assert distance(*updates) < 1e-3
    assert not np.allclose(metrics["loss"][0], metrics["loss"][1], rtol=1e-3)


# Each architecture with each launcher; each launcher in bfloat16 and in float32.
LAUNCHED = {
    f"{architecture}, {launcher}, {', '.join(names)}": (architecture, launcher, names)
    for i, architecture in enumerate(ARCHITECTURES)
    for j, launcher in enumerate(("jit", "shard_map", "pmap"))
    for names in [tuple(OPTIONS) if (i + j) % 2 else ("scanned", "in parts")]
}


@pytest.fixture(scope="module")
def on_eight_devices():
    """Return the results of `eight_devices.matrix` by case; a batch in parts has two rows per device."""
    cases = {
        name: (
            "matrix",
            {"architecture": architecture, "launcher": launcher, "fields": fields_of(names)},
        )
        for name, (architecture, launcher, names) in LAUNCHED.items()
    }
    return run_on_eight_devices(cases)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHED)
def test_every_launcher_makes_the_update_of_one_device(on_eight_devices, name):
    """The update of gradient descent is the gradient of the mean."""
    result, (_, _, names) = on_eight_devices[name], LAUNCHED[name]
    assert "error" not in result, result["error"]
    narrow = "bfloat16" in names
    tolerance = 0.05 if narrow else 1e-5
    assert result["grads"] < tolerance
    assert result["update"] < tolerance
    (*losses, correct, weight), (*expected_losses, expected_correct, expected_weight) = result["sums"]
    assert losses == pytest.approx(expected_losses, rel=2e-2 if narrow else 1e-6)
    # In bfloat16 a token may become right or wrong if its best logits are nearly equal.
    assert abs(correct - expected_correct) <= (2 if narrow else 0)
    assert weight == expected_weight == 34
