"""Jobs of Slurm: through submitit's local executor, and with a fake queue."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from sweep_support import tiny_study, trained

from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import without_checksum
from transformer_jax.sweeps.executors import make_executor, slurm
from transformer_jax.sweeps.executors.executor import Options
from transformer_jax.sweeps.executors.slurm import JOB, SlurmOptions, parse_more
from transformer_jax.sweeps.executors.subprocesses import run_worker
from transformer_jax.sweeps.results import OUTPUT, TRIALS

pytest.importorskip("submitit")
LOCAL = SlurmOptions(cluster="local")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Install fake programs of Slurm that answer from a file; return squeue's answers and scancel's arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    queue, cancelled = tmp_path / "queue", tmp_path / "cancelled"
    queue.write_text("")
    number = tmp_path / "number"
    number.write_text("100")
    scripts = {
        "sbatch": f'n=$(($(cat {number})+1)); echo $n > {number}; echo $n >> {queue}; cp "$1" {tmp_path}/job.sh;'
        f" test ! -e {tmp_path}/refuse || {{ echo sbatch: error: invalid partition >&2; exit 1; }};"
        ' echo "Submitted batch job $n"',
        "srun": "",
        "squeue": f"test ! -e {tmp_path}/down || exit 1; cat {queue}",
        "scancel": f'echo "$@" >> {cancelled}',
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "_RESULT_SECONDS", 0.0)
    return tmp_path


def started(cluster, asked=None):
    """Return an executor, and a job of it for a trial whose folder exists."""
    folder = cluster / "trial"
    folder.mkdir(exist_ok=True)
    executor = make_executor("slurm", Options(num_workers=2), cluster / "work", asked or SlurmOptions())
    return executor, executor.start([folder], 0), folder


def ends(cluster, number, outcome):
    (cluster / "work" / "slurm" / f"{number}_0_result.pkl").write_bytes(pickle.dumps(outcome))


def test_the_parameters_of_a_job(cluster):
    asked = SlurmOptions("slurm", "gpu", 90, 2, 8, 64, {"qos": "high", "exclusive": True, "setup": ["module load x"]})
    _, _, folder = started(cluster, asked)
    lines = (cluster / "job.sh").read_text().splitlines()
    for option in ("partition=gpu", "time=90", "gpus-per-node=2", "cpus-per-task=8", "mem=64GB", "qos=high"):
        assert f"#SBATCH --{option}" in lines
    assert {"#SBATCH --exclusive", "#SBATCH --no-requeue", "module load x", "#SBATCH --signal=USR2@90"} <= set(lines)
    assert without_checksum(json.loads((folder / JOB).read_text())) == {"cluster": "slurm", "job": "101"}


def test_a_job_ends_like_its_worker(cluster):
    (cluster / "queue").write_text("")
    executor, job, folder = started(cluster)
    assert executor.num_workers == 2
    assert job.poll() is None
    ends(cluster, 101, ("success", 143))
    assert job.poll() == 143
    _, job, folder = started(cluster)
    assert json.loads((folder / JOB).read_text())["job"] == "102"
    ends(cluster, 102, ("error", "Traceback\nFileNotFoundError: no python"))
    assert job.poll() == 1
    assert (folder / OUTPUT).read_text().endswith("102_0_log.err: FileNotFoundError: no python\n")


def test_a_job_that_vanishes_without_a_result_has_died(cluster):
    _, job, folder = started(cluster)
    (cluster / "queue").write_text("")
    (cluster / "down").touch()  # while squeue fails, the state is unknown
    assert [job.poll() for _ in range(3)] == [None] * 3
    (cluster / "down").unlink()
    assert job.poll() is None  # the result file may appear late
    assert job.poll() == exit_codes.KILLED
    assert "job 101 ended before its worker" in (folder / OUTPUT).read_text()


def test_a_restarted_sweep_finds_its_earlier_job(cluster):
    started(cluster)
    _, job, folder = started(cluster)
    assert json.loads((folder / JOB).read_text())["job"] == "101"
    ends(cluster, 101, ("success", 0))
    assert job.poll() == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"101"', b'"102"'), (b'"101"', b"101"), (b"slurm", b"local"), (b"}", b""), (None, b"[]"), (None, b"")],
)
def test_a_damaged_number_of_a_job_is_not_believed(cluster, caplog, before, after):
    """Another number may be another job of the user, which the sweep would wait for and cancel."""
    _, _, folder = started(cluster)
    (cluster / "queue").write_text("101\n102\n")
    data = (folder / JOB).read_bytes()
    (folder / JOB).write_bytes(after if before is None else data.replace(before, after))
    assert (folder / JOB).read_bytes() != data
    started(cluster)
    assert f"{folder / JOB}: is damaged and is not used; a new job is submitted" in caplog.text
    assert json.loads((folder / JOB).read_text())["job"] == "102"


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"no pickle", pickle.dumps(3)])
def test_a_damaged_result_of_a_job_is_the_end_of_its_worker(cluster, data):
    _, job, folder = started(cluster)
    (cluster / "work" / "slurm" / "101_0_result.pkl").write_bytes(data)
    assert job.poll() == 1
    assert "101_0_result.pkl cannot be read: " in (folder / OUTPUT).read_text()


def test_a_stopped_job_leaves_the_queue_or_saves(cluster):
    _, job, _ = started(cluster)
    job.stop()
    assert (cluster / "cancelled").read_text().splitlines() == ["--state=PENDING 101", "--signal=TERM 101"]


def test_a_refusal_by_slurm_is_reported_in_its_words(cluster, monkeypatch):
    (cluster / "refuse").touch()
    with pytest.raises(ConfigError, match="the job was rejected: sbatch: error: invalid partition"):
        started(cluster)
    (cluster / "refuse").unlink()
    executor, _, folder = started(cluster)
    # After one accepted job, an error may only mean that Slurm is busy.
    monkeypatch.setattr(slurm, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(slurm.logger, "warning", lambda *words: (cluster / "refuse").unlink())
    (cluster / "refuse").touch()
    (folder / JOB).unlink()
    executor.start([folder], 0)
    assert (folder / JOB).exists()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("qos=high,signal_delay_s=120", {"qos": "high", "signal_delay_s": 120}),
        ("exclusive=true,setup=module load cuda", {"exclusive": True, "setup": ["module load cuda"]}),
    ],
)
def test_more_parameters(text, values):
    assert parse_more(text) == values


@pytest.mark.parametrize("text", ["qos", "qos=", "=high", "qos=a,qos=b"])
def test_more_parameters_that_are_refused(text):
    with pytest.raises(ConfigError, match="expected NAME=VALUE,NAME=VALUE with different names"):
        parse_more(text)


def test_missing_programs_and_wrong_options(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="Unknown argument 'partitoin'"):
        make_executor("slurm", Options(), tmp_path, SlurmOptions("local", more={"partitoin": "x"}))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"there is no sbatch, .* use --slurm_cluster=local"):
        make_executor("slurm", Options(), tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"pip install 'transformer-jax\[slurm\]'"):
        make_executor("slurm", Options(), tmp_path, LOCAL)


_WORKER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_to_a_job_makes_its_worker_save(tmp_path, number):
    """A worker that gets the signal itself is not disturbed."""
    output, codes = tmp_path / OUTPUT, []
    before = signal.getsignal(number)

    def once_ready():
        while "ready" not in (output.read_text() if output.exists() else ""):
            time.sleep(0.01)
        [worker] = subprocess.run(
            ["pgrep", "-P", str(os.getpid()), "-f", "ready"], capture_output=True, text=True, check=True
        ).stdout.split()
        if number == signal.SIGUSR2:
            os.kill(int(worker), number)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=once_ready)
    thread.start()
    codes.append(run_worker(["python", "-c", _WORKER], output))
    thread.join()
    assert codes == [143]
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_trials_through_submitit_have_the_results_of_the_local_executor(tmp_path):
    """A trial whose job is killed is started again."""
    study = tiny_study(tmp_path / "corpus", seeds=(0,))
    killed = []

    def kill_one(standings):
        for standing in standings:
            if not killed and standing.status == "running" and (standing.folder / "metrics.jsonl").exists():
                number = json.loads((standing.folder / JOB).read_text())["job"]
                pids = subprocess.run(["pgrep", "-P", number], capture_output=True, text=True, check=False).stdout
                for pid in [*pids.split(), number]:
                    os.kill(int(pid), signal.SIGKILL)
                worker = subprocess.run(
                    ["pgrep", "-f", f"sweeps.worker {standing.folder}"], capture_output=True, text=True, check=False
                ).stdout
                for pid in worker.split():
                    os.kill(int(pid), signal.SIGKILL)
                killed.append(standing.trial.name)

    expected = trained(study, tmp_path / "local", make_executor("local", Options(2), tmp_path / "local"))
    through = make_executor("slurm", Options(2), tmp_path / "slurm", LOCAL)
    assert trained(study, tmp_path / "slurm", through, kill_one) == expected
    assert killed
    assert "ended before its worker" in (tmp_path / "slurm" / TRIALS / killed[0] / OUTPUT).read_text()
