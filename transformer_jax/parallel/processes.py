"""Several processes as one program: how they find each other, and who does what only one may do.

Process 0 is the primary: it alone writes files and speaks to the user. The others compute, and need to read what it has
written, so that the work directory is on a file system that all of them see.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Generator, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.errors import ConfigError, TrainingError

HEARTBEAT_SECONDS = 60
"""A process that has not been heard of for so long is taken for dead, and the others end."""
_START_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Job:
    """coordinator: HOST:PORT where process 0 listens; num_processes; process_id, from 0.

    device: the one of its machine's accelerators that this process uses; None for all that it sees.
    """

    coordinator: str
    num_processes: int
    process_id: int
    device: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\S+:\d+", self.coordinator):
            raise ConfigError(f"--coordinator={self.coordinator}: expected HOST:PORT, where process 0 listens")
        if not 0 <= self.process_id < self.num_processes:
            raise ConfigError(
                f"--process_id={self.process_id} is none of the {self.num_processes} processes 0 to "
                f"{self.num_processes - 1}"
            )


def slurm_job(environment: Mapping[str, str]) -> Job:
    """What Slurm says to a task that `srun` has started.

    Process 0 listens on the first node of the step, at a port that follows from the job's number. Where several tasks
    of a node see the same devices, each takes the one of its local number.

    Raises: ConfigError if this is no task of Slurm's.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    if missing := [name for name in names if not environment.get(name)]:
        raise ConfigError(f"--cluster=slurm: {', '.join(missing)} not set; start the command by srun")
    job, nodes, *numbers = (environment[name] for name in names)
    try:
        num_processes, process_id, local_id = map(int, numbers)
        port = 61440 + int(job) % 4096
    except ValueError:
        raise ConfigError(f"--cluster=slurm: {', '.join(names)}: expected numbers, not {job}, {numbers}") from None
    first_name = re.compile(r"([^,\[]*)(?:\[([^\],-]*))?")  # of node7,other1 or node[07-09,12]
    [(name, number), *_] = first_name.findall(nodes)
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    several = int(environment.get("SLURM_STEP_TASKS_PER_NODE", "1").partition("(")[0].partition(",")[0] or 1) > 1
    return Job(f"{name}{number}:{port}", num_processes, process_id, local_id if several and len(visible) != 1 else None)


def start(job: Job) -> None:
    """Joins the job's other processes; to be called before anything is computed.

    Raises: ConfigError if they cannot be reached in five minutes.
    """
    try:
        jax.distributed.initialize(
            job.coordinator,
            job.num_processes,
            job.process_id,
            local_device_ids=job.device,
            cluster_detection_method="deactivate",
            initialization_timeout=_START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except RuntimeError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"process {job.process_id} of {job.num_processes} cannot join the others at {job.coordinator}: {first_line}"
        ) from error


def is_primary() -> bool:
    """Whether this is process 0, the only one that writes."""
    return jax.process_index() == 0


def gathered(text: str) -> list[str]:
    """What every process has called this with, in their order."""
    if jax.process_count() == 1:
        return [text]
    data = np.frombuffer(text.encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    rows = multihost_utils.process_allgather(np.pad(data, (0, int(sizes.max()) - len(data))))
    return [row[:size].tobytes().decode() for row, size in zip(rows, sizes, strict=True)]


@contextlib.contextmanager
def primary_first(what: str) -> Generator[None]:
    """The body runs in process 0, and once that is done in the others, which then find what it has written.

    Args:
      what: names the work in the error of the others.
    Raises: TrainingError in the others if process 0 has failed, which says why itself.
    """
    if jax.process_count() == 1:
        yield
        return
    if is_primary():
        done = False
        try:
            yield
            done = True
        finally:
            multihost_utils.broadcast_one_to_all(np.int32(done))
    else:
        if not multihost_utils.broadcast_one_to_all(np.int32(0)):
            raise TrainingError(f"process {jax.process_index()} ends: process 0 has failed in {what}")
        yield
