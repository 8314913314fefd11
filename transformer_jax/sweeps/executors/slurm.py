"""Jobs of Slurm, one per trial, by submitit.

What submitit does at the signal that a job's time is up, or that it is preempted, is to put the same job into the queue
again. Here the job's process has the worker save instead, and ends; Slurm does not requeue it, and the sweep starts a
new one, which goes on from the checkpoint. A job that is gone without having said how its worker ended has died.

A trial's folder says which job runs it: a sweep that is killed and run again finds the job, be it in the queue, where
it holds no lock yet, or on a file system that has no locks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import logging
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax import exit_codes
from transformer_jax.errors import ConfigError
from transformer_jax.files import write_atomically
from transformer_jax.sweeps.executors.base import Options, command, each_alone
from transformer_jax.sweeps.executors.subprocesses import run_worker
from transformer_jax.sweeps.results import OUTPUT
from transformer_jax.sweeps.trials import Trial

logger = logging.getLogger(__name__)

CLUSTERS = ("slurm", "local")
JOB = "slurm_job.json"
_LOOK_SECONDS = 10.0  # between two looks at the queue, which all jobs share
_RESULT_SECONDS = 1.0  # between two looks for a job's result
_ATTEMPTS, _PAUSE_SECONDS = 3, 10.0  # of submissions, once one has succeeded: the controller may be busy
_LISTS = ("setup", "teardown", "srun_args")


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What a job of one trial asks for.

    cluster: "slurm", or "local" for submitit's processes on this machine. partition: None for the cluster's default.
    minutes: until its time is up, when it saves and the next job goes on. gpus, cpus, memory_gb: of this job; None for
    the cluster's default. more: other parameters of submitit, by name.
    """

    cluster: str = "slurm"
    partition: str | None = None
    minutes: int = 240
    gpus: int | None = None
    cpus: int | None = None
    memory_gb: int | None = None
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def parse_more(text: str) -> dict[str, Any]:
    """Parameters of submitit from `name=value,name=value`: integers, true and false as such.

    Raises: ConfigError for what is not of this form.
    """
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, separator, value = (word.strip() for word in part.partition("="))
        if not (name and separator and value) or name in values:
            raise ConfigError(f"--slurm_options={text}: expected different names, NAME=VALUE,NAME=VALUE")
        typed = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
        values[name] = [value] if name in _LISTS else typed
    return values


class _Queue:
    """Which jobs the cluster still has; asked at most every few seconds."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._jobs: set[str] | None = None
        self._next = 0.0
        self.looks = 0

    def has(self, job: str) -> bool:
        """Whether it waits or runs; True while that cannot be known."""
        if self._cluster == "local":
            listed = subprocess.run(["ps", "-o", "args=", "-p", job], capture_output=True, text=True, check=False)
            self.looks += 1
            return "submitit" in listed.stdout
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_SECONDS
            # Not sacct, which needs Slurm's accounting; squeue of one user, since of a job that is gone it is an error.
            query = ["squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}"]
            listed = subprocess.run(query, capture_output=True, text=True, check=False)
            self._jobs = set(listed.stdout.split()) if listed.returncode == 0 else None
            self.looks += self._jobs is not None
        return self._jobs is None or job in self._jobs

    def look_anew(self) -> None:
        self._next = 0.0


class _Job:
    """A job by its number, submitted by this sweep or by one before."""

    def __init__(self, number: str, folder: Path, output: Path, queue: _Queue, cluster: str) -> None:
        self._number, self._folder, self._output, self._queue, self._cluster = number, folder, output, queue, cluster
        self._result = folder / f"{number}_0_result.pkl"
        self._next = 0.0
        self._gone_at: int | None = None

    def poll(self) -> int | None:
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _RESULT_SECONDS
        if self._result.exists():
            return self._code()
        if self._queue.has(self._number):
            self._gone_at = None
        elif self._gone_at is None:
            self._gone_at = self._queue.looks  # a shared file system may show the result a little later
        elif self._queue.looks > self._gone_at:
            self._say(f"job {self._number} has ended before its worker did; its log is {self._log}")
            return exit_codes.KILLED
        return None

    def stop(self) -> None:
        if self._cluster == "local":
            subprocess.run(["kill", "-TERM", self._number], capture_output=True, check=False)
            return
        # A job in the queue has nothing to save; to one that runs, the processes of its step are sent the signal.
        for how in ("--state=PENDING", "--signal=TERM"):
            subprocess.run(["scancel", how, self._number], capture_output=True, check=False)
        self._queue.look_anew()

    @property
    def _log(self) -> Path:
        return self._folder / f"{self._number}_0_log.err"

    def _code(self) -> int:
        """How the worker has ended, or 1 if the job could not start it."""
        from submitit.core.utils import pickle_load

        outcome, result = pickle_load(self._result)
        if outcome == "success":
            return result
        self._say(f"job {self._number} could not run the worker, see {self._log}: {result.strip().splitlines()[-1]}")
        return 1

    def _say(self, message: str) -> None:
        with self._output.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")


class Slurm:
    """`num_workers` jobs at once, in the queue or running."""

    def __init__(self, options: Options, asked: SlurmOptions, folder: Path) -> None:
        """`folder`: for submitit's files, which the cluster's nodes see too.

        Raises: ConfigError if submitit is not installed, there is no Slurm here, or a parameter is none of submitit's.
        """
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(
                f"--executor=slurm needs submitit ({error}); install the extra: pip install 'transformer-jax[slurm]'"
            ) from error
        missing = [program for program in ("sbatch", "srun", "squeue", "scancel") if shutil.which(program) is None]
        if asked.cluster == "slurm" and missing:
            raise ConfigError(
                f"--executor=slurm: there is no {', '.join(missing)} here; run it where jobs are submitted, or try it "
                "with processes of this machine by --slurm_cluster=local"
            )
        self.num_workers = options.num_workers or 1
        self._options, self._asked, self._folder = options, asked, folder.absolute()
        self._submitted: list[Any] = []
        self._queue = _Queue(asked.cluster)
        self._submitit = submitit.AutoExecutor(folder=self._folder, cluster=asked.cluster)
        try:
            self._submitit.update_parameters(
                name="transformer-jax",
                timeout_min=asked.minutes,
                gpus_per_node=asked.gpus,
                cpus_per_task=asked.cpus,
                mem_gb=asked.memory_gb,
                slurm_partition=asked.partition,
                slurm_additional_parameters={"no-requeue": True},
                **{f"slurm_{name}": value for name, value in asked.more.items()},
            )
        except (NameError, ValueError, TypeError, AssertionError) as error:
            raise ConfigError(f"--slurm_options: {str(error).splitlines()[0]}") from error

    def jobs(self, trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
        return each_alone(trials)

    def start(self, folders: Sequence[Path], slot: int) -> _Job:
        folders = [folder.absolute() for folder in folders]
        number = self._earlier_job(folders[0])
        if number is None:
            number = self._submit(command(folders, self._options), folders[0] / OUTPUT)
            values = {"cluster": self._asked.cluster, "job": number}
            write_atomically(folders[0] / JOB, (json.dumps(values) + "\n").encode())
            self._queue.look_anew()
        return _Job(number, self._folder, folders[0] / OUTPUT, self._queue, self._asked.cluster)

    def close(self) -> None:
        if self._asked.cluster == "local":
            for job in self._submitted:
                _ = job.state  # takes note of a process that has ended, which is this one's child

    def _earlier_job(self, folder: Path) -> str | None:
        """The job that runs a trial already, or is to."""
        try:
            values = json.loads((folder / JOB).read_text(encoding="utf-8"))
            cluster, number = values["cluster"], values["job"]
        except (OSError, ValueError, KeyError):
            return None
        if cluster != self._asked.cluster or (self._folder / f"{number}_0_result.pkl").exists():
            return None
        return number if self._queue.has(number) else None

    def _submit(self, words: Sequence[str], output: Path) -> str:
        """Raises ConfigError if Slurm does not take the job."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        attempts = _ATTEMPTS if self._submitted else 1
        for attempt in range(attempts):
            try:
                with _without_interrupts():
                    self._submitted.append(self._submitit.submit(run_worker, words, output))
                return self._submitted[-1].job_id
            except (FailedJobError, FailedSubmissionError) as error:
                if attempt == attempts - 1:
                    raise ConfigError(f"--executor=slurm: the job is not taken: {str(error).strip()}") from error
                logger.warning("the job is not taken, and is submitted again: %s", error)
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("every attempt returns or raises")


@contextlib.contextmanager
def _without_interrupts() -> Generator[None]:
    """Ctrl-C is for the sweep, which then has all jobs save: what is started here does not see it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
