"""Several processes as one program: how they connect, and which process does the work of only one.

Process 0 is the primary: it alone writes files other than checkpoint arrays, and prints messages. The others must be
able to read its files, so the work directory is on a file system that all of them see. Messages between processes go
through JAX's coordination service, not through devices: they may take long, and work with any devices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import socket
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import jax
from jax._src import distributed  # private: jax.distributed gives no access to the service that it starts

from transformer_jax.errors import ConfigError, TrainingError
from transformer_jax.readers import parse_json

HEARTBEAT_SECONDS = 60
"""Time without a sign of life after which a process counts as dead, and the others end."""
START_SECONDS = 300
"""Time that processes wait for each other at the start."""
FAREWELL_SECONDS = 3
"""Time that a failed process 0 waits for the others before it exits, because the coordination service ends with it."""
_WAIT_MS = 7 * 24 * 3600 * 1000  # upper limit; the heartbeat ends the wait for a dead process
_HELLO = b"transformer_jax"
_HELLO_SECONDS = 5  # time for a caller to send its greeting

_numbers = itertools.count()  # all processes make the same exchanges in the same order, so the numbers agree


@dataclasses.dataclass(frozen=True)
class Job:
    """A process's place among the processes of a job.

    coordinator: HOST:PORT where process 0 listens. num_processes: of the job. process_id: number of this process, from
    0. device: number of the accelerator that this process uses; None for all that it sees.
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
                f"--process_id={self.process_id}: the {self.num_processes} processes have the numbers 0 to "
                f"{self.num_processes - 1}"
            )


def slurm_job(environment: Mapping[str, str]) -> Job:
    """Return the job that Slurm describes to a task that `srun` has started.

    Process 0 listens on the first node of the step, at a port computed from the job's number. A task uses all GPUs that
    it sees if Slurm gives it its own GPUs. If the tasks of a node see as many GPUs as there are tasks, a task uses the
    GPU of its local number.

    Raises: ConfigError if this process is not a Slurm task, or if its GPUs cannot be determined.
    """
    names = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
    if missing := [name for name in names if not environment.get(name)]:
        raise ConfigError(f"--cluster=slurm: {', '.join(missing)} not set; start the command with srun")
    job, nodes, *numbers = (environment[name] for name in names)
    try:
        num_processes, process_id, local_id = map(int, numbers)
        port = 61440 + int(job) % 4096
    except ValueError:
        raise ConfigError(f"--cluster=slurm: {', '.join(names)}: expected numbers, not {job}, {numbers}") from None
    first_name = re.compile(r"([^,\[]*)(?:\[([^\],-]*))?")  # of node7,other1 or node[07-09,12]
    [(name, number), *_] = first_name.findall(nodes)
    return Job(f"{name}{number}:{port}", num_processes, process_id, _slurm_device(environment, local_id))


def _slurm_device(environment: Mapping[str, str], local_id: int) -> int | None:
    """Return the number of a task's GPU; None if the task uses all GPUs that it sees."""
    runs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))  # 2(x3),1
    tasks_by_node = [int(tasks) for tasks, nodes in runs for _ in range(int(nodes or 1))]
    tasks = tasks_by_node[min(int(environment.get("SLURM_NODEID") or 0), len(tasks_by_node) - 1)]
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if tasks == 1 or len(visible) == 1 or environment.get("SLURM_GPUS_PER_TASK"):
        return None
    if len(visible) in (0, tasks):
        return local_id
    raise ConfigError(
        f"--cluster=slurm: {tasks} tasks of this node see {len(visible)} GPUs, and Slurm does not assign them; "
        "start the tasks with srun --gpus-per-task=N"
    )


def start(job: Job) -> None:
    """Join the job's other processes; must be called before anything is computed.

    Raises: ConfigError, which names the missing processes, if some have not connected after five minutes.
    """
    _meet(job, time.monotonic() + START_SECONDS)
    try:
        jax.distributed.initialize(
            job.coordinator,
            job.num_processes,
            job.process_id,
            local_device_ids=job.device,
            cluster_detection_method="deactivate",
            initialization_timeout=START_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except RuntimeError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"process {job.process_id} of {job.num_processes} cannot join the others at {job.coordinator}: {first_line}"
        ) from error


def _meet(job: Job, deadline: float) -> None:
    """Wait until all processes have connected; JAX itself would abort without naming the missing ones."""
    host, _, port = job.coordinator.rpartition(":")
    if job.process_id:
        _ask_first_process(job, (host, int(port)), deadline)
    elif job.num_processes > 1:
        _listen(job, int(port), deadline)


def _listen(job: Job, port: int, deadline: float) -> None:
    """In process 0: receive the numbers of all others, then answer them."""
    missing, connections = set(range(1, job.num_processes)), []
    with contextlib.ExitStack() as stack:
        try:
            both = socket.has_dualstack_ipv6()
            family = socket.AF_INET6 if both else socket.AF_INET
            server = stack.enter_context(socket.create_server(("", port), family=family, dualstack_ipv6=both))
        except OSError as error:
            raise ConfigError(f"--coordinator={job.coordinator}: cannot listen there: {error.strerror}") from error
        while missing:
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                connection = stack.enter_context(server.accept()[0])
            except TimeoutError:
                names = ", ".join(map(str, sorted(missing)))
                raise ConfigError(
                    f"of {job.num_processes} processes, numbers {names} did not connect to {job.coordinator} in time"
                ) from None
            connection.settimeout(_HELLO_SECONDS)
            number = _greeted(connection)
            if number in missing:
                missing.remove(number)
                connections.append(connection)
            else:
                connection.close()  # a process of the job that was too slow calls again
        for connection in connections:
            connection.sendall(_HELLO)
            connection.recv(1)  # wait until the other side has closed it, so that the port is free


def _greeted(connection: socket.socket) -> int | None:
    """Return the number of the process that calls; None for a caller that is not a process of the job."""
    try:
        hello, number = connection.recv(100).split()
        return int(number) if hello == _HELLO else None
    except (OSError, ValueError):
        return None


def _ask_first_process(job: Job, address: tuple[str, int], deadline: float) -> None:
    """In another process: send process 0 this process's number, and wait until all have connected."""
    problem: object = "no answer"
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(address, timeout=5) as connection:
                connection.sendall(_HELLO + b" %d" % job.process_id)
                connection.settimeout(max(deadline - time.monotonic(), 0.01))
                if connection.recv(100) == _HELLO:
                    return
                problem = "process 0 has exited, or another process already uses this --process_id"
        except OSError as error:
            problem = error.strerror or error
        time.sleep(0.2)
    raise ConfigError(
        f"process {job.process_id} of {job.num_processes} did not find process 0 at {job.coordinator}: {problem}"
    )


def farewell(job: Job) -> None:
    """Prepare the end of a process that has failed; call it directly before the process exits.

    If every process fails with the same error, each should report it. The JAX runtime aborts the others as soon as
    process 0 exits, so process 0 waits briefly.
    """
    if _client() is None:  # never joined the job, or has left it in order
        return
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        if job.process_id:
            _client().key_value_set(f"transformer_jax/ends/{job.process_id}", "")
            return
        deadline = time.monotonic() + FAREWELL_SECONDS
        for number in range(1, job.num_processes):
            milliseconds = max(int((deadline - time.monotonic()) * 1000), 1)
            _client().blocking_key_value_get(f"transformer_jax/ends/{number}", milliseconds)
        time.sleep(0.5)  # time for the last process to exit


def is_primary() -> bool:
    """Return whether this is process 0, the only one that writes."""
    return jax.process_index() == 0


def gathered(text: str) -> list[str]:
    """Return the argument of every process, in their order."""
    if jax.process_count() == 1:
        return [text]
    client, key = _client(), _next_key()
    client.key_value_set(f"{key}/{jax.process_index()}", text)
    return [client.blocking_key_value_get(f"{key}/{number}", _WAIT_MS) for number in range(jax.process_count())]


def from_primary(work: Callable[[], Any], what: str) -> Any:
    """Return the result of `work` in process 0, in every process; it travels as JSON, and the others wait for it.

    Args:
      what: names the work in the error of the others.
    Raises: in process 0 the error of `work`; in the others a TrainingError if process 0 failed.
    """
    if jax.process_count() == 1:
        return work()
    key, answer = _next_key(), {"failed": True}
    if not is_primary():
        return _answered(key, what)
    try:
        answer = {"result": work()}
    finally:
        _client().key_value_set(key, json.dumps(answer))
    return answer["result"]


@contextlib.contextmanager
def primary_first(what: str) -> Generator[None]:
    """Run the body in process 0 first, then in the others, which find the files that it has written.

    Args:
      what: names the work in the error of the others.
    Raises: TrainingError in the others if process 0 failed; process 0 reports the reason.
    """
    if jax.process_count() == 1:
        yield
        return
    key, answer = _next_key(), {"failed": True}
    if not is_primary():
        _answered(key, what)
        yield
        return
    try:
        yield
        answer = {"result": None}
    finally:
        _client().key_value_set(key, json.dumps(answer))


def _answered(key: str, what: str) -> Any:
    """Wait for the value that process 0 puts under a key, and return it; raises TrainingError if process 0 failed."""
    answer = parse_json(_client().blocking_key_value_get(key, _WAIT_MS))
    if "failed" in answer:
        raise TrainingError(f"process {jax.process_index()} ends: process 0 failed while {what}")
    return answer["result"]


def _client() -> Any:
    return distributed.global_state.client


def _next_key() -> str:
    return f"transformer_jax/{next(_numbers)}"
