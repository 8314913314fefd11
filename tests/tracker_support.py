"""Shared by the tests of W&B and MLflow: tracked trainings in processes of their own, and what was logged."""

import os
import subprocess
import sys

from run_support import ROOT, argv, subprocess_main

from transformer_jax.metrics_file import CLOCK_FIELDS, read_lines
from transformer_jax.trackers.tracker import scalars


def alone(monkeypatch, tmp_path):
    """Remove what the user's environment says about the services, and give them a home of their own."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def trained(folder, workdir, trackers, kill_at=""):
    """Train on the corpus in a folder, killed at a point if one is given; return stderr."""
    words = [word for word in argv("train", folder) if not word.startswith("--workdir")]
    words += [f"--config.training.trackers={trackers}", f"--workdir={workdir}"]
    environment = {"TRANSFORMER_JAX_KILL_AT": kill_at} if kill_at else {}
    process = subprocess_main(words, env=environment)
    assert process.returncode == (-9 if kill_at else 0), process.stderr
    return process.stderr


def in_process(code, **environment):
    """Run a script in a process of its own; return its stderr."""
    path = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    process = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=300,  # bounds a hang
        check=True,
    )
    return process.stderr


def without_clock(numbers):
    """Return numbers by (step, SPLIT/NAME) without those that differ between two runs of the same config."""
    return {key: value for key, value in numbers.items() if key[1].rpartition("/")[2] not in CLOCK_FIELDS}


def logged(workdir):
    """Return the numbers of metrics.jsonl by (step, SPLIT/NAME), without the clock's."""
    found = {}
    for line in read_lines(workdir / "metrics.jsonl"):
        numbers = scalars(line["split"], {name: line[name] for name in line if name not in ("step", "split")})
        found |= {(line["step"], name): value for name, value in numbers.items()}
    return without_clock(found)
