"""Trials on nodes of Ray: with a fake of Ray, and on a cluster of two nodes, by `make test-cluster`."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_support import ROOT, assert_same_effect, needing_seven_seeds, run_two_stages, tiny_study, trained

from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.executors import make_executor
from transformer_jax.sweeps.executors.executor import Options
from transformer_jax.sweeps.executors.ray import NODE_NOTE, RayOptions
from transformer_jax.sweeps.results import OUTPUT, TRIALS
from transformer_jax.sweeps.search.search import Listed
from transformer_jax.sweeps.sweep import Sweep
from transformer_jax.sweeps.trials import grid


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'transformer-jax\[ray\]'"):
        make_executor("ray", Options(), tmp_path)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Start a cluster of two nodes on this machine, each with one core for trials, and always stop it."""
    folder = tmp_path_factory.mktemp("ray")
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "PYTHONUNBUFFERED": "1"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = 6000 + probe.getsockname()[1] % 3000  # below the ports that Ray gives its workers
    words = [str(Path(sys.executable).parent / "ray"), "start", "--block", "--num-cpus=1", "--disable-usage-stats"]
    words += ["--object-store-memory=100000000", "--node-ip-address=127.0.0.1"]
    temporary = Path("/tmp") / f"ray_{os.getpid()}"  # paths of sockets must be short
    head = [*words, "--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}"]
    with contextlib.ExitStack() as started, pytest.MonkeyPatch.context() as patched:
        started.callback(shutil.rmtree, temporary, True)
        for name, value in settings.items():
            patched.setenv(name, value)
        pytest.importorskip("ray")  # it reads these variables when it is imported
        for number, command in enumerate([head, [*words, f"--address=127.0.0.1:{port}"]]):
            log = started.enter_context((folder / f"node_{number}.txt").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            started.callback(_end, process)
            _wait_for(folder / f"node_{number}.txt", process)
        yield f"127.0.0.1:{port}"


def _wait_for(log: Path, process: subprocess.Popen) -> None:
    while "Ray runtime started" not in log.read_text():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.2)
        assert process.returncode is None, log.read_text()


def _end(process: subprocess.Popen) -> None:
    """End a node together with its processes."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.cluster
def test_a_study_on_two_nodes_has_the_results_of_the_local_executor(tmp_path, address):
    """A trial whose actor is killed is started again; each trial frees its core when it ends."""
    study, workdir, killed = tiny_study(tmp_path / "corpus"), tmp_path / "ray", []
    expected = trained(study, tmp_path / "local", make_executor("local", Options(2), tmp_path))
    executor = make_executor("ray", Options(), workdir, ray=RayOptions(address))
    assert executor.num_workers == 2
    jobs, start = [], executor.start

    def noted(folders, slot):
        jobs.append(start(folders, slot))
        return jobs[-1]

    def kill_one(standings):
        import ray

        if not killed and (standings[0].folder / "metrics.jsonl").exists():
            ray.kill(jobs[0]._actor)
            killed.append(standings[0].trial.name)

    executor.start = noted
    assert trained(study, workdir, executor, kill_one) == expected
    assert killed
    assert len(jobs) == 5
    outputs = [(folder / OUTPUT).read_text() for folder in (workdir / TRIALS).iterdir()]
    nodes = {node for output in outputs for node in re.findall(rf"^{NODE_NOTE}(\w+) ", output, re.M)}
    assert len(nodes) == 2


@pytest.mark.slow
@pytest.mark.cluster
def test_a_study_with_a_precision_adds_the_seeds_of_the_other_executors(tmp_path, address):
    pilot = tiny_study(tmp_path / "corpus", (0, 1, 2, 3, 4))
    losses, _ = trained(pilot, tmp_path / "pilot", make_executor("vmap", Options(), tmp_path / "pilot"))
    study = needing_seven_seeds(pilot, [metrics["test/loss"] for metrics in losses])
    found = {}
    for name in ("local", "vmap", "ray"):
        options = {"ray": RayOptions(address)} if name == "ray" else {}
        executor = make_executor(name, Options(2 if name == "local" else None), tmp_path / name, **options)
        found[name], outcome = run_two_stages(study, tmp_path / name, executor)
        assert "the widths need 7 seeds" in outcome
    for name in ("vmap", "ray"):
        assert_same_effect(found["local"], found[name])


@pytest.mark.slow
@pytest.mark.cluster
def test_resources_that_a_cluster_lacks(tmp_path, address, monkeypatch):
    with pytest.raises(ConfigError, match=r"no node has 1 cores and 4 GPUs .* the cluster has 2 and 0 in total"):
        make_executor("ray", Options(), tmp_path, ray=RayOptions(address, gpus=4))
    executor = make_executor("ray", Options(), tmp_path, ray=RayOptions(address))
    job = executor.start([tmp_path], 0)  # a folder without a trial
    while (code := job.poll()) is None:
        pass
    executor.close()
    assert code == 2
    assert "all nodes must share the file system of --workdir" in (tmp_path / OUTPUT).read_text()
    with pytest.raises(ConfigError, match=r"--ray_address=127\.0\.0\.1:9: no cluster answers"):
        make_executor("ray", Options(), tmp_path, ray=RayOptions("127.0.0.1:9"))
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    words = [
        sys.executable,
        "-m",
        "transformer_jax",
        "sweep",
        "--study=experiments/positions",
        f"--workdir={tmp_path}/w",
    ]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    refused = subprocess.run(
        [*words, "--executor=ray", f"--ray_address={address}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 2
    assert "token authentication" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
@pytest.mark.cluster
def test_a_trial_that_is_stopped_saves(tmp_path, address):
    study = tiny_study(tmp_path / "corpus")
    executor = make_executor("ray", Options(), tmp_path / "ray", ray=RayOptions(address))
    sweep = Sweep(Listed(grid(study).trials), study.metrics, tmp_path / "ray", executor)
    stopped = []

    def stop(standings):
        if not stopped and (standings[0].folder / "metrics.jsonl").exists():
            os.kill(os.getpid(), signal.SIGTERM)
            stopped.append(standings[0])

    assert not sweep.run(stop)
    assert {standing.status for standing in sweep.standings} <= {"waiting", "finished"}
    assert any((stopped[0].folder / "checkpoints").iterdir())
