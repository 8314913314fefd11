"""A worker as a process of a job that a cluster runs: started there, and asked to save when the job is to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import transformer_jax

_SAVE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def python_path() -> str:
    """Where a process finds this package, wherever it is started and whether or not it is installed there."""
    root = str(Path(transformer_jax.__file__).parent.parent)
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


def start_worker(
    command: Sequence[str], output: Path, environment: Mapping[str, str], note: str = "", cwd: str | None = None
) -> subprocess.Popen[bytes]:
    """Starts the worker with this process's Python.

    Args:
      command: the sweep's own, whose Python may be elsewhere.
      output: what it says is added there, behind the note.
      environment: variables that it has besides this process's.
      cwd: the folder that relative paths of its config begin in; default this process's.
    """
    with output.open("ab") as file:
        file.write(note.encode())
        file.flush()
        return subprocess.Popen(
            [sys.executable, *command[1:]],
            env={**os.environ, **environment, "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            cwd=cwd,
        )


def run_worker(command: Sequence[str], output: Path) -> int:
    """Runs the worker to its end and returns its exit code; what asks this process to end has the worker save.

    Some clusters send a signal to every process of a job: of those that say that time is up, the worker gets SIGTERM
    alone, which it saves at, and ignores SIGUSR2, which would kill it.
    """
    process: subprocess.Popen[bytes] | None = None
    asked = False

    def save(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        if process is not None:
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, save) for number in _SAVE if number != signal.SIGUSR2}
    before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # which the worker inherits
    try:
        process = start_worker(command, output, {})
        signal.signal(signal.SIGUSR2, save)
        if asked:
            process.send_signal(signal.SIGTERM)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
