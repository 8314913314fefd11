"""Executor that runs Slurm jobs, one per trial, through submitit.

When a job's time is up or it is preempted, submitit would put the same job into the queue again. Here the job instead
makes its worker save a checkpoint, and ends without being requeued; the sweep then submits a new job, which resumes
from the checkpoint. A job that has left the queue without a result has died.

A trial's folder names the job that runs it. A sweep that is killed and run again therefore finds the job even if it is
still queued, and so holds no lock yet, or if the file system has no locks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import logging
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import append_line, with_checksum, without_checksum, write_atomically
from transformer_jax.readers import read_json_object
from transformer_jax.readers.plain_pickle import read_plain_pickle
from transformer_jax.readers.records import TEXT, Kind, expect
from transformer_jax.sweeps.executors.executor import Options, each_alone, worker_command
from transformer_jax.sweeps.executors.subprocesses import run_worker
from transformer_jax.sweeps.results import OUTPUT
from transformer_jax.sweeps.trials import Trial

logger = logging.getLogger(__name__)

CLUSTERS = ("slurm", "local")
JOB = "slurm_job.json"
_LOOK_SECONDS = 10.0  # between two queries of the queue, which serve all jobs
_RESULT_SECONDS = 1.0  # between two checks for a job's result
_ATTEMPTS, _PAUSE_SECONDS = 3, 10.0  # of a submission after a first success: the controller may be busy
_NUMBER = Kind(  # it becomes part of a path and of commands
    "the number of a job",
    lambda value: isinstance(value, str) and re.fullmatch(r"[1-9][0-9]*(_[0-9]+)?", value) is not None,
)
_LISTS = ("setup", "teardown", "srun_args")


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """Options of the Slurm executor. Every job has one trial.

    Attributes:
      cluster: "slurm", or "local" for submitit's processes on this machine.
      partition: None for the cluster's default.
      minutes: time limit of a job; when it is reached, the trial saves and the next job resumes it.
      gpus, cpus, memory_gb: per job; None for the cluster's default.
      more: other parameters of submitit, by name.
    """

    cluster: str = "slurm"
    partition: str | None = None
    minutes: int = 240
    gpus: int | None = None
    cpus: int | None = None
    memory_gb: int | None = None
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def parse_more(text: str) -> dict[str, Any]:
    """Return parameters of submitit from `name=value,name=value`; integers, true and false are converted.

    Raises: ConfigError for another form, and for a repeated name.
    """
    values: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, separator, value = (word.strip() for word in part.partition("="))
        if not (name and separator and value) or name in values:
            raise ConfigError(f"--slurm_options={text}: expected NAME=VALUE,NAME=VALUE with different names")
        typed = int(value) if value.isdecimal() else {"true": True, "false": False}.get(value, value)
        values[name] = [value] if name in _LISTS else typed
    return values


class _Queue:
    """The jobs that the cluster still has, queried at most every few seconds."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._jobs: set[str] | None = None
        self._next = 0.0
        self.looks = 0

    def has(self, job: str) -> bool:
        """Return whether a job waits or runs; True while the queue cannot be queried."""
        if self._cluster == "local":
            listed = subprocess.run(["ps", "-o", "args=", "-p", job], capture_output=True, text=True, check=False)
            self.looks += 1
            return "submitit" in listed.stdout
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOOK_SECONDS
            # Not sacct, which needs Slurm's accounting. Asks for all jobs: squeue fails for the number of an ended one.
            query = ["squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}"]
            listed = subprocess.run(query, capture_output=True, text=True, check=False)
            self._jobs = set(listed.stdout.split()) if listed.returncode == 0 else None
            self.looks += self._jobs is not None
        return self._jobs is None or job in self._jobs

    def look_anew(self) -> None:
        self._next = 0.0


class _Job:
    """A job with its number, submitted by this sweep or an earlier one."""

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
            append_line(self._output, f"job {self._number} ended before its worker; see its log {self._log}")
            return exit_codes.KILLED
        return None

    def stop(self) -> None:
        if self._cluster == "local":
            subprocess.run(["kill", "-TERM", self._number], capture_output=True, check=False)
            return
        # A queued job has nothing to save and is cancelled. A running job passes the signal to its worker.
        for how in ("--state=PENDING", "--signal=TERM"):
            subprocess.run(["scancel", how, self._number], capture_output=True, check=False)
        self._queue.look_anew()

    @property
    def _log(self) -> Path:
        return self._folder / f"{self._number}_0_log.err"

    def _code(self) -> int:
        """Return the exit code of the worker, or 1 if the job could not start it."""
        try:
            outcome, result = read_plain_pickle(self._result)
            if outcome == "success":
                return int(result)
        except (OSError, TypeError, ValueError) as error:
            append_line(self._output, f"job {self._number}: its result {self._result} cannot be read: {error}")
            return 1
        last = str(result).strip().splitlines()[-1]
        append_line(self._output, f"job {self._number} could not run the worker, see {self._log}: {last}")
        return 1


class Slurm:
    """`num_workers` jobs at once, queued or running; one by default."""

    def __init__(self, options: Options, asked: SlurmOptions, folder: Path) -> None:
        """Prepare the submission of jobs.

        Args:
          folder: for submitit's files; the cluster's nodes must see it too.
        Raises: ConfigError if submitit is not installed, there is no Slurm here, or submitit rejects a parameter.
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
                f"--executor=slurm: there is no {', '.join(missing)} here; run the sweep on a host that submits jobs, "
                "or use --slurm_cluster=local for processes on this machine"
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
            number = self._submit(worker_command(folders, self._options), folders[0] / OUTPUT)
            values = {"cluster": self._asked.cluster, "job": number}
            write_atomically(folders[0] / JOB, (json.dumps(with_checksum(values)) + "\n").encode())
            self._queue.look_anew()
        return _Job(number, self._folder, folders[0] / OUTPUT, self._queue, self._asked.cluster)

    def close(self) -> None:
        if self._asked.cluster == "local":
            for job in self._submitted:
                _ = job.state  # lets submitit reap the ended child process

    def _earlier_job(self, folder: Path) -> str | None:
        """Return the number of the job that an earlier sweep has submitted for a trial, if it still waits or runs.

        A damaged file is named in a warning. If the job that it named still runs, it holds the lock of the trial.
        """
        try:
            values = expect(without_checksum(read_json_object(folder / JOB)), {"cluster": TEXT, "job": _NUMBER})
            cluster, number = values["cluster"], values["job"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError) as error:
            logger.warning("%s: is damaged and is not used; a new job is submitted: %s", folder / JOB, error)
            return None
        if cluster != self._asked.cluster or (self._folder / f"{number}_0_result.pkl").exists():
            return None
        return number if self._queue.has(number) else None

    def _submit(self, words: Sequence[str], output: Path) -> str:
        """Submit a job and return its number; raise ConfigError if Slurm rejects it."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        attempts = _ATTEMPTS if self._submitted else 1
        for attempt in range(attempts):
            try:
                with _without_interrupts():
                    self._submitted.append(self._submitit.submit(run_worker, words, output))
                return self._submitted[-1].job_id
            except (FailedJobError, FailedSubmissionError) as error:
                if attempt == attempts - 1:
                    raise ConfigError(f"--executor=slurm: the job was rejected: {str(error).strip()}") from error
                logger.warning("the job was rejected and is submitted again: %s", error)
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("every attempt returns or raises")


@contextlib.contextmanager
def _without_interrupts() -> Generator[None]:
    """Block SIGINT for processes started in the body: Ctrl-C is for the sweep, which makes all jobs save."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
