"""An architecture and a task from outside the package: their errors, sweeps and search.

They are in the folder `outside`, in two modules as a user would write them. test_lifecycles.py has their runs.
"""

import csv
import itertools
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from outside.pulse import Pulse, PulseConfig, PulseDecoder
from run_support import write_corpus

from transformer_jax.cli.main import main
from transformer_jax.config import DecodeConfig
from transformer_jax.decoding.generate import generate
from transformer_jax.decoding.settings import Ends
from transformer_jax.models.architecture import init_params
from transformer_jax.tasks.trained.decode_requests import source_request

CONFIG = """
from outside.counting import CountingConfig
from outside.pulse import PulseConfig
from transformer_jax.config import *


def get_config(arg=""):
    tasks = {
        "": TaskConfig(),
        "counting": CountingConfig(name="outside.counting:Counting"),
        "broken": CountingConfig(name="outside.broken:NoLoss"),
    }
    return ExperimentConfig(
        model=PulseConfig(
            architecture="outside.pulse:PulseArchitecture", vocab_size=290, emb_dim=16, leak=0.3, max_length=48
        ),
        task=tasks[arg],
        data=DataConfig(
            source="text", dir=DIR, tokenizer="bpe", max_length=16, tokens_per_batch=512, num_buckets=1, cache_dir=CACHE
        ),
        optimizer=OptimizerConfig(schedule="constant", learning_rate=1e-2, warmup_steps=2),
        training=TrainingConfig(num_train_steps=6, log_every_steps=1, eval_every_steps=3, checkpoint_every_steps=2),
    ).to_config_dict()
"""
STUDY = """
from transformer_jax.sweeps.study import Metric, Study, over

STUDY = Study(
    "Do outliers matter?",
    CONFIG,
    axes=(over("task.outlier_slope", 0.0, 1.0, name="slope"),),
    seeds=(0,),
    metrics=(Metric("test/error"), Metric("test/loss")),
)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, config.py and a study."""
    result = write_corpus(tmp_path_factory.mktemp("outside"))
    paths = {"DIR": str(result), "CACHE": str(result / "cache")}
    config = CONFIG
    for name, path in paths.items():
        config = config.replace(f"={name}", f"={path!r}")
    (result / "config.py").write_text(config)
    study = result / "experiments" / "outliers" / "study.py"
    study.parent.mkdir(parents=True)
    study.write_text(STUDY.replace("CONFIG", repr(f"{result / 'config.py'}:counting")))
    return result


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Let other processes import the modules too."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def train(folder, task, workdir, *flags):
    return ["train", f"--config={folder / 'config.py'}{task}", f"--workdir={folder / workdir}", *flags]


def test_whole_numbers_rank_checkpoints(folder):
    flags = ["--config.task.name=outside.broken:Rounded", "--config.training.best_metric=error"]
    assert main(train(folder, ":counting", "rounded", *flags)) == 0
    lines = [json.loads(line) for line in (folder / "rounded" / "metrics.jsonl").read_text().splitlines()]
    errors = [line["error"] for line in lines if line["split"] == "valid"]
    assert len(errors) == 2
    assert all(type(error) is int for error in errors)


@pytest.mark.parametrize(
    ("task", "flags", "message"),
    [
        (":counting", ["--config.task.name=outside.broken:Unwritable"], "metric 'error': a score is a number"),
        (
            "",
            ["--config.model.architecture=outside.broken:NoDecoder", "--config.training.best_metric=sacrebleu"],
            "model.architecture='outside.broken:NoDecoder': ValueError: lost my state",
        ),
    ],
)
def test_an_error_of_a_score_names_its_task_or_architecture(folder, capsys, task, flags, message):
    assert main(train(folder, task, f"unscored{bool(task)}", *flags)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("task", ["", ":counting"])
def test_inspect_says_that_operations_are_not_counted(folder, capsys, task):
    assert main(["inspect", f"--config={folder / 'config.py'}{task}"]) == 0
    assert capsys.readouterr().out.count("not counted") == 2


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "vmap"])
def test_a_broken_task_fails_its_trials_with_its_reason(folder, executor):
    study, workdir = folder / "experiments" / "broken" / "study.py", folder / f"broken_{executor}"
    study.parent.mkdir(parents=True, exist_ok=True)
    study.write_text(STUDY.replace("CONFIG", repr(f"{folder / 'config.py'}:broken")))
    assert main(["sweep", f"--study={study.parent}", f"--workdir={workdir}", f"--executor={executor}"]) != 0
    results = [json.loads(file.read_text()) for file in sorted(workdir.glob("trials/*/result.json"))]
    assert len(results) == 2
    for result in results:
        assert result["status"] == "failed"
        assert "task.name='outside.broken:NoLoss': ValueError: no idea" in result["why"]


@pytest.mark.slow
def test_a_swept_field_of_the_task_by_processes_and_as_one_program(folder):
    """A metric to minimise is reported as such, and both executors give the same results."""
    study, found = folder / "experiments" / "outliers", {}
    for executor in ("local", "vmap"):
        workdir = folder / executor
        assert main(["sweep", f"--study={study}", f"--workdir={workdir}", f"--executor={executor}"]) == 0
        results = [json.loads(file.read_text()) for file in sorted(workdir.glob("trials/*/result.json"))]
        assert len(results) == 2
        found[executor] = [(result["labels"], result["seed"], result["metrics"]["test/error"]) for result in results]
        assert main(["report", f"--workdir={workdir}"]) == 2
        assert main(["report", f"--workdir={workdir}", "--trust=outside.pulse,outside.counting"]) == 0
        with (workdir / "report" / "summary.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["metric"] == "test/error"]
        assert {row["direction"] for row in rows} == {"min"}
        best = min(rows, key=lambda row: float(row["mean"]))
        assert [row["slope"] for row in rows if row["best"] in ("True", "true", "1", "yes")] in ([best["slope"]], [])
    for one, other in zip(found["local"], found["vmap"], strict=True):
        assert one[:2] == other[:2]
        assert one[2] == pytest.approx(other[2], rel=1e-4)
    errors = {tuple(labels.items()): error for labels, seed, error in found["local"] if seed == 0}
    assert len(set(errors.values())) == 2  # the field has an effect


def small():
    config = PulseConfig(architecture="outside.pulse:PulseArchitecture", vocab_size=4, emb_dim=4, leak=0.6).resolved()
    return config, jax.tree.map(lambda p: 4.0 * p, init_params(config, 3))


def log_probs(config, params, inputs, outputs):
    """Return log P of each output after the start id 3."""
    read = np.concatenate([np.full((len(outputs), 1), 3), outputs[:, :-1]], axis=1)
    batch = {"inputs": np.repeat(inputs, len(outputs), axis=0), "decoder_inputs": read}
    logits = Pulse(config).apply({"params": params}, {name: jnp.asarray(x) for name, x in batch.items()})
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.asarray(outputs)[..., None], axis=-1)[..., 0]
    return np.asarray(found, np.float64)


def beam(decoder, params, inputs):
    decode = DecodeConfig(beam_size=32, max_new_tokens=5, min_length=3, length_penalty="none")
    request = source_request((decoder,), decode, 3, inputs, np.full(len(inputs), inputs.shape[1]))
    return jax.device_get(generate((decoder,), (params,), decode, Ends(1, (0,)), request))


def test_beam_search_with_a_recurrent_state_equals_brute_force():
    """A beam as wide as there are prefixes finds the best output; without `reorder` hypotheses lose their states."""
    config, params = small()

    class Unordered(PulseDecoder):
        def reorder(self, cache, parents):
            return cache

    differences = []
    for first, second in itertools.product((2, 3), repeat=2):
        inputs = np.array([[first, second]], np.int32)
        best = -np.inf
        for length in (3, 4):  # tokens before eos
            texts = np.array([[*text, 1] for text in itertools.product((2, 3), repeat=length)])
            best = max(best, log_probs(config, params, inputs, texts).sum(1).max())
        found = beam(PulseDecoder(config), params, inputs)
        assert found.finished[0, 0]
        assert found.scores[0, 0] == pytest.approx(best, abs=1e-5)
        differences.append(abs(beam(Unordered(config), params, inputs).scores[0, 0] - best))
    assert max(differences) > 1e-2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config.model.architecture=outside.pulse:Puls"], "Puls"),
        (["--config.model.architecture=outside.puls:PulseArchitecture"], "No module named"),
        (["--config.model.architecture=outside.pulse:Pulse"], "expected"),
        (["--config.task.name=countin"], "expected one of translation"),
        (["--config.model.num_heads=4"], "model.num_heads=4 has no effect"),
        (["--config.model.leek=0.3"], "model.leak"),
        (["--config.model.architecture=outside.broken:NoModule"], "lacks module"),
        (["--config.task.name=outside.broken:NoLoss"], "ValueError: no idea"),
        (["--config.task.name=outside.broken:NoLengths"], "task.name='outside.broken:NoLengths': KeyError"),
        (["--config.task.name=outside.broken:NoEncoding"], "ValueError: not a number"),
        (["--config.model.architecture=outside.broken:NoAxes"], "LookupError: no axes"),
    ],
)
def test_bad_names_and_fields_are_refused_before_anything_compiles(folder, capsys, flags, message):
    assert main(train(folder, ":counting", "refused", *flags)) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "refused" / "config.json").exists()
