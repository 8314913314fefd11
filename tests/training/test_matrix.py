"""Every architecture makes the same update in every form of the step.

A form is a combination of scanned layers, bfloat16, accumulation, recomputation, chunks of the loss and a launcher; all
start from the same state. The batch, dropout and all other numbers are those of `training_support`.
"""

import functools
from typing import Any

import jax
import pytest
from data_support import prepared
from kinds_support import write_kind
from training_support import (
    compiled_gradient,
    compiled_step,
    distance,
    first_moment,
    identical,
    moved,
    read_by,
    run_on_eight_devices,
    small_config,
    split_for,
    start,
    uneven_batch,
)

from transformer_jax.config_file import read_config
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.launchers import make_launcher
from transformer_jax.tasks.batches.of_split import training_batches
from transformer_jax.training.hyper import split
from transformer_jax.training.state import placed_state, state_shapes
from transformer_jax.training.step import make_train_step

ARCHITECTURES = ("encoder_decoder", "decoder_only", "recurrent")

OPTIONS = {
    "scanned": {"model.scan_layers": True},
    "bfloat16": {"model.dtype": "bfloat16"},
    "in parts": {"training.accumulation_steps": 2},
    "in small parts": {"training.accumulation_steps": 4},
    "recomputed": {"model.remat": "full"},
    "partly recomputed": {"model.remat": "dots"},
    "loss in chunks": {"training.loss_chunks": 3},
}
# With ReLU, rounding to bfloat16 would switch units on and off, each of which is a large part of some gradient.
BASE = {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2, "model.activation": "gelu"}
BASES = {
    "encoder_decoder": BASE
    | {"model.norm_position": "pre", "model.position_encoding": "relative", "model.tie_output": False},
    "decoder_only": BASE | {"model.num_decoder_layers": 3, "model.activation": "swiglu", "model.num_kv_heads": 1},
    "recurrent": BASE,
}
# A batch of eight rows, as `uneven_batch` makes it, for one device.
ONE_DEVICE = {"parallel.num_devices": 1, "data.row_multiple": 8}

# Every pair of options, and of an option and a launcher, is on and off together somewhere.
FORMS = [
    ("encoder_decoder", "step", ("scanned", "recomputed")),
    ("encoder_decoder", "step", ("bfloat16", "loss in chunks")),
    ("encoder_decoder", "step", ("in small parts", "partly recomputed")),
    ("encoder_decoder", "jit", ()),
    ("encoder_decoder", "jit", ("scanned", "bfloat16", "in parts", "recomputed", "loss in chunks")),
    ("decoder_only", "step", ("scanned",)),
    ("decoder_only", "jit", ("scanned", "bfloat16", "in small parts", "partly recomputed")),
    ("recurrent", "step", ("bfloat16",)),
    ("recurrent", "jit", ("in parts", "loss in chunks")),
]


def fields_of(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for option in names for name, value in OPTIONS[option].items()}


@functools.cache
def plain(architecture: str) -> Any:
    """Return (state, metrics, gradients of the mean) of the plain float32 step, and the state before it."""
    static, hyper = split_for(architecture, BASES[architecture])
    before, batch = start(static, hyper), read_by(architecture, uneven_batch())
    after, metrics = compiled_step(static)(before, batch, hyper)
    grads, sums = compiled_gradient(static)(before.params, batch, 0, hyper)
    return before, after, metrics, jax.tree.map(lambda g: g / sums["weight"], grads)


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "launcher", "names"), FORMS)
def test_every_form_makes_the_update_of_the_plain_step(architecture, launcher, names):
    before, expected, expected_metrics, grads = plain(architecture)
    overrides = {**BASES[architecture], **ONE_DEVICE, **fields_of(names)}
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
@pytest.mark.parametrize(("kind", "fields"), [("packed", {}), ("images", {"task.mixup": "0.4"}), ("masked_lm", {})])
def test_parts_of_a_batch_of_another_form_add_up(tmp_path, kind, fields):
    """With dropout, where a row has the same mask in any part."""
    folder = write_kind(tmp_path, kind)
    fields = {"data.dir": str(folder), "training.label_smoothing": "0.1", **fields}
    config = read_config(str(folder / "tiny.py"), fields)
    batch = training_batches(config, prepared(config, folder / "run").splits["train"]).batch(0)
    static, hyper = split(config)
    params = start(static, hyper).params
    whole, sums = compiled_gradient(static)(params, batch, 0, hyper)
    parts, _ = split(read_config(str(folder / "tiny.py"), {**fields, "training.accumulation_steps": "2"}))
    assert parts != static
    grads, added = compiled_gradient(parts)(params, batch, 0, hyper)
    assert distance(grads, whole) < 1e-5
    expected = {name: float(x) for name, x in sums.items()}
    assert {name: float(x) for name, x in added.items()} == pytest.approx(expected, rel=1e-5)


# Each architecture with each launcher; each launcher in bfloat16 and in float32.
LAUNCHED = {
    f"{architecture}, {launcher}, {', '.join(names)}": (architecture, launcher, names)
    for i, architecture in enumerate(ARCHITECTURES)
    for j, launcher in enumerate(("jit", "shard_map", "pmap"))
    for names in [("scanned", "bfloat16", "in parts") if (i + j) % 2 else ("scanned", "in parts")]
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
