"""Executor that runs processes on this machine, one per trial or one per group of trials that train as one program."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer_jax.host.files import open_own_file
from transformer_jax.sweeps.executors.executor import Options, each_alone, worker_command
from transformer_jax.sweeps.executors.subprocesses import python_path
from transformer_jax.sweeps.results import OUTPUT
from transformer_jax.sweeps.trials import Trial, groups

VISIBLE = "CUDA_VISIBLE_DEVICES"


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


class Local:
    """`num_workers` processes at once; by default one per GPU, or one in all if there is no GPU.

    Every process sees one GPU. If there are more processes than GPUs, they share them.
    """

    def __init__(self, options: Options, together: bool) -> None:
        self._options, self._together = options, together
        self._gpus = visible_gpus(os.environ)
        self.num_workers = options.num_workers or max(len(self._gpus), 1)

    def jobs(self, trials: Sequence[tuple[Trial, Path]]) -> list[list[Path]]:
        if not self._together:
            return each_alone(trials)
        folders = {id(trial): folder for trial, folder in trials}
        size = self._options.max_together
        return [
            [folders[id(trial)] for trial in group[first : first + size]]
            for group in groups([trial for trial, _ in trials])
            for first in range(0, len(group), size)
        ]

    def start(self, folders: Sequence[Path], slot: int) -> _Process:
        environment = {**os.environ, "PYTHONPATH": python_path()}
        if self._gpus:
            environment[VISIBLE] = self._gpus[slot % len(self._gpus)]
            sharing = -(-self.num_workers // len(self._gpus))
            if sharing > 1:
                environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / sharing:.2f}")
        with open_own_file(folders[0] / OUTPUT) as output:
            # A separate session: Ctrl-C reaches only the sweep, which then makes all workers save.
            return _Process(
                subprocess.Popen(
                    worker_command(folders, self._options),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )

    def close(self) -> None:
        """There is nothing to release."""


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the visible GPUs; JAX is not used for this, since it would reserve their memory."""
    if environment.get("JAX_PLATFORMS", "").startswith("cpu"):
        return []
    if VISIBLE in environment:
        return [name for name in environment[VISIBLE].split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*")))]
