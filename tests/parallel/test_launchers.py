from typing import Any

import jax
import pytest
from training_support import run_on_eight_devices, small_config

from transformer_jax.errors import ConfigError
from transformer_jax.models.architecture import parameter_axes
from transformer_jax.parallel.launchers import make_launcher

LAUNCHERS = ["jit", "shard_map", "pmap"]
OUTPUTS = {"training.z_loss": 0.1, "model.output_logit_cap": 3.0, "model.logits_multiplier": 0.7}
PRE = {
    **OUTPUTS,
    "model.norm_position": "pre",
    "model.norm": "rmsnorm",
    "model.position_encoding": "learned",
    "model.activation": "swiglu",
    "model.scan_layers": True,
}
ROTARY = {"model.norm_position": "pre", "model.position_encoding": "rotary", "model.activation": "geglu"}
PACKED = {"data.batching": "packed", "data.packed_length": 16, "model.position_encoding": "learned"}
PARTS_2 = {"training.accumulation_steps": 2}
PARTS_4 = {"training.accumulation_steps": 4}


def case(
    launcher: str, fields: Any = None, num_devices: int | None = None, step: str = "gradient", num_steps: int = 2
) -> tuple[str, dict[str, Any]]:
    return "run", {
        "launcher": launcher,
        "fields": fields or {},
        "num_devices": num_devices,
        "step": step,
        "num_steps": num_steps,
    }


# data x fsdp x tensor; the size of the vocabulary is divisible by 8.
MESH = {"model.vocab_size": 24, "model.num_heads": 4}
MESHES = {
    "1 x 8 x 1, rmsnorm, learned, packed": {"parallel.fsdp": 8, "model.norm": "rmsnorm", **PACKED},
    "1 x 2 x 4, pre, relative, gated, no biases": {
        **{"parallel.fsdp": 2, "parallel.tensor": 4, "model.norm_position": "pre", "model.use_bias": False},
        **{"model.position_encoding": "relative", "model.activation": "geglu"},
    },
    "4 x 1 x 2, pre, rmsnorm, rotary, grouped, untied": {
        **{"parallel.tensor": 2, "model.norm_position": "pre", "model.norm": "rmsnorm", "model.num_kv_heads": 2},
        **{"model.position_encoding": "rotary", "model.tie_output": False, "model.share_embeddings": False, **OUTPUTS},
    },
    "2 x 2 x 2, none, scanned, in parts": {
        **{"parallel.fsdp": 2, "parallel.tensor": 2, "model.position_encoding": "none"},
        **{"model.scan_layers": True, "training.accumulation_steps": 2},
    },
}

# Launchers that resume from a checkpoint of the mesh 2 x 2 x 2.
ELASTIC = [
    {"parallel.num_devices": 1},
    {"parallel.num_devices": 4, "parallel.tensor": 4},
]

# Compared to one device: summed gradients, and one update by plain gradient descent.
GRADIENTS = {
    "post shard_map": case("shard_map"),
    "pre pmap": case("pmap", PRE),
}
SLOW_GRADIENTS = {
    "packed in parts, 4 devices pmap": case("pmap", {**PACKED, **PARTS_2}, 4),
    "packed in parts, 4 devices jit": case("jit", {**PACKED, **PARTS_2}, 4),
    "4 parts, 2 devices shard_map": case("shard_map", {**ROTARY, **PARTS_4}, 2),
}
SLOW_GRADIENTS |= {name: case("jit", {**MESH, **fields}) for name, fields in MESHES.items()}
HYBRID = {
    "model.architecture": "decoder_only",
    "task.name": "language_model",
    "model.num_encoder_layers": 6,  # not read; the default
    "model.num_decoder_layers": 4,
    "model.layer_pattern": "GGA",
    "model.layer_kinds": "G: mixer=gated_delta; A: attention_window=3",
    "model.qk_norm": "rms",
    "model.norm_position": "pre",
    # Where the steps of a recurrence amplify rounding, as with larger initial values, its gradients show it.
    **{"model.init": "normal", "model.init_std": 0.15, "model.activation": "gelu"},
}
STRUCTURES = "2 x 2 x 2, layers of two structures, in parts"
SLOW_GRADIENTS[STRUCTURES] = case("jit", {**MESH, **HYBRID, **PARTS_2, "parallel.fsdp": 2, "parallel.tensor": 2})
FROZEN = {"model.num_encoder_layers": 2, "optimizer.freeze": "embedding,encoder/layers:1"}
MUON = {**HYBRID, "model.init_std": 0.05, "optimizer.name": "muon", "optimizer.learning_rate": 0.02}
SLOW_UPDATES = {
    "train muon, 2 x 2 x 2": case("jit", {**MESH, **MUON, "parallel.fsdp": 2, "parallel.tensor": 2}, step="train"),
    "train frozen, 2 x 2 x 2": case("jit", {**MESH, **FROZEN, "parallel.fsdp": 2, "parallel.tensor": 2}, step="train"),
    "train frozen, shard_map": case("shard_map", FROZEN, step="train"),
}
UPDATES = {"train jit": case("jit", step="train"), "train in parts": case("pmap", PARTS_2, step="train")}
OTHERS = {"mean of means": case("shard_map", step="mean_of_means", num_steps=1)}
MONITORED = {
    "monitored jit": ("monitor", {"fields": {**MESH, "parallel.fsdp": 2, "parallel.tensor": 2}, "launcher": "jit"}),
    "monitored shard_map": ("monitor", {"fields": HYBRID, "launcher": "shard_map"}),
    "monitored pmap, in parts": ("monitor", {"fields": PARTS_2, "launcher": "pmap"}),
}
SLOW_OTHERS = {
    **MONITORED,
    "communication in parts": ("communication", {"fields": PARTS_2}),
    "elastic": (
        "elastic",
        {"fields": {**MESH, "parallel.fsdp": 2, "parallel.tensor": 2}, "others": ELASTIC, "num_steps": 8},
    ),
}


class Results(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        result = super().__getitem__(name)
        assert "error" not in result, result["error"]
        return result


@pytest.fixture(scope="module")
def results():
    return Results(run_on_eight_devices(GRADIENTS | UPDATES | OTHERS))


@pytest.fixture(scope="module")
def slow_results():
    return Results(run_on_eight_devices(SLOW_GRADIENTS | SLOW_UPDATES | SLOW_OTHERS))


def check_launcher(case: Any, result: dict[str, Any]) -> None:
    """All steps share one program, which donates its state, and all devices have the same bits."""
    _, arguments = case
    assert result["num_devices"] == (arguments["num_devices"] or 8)
    assert [step["step"] for step in result["steps"]] == [1, 2]
    assert [step["compilations"] for step in result["steps"]] == [1, 0]
    assert all(step["donated"] for step in result["steps"])
    assert all(step["everywhere_equal"] for step in result["steps"])


def check_gradients(case: Any, result: dict[str, Any]) -> None:
    _, arguments = case
    for step in result["steps"]:
        assert step["grads"] < 1e-5
        assert step["update"] < 1e-5
        actual, expected = step["sums"]
        assert actual == pytest.approx(expected, rel=1e-6)
        assert actual[-1] == (142 if "data.batching" in arguments["fields"] else 34)


def check_update(result: dict[str, Any]) -> None:
    """Compare Adam's moments and the metrics; parameters whose gradient is only rounding move by whole steps."""
    for step in result["steps"]:
        assert step["moments"] < 1e-5
        assert step["average"] < 1e-6
        sums = {"loss", "nll", "accuracy", "gradient_norm", "tokens", "weight"}
        assert set(step["metrics"]) == sums | {"learning_rate", "filled", "slots"}
        for name, (actual, expected) in step["metrics"].items():
            assert actual == pytest.approx(expected, rel=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_and_updates_equal_those_of_one_device(results, name):
    check_launcher(GRADIENTS[name], results[name])
    check_gradients(GRADIENTS[name], results[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_GRADIENTS)
def test_gradients_and_updates_of_more_options_equal_those_of_one_device(slow_results, name):
    check_launcher(SLOW_GRADIENTS[name], slow_results[name])
    check_gradients(SLOW_GRADIENTS[name], slow_results[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", UPDATES)
def test_training_steps_equal_those_of_one_device(results, name):
    check_launcher(UPDATES[name], results[name])
    check_update(results[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_UPDATES)
def test_training_steps_with_frozen_parameters_equal_those_of_one_device(slow_results, name):
    check_launcher(SLOW_UPDATES[name], slow_results[name])
    check_update(slow_results[name])


@pytest.mark.slow
def test_updates_of_muon_on_a_mesh_equal_those_of_one_device(slow_results):
    """The iteration amplifies the rounding of its products; a matrix is divided again after its update."""
    for step in slow_results["train muon, 2 x 2 x 2"]["steps"]:
        assert step["kernels"] < 5e-5
        assert step["share"] < 0.4


@pytest.mark.slow
def test_a_checkpoint_of_a_mesh_can_be_resumed_by_other_launchers(slow_results):
    expected, *others = slow_results["elastic"]
    assert len(expected) == 8
    assert expected[-1] < expected[0]
    assert len(others) == len(ELASTIC)
    for losses in others:
        assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_a_mesh_divides_the_state(slow_results):
    """Vectors of the model's width are not divided; they are a tenth of this small model."""
    for name, most in (("2 x 2 x 2, none, scanned, in parts", 0.3), ("1 x 8 x 1, rmsnorm, learned, packed", 0.2)):
        assert all(step["share"] < most for step in slow_results[name]["steps"]), name
    assert all(step["share"] == 1 for step in slow_results["packed in parts, 4 devices jit"]["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("name", MONITORED)
def test_values_of_a_monitored_step_equal_those_of_one_device(slow_results, name):
    values = {of: pair for of, pair in slow_results[name].items() if of.startswith("monitor/")}
    assert len(values) > 15
    for of, (actual, expected) in values.items():
        assert actual == pytest.approx(expected, rel=1e-3 if "update_ratio" in of else 1e-5), of


@pytest.mark.slow
def test_the_tests_find_a_mean_of_the_means_of_devices(results):
    assert results["mean of means"]["steps"][0]["grads"] > 0.1


@pytest.mark.slow
def test_jit_communicates_gradients_and_sums_but_no_rows(slow_results):
    """Each part consists of rows that its device already has."""
    assert set(slow_results["communication in parts"]) == {"all-reduce"}


def untraced(*args: Any) -> Any:
    raise AssertionError("the step was traced")


@pytest.mark.parametrize(
    ("count", "parts", "message"),
    [
        (3, 1, "data.row_multiple=16 is not a multiple of 3 devices .*; set it to a multiple of 3, or, "),
        (8, 4, "data.row_multiple=16 .* 8 devices x training.accumulation_steps=4; .* multiple of 32, or, "),
    ],
)
def test_devices_that_cannot_divide_the_batch_are_refused(monkeypatch, count, parts, message):
    config = small_config({"parallel.num_devices": count, "training.accumulation_steps": parts})
    monkeypatch.setattr(jax, "devices", lambda: [object()] * 8)
    with pytest.raises(ConfigError, match=f"^{message}"):
        make_launcher(config, untraced, parameter_axes(config.model))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_too_many_devices_are_refused_before_anything_compiles(launcher):
    count = len(jax.devices()) + 1
    config = small_config({"parallel.launcher": launcher, "parallel.num_devices": count, "data.row_multiple": count})
    with pytest.raises(ConfigError, match=f"num_devices={count}, but JAX sees {count - 1}"):
        make_launcher(config, untraced, parameter_axes(config.model))
