import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from transformer_jax.checkpoints.store import CheckpointStore
from transformer_jax.cli.inspect import _print_tables, inspection, subtotals
from transformer_jax.cli.main import main
from transformer_jax.config import (
    DataConfig,
    ExperimentConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
)
from transformer_jax.models.architecture import ARCHITECTURES, Architecture
from transformer_jax.nn import recurrent_kernels
from transformer_jax.training import implementations

CONFIGS = Path(__file__).parent.parent.parent / "configs"
CONFIG = str(CONFIGS / "quickstart.py")


def small(**sections):
    model = ModelConfig(
        vocab_size=50, emb_dim=16, num_heads=2, mlp_dim=24, num_encoder_layers=1, num_decoder_layers=2, dropout_rate=0.0
    )
    data = DataConfig(max_length=20, tokens_per_batch=500, row_multiple=8)
    return ExperimentConfig(**{"model": model, "data": data} | sections).resolved()


def train_flops(config, rows, width):
    return ARCHITECTURES[config.architecture].train_flops(config, rows, {"inputs": width, "targets": width})


def activation_bytes(config, rows, width):
    return ARCHITECTURES[config.architecture].activation_bytes(config, rows, {"inputs": width, "targets": width})


def test_counts_and_costs():
    config = small()
    report = inspection(config)
    # Attention 4 (16 16 + 16), feed-forward 2 16 24 + 24 + 16, norms 2 16.
    attention, feed_forward, norm = 1088, 808, 32
    expected = 50 * 16 + (attention + feed_forward + 2 * norm) + 2 * (2 * attention + feed_forward + 3 * norm)
    assert report["num_parameters"] == expected == sum(leaf["count"] for leaf in report["parameters"])
    assert {"path": "embedding/embedding", "shape": [50, 16], "count": 800, "rule": "adam"} in report["parameters"]
    # 500 // 20 = 25 rows, 24 of them a multiple of 8.
    assert report["batch"] == {"rows": 24, "widths": {"inputs": 20, "targets": 20}}
    assert report["flops_per_step"] == train_flops(config.model, 24, 20)
    assert report["flops_per_target_token"] == report["flops_per_step"] // 480
    activations = activation_bytes(config.model, 24, 20)
    assert report["memory"] == {
        "parameters": 4 * expected,
        "gradients": 4 * expected,
        "moments": 8 * expected,
        "activations_estimate": activations,
        "total_estimate": 16 * expected + activations,
    }
    assert report["newton_schulz"] is None
    assert len(report["devices"]) == jax.device_count()
    assert ExperimentConfig.from_config_dict(report["config"]) == config


def test_a_model_without_an_encoder():
    """Its parameters, operations and kinds of attention are those of its architecture."""
    config = small()
    kinds = {"encoder self-attention", "decoder self-attention", "cross-attention"}
    assert set(inspection(config)["attention"]) == kinds
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, architecture="decoder_only"))
    report = inspection(config)
    assert set(report["attention"]) == {"decoder self-attention"}
    assert {leaf["path"].partition("/")[0] for leaf in report["parameters"]} == {"decoder", "embedding"}
    assert report["num_parameters"] == 50 * 16 + 2 * (1088 + 808 + 2 * 32)
    assert report["flops_per_step"] == train_flops(config.model, 24, 20)
    assert report["memory"]["activations_estimate"] == activation_bytes(config.model, 24, 20)


def test_a_total_without_activations_is_not_called_a_total_estimate(monkeypatch):
    monkeypatch.setattr(type(ARCHITECTURES["encoder_decoder"]), "activation_bytes", Architecture.activation_bytes)
    memory = inspection(small())["memory"]
    assert "total_estimate" not in memory
    assert memory["total_without_activations"] == 4 * memory["parameters"]


LOOP = ("scan", "cuDNN runs a whole layer at once, and each step here needs the one before")


@pytest.mark.parametrize(
    ("changes", "decoder"),
    [
        ({"attention": "additive"}, LOOP),  # before the cell
        ({"attention": "none"}, ("cudnn", "asked for")),
        ({"attention": "none", "teacher_forcing_rate": 0.5}, LOOP),
        ({"attention": "dot"}, ("cudnn", "asked for")),
        ({"attention": "dot", "input_feeding": True}, LOOP),
    ],
)
def test_recurrent_layers_of_cudnn(monkeypatch, changes, decoder):
    """With a GPU every layer whose inputs are known is cuDNN's; without one, the reason is named."""
    fields = {"cell": "lstm", "recurrent_implementation": "cudnn", "bidirectional": False}
    model = ModelConfig(architecture="recurrent", vocab_size=50, emb_dim=16, **fields | changes)
    config = small(model=model)
    default = dataclasses.replace(config, model=dataclasses.replace(config.model, recurrent_implementation="scan"))
    assert {tuple(choice.values()) for choice in inspection(default)["recurrent"].values()} == {("scan", "the default")}
    for choice in inspection(config)["recurrent"].values():
        assert "JAX computes on a CPU" in choice["why"] or choice["name"] == "scan"
    monkeypatch.setattr(recurrent_kernels, "_obstacle", lambda *_: "")
    choices = {name: (choice["name"], choice["why"]) for name, choice in inspection(config)["recurrent"].items()}
    assert choices == {"recurrent encoder": ("cudnn", "asked for"), "recurrent decoder": decoder}
    monkeypatch.setattr(implementations, "mesh_sizes", lambda _: {"data": 8})
    assert "cannot divide it over 8 devices" in inspection(config)["recurrent"]["recurrent encoder"]["why"]


def test_a_batch_in_parts_needs_the_activations_of_one():
    config = small(training=TrainingConfig(accumulation_steps=4))
    assert inspection(config)["memory"]["activations_estimate"] == activation_bytes(config.model, 6, 20)


@pytest.mark.slow
def test_a_packed_batch_is_as_wide_as_its_rows():
    data = DataConfig(max_length=20, tokens_per_batch=500, row_multiple=8, batching="packed", packed_length=30)
    report = inspection(small(data=data), compile_step=True)
    assert report["batch"] == {"rows": 16, "widths": {"inputs": 30, "targets": 30}}
    unpacked = inspection(small(data=dataclasses.replace(data, batching="buckets", packed_length=256, max_length=30)))
    assert report["flops_per_step"] == unpacked["flops_per_step"]
    # Per slot: inputs, targets and decoder inputs, segment ids and positions of both, weights, a mask of bytes.
    batch = 16 * 30 * (3 * 4 + 4 * 4 + 4 + 1)
    assert report["memory"]["compiled_state_and_batch"] >= 12 * report["num_parameters"] + batch


def test_memory_is_that_of_one_device_of_the_mesh():
    """Matrices are divided by 4 x 2, and rows by 2 x 4; biases and norms of the width are on every device."""
    report = inspection(small(parallel=ParallelConfig(num_devices=16, fsdp=4, tensor=2)))
    assert report["mesh"] == {"data": 2, "fsdp": 4, "tensor": 2}
    attention, feed_forward, norm = 4 * 16 * 16 // 8 + 3 * 16 // 2 + 16, 2 * 16 * 24 // 8 + 24 // 2 + 16, 32
    held = 50 * 16 // 8 + (attention + feed_forward + 2 * norm) + 2 * (2 * attention + feed_forward + 3 * norm)
    assert report["memory"]["parameters"] == 4 * held
    assert report["memory"]["activations_estimate"] == activation_bytes(small().model, 3, 20)


def test_the_rule_of_every_parameter_and_the_operations_of_muon(capsys):
    """Matrices of the trained layers have Muon: no moments for frozen ones, half of Adam's for the others."""
    optimizer = OptimizerConfig(name="muon", freeze="embedding,encoder,decoder/layers:1")
    report = inspection(small(optimizer=optimizer))
    rules = {leaf["path"]: leaf["rule"] for leaf in report["parameters"]}
    expected = {
        path: "none" if path.startswith(("embedding", "encoder")) else "muon" if path.endswith("kernel") else "adam"
        for path in rules
    }
    assert rules == expected
    # Of the second layer of two: 8 maps of attention and 2 of the feed-forward network.
    matrices = 8 * 16 * 16 + 2 * 16 * 24
    vectors = 8 * 16 + 24 + 16 + 3 * 2 * 16
    assert report["memory"]["moments"] == 4 * matrices + 8 * vectors
    operations = 8 * 5 * (4 * 16**3 + 2 * 16**3) + 2 * 5 * (4 * 16 * 16 * 24 + 2 * 16**3)
    assert report["newton_schulz"]["flops"] == operations
    assert 0 < report["newton_schulz"]["share"] < operations / report["flops_per_step"]
    _print_tables(report)
    printed = capsys.readouterr().out
    assert "Newton-Schulz per step" in printed
    assert re.search(rf"update, muon +{2 * matrices:,} parameters in 10 arrays", printed)
    assert len(re.findall(r"kernel +\S+ x .* muon", printed)) == 10


def test_subtotals_of_every_module():
    parameters = [{"path": path, "count": count} for path, count in (("a/b/x", 1), ("a/b/y", 2), ("a/z", 4), ("w", 8))]
    assert subtotals(parameters) == {"a": 7, "a/b": 3}


def test_tables(capsys):
    assert main(["inspect", f"--config={CONFIG}", "--config.model.mlp_dim=100"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    total = int(next(line for line in lines if line[:1] == ["total"])[1].replace(",", ""))
    assert total == inspection_of(CONFIG, "--config.model.mlp_dim=100", capsys)["num_parameters"]
    top = [
        int(line[1].replace(",", ""))
        for line in lines
        if line[:1] in (["decoder"], ["embedding"], ["encoder"]) and line[1:2] != ["self-attention"]
    ]
    assert sum(top[:2]) + top[3] == total  # decoder, the embedding and its table, encoder
    assert ["kernel", "2", "x", "128", "x", "100", "25,600"] in [line[:7] for line in lines]
    assert any(line[:3] == ["FLOPs", "per", "step"] for line in lines)


def inspection_of(spec, override, capsys):
    assert main(["inspect", f"--config={spec}", override, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_multiples_of_the_learning_rate_by_parameter(capsys):
    flag = "--config.optimizer.lr_multipliers=embedding=0.3; decoder/final_norm=2"
    assert main(["inspect", "--config=quickstart", flag]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " x 0.3" in line or " x 2" in line]
    assert [(row[0], row[-2:]) for row in rows if row[-2] == "x"] == [
        *(("bias", ["x", "2"]), ("scale", ["x", "2"]), ("embedding", ["x", "0.3"]))
    ]
    assert main(["inspect", "--config=quickstart", "--config.optimizer.lr_multipliers=embed=2"]) == 2
    assert "optimizer.lr_multipliers: 'embed' matches no parameter" in capsys.readouterr().err


def test_a_config_of_text_files_does_not_read_them(capsys):
    assert main(["inspect", f"--config={CONFIGS / 'multi30k.py'}", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["config"]["data"]
    assert (data["source"], data["dir"]) == ("text", "")


def test_the_best_checkpoint(tmp_path, capsys):
    with CheckpointStore(tmp_path / "checkpoints") as store:
        for step, loss in ((3, 1.0), (12, 2.0)):
            config = small(training=TrainingConfig(num_train_steps=step))
            store.save(step, {"x": jax.numpy.ones(3)}, {"config": config.to_dict()}, {}, {"loss": loss})
    for name, steps in (("", 12), ("checkpoints/best", 3)):
        assert main(["inspect", f"--checkpoint={tmp_path / name}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["config"]["training"]["num_train_steps"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("format", [[], ["--json"]])
def test_a_full_disk_behind_stdout(format):
    with open("/dev/full", "wb") as full:
        result = subprocess.run(
            [sys.executable, "-m", "transformer_jax", "inspect", f"--config={CONFIG}", *format],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (result.returncode, result.stderr) == (2, "transformer-jax: error: stdout: No space left on device\n")


def test_a_checkpoint_contains_its_config(tmp_path, capsys):
    config = small()
    with CheckpointStore(tmp_path / "checkpoints") as store:
        for step in (3, 12):
            store.save(step, {"x": jax.numpy.ones(3)}, {"config": config.to_dict()}, {})
    for path in (tmp_path, tmp_path / "checkpoints" / "3"):
        assert main(["inspect", f"--checkpoint={path}", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(inspection(config)))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "inspect takes one of --config=FILE.py and --checkpoint=WORKDIR"),
        ([f"--config={CONFIG}", "--checkpoint=x"], "inspect takes one of"),
        (["--checkpoint=x", "--config.seed=3"], "those of a checkpoint cannot be overridden"),
        ([f"--config={CONFIG}", "--config.model.num_heads=3"], "num_heads=3 does not divide emb_dim=128"),
    ],
)
def test_bad_usage(capsys, argv, message):
    assert main(["inspect", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_the_compiler_s_memory_figure_includes_the_state_and_the_batch():
    report = inspection(small(), compile_step=True)
    memory = report["memory"]
    state = memory["parameters"] + memory["moments"]
    batch = 24 * 20 * (3 * 4 + 4 + 1)  # inputs, targets and decoder inputs; weights; a mask of bytes
    assert abs(memory["compiled_state_and_batch"] - state - batch) < 100  # the hyperparameters
    assert memory["compiled_total"] >= memory["compiled_state_and_batch"] + memory["compiled_work_space"]
    assert memory["compiled_work_space"] > 0
