"""Several real processes on this machine train like one, and none hangs when one of them ends."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from run_support import ROOT, argv, metric_lines, saved_steps, train, trained_folder, write_corpus

from transformer_jax.cli.doctor import problems_between
from transformer_jax.cli.main import main
from transformer_jax.errors import ConfigError
from transformer_jax.host import kill_points
from transformer_jax.parallel import processes
from transformer_jax.parallel.processes import Job, slurm_job

BOUND_SECONDS = 240  # bounds a hang


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def start(
    words: Sequence[str],
    num_processes: int,
    num_devices: int | Sequence[int] = 1,
    kill: tuple[int, str] | None = None,
) -> list:
    """Start the same command in several processes; `kill`: which of them dies, and where."""
    port, started = free_port(), []
    for number in range(num_processes):
        devices = num_devices if isinstance(num_devices, int) else num_devices[number]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        if kill is not None and kill[0] == number:
            environment[kill_points.VARIABLE] = kill[1]
        flags = [f"--coordinator=localhost:{port}", f"--num_processes={num_processes}", f"--process_id={number}"]
        command = [sys.executable, "-m", "transformer_jax", *words, *flags]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, text=True, stdout=pipe, stderr=pipe))
    return started


def ended(started: list) -> list[tuple[int, str, str]]:
    """Return exit code, stdout and stderr of each."""
    try:
        results = [(p.communicate(timeout=BOUND_SECONDS), p.returncode) for p in started]
    finally:
        for process in started:
            process.kill()
    return [(code, out, err) for (out, err), code in results]


def job(words: Sequence[str], num_processes: int, **options) -> list[tuple[int, str, str]]:
    return ended(start(words, num_processes, **options))


def assert_same_losses(actual: Path, expected: Path) -> None:
    ours, theirs = metric_lines(actual / "run"), metric_lines(expected / "run")
    assert len(ours) == len(theirs) > 3
    for our, their in zip(ours, theirs, strict=True):
        assert our == {k: v if isinstance(v, str) else pytest.approx(v, rel=1e-4) for k, v in their.items()}


@pytest.fixture
def folder(tmp_path):
    return write_corpus(tmp_path)


@pytest.mark.slow
def test_two_processes_train_as_one_does(folder):
    results = job(argv("train", folder, "--config.parallel.launcher=pmap"), 2)
    assert [code for code, _, _ in results] == [0, 0], results
    assert "step 8  valid" in results[0][2]
    assert "step" not in results[1][2]  # only the first logs and writes
    assert_same_losses(folder, trained_folder())
    assert saved_steps(folder) == saved_steps(trained_folder())


@pytest.mark.slow
def test_two_processes_start_from_another_checkpoint(folder):
    flags = [f"training.init_from={trained_folder() / 'run'}", "training.num_train_steps=1", "parallel.fsdp=2"]
    results = job(argv("train", folder, *(f"--config.{flag}" for flag in flags)), 2)
    assert [code for code, _, _ in results] == [0, 0], results
    assert "loaded from step 8: " in results[0][2]
    assert "loaded" not in results[1][2]
    assert metric_lines(folder / "run")[0]["loss"] < metric_lines(trained_folder() / "run")[-2]["loss"] + 0.1


@pytest.mark.slow
def test_when_one_of_four_processes_dies_all_end_and_two_can_resume(folder):
    """From four devices in four processes, through a checkpoint, to a mesh in two processes, to one device."""
    often = "--config.training.checkpoint_every_steps=2"
    words = argv("train", folder, often, "--config.parallel.launcher=shard_map")
    results = job(words, 4, kill=(2, "after_batch:7"))
    codes = [code for code, _, _ in results]
    assert codes[2] == -signal.SIGKILL
    # Processes that exchange numbers with the dead one notice it; the others lose their coordinator, process 0.
    assert all(code in (4, -signal.SIGABRT) for number, code in enumerate(codes) if number != 2), results
    assert any("process 0 of 4: error: another process of the job has exited" in err for _, _, err in results)
    assert (folder / "run" / "checkpoints" / "4").is_dir()
    words = argv("train", folder, often, "--config.parallel.fsdp=2", "--config.parallel.tensor=2")
    results = job(words, 2, num_devices=2)
    assert [code for code, _, _ in results] == [0, 0], results
    assert "resuming with the same batches, but computed differently\n  - parallel.launcher: " in results[0][2]
    assert_same_losses(folder, trained_folder())
    (folder / "run" / "checkpoints" / "8").rename(folder / "8")
    assert train(folder, often) == 0
    assert_same_losses(folder, trained_folder())


@pytest.mark.slow
def test_when_process_0_dies_the_other_ends(folder):
    """JAX's coordination service ends with it, so JAX may be what ends the other process."""
    (code, _, _), (other, _, err) = job(argv("train", folder), 2, kill=(0, "inside_evaluation:4"))
    assert code == -signal.SIGKILL
    assert other in (4, -signal.SIGABRT), err
    assert "another process of the job has exited" in err or "another task died" in err


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_step(folder):
    words = argv("train", folder, "--config.training.num_train_steps=100000", "--config.training.log_every_steps=10")
    started = start(words, 2)
    log, deadline = folder / "run" / "metrics.jsonl", time.monotonic() + BOUND_SECONDS
    while not (log.exists() and log.read_text().count("\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    started[1].send_signal(signal.SIGUSR1)
    results = ended(started)
    assert [code for code, _, _ in results] == [143, 138], results
    last = saved_steps(folder)[-1]
    assert f"SIGTERM: the checkpoint of step {last} is saved; the same command resumes from it" in results[0][2]


@pytest.mark.slow
def test_several_processes_use_all_their_devices(folder):
    results = job(argv("train", folder, "--config.parallel.num_devices=1"), 2)
    assert [code for code, _, _ in results] == [2, 2]
    assert "parallel.num_devices=1 of 2: several processes train on all devices" in results[0][2]


@pytest.mark.slow
def test_an_error_at_the_start_of_process_0_ends_the_others(folder):
    (folder / "train.en").unlink()
    results = job(argv("train", folder), 2)
    assert [code for code, _, _ in results] == [2, 2]
    assert "process 0 of 2: error: " in results[0][2]
    assert "train.en" in results[0][2]
    assert "process 1 ends: process 0 failed while preparing the data" in results[1][2]


@pytest.mark.slow
def test_the_doctor_asks_every_process(tmp_path):
    (code, out, err), (other, nothing, _) = job(["doctor", f"--workdir={tmp_path / 'new'}"], 2, num_devices=3)
    assert (code, other) == (0, 0), err
    assert out.count("3 x cpu") == 2
    assert out.count(" 21 ") == 2  # 1 + 2 + ... + 6
    assert "3 x cpu" not in nothing
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.slow
def test_processes_with_unequal_devices_are_refused(folder):
    results = job(argv("train", folder), 2, num_devices=[1, 2])
    assert [code for code, _, _ in results] == [2, 2], results
    assert re.search("equally many devices each, but process 0 has 1, process 1 has 2", results[0][2])


def test_missing_processes_are_named(monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", 1)
    port = free_port()
    with pytest.raises(ConfigError, match=f"of 3 processes, numbers 1, 2 did not connect to localhost:{port} in time"):
        processes.start(Job(f"localhost:{port}", 3, 0))
    with pytest.raises(ConfigError, match=f"process 1 of 2 did not find process 0 at localhost:{port}: Connection ref"):
        processes.start(Job(f"localhost:{port}", 2, 1))
    with socket.create_server(("", port)), pytest.raises(ConfigError, match=f"{port}: cannot listen there: Address al"):
        processes.start(Job(f"localhost:{port}", 2, 0))


def test_all_processes_meet_and_other_connections_do_not_count(monkeypatch):
    monkeypatch.setattr(processes, "_HELLO_SECONDS", 0.1)
    port = free_port()
    jobs, deadline = [Job(f"localhost:{port}", 3, number) for number in range(3)], time.monotonic() + BOUND_SECONDS
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(processes._meet, jobs[number], deadline) for number in (0, 2)]
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("localhost", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1")
                break
        silent = socket.create_connection(("localhost", port))
        assert not any(meeting.done() for meeting in waiting)
        waiting.append(pool.submit(processes._meet, jobs[1], deadline))
        for meeting in waiting:
            meeting.result(BOUND_SECONDS)
        silent.close()


def test_the_doctor_of_one_process(capsys):
    assert main(["doctor"]) == 0
    assert " x cpu" in capsys.readouterr().out


def report(**changes):
    values = {"process": 0, "host": "a", "devices": ["cpu"], "sum": 1, "expected_sum": 1, "shared": None}
    return values | {"versions": {"jax": "1"}} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sum": 3}, "the sum over all devices is 3, not 1"),
        ({"shared": ""}, "does not see the file that process 0 on a wrote to --workdir"),
        ({"devices": ["cpu"] * 2}, "has 2 x cpu, process 0 1 x cpu"),
        ({"devices": ["NVIDIA H200"]}, "has 1 x NVIDIA H200, process 0 1 x cpu"),
        ({"versions": {"jax": "2"}}, "has jax 2, process 0 1"),
    ],
)
def test_problems_that_the_doctor_finds(changes, message):
    assert problems_between([report(), report(process=1)]) == []
    assert problems_between([report(), report(process=1, host="b", **changes)]) == [f"  - process 1 on b: {message}"]


# Process numbers and addresses.

SLURM = {"SLURM_JOB_ID": "70001", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node7", "node7"),
        ("node7,other1", "node7"),
        ("node[7-9,12]", "node7"),
        ("node[07,09],x", "node07"),
        ("gpu-a-[001-003]", "gpu-a-001"),
    ],
)
def test_addresses_and_numbers_from_slurm(nodes, host):
    environment = SLURM | {"SLURM_STEP_NODELIST": nodes}
    assert slurm_job(environment) == Job(f"{host}:{61440 + 70001 % 4096}", 4, 3)


@pytest.mark.parametrize(
    ("more", "device"),
    [
        ({}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x4)"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "CUDA_VISIBLE_DEVICES": "0,1"}, 1),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "CUDA_VISIBLE_DEVICES": "1"}, None),  # already set
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_GPUS_PER_TASK": "4"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2", "SLURM_NODEID": "0"}, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "1,2", "SLURM_NODEID": "1"}, 1),
    ],
)
def test_the_device_of_one_of_several_tasks_of_a_node(more, device):
    assert slurm_job(SLURM | {"SLURM_STEP_NODELIST": "a"} | more).device == device


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {},
            "SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID not set; start .* with srun",
        ),
        (SLURM, "SLURM_STEP_NODELIST not set"),
        (
            SLURM | {"SLURM_STEP_NODELIST": "a", "SLURM_STEP_TASKS_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1,2"},
            "2 tasks of this node see 3 GPUs, .* srun --gpus-per-task=N",
        ),
        (SLURM | {"SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "x"}, "expected numbers"),
        (
            SLURM | {"SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "4"},
            "--process_id=4: the 4 processes have the numbers 0 to 3",
        ),
    ],
)
def test_missing_variables_of_slurm(environment, message):
    with pytest.raises(ConfigError, match=message):
        slurm_job(environment)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--coordinator=a:1"], "--coordinator without --num_processes, --process_id: several processes need all"),
        (["--num_processes=2", "--process_id=0"], "--num_processes, --process_id without --coordinator"),
        (["--coordinator=a", "--num_processes=2", "--process_id=0"], "--coordinator=a: expected HOST:PORT"),
        (
            ["--coordinator=a:1", "--num_processes=2", "--process_id=2"],
            "--process_id=2: the 2 processes have the numbers 0 to 1",
        ),
        (["--coordinator=a:1", "--cluster=slurm"], "--cluster=slurm cannot be combined with --coordinator"),
        (["--cluster=slrum"], "--cluster=slrum"),
        (["--num_processes=0"], "--num_processes=0: expected at least 1"),
    ],
)
def test_wrong_flags_of_several_processes(capsys, flags, message):
    assert main(["doctor", *flags]) == 2
    assert message in capsys.readouterr().err


def test_jax_still_has_the_private_client_of_its_coordination_service():
    """`jax.distributed` is public and has no messages between processes; the client that has them is private."""
    from jax._src import distributed
    from jax._src.lib import _jax

    missing = [name for name in ("key_value_set", "blocking_key_value_get") if not hasattr(_jax_client(_jax), name)]
    assert hasattr(getattr(distributed, "global_state", None), "client"), (
        "jax._src.distributed.global_state.client is gone: parallel/processes.py sends its messages by it"
    )
    assert not missing, f"JAX's DistributedRuntimeClient has no {', '.join(missing)}, which parallel/processes.py calls"


def _jax_client(library):
    client = getattr(library, "DistributedRuntimeClient", None)
    assert client is not None, "JAX's DistributedRuntimeClient is gone or has moved; see parallel/processes.py"
    return client
