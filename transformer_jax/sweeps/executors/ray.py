"""Actors of Ray, one per trial, on a cluster that there is or on one that is started on this machine.

Ray finds a node with the cores and GPUs that a trial asks for; the actor there runs the worker as a process. The sweep
starts again what has died, a lost node's trials too: Ray itself restarts nothing. All nodes see the work directory at
the same place, which every trial begins by checking.
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

from transformer_jax import exit_codes
from transformer_jax.errors import ConfigError
from transformer_jax.sweeps.executors.base import Options, command, each_alone
from transformer_jax.sweeps.executors.subprocesses import python_path, start_worker
from transformer_jax.sweeps.results import OUTPUT, SPEC
from transformer_jax.sweeps.trials import Trial

NODE_NOTE = "node "
"""Begins the line of a trial's output that says where it runs."""
_AUTHENTICATION = (
    "If the cluster has token authentication (Ray's default for new clusters from 2.60 on), give this process the same "
    "token: RAY_AUTH_MODE=token, and the token in ~/.ray/auth_token or in the file that RAY_AUTH_TOKEN_PATH names. If "
    "it has none: RAY_AUTH_MODE=disabled. Ray and Python must have the same versions here and there."
)
_CONNECT_SECONDS = 10.0
_FORWARDED = ("JAX_", "XLA_", "TF_CPP_", "TRANSFORMER_JAX_")


@dataclasses.dataclass(frozen=True)
class RayOptions:
    """address: of a cluster; "auto" for the one of this machine, "local" to start one. gpus, cpus: of a trial; gpus is
    None for one where the cluster has GPUs."""

    address: str = "local"
    gpus: int | None = None
    cpus: int = 1


class Runner:
    """Runs a worker on a node; Ray makes an actor of it, which several calls may be in at once."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], folder: str, environment: Mapping[str, str], cwd: str) -> str | None:
        """Starts the worker in the sweep's folder `cwd`; returns what is wrong with this node, if something is."""
        import ray

        if not (Path(folder) / SPEC).is_file():
            return (
                f"node {socket.gethostname()} does not see {folder}: all nodes must share the file system of --workdir"
            )
        if not Path(cwd).is_dir():
            return f"node {socket.gethostname()} does not see {cwd}, where the sweep runs"
        note = f"{NODE_NOTE}{ray.get_runtime_context().get_node_id()} ({socket.gethostname()})\n"
        self._process = start_worker(words, Path(folder) / OUTPUT, environment, note, cwd)
        return None

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Has it save and end."""
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
                self._kill()  # the actor holds its cores and GPUs as long as it lives
        return self._code

    def stop(self) -> None:
        import ray

        if self._code is not None or self._stopped:
            return
        self._stopped = True
        if ray.wait([self._started], timeout=0)[0]:
            self._actor.stop.remote()
        else:
            self._kill()  # it still waits for a node, and may do so for long

    def _look(self) -> int | None:
        import ray
        import ray.exceptions

        try:
            if self._ended is None:
                if not ray.wait([self._started], timeout=0)[0]:
                    return None
                if (problem := ray.get(self._started)) is not None:
                    self._say(problem)
                    return exit_codes.USER_ERROR
                self._ended = self._actor.wait.remote()
            return ray.get(self._ended) if ray.wait([self._ended], timeout=0)[0] else None
        except ray.exceptions.RayError as error:
            self._say(f"its node or its actor is gone: {str(error).strip().splitlines()[0]}")
            return exit_codes.KILLED

    def _kill(self) -> None:
        import ray

        ray.kill(self._actor)

    def _say(self, message: str) -> None:
        with self._output.open("a", encoding="utf-8") as file:
            file.write(f"{message}\n")


class Ray:
    """`num_workers` trials at once, or as many as the cluster has room for."""

    def __init__(self, options: Options, asked: RayOptions) -> None:
        """Connects to the cluster, or starts one.

        Raises: ConfigError if Ray is not installed, no cluster answers, or no node of it has what a trial asks for.
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
                f"--ray_gpus ask; the cluster has {total.get('CPU', 0):g} and {total.get('GPU', 0):g} in all"
            )
        self.num_workers = options.num_workers or sum(rooms)
        self._actor = ray.remote(Runner).options(
            num_cpus=asked.cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0, max_concurrency=2
        )

    def jobs(self, trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
        return each_alone(trials)

    def start(self, folders: Sequence[Path], slot: int) -> _Job:
        folders = [folder.absolute() for folder in folders]
        return _Job(self._actor.remote(), command(folders, self._options), folders[0], self._environment)

    def close(self) -> None:
        import ray

        ray.shutdown()


def _fits(has: float, asked: int) -> int:
    """How many times; one whose trials ask for none has no limit."""
    return int(has // asked) if asked else 10**6


def _connect(address: str) -> None:
    """Raises ConfigError if no cluster answers there."""
    import ray
    import ray.exceptions

    host, _, port = address.rpartition(":")
    if host and port.isdecimal():  # Ray itself tries for minutes
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            raise ConfigError(f"--ray_address={address}: nothing answers there: {error}") from error
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
    """Ray has SIGTERM end the program; here it has the trials save."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
