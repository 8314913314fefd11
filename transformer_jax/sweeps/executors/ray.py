"""Executor that runs Ray actors, one per trial, on an existing cluster or one that it starts on this machine.

Ray finds a node with the cores and GPUs that a trial asks for; the actor there runs the worker as a process. The sweep
restarts workers that have died, also those of a lost node; Ray itself restarts nothing. All nodes must see the work
directory at the same path, which every trial checks first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import ConfigError
from transformer_jax.host import exit_codes
from transformer_jax.host.files import append_line
from transformer_jax.sweeps.executors.executor import Options, each_alone, worker_command
from transformer_jax.sweeps.executors.subprocesses import python_path, start_worker
from transformer_jax.sweeps.results import OUTPUT, SPEC
from transformer_jax.sweeps.trials import Trial

NODE_NOTE = "node "
"""Start of the line in a trial's output that names the node."""
_AUTHENTICATION = (
    "If the cluster has token authentication (Ray's default for new clusters from 2.60 on), give this process the same "
    "token: set RAY_AUTH_MODE=token, and put the token into ~/.ray/auth_token or the file in RAY_AUTH_TOKEN_PATH. If "
    "the cluster has none, set RAY_AUTH_MODE=disabled. Ray and Python must have the same versions as on the cluster."
)
_CONNECT_SECONDS = 10.0
_FORWARDED = ("JAX_", "XLA_", "TF_CPP_", "TRANSFORMER_JAX_")


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """Options of the Ray executor.

    Attributes:
      address: address of a cluster; "auto" for the running cluster of this machine, "local" to start one.
      gpus: GPUs per trial; None for one if the cluster has any, else none.
      cpus: CPU cores per trial.
    """

    address: str = "local"
    gpus: int | None = None
    cpus: int = 1


class Runner:
    """An actor that runs a worker on a node; `start`, `wait` and `stop` may run concurrently."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], folder: str, environment: Mapping[str, str], cwd: str) -> str | None:
        """Start the worker in the sweep's current folder `cwd`; return why this node cannot run it, else None."""
        import ray

        if not (Path(folder) / SPEC).is_file():
            return (
                f"node {socket.gethostname()} does not see {folder}: all nodes must share the file system of --workdir"
            )
        if not Path(cwd).is_dir():
            return f"node {socket.gethostname()} does not see {cwd}, the current folder of the sweep"
        note = f"{NODE_NOTE}{ray.get_runtime_context().get_node_id()} ({socket.gethostname()})\n"
        self._process = start_worker(words, Path(folder) / OUTPUT, environment, note, cwd)
        return None

    def wait(self) -> int:
        """Wait for the worker to end and return its exit code."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Make the worker save a checkpoint and exit."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


class _Job:
    def __init__(self, actor: Any, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._actor, self._output = actor, folder / OUTPUT
        self._started = actor.start.remote(words, str(folder), environment, str(Path.cwd()))
        self._ended: Any = None
        self._stopped = False
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._look()
            if self._code is not None:
                self._kill()  # the actor keeps its cores and GPUs as long as it lives
        return self._code

    def stop(self) -> None:
        import ray

        if self._code is not None or self._stopped:
            return
        self._stopped = True
        if ray.wait([self._started], timeout=0)[0]:
            self._actor.stop.remote()
        else:
            self._kill()  # it still waits for a node, perhaps for a long time

    def _look(self) -> int | None:
        import ray
        import ray.exceptions

        try:
            if self._ended is None:
                if not ray.wait([self._started], timeout=0)[0]:
                    return None
                if (problem := ray.get(self._started)) is not None:
                    append_line(self._output, problem)
                    return exit_codes.USER_ERROR
                self._ended = self._actor.wait.remote()
            return ray.get(self._ended) if ray.wait([self._ended], timeout=0)[0] else None
        except ray.exceptions.RayError as error:
            append_line(self._output, f"its node or its actor has died: {str(error).strip().splitlines()[0]}")
            return exit_codes.KILLED

    def _kill(self) -> None:
        import ray

        ray.kill(self._actor)


class Ray:
    """`num_workers` trials at once; by default as many as fit into the cluster."""

    def __init__(self, options: Options, asked: RayOptions) -> None:
        """Connect to the cluster, or start one.

        Raises: ConfigError if Ray is not installed, no cluster answers, or no node has room for a trial.
        """
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            raise ConfigError(
                f"--executor=ray needs Ray ({error}); install the extra: pip install 'transformer-jax[ray]'"
            ) from error
        self._options = options
        self._environment = {name: value for name, value in os.environ.items() if name.startswith(_FORWARDED)}
        _connect(asked.address)
        total = ray.cluster_resources()
        gpus = asked.gpus if asked.gpus is not None else min(int(total.get("GPU", 0)), 1)
        rooms = [
            min(_fits(node["Resources"].get("CPU", 0.0), asked.cpus), _fits(node["Resources"].get("GPU", 0.0), gpus))
            for node in ray.nodes()
            if node["Alive"]
        ]
        if not any(rooms):
            ray.shutdown()
            raise ConfigError(
                f"--executor=ray: no node has {asked.cpus} cores and {gpus} GPUs for a trial, as --ray_cpus and "
                f"--ray_gpus ask; the cluster has {total.get('CPU', 0):g} and {total.get('GPU', 0):g} in total"
            )
        self.num_workers = options.num_workers or sum(rooms)
        self._actor = ray.remote(Runner).options(
            num_cpus=asked.cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
        )

    def jobs(self, trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
        return each_alone(trials)

    def start(self, folders: Sequence[Path], slot: int) -> _Job:
        folders = [folder.absolute() for folder in folders]
        return _Job(self._actor.remote(), worker_command(folders, self._options), folders[0], self._environment)

    def close(self) -> None:
        import ray

        ray.shutdown()


def _fits(has: float, asked: int) -> int:
    """Return how often `asked` fits into `has`; practically unlimited if nothing is asked for."""
    return int(has // asked) if asked else 10**6


def _connect(address: str) -> None:
    """Connect to a cluster, or start one; raise ConfigError if no cluster answers."""
    import ray
    import ray.exceptions

    host, _, port = address.rpartition(":")
    if host and port.isdecimal():  # checked here, since Ray itself would retry for minutes
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise ConfigError(f"--ray_address={address}: no cluster answers: {error}") from error
    starts: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    try:
        with _own_handlers():
            ray.init(
                address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                namespace="transformer_jax",
                runtime_env={"env_vars": {"PYTHONPATH": python_path()}},
                **starts,
            )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"--ray_address={address}: {reason}\n{'' if 'Could not find' in reason else _AUTHENTICATION}"
        ) from error


@contextlib.contextmanager
def _own_handlers() -> Generator[None]:
    """Keep the signal handlers, in which the trials save: Ray replaces that of SIGTERM by one that exits."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
